"""Any-order autoregression: exact counts, planned calls, and the canonical order."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from exact_network import known
from scipy.stats import binomtest, chisquare
from test_mdlm import LENGTH, STATES, Table, mean_over_orders, surprise, within

from rdlm.config import DiscreteConfig, RunConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods.ardm import ARDM, BINS, falling_losses, planned_counts
from rdlm.methods.mac import MAC, canonical_ranks
from rdlm.random import Draw

TOKEN = torch.tensor([2, 0, 1])
FALLING = tuple(2.0 - 1.5 * (bin / BINS) ** 0.5 for bin in range(BINS))


def method_of(kind: type, stride: int = 2):
    method = kind(RunConfig(discrete=DiscreteConfig(stride=stride)), STATES)
    method.network = Table(LENGTH)
    return method


def test_one_call_per_position_is_masked_diffusion_with_exact_counts():
    """Both are the mean over orders: the counts of masked diffusion are random, those of ARDM are not."""
    method = method_of(ARDM)
    values = method.bound(Batch(TOKEN.repeat(40_000, 1)), 64, torch.Generator().manual_seed(3))
    assert within(values, mean_over_orders(method, TOKEN))
    assert float(values.std()) / 200 < 0.02


def test_the_bound_of_planned_calls_is_its_sum_over_known_sets():
    method = method_of(ARDM)
    method.core.curve.copy_(torch.tensor(FALLING))
    counts = planned_counts(tuple(method.core.curve.tolist()), 2, LENGTH)
    expected = 0.0
    for begin, end in itertools.pairwise(counts):
        hidden_sets = list(itertools.combinations(range(LENGTH), LENGTH - begin))
        losses = [float(surprise(method, TOKEN, hidden)[list(hidden)].mean()) for hidden in hidden_sets]
        expected += (end - begin) * sum(losses) / len(losses)
    values = method.bound(Batch(TOKEN.repeat(40_000, 1)), 2, torch.Generator().manual_seed(5))
    assert within(values, expected)


@pytest.mark.parametrize(("nfe", "length"), [(1, 4), (3, 7), (4, 9), (6, 6)])
def test_the_plan_is_the_best_of_all(nfe, length):
    loss = falling_losses(torch.tensor(FALLING, dtype=torch.float64), length).tolist()
    plans = [(0, *inner, length) for inner in itertools.combinations(range(1, length), nfe - 1)]
    costs = {plan: sum((b - a) * loss[a] for a, b in itertools.pairwise(plan)) for plan in plans}
    found = planned_counts(FALLING, nfe, length)
    assert costs[found] == pytest.approx(min(costs.values()), abs=1e-12)


def test_plans_decide_few_tokens_first_and_equal_numbers_before_anything_is_measured():
    assert planned_counts((0.0,) * BINS, 4, 100) == (0, 25, 50, 75, 100)
    sizes = [b - a for a, b in itertools.pairwise(planned_counts(FALLING, 8, 100))]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1] / 2


def test_training_measures_the_losses_that_plan_the_calls():
    source = sources.markov(5)
    method = known("ardm", source)
    held_out = Batch(source.draw(4000, torch.Generator().manual_seed(0)))
    method.renew(held_out, Draw(0, 7))
    assert not method.core.curve.any()
    method.renew(held_out, Draw(0, 0))
    first, last = float(method.core.curve[0]), float(method.core.curve[-1])
    marginal = -float((source.log_prior.exp() * source.log_prior).sum(-1).mean())
    assert first == pytest.approx(marginal, rel=0.1) and last < 0.8 * first
    sizes = [b - a for a, b in itertools.pairwise((method.levels(3, 5) * 5).tolist())]
    assert sizes[0] <= sizes[-1] and sum(sizes) == 5


@pytest.mark.parametrize("name", ["ardm", "mac"])
def test_an_exact_network_meets_the_entropy_and_samples_follow_the_source(name):
    source = sources.markov()
    method = known(name, source)
    generator = torch.Generator().manual_seed(7)
    token = source.draw(60_000, generator)
    excess = method.bound(Batch(token), 64, generator) + source.log_joint[tuple(token.T)]
    stderr = float(excess.std()) / math.sqrt(len(excess))
    assert abs(float(excess.mean())) < 4 * stderr < 0.02 * source.entropy
    drawn = method.generate(20_000, 2, 64, generator)
    counts = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=9)
    assert chisquare(counts, 20_000 * source.log_joint.exp().flatten()).pvalue > 1e-3


def test_the_canonical_order_visits_distant_positions():
    assert canonical_ranks(7, 3).argsort().tolist() == [0, 3, 6, 1, 4, 2, 5]
    assert canonical_ranks(3, 25).tolist() == [0, 1, 2]


@pytest.mark.parametrize("nfe", [1, 2, 3, 9])
def test_the_likelihood_in_the_canonical_order_is_exact(nfe):
    """The law of the sampler, written down call by call, against the mean of estimates and against samples."""
    method = method_of(MAC)  # the order is 0, 2, 1
    order, calls = [0, 2, 1], min(nfe, 3)
    counts = [round(3 * call / calls) for call in range(calls + 1)]
    law = torch.zeros(3, 3, 3, dtype=torch.float64)
    for code in itertools.product(range(3), repeat=3):
        for begin, end in itertools.pairwise(counts):
            losses = surprise(method, torch.tensor(code), tuple(order[begin:]))
            law[code] -= float(losses[order[begin:end]].sum())
    law = law.exp()
    assert float(law.sum()) == pytest.approx(1)
    values = method.bound(Batch(TOKEN.repeat(6000, 1)), nfe, torch.Generator().manual_seed(2))
    assert float(values.mean()) == pytest.approx(-math.log(float(law[tuple(TOKEN)])), abs=1e-6)  # 6000 is 1, 2, 3 times
    drawn = method.generate(20_000, 3, nfe, torch.Generator().manual_seed(2))
    codes = (drawn * torch.tensor([9, 3, 1])).sum(-1)
    assert chisquare(torch.bincount(codes, minlength=27), 20_000 * law.flatten()).pvalue > 1e-3


def test_training_sees_canonical_prefixes_of_random_sets():
    method, seen = method_of(MAC), set()
    original = method.masked_cross_entropy

    def watch(token, masked, condition):
        seen.update(map(tuple, masked.tolist()))
        return original(token, masked, condition)

    method.masked_cross_entropy = watch
    batch = Batch(TOKEN.repeat(2000, 1))
    assert float(method.loss(batch, Draw(0, 1))) > 0
    every = set(itertools.product([False, True], repeat=3)) - {(False,) * 3}
    assert seen == every  # every query occurs, and there is always something to predict


def test_longer_prefixes_are_drawn_more_often():
    """Three positions: all are queried with probability `int 2 s s^3 ds`, and none is in the prefix in one case of
    six."""
    method, masks = method_of(MAC), []
    original = method.masked_cross_entropy

    def watch(token, masked, condition):
        masks.append(masked)
        return original(token, masked, condition)

    method.masked_cross_entropy = watch
    method.loss(Batch(TOKEN.repeat(20_000, 1)), Draw(0, 1))
    whole = int(masks[0].all(-1).sum())
    assert binomtest(whole, 20_000, 2 / 5 / 6).pvalue > 1e-3


def test_a_stride_and_a_call_are_needed():
    with pytest.raises(InputError, match=r"discrete\.stride must lie in"):
        DiscreteConfig(stride=0)
    for kind in (ARDM, MAC):
        with pytest.raises(InputError, match="at least one network call"):
            method_of(kind).bound(Batch(TOKEN[None]), 0)
