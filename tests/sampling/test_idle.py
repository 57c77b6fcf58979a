"""Steps in which nothing moves: the network is not asked, and the samples are what they would have been."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rdlm.sampling.walk import Walker
from scipy import stats
from torch import Tensor

from rdlm.api.generate import generate
from rdlm.api.language_model import LanguageModel
from rdlm.data.sources import markov
from rdlm.process.grid import uniform_in_time
from rdlm.process.kernel import Chain
from rdlm.process.order import TokenSteps
from rdlm.process.path import joint_posterior, masked_path
from rdlm.process.schedule import Geometric
from rdlm.random import RandomStreams, generator_of
from rdlm.sampling.solvers import SOLVERS

sys.path.insert(0, str(Path(__file__).parents[1]))

from test_generation import tiny

CLOCK = Geometric()
DRAWS = 20_000


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny()


def walker(token_steps: TokenSteps, solver: str = "mixture", **options: Any) -> tuple[Walker, list[int]]:
    """Return a walker of two dependent positions by their exact posterior, and the rows of each call to it."""
    path, asked = masked_path(3, CLOCK.total), list[int]()
    exact = partial(joint_posterior, path, markov().log_joint)

    def posterior(state: Tensor, remaining: Tensor) -> Tensor:
        asked.append(len(state))
        return exact(state, remaining)

    chain = Chain(path, uniform_in_time(CLOCK, token_steps.steps), asynchronous=token_steps)
    return Walker(posterior, chain, SOLVERS[solver], CLOCK, **options), asked


def test_few_open_tokens_take_few_calls(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    real = type(model.method.denoiser).__call__

    def spy(self: Any, network: Any, state: Tensor, *rest: Any) -> Tensor:
        counted.append(len(state))
        return real(self, network, state, *rest)

    monkeypatch.setattr(type(model.method.denoiser), "__call__", spy)
    for window, calls in ((1 / 64, 10), (2 / 64, 20)):
        made = generate(model, steps=64, window=window, order="left_to_right", infill="__ _____ ___")
        assert made.network_calls == len(counted) == calls
        counted.clear()
    spread = generate(model, num=3, steps=64, window=1 / 64, infill="__ _____ ___", trace=True, rows=1)
    assert spread.network_calls == 10 and len(counted) == 30
    assert spread.trace is not None and len(spread.trace.frames) == 11


@pytest.mark.parametrize("solver", SOLVERS)
def test_calls_are_counted_as_they_are_made(solver: str) -> None:
    for token_steps in (TokenSteps(30, 3), TokenSteps(9, 1), TokenSteps(5, 5)):
        made, asked = walker(token_steps, solver)
        found = made.run(torch.full((6, 2), -1), RandomStreams([generator_of(i) for i in range(6)], 6))
        assert int(found.nfe.sum()) == sum(asked)
        assert int(found.nfe.max()) == len(asked)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("together", [True, False], ids=["one generator", "a generator each"])
def test_the_law_stays(steps: int, together: bool) -> None:
    """Starts that rarely overlap give the source's law; where both decode at once, that of independent tokens."""
    source, token_steps = markov(), TokenSteps(120, steps, "random" if steps == 1 else "left_to_right")
    made, asked = walker(token_steps)
    draws = DRAWS if together else 2000
    generators = [generator_of(0)] if together else [generator_of(i) for i in range(draws)]
    token = made.run(torch.full((draws, 2), -1), RandomStreams(generators, draws)).token
    assert len(asked) == 2 * steps
    joint, (first, second) = source.log_joint.exp(), source.log_prior.exp()
    apart = 1 / token_steps.nfe if steps == 1 else 0.0
    law = (1 - apart) * joint + apart * first[:, None] * second
    count = torch.bincount(3 * token[:, 0] + token[:, 1], minlength=9)
    assert stats.chisquare(count.numpy(), (draws * law.flatten()).numpy()).pvalue > 1e-3


def test_a_model_that_remembers_is_asked_at_every_step() -> None:
    made, asked = walker(TokenSteps(30, 2), tireless=True)
    made.run(torch.full((4, 2), -1), RandomStreams([generator_of(i) for i in range(4)], 4))
    assert asked == [4] * 30
    remembering = tiny(network={"self_condition": True})
    assert generate(remembering, steps=20, window=0.05, infill="a_b").network_calls == 20


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_no_busy_step_is_left_out(data: st.DataObject) -> None:
    """A walk stops where some position moves, and nowhere else."""
    calls = data.draw(st.integers(1, 12))
    token_steps = TokenSteps(calls, data.draw(st.integers(1, calls)))
    made, _ = walker(token_steps)
    known = torch.tensor([data.draw(st.lists(st.integers(-1, 2), min_size=2, max_size=2))])
    walk = made.begin(known, RandomStreams([generator_of(data.draw(st.integers(0, 99)))], 1))
    busy = [s for s in range(calls) if bool(((walk.offsets <= s) & (s < walk.offsets + token_steps.steps)).any())]
    assert made.stops(walk) == busy


@pytest.mark.parametrize("solver", ["mixture", "corrector"])
def test_company_does_not_matter_where_samples_take_different_steps(model: LanguageModel, solver: str) -> None:
    """Several windows and a language, in which each sample has its own place."""
    wanted: dict[str, Any] = {
        "steps": 10,
        "window": 0.2,
        "order": "random",
        "length": 24,
        "regex": "(a|bc)*d+",
        "solver": solver,
        "block": 8,
    }
    whole = generate(model, num=4, prompt="a" * 11, **wanted)
    assert len({sample.text for sample in whole.samples}) > 1
    assert generate(model, num=4, batch=3, prompt="a" * 11, **wanted).samples == whole.samples
    assert generate(model, num=2, seed=2, prompt="a" * 11, **wanted).samples == whole.samples[2:]


def test_a_condition_reaches_those_that_are_left() -> None:
    model = tiny(classes=3)
    wanted: dict[str, Any] = {"steps": 20, "window": 0.05, "order": "random", "label": "1", "guidance": 2.0}
    whole = generate(model, num=4, rows=4, **wanted)
    assert whole.network_calls < 20
    assert whole.samples != generate(model, num=4, rows=4, **{**wanted, "label": "2"}).samples
