"""The convolution networks' own laws: shift equivariance, how far they see, and what an image's tokens depend on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rdlm.config import Convolution2DConfig, ConvolutionConfig, Interface
from rdlm.errors import InputError
from rdlm.model.cnn import Interpolation, LevelHead, levels_of_ids
from rdlm.model.layers import level_features

CONFIG = ConvolutionConfig(width=8, stacks=2, dilations=(1, 3), kernel=3)
REACH = 2 * (1 + 3)


def test_a_change_reaches_as_far_as_the_dilations_say(awake: Any) -> None:
    network = awake(CONFIG, Interface(5, 4, signal=1))
    x = torch.randn(1, 41, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    other = x.clone()
    other[:, 20] += 3
    changed = (network(other, 0.3) - network(x, 0.3)).abs().amax(-1)[0] > 0
    seen = changed.nonzero()[:, 0]
    assert seen.min() == 20 - REACH and seen.max() == 20 + REACH


def test_inside_the_margins_a_shift_shifts_the_logits(awake: Any) -> None:
    network = awake(CONFIG, Interface(5, 4))
    x = torch.randn(1, 41, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logits, shifted = network(x, 0.3), network(x.roll(2, 1), 0.3)
    inside = slice(REACH + 2, 41 - REACH)
    torch.testing.assert_close(shifted[:, inside], logits.roll(2, 1)[:, inside])


def test_the_paper_network_sees_every_position_from_every_other() -> None:
    config = ConvolutionConfig()
    reach = config.stacks * sum(config.dilations) * (config.kernel // 2)
    assert reach >= 1023
    assert config.stacks * len(config.dilations) == 20


# -- images ---------------------------------------------------------------------------------------

IMAGE = Convolution2DConfig(image=(6, 8, 3), width=8, layers=2, kernel=3)
LEVELS = 17
TOKENS = math.prod(IMAGE.image)


@pytest.fixture
def image_network(awake: Any) -> Callable[..., Any]:
    """Return a function that returns an image network in float64 whose outputs depend on all of its parameters."""
    return lambda **changes: awake(replace(IMAGE, **changes), Interface(LEVELS + 1, LEVELS, classes=2, timed=False))


def some_ids(seed: int = 0, known: float = 0.7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(LEVELS, (2, TOKENS), generator=generator)
    return torch.where(torch.rand(ids.shape, generator=generator) < known, ids, LEVELS)


@pytest.mark.parametrize("changes", [{}, {"patch": 1}, {"causal": True}])
def test_an_image_has_logits_at_every_token_and_every_parameter_a_gradient(
    image_network: Callable[..., Any], changes: dict[str, Any]
) -> None:
    network = image_network(**changes)
    logits = network(some_ids(), 0.0, torch.tensor([0, -1]))
    assert logits.shape == (2, TOKENS, LEVELS)
    logits.square().sum().backward()
    idle = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle


def test_ids_are_the_levels_and_their_mask_is_no_level(image_network: Callable[..., Any], awake: Any) -> None:
    network, ids = image_network(), some_ids()
    certain = torch.nn.functional.one_hot(ids.clamp_max(LEVELS - 1), LEVELS).double().log()
    evidence = torch.where((ids < LEVELS)[..., None], certain, 0.0)
    torch.testing.assert_close(level_features(evidence).float(), levels_of_ids(ids, LEVELS), atol=1e-6, rtol=0)
    torch.testing.assert_close(network(ids, 0.0), network(level_features(evidence), 0.0))


def test_without_causality_every_token_near_it_depends_on_a_level(image_network: Callable[..., Any]) -> None:
    network, ids = image_network(), some_ids(known=1.0)
    other = ids.clone()
    at = (3 * 8 + 4) * 3 + 1
    other[:, at] = (other[:, at] + 5) % LEVELS
    changed = (network(ids, 0.0) - network(other, 0.0)).abs().amax((0, 2)) > 0
    assert changed.all()  # an image of 3 x 4 patches is within the reach of two layers


@pytest.mark.parametrize("at", [0, 1, 2, 23, 24, 70, TOKENS - 1])
def test_causal_convolutions_see_no_later_token(image_network: Callable[..., Any], at: int) -> None:
    network, ids = image_network(causal=True), some_ids(known=1.0)
    other = ids.clone()
    other[:, at] = (other[:, at] + 5) % LEVELS
    changed = (network(ids, 0.0) - network(other, 0.0)).abs().amax((0, 2)) > 0
    assert not changed[:at].any() and changed[at]


@pytest.mark.parametrize("causal", [False, True])
def test_a_level_is_interpolated_from_others_alone(causal: bool) -> None:
    torch.manual_seed(0)
    interpolation = Interpolation(replace(IMAGE, causal=causal)).double()
    level, certainty = torch.rand(1, 6, 8, 3).double() * 2 - 1, torch.rand(1, 6, 8, 3).double()
    numbers = torch.randn(1, 6, 8, 3, interpolation.inputs).double()

    def guess(level: Tensor, certainty: Tensor) -> Tensor:
        mean, weight = interpolation(level, certainty)
        return torch.stack([mean, weight, interpolation.corrected(level, certainty, mean, numbers)])

    other = level.clone(), certainty.clone()
    other[0][0, 3, 4, 1] += 0.3
    other[1][0, 3, 4, 1] *= 0.5
    changed = (guess(*other) - guess(level, certainty)).abs().amax(0)[0] > 0
    assert not changed[3, 4, 1] and changed[3, 4, 2] and changed[3, 5, 1] and changed[4, 4, 1]
    assert bool(changed[3, 4, 0]) == bool(changed[2, 4, 1]) == (not causal)


def test_of_a_plain_area_the_interpolated_level_is_the_level() -> None:
    interpolation = Interpolation(IMAGE)
    level, certainty = torch.full((1, 6, 8, 3), 0.25), (torch.rand(1, 6, 8, 3) < 0.8).float()
    mean, _ = interpolation(level * certainty, certainty)
    corrected = interpolation.corrected(level * certainty, certainty, mean)
    assert (corrected - 0.25).abs().max() < 0.02


def test_logits_of_levels_are_those_of_the_formula_and_so_are_their_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    head = LevelHead(9, 2).double()
    numbers = torch.randn(2, 700, 5, generator=generator, dtype=torch.float64).requires_grad_()
    location = torch.randn(2, 700, generator=generator, dtype=torch.float64).requires_grad_()
    level = torch.arange(9.0)
    centre = 4 * (1 + location + numbers[..., 0])
    distance = (level - centre[..., None]) * (torch.exp(-numbers[..., 1]) * 10 / 9)[..., None]
    student = torch.nn.functional.softplus(numbers[..., 2] + 1)[..., None] * torch.log1p(distance**2)
    expected = numbers[..., 3:] @ head.weight + head.bias - student
    found = head(numbers, location)
    torch.testing.assert_close(found, expected)
    into = (numbers, location, head.weight, head.bias)
    weight = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    pairs = zip(*(torch.autograd.grad((out * weight).sum(), into) for out in (found, expected)), strict=True)
    for own, other in pairs:
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize(
    ("interface", "message"),
    [
        (Interface(17, 17), "denoiser.features level"),
        (Interface(18, 2), "d3pm.head logits"),
        (Interface(18, 17, signal=1), "not on a signal"),
    ],
)
def test_an_image_network_refuses_inputs_that_are_no_levels(awake: Any, interface: Interface, message: str) -> None:
    with pytest.raises(InputError, match=message):
        awake(IMAGE, interface)


def test_an_image_of_another_size_is_refused(image_network: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="have 144 tokens, got 140"):
        image_network()(some_ids()[:, :140], 0.0)


def test_certainty_is_0_for_evidence_of_both_ends_and_between_0_and_1_elsewhere() -> None:
    ends = torch.full((33,), -20.0)
    ends[0] = ends[-1] = 0
    mean, certainty = level_features(ends)
    assert mean.abs() < 1e-6 and certainty == 0
    level = torch.arange(33.0)
    sharper = torch.stack([level_features(-((level - 8) ** 2) / 2 / s**2)[1] for s in (30.0, 10.0, 3.0, 0.1)])
    assert (sharper.diff() > 0).all() and sharper.min() >= 0 and sharper.max() <= 1
