"""Posteriors from evidence: Bayes' rule by enumeration, and calibration on states drawn from the chain."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from rdlm.data.sources import Source, markov, skewed
from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import BridgeKind
from rdlm.process.kernel import Chain
from rdlm.process.path import joint_posterior, log_evidence, masked_path, switching_path
from rdlm.process.schedule import Geometric, uniform_in_time

S = Geometric().total


def test_joint_posterior_is_bayes_rule_by_enumeration() -> None:
    source, path = markov(), masked_path(3, S)
    generator = torch.Generator().manual_seed(0)
    state = sphere.uniform((5, 2), 4, generator, torch.float64)
    remaining = torch.tensor([[S, 0.01], [0.02, 0.02], [1e-3, S], [S, S], [0.0, 0.01]], dtype=torch.float64)
    found = joint_posterior(path, source.log_joint, state, remaining).exp()
    evidence = log_evidence(path, state, remaining)
    for case in range(5):
        weight = torch.zeros(3, 3, dtype=torch.float64)
        for a, b in itertools.product(range(3), repeat=2):
            weight[a, b] = source.log_joint[a, b] + evidence[case, 0, a] + evidence[case, 1, b]
        weight = (weight - weight.max()).exp()
        expected = torch.stack([weight.sum(1), weight.sum(0)]) / weight.sum()
        torch.testing.assert_close(found[case], expected, rtol=1e-9, atol=1e-12)


def test_without_evidence_the_prior_is_left() -> None:
    source, path = markov(), masked_path(3, S)
    state = path.bridge.start.point(torch.float64).repeat(2, 2, 1)
    found = joint_posterior(path, source.log_joint, state, torch.full((2, 2), S, dtype=torch.float64))
    torch.testing.assert_close(found, source.log_prior.expand(2, 2, 3), rtol=0, atol=1e-9)


def test_a_finished_neighbour_gives_the_conditional_law() -> None:
    source, path = markov(), masked_path(3, S)
    state = path.bridge.start.point(torch.float64).repeat(1, 2, 1)
    state[0, 0] = torch.eye(4, dtype=torch.float64)[2]
    found = joint_posterior(path, source.log_joint, state, torch.tensor([[0.0, S]], dtype=torch.float64)).exp()
    torch.testing.assert_close(found[0, 0], torch.tensor([0.0, 0, 1], dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0, 1], torch.tensor([1 / 8, 1 / 8, 3 / 4], dtype=torch.float64))


def test_evidence_is_the_same_on_both_sides_of_a_switch() -> None:
    state = sphere.uniform((6,), 4, torch.Generator().manual_seed(1), torch.float64)
    remaining = torch.full((6,), 0.01, dtype=torch.float64)
    path = switching_path(3, S, 0.02)
    torch.testing.assert_close(log_evidence(path, state, remaining), log_evidence(masked_path(3, S), state, remaining))


@pytest.mark.parametrize("source", [skewed(3), skewed(27)], ids=lambda s: s.name)
@pytest.mark.parametrize("level", [20, 30, 36])
def test_posterior_is_calibrated_on_states_of_the_brownian_chain(source: Source, level: int) -> None:
    """Among states whose token has posterior p, a share p has it: mean 0 of (hit - p) f for f = 1, p, log p."""
    path, count = masked_path(source.states, S), 20_000
    chain = Chain(path, uniform_in_time(Geometric(), 48))
    generator = torch.Generator().manual_seed(2)
    law = chain.law(count, generator)
    token = source.draw(count, generator)
    state = law.draw_at_level(token, torch.tensor(level), generator).double()
    remaining = chain.grid.remaining[level].expand(count, 1)
    posterior = joint_posterior(path, source.log_joint, state, remaining)[:, 0]
    hit = torch.nn.functional.one_hot(token[:, 0], source.states)
    for weight in (torch.eye(source.states, dtype=torch.float64)[0].expand_as(posterior), posterior.exp(), posterior):
        score = ((hit - posterior.exp()) * weight).sum(-1)
        assert abs(score.mean().item()) < 4 * score.std().item() / math.sqrt(count)


@pytest.mark.parametrize("kind", ["brownian", "logarithm"])
def test_evidence_beyond_the_range_of_the_expansion_is_refused(kind: BridgeKind) -> None:
    with pytest.raises(InputError, match="evidence need"):
        log_evidence(masked_path(255, S, kind), torch.zeros(1, 256), torch.zeros(1))
