"""Methods in each of their orders: names, calls, and bounds that are those of the method with that order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rdlm import methods
from rdlm.config import DiscreteConfig, ObjectiveConfig, ProcessConfig
from rdlm.evaluate.evaluate import orders_of
from rdlm.process.order import TokenSchedule, named_schedule
from rdlm.random import generator_of
from rdlm.train.run import held_out

LENGTH = 16
NAMED = ["synchronous", "random", "strided"]
SMALL = {"levels": 16, "pairs": 256}


def built(toy, **changes):
    config = replace(toy.config, **changes)
    torch.manual_seed(0)
    return methods.build(config, toy.corpus(config))


@pytest.mark.parametrize(
    ("process", "blockwise", "nfe", "orders"),
    [
        (ProcessConfig(**SMALL), 0.0, 4, NAMED),
        (ProcessConfig(**SMALL), 0.5, 8, [*NAMED, "left-to-right"]),
        (ProcessConfig(**SMALL), 0.5, 1, NAMED),  # a single call has no blocks
        (ProcessConfig(window=1e-3, order="random", **SMALL), 0.0, 4, NAMED),
        (ProcessConfig(window=1e-3, order="random", **SMALL), 0.0, 40, NAMED),
        (ProcessConfig(window=1e-3, **SMALL), 0.0, 40, NAMED),
        (ProcessConfig(window=1e-3, block=1, **SMALL), 0.5, 40, [*NAMED, "left-to-right"]),
        (ProcessConfig(window=1e-3, block=1, **SMALL), 0.5, 8, [*NAMED, "left-to-right"]),
        (ProcessConfig(window=1e-3, block=1, **SMALL), 0.5, 2, [*NAMED, "left-to-right"]),
        (ProcessConfig(window=0.5, **SMALL), 0.0, 8, [*NAMED, "strided, window 0.5"]),
        (ProcessConfig(window=1e-3, order="left-to-right", **SMALL), 0.0, 8, [*NAMED, "left-to-right, window 0.001"]),
        (ProcessConfig(block=4, **SMALL), 0.0, 8, [*NAMED, "synchronous, window 1, block 4"]),
    ],
)
def test_rdlm_has_the_named_orders_and_its_own(process, blockwise, nfe, orders, toy):
    method = built(toy, process=process, objective=ObjectiveConfig(blockwise=blockwise, asynchronous=0.5))
    found = orders_of(method, nfe, LENGTH)
    assert [ordered.order for ordered in found] == orders
    for ordered in found[:3]:
        assert ordered.nfe == (nfe if ordered.order == "synchronous" else min(nfe, LENGTH))
    assert (found[1].method is found[2].method) == (nfe >= LENGTH)  # both are random permutations


def test_the_objective_says_which_orders_are_trained(toy):
    method = built(toy, objective=ObjectiveConfig(asynchronous=1.0))
    assert [ordered.trained for ordered in orders_of(method, 4, LENGTH)] == [False, True, True]
    method = built(toy, objective=ObjectiveConfig(blockwise=0.5))
    assert [ordered.trained for ordered in orders_of(method, 4, LENGTH)] == [True, False, False, True]


def test_the_bound_of_an_order_is_that_of_its_schedule(toy):
    method = built(toy, objective=ObjectiveConfig(blockwise=0.5), process=ProcessConfig(window=0.5, **SMALL))
    batch = held_out(toy.corpus(toy.config), LENGTH, 8, 0)
    found = {ordered.order: ordered for ordered in orders_of(method, 8, LENGTH)}
    values = set()
    for name, ordered in found.items():
        known = (TokenSchedule(0.5, "strided"), 8) if "," in name else named_schedule(name, 8, LENGTH)
        bound = ordered.method.bound(batch, ordered.nfe, generator_of("test", 0))
        assert bound.equal(method.bound(batch, known[1], generator_of("test", 0), token_schedule=known[0]))
        sample = ordered.method.generate(2, LENGTH, ordered.nfe, generator_of("test", 0))
        assert sample.equal(method.generate(2, LENGTH, known[1], generator_of("test", 0), token_schedule=known[0]))
        values.add(float(bound.sum()))
    assert len(values) == len(found) == 5
    assert method.token_schedule == TokenSchedule(0.5, "strided")


@pytest.mark.parametrize("configured", ["random", "strided"])
def test_masked_diffusion_has_both_orders_whatever_is_configured(configured, toy):
    method = built(toy, method="mdlm", discrete=DiscreteConfig(order=configured))
    batch = held_out(toy.corpus(toy.config), LENGTH, 8, 0)
    found = orders_of(method, 4, LENGTH)
    assert [ordered.order for ordered in found] == ["random", "strided"]
    for ordered in found:
        other = built(toy, method="mdlm", discrete=DiscreteConfig(order=ordered.order))
        assert ordered.method.bound(batch, 4, generator_of("test", 0)).equal(
            other.bound(batch, 4, generator_of("test", 0))
        )
        assert ordered.method.network is method.network
    assert method.order == configured


def test_a_cosine_schedule_has_no_strided_order(toy):
    method = built(toy, method="mdlm", discrete=DiscreteConfig(schedule="cosine"))
    assert [ordered.order for ordered in orders_of(method, 4, LENGTH)] == ["random"]


def test_other_methods_have_one_order(toy):
    for name, order, calls in (("autoregressive", "left-to-right", LENGTH), ("udlm", None, 4), ("sedd", None, 4)):
        (ordered,) = orders_of(built(toy, method=name), 4, LENGTH)
        assert (ordered.order, ordered.nfe) == (order, calls)
