"""Prompts, suffixes and infills of a source of known law: what is filled in has the law that it has given the rest."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from rdlm.sampling.walk import Walker
from scipy import stats
from torch import Tensor

from rdlm.data.sources import Source, markov
from rdlm.likelihood import path_terms
from rdlm.process.grid import uniform_in_time
from rdlm.process.kernel import Chain
from rdlm.process.order import TokenSteps
from rdlm.process.path import joint_posterior, masked_path
from rdlm.process.schedule import Geometric
from rdlm.random import RandomStreams
from rdlm.sampling.solvers import SOLVERS

CLOCK = Geometric()
S = CLOCK.total
DRAWS = 8000
EXACT = TokenSteps(12, 3, "left_to_right")
"""Of four positions none runs with another: the mixture kernel is exact then, in as few steps as one likes."""


def chain_of_four() -> Source:
    """Return four positions of 3 states, each repeating the one before it with probability 3/4."""
    pair = markov().log_joint
    move = pair - pair.logsumexp(1, keepdim=True)
    return Source("markov-3-four", pair[:, :, None, None] + move[:, :, None] + move)


def filled(source: Source, known: list[int], chain: Chain, clean: bool = False) -> Tensor:
    """Return sequences of which the source draws the known positions, and the walk the others."""
    generator = torch.Generator().manual_seed(0)
    given = source.draw(DRAWS, generator)
    given[:, [at for at in range(source.length) if at not in known]] = -1
    posterior = partial(joint_posterior, chain.path, source.log_joint)
    found = (
        Walker(posterior, chain, SOLVERS["mixture"], CLOCK, clean=clean)
        .run(given, RandomStreams([generator], DRAWS))
        .token
    )
    assert torch.equal(found[:, known], given[:, known])
    return found


def p_value(source: Source, token: Tensor) -> float:
    code = sum(token[:, i] * source.states ** (source.length - 1 - i) for i in range(source.length))
    count = torch.bincount(torch.as_tensor(code), minlength=source.states**source.length)
    return float(stats.chisquare(count.numpy(), (len(token) * source.log_joint.exp().flatten()).numpy()).pvalue)


def joint_bound(source: Source, chain: Chain, token: Tensor) -> tuple[float, float]:
    """Return the mean bound of whole sequences under the exact model, and its standard error."""
    posterior = partial(joint_posterior, chain.path, source.log_joint)
    terms = path_terms(posterior, chain, token, torch.Generator().manual_seed(1)).sum((0, 2)).double()
    return float(terms.mean()), float(terms.std()) / math.sqrt(len(token))


@pytest.mark.parametrize("known", [[0, 1], [3], [0, 3], [1]], ids=["prompt", "suffix", "infill", "middle"])
def test_what_is_filled_in_has_its_law_given_the_rest(known: list[int]) -> None:
    source = chain_of_four()
    chain = Chain(masked_path(3, S), uniform_in_time(CLOCK, EXACT.steps), asynchronous=EXACT)
    token = filled(source, known, chain)
    assert p_value(source, token) > 1e-3
    found, error = joint_bound(source, chain, token[:2000])
    assert found == pytest.approx(source.entropy, abs=4 * error)
    shuffled = torch.stack([token[:2000, i].roll(i) for i in range(4)], 1)
    assert joint_bound(source, chain, shuffled)[0] > source.entropy + 8 * error  # the bound would have seen it


def test_a_clean_prompt_is_heard_from_the_first_step() -> None:
    source = markov()
    chain = Chain(masked_path(3, S), uniform_in_time(CLOCK, 8))
    assert p_value(source, filled(source, [0], chain, clean=True)) > 1e-3


def test_a_prompt_on_its_own_bridge_is_heard_late() -> None:
    """A finer grid does not help: what moves while the prompt is still in the noise has decided without it."""
    source = markov()
    for steps in (8, 64):
        token = filled(source, [0], Chain(masked_path(3, S), uniform_in_time(CLOCK, steps)))
        assert 0.5 < float((token[:, 0] == token[:, 1]).double().mean()) < 0.6  # the source has 3/4
