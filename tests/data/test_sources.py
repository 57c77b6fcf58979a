"""Toy sources: entropies by hand, draws by chi-square."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from rdlm.data.sources import Source, markov, skewed, uniform
from rdlm.errors import InputError


@pytest.mark.parametrize(
    ("source", "entropy"),
    [(uniform(3), math.log(3)), (uniform(27), math.log(27)), (skewed(3), 1.018), (skewed(27), 2.927)],
)
def test_entropy_is_the_documented_one(source: Source, entropy: float) -> None:
    assert source.entropy == pytest.approx(entropy, abs=5e-4)
    assert source.length == 1 and source.log_prior.shape == (1, source.states)


def test_markov_entropy_is_start_plus_transition() -> None:
    start = -sum(p * math.log(p) for p in (1 / 2, 1 / 3, 1 / 6))
    move = -(0.75 * math.log(0.75) + 0.25 * math.log(0.125))
    source = markov()
    assert source.entropy == pytest.approx(start + move, abs=1e-12)
    independent = torch.special.entr(source.log_prior.exp()).sum()
    assert float(independent) - source.entropy == pytest.approx(0.33, abs=5e-3)


@pytest.mark.parametrize("source", [uniform(27), skewed(27), skewed(3), markov()], ids=lambda s: s.name)
def test_draws_follow_the_joint_distribution(source: Source) -> None:
    ids = source.draw(20_000, torch.Generator().manual_seed(1))
    assert ids.shape == (20_000, source.length) and ids.dtype == torch.int64
    code = sum(ids[:, i] * source.states ** (source.length - 1 - i) for i in range(source.length))
    count = torch.bincount(torch.as_tensor(code), minlength=source.states**source.length)
    expected = 20_000 * source.log_joint.exp().flatten()
    assert stats.chisquare(count.numpy(), expected.numpy()).pvalue > 1e-3


def test_same_generator_same_draws() -> None:
    first, second = (skewed(5).draw(50, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)


def test_one_state_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2 states"):
        uniform(1)
