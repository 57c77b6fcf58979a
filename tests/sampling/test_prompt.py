"""Prompts, suffixes and infills: sampled tokens follow the source given the rest. Windows cover long sequences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rdlm.data.sources import Source, markov
from rdlm.errors import InputError
from rdlm.likelihood.estimators import path_terms
from rdlm.process.kernel import Chain
from rdlm.process.order import TokenSteps
from rdlm.process.path import masked_path
from rdlm.process.schedule import uniform_in_time
from rdlm.random import RandomStreams
from rdlm.sampling.constraints import windows
from tests.sampling.exact import SCHEDULE, exact_posterior, output_of, p_value, sampler_of

S = SCHEDULE.total
DRAWS = 8000
EXACT = TokenSteps(12, 3, "left_to_right")
"""Of four positions no two are active together: the mixture kernel is exact then, with any number of steps."""


def chain_of_four() -> Source:
    """Return four positions of 3 states, each repeating the one before it with probability 3/4."""
    pair = markov().log_joint
    move = pair - pair.logsumexp(1, keepdim=True)
    return Source("markov-3-four", pair[:, :, None, None] + move[:, :, None] + move)


def filled(source: Source, known: list[int], chain: Chain, clean: bool = False) -> Tensor:
    """Return sequences whose known positions are drawn by the source, and the others by the sampler."""
    generator = torch.Generator().manual_seed(0)
    prompt = source.draw(DRAWS, generator)
    prompt[:, [at for at in range(source.length) if at not in known]] = -1
    sampler = sampler_of(exact_posterior(source, chain.path), chain, clean=clean)
    found = output_of(sampler, prompt, RandomStreams([generator], DRAWS)).token
    assert torch.equal(found[:, known], prompt[:, known])
    return found


def joint_bound(source: Source, chain: Chain, token: Tensor) -> tuple[float, float]:
    """Return the mean bound of whole sequences under the exact model, and its standard error."""
    terms = (
        path_terms(exact_posterior(source, chain.path), chain, token, torch.Generator().manual_seed(1))
        .sum((0, 2))
        .double()
    )
    return float(terms.mean()), float(terms.std()) / math.sqrt(len(token))


@pytest.mark.parametrize("known", [[0, 1], [3], [0, 3], [1]], ids=["prompt", "suffix", "infill", "middle"])
def test_sampled_tokens_follow_the_source_given_the_known_ones(known: list[int]) -> None:
    source = chain_of_four()
    chain = Chain(masked_path(3, S), uniform_in_time(SCHEDULE, EXACT.steps), asynchronous=EXACT)
    token = filled(source, known, chain)
    assert p_value(source, token) > 1e-3
    found, error = joint_bound(source, chain, token[:2000])
    assert found == pytest.approx(source.entropy, abs=4 * error)
    shuffled = torch.stack([token[:2000, i].roll(i) for i in range(4)], 1)
    assert joint_bound(source, chain, shuffled)[0] > source.entropy + 8 * error  # the bound detects it


def test_a_clamped_prompt_conditions_from_the_first_step() -> None:
    source = markov()
    chain = Chain(masked_path(3, S), uniform_in_time(SCHEDULE, 8))
    assert p_value(source, filled(source, [0], chain, clean=True)) > 1e-3


def test_a_prompt_on_its_own_bridge_conditions_late() -> None:
    """A finer grid does not help: positions that move while the prompt is noisy are decided without it."""
    source = markov()
    for steps in (8, 64):
        token = filled(source, [0], Chain(masked_path(3, S), uniform_in_time(SCHEDULE, steps)))
        assert 0.5 < float((token[:, 0] == token[:, 1]).double().mean()) < 0.6  # the source has 3/4


@given(st.integers(1, 300), st.integers(1, 40), st.data())
def test_windows_cover_every_position_once(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.none() | st.integers(1, context))
    covered = 0
    for begin, fresh, end in windows(length, context, stride):
        assert fresh == covered and begin <= fresh < end
        assert end - begin == min(context, end)
        covered = end
    assert covered == length


@pytest.mark.parametrize("stride", [0, 9])
def test_a_stride_fits_its_window(stride: int) -> None:
    with pytest.raises(InputError, match="1 to 8 tokens"):
        list(windows(20, 8, stride))
