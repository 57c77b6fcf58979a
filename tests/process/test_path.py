"""Paths: where a switch falls on a grid, and mixtures that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.process.bridge import Bridge, masked_start, uniform_start
from rdlm.process.path import Mixture, Path, constant_mixture, masked_path, switching_path, uniform_path
from rdlm.process.schedule import Geometric, uniform_in_time

S = Geometric().total


@given(steps=st.integers(1, 50), time=st.floats(0.01, 0.99))
def test_switch_is_the_step_that_passes_its_noise(steps: int, time: float) -> None:
    remaining = float(Geometric().remaining(time))
    path, grid = switching_path(3, S, remaining), uniform_in_time(Geometric(), steps)
    step = path.switch_step(grid)
    assert step is not None and 0 <= step < steps
    assert grid.remaining[step] > remaining >= grid.remaining[step + 1]


def test_a_path_without_second_bridge_never_switches() -> None:
    assert masked_path(3, S).switch_step(uniform_in_time(Geometric(), 5)) is None


def test_named_paths_start_where_they_say() -> None:
    assert masked_path(4, S).bridge.start == masked_start(4)
    assert uniform_path(4, S, "logarithm").bridge == Bridge(uniform_start(4), S, "logarithm")
    switching = switching_path(4, S, S / 2)
    assert switching.bridge.start == uniform_start(4)
    assert switching.second is not None and switching.second.start == masked_start(4)


@pytest.mark.parametrize("remaining", [0.0, S, -1.0, float("nan")])
def test_switch_outside_the_noise_is_refused(remaining: float) -> None:
    with pytest.raises(InputError, match=r"noise at the switch must lie in \(0, 0.0375"):
        switching_path(3, S, remaining)


@pytest.mark.parametrize(
    "second",
    [Bridge(masked_start(4), S), Bridge(masked_start(3), S / 2), Bridge(masked_start(3), S, "logarithm")],
    ids=str,
)
def test_unlike_bridges_do_not_switch(second: Bridge) -> None:
    with pytest.raises(InputError, match="the same vocabulary, total noise and kind"):
        Path(Bridge(uniform_start(3), S), second, S / 3)


def test_constant_mixture_weighs_masked_against_uniform() -> None:
    mixture = constant_mixture(3, S, 0.3)
    assert mixture.weights == pytest.approx((0.3, 0.7))
    assert [path.bridge.start for path in mixture.paths] == [masked_start(3), uniform_start(3)]
    assert all(path.second is None for path in mixture.paths)


@pytest.mark.parametrize("weights", [(0.5, 0.6), (-0.1, 1.1), (0.2, 0.2)])
def test_weights_that_are_no_law_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="non-negative and sum to 1"):
        Mixture((masked_path(3, S), uniform_path(3, S)), weights)


def test_weights_without_paths_are_refused() -> None:
    for paths, weights in (((masked_path(3, S),), (0.5, 0.5)), ((), ())):
        with pytest.raises(InputError, match="one weight per path"):
            Mixture(paths, weights)
