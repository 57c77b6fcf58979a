"""Leaks: where a likelihood has no slack, the probabilities of all sequences add up to one, for any network.

With one call, one call per block, or one call per position in a fixed order, the value of a method is `-log p` itself.
A network that sees a token which it has to predict, by attention, a doubled sequence, a cache, an inference layer or a
condition, gives a sum other than one. The weights are random, and depend on all inputs.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from small import SMALL, method, scramble
from test_base import CASES, TINY
from torch import Tensor

from rdlm.config import RunConfig
from rdlm.data.batch import Batch
from rdlm.likelihood.estimators import path_bound
from rdlm.methods import METHODS
from rdlm.methods.base import Method
from rdlm.model.belief import BeliefNetwork
from rdlm.process.order import ONE_STEP, TokenSchedule

STATES, LENGTH = 3, 3
EVERY = torch.tensor(list(itertools.product(range(STATES), repeat=LENGTH)))
CORPUS = torch.randint(STATES, (40, 50), generator=torch.Generator().manual_seed(5)).cumsum(1) % STATES


def made(name: str, belief: str = "none", self_condition: bool = False, **choices: Any) -> Method:
    """Return a method with random weights and two classes."""
    model = replace(TINY, belief=belief, order=3, states=STATES + 9, self_condition=self_condition)
    config = RunConfig(method=name, model=model)  # type: ignore[arg-type]
    for key, value in choices.items():
        part = next(part for part in (name, "discrete") if hasattr(getattr(config, part, None), key))
        config = replace(config, **{part: replace(getattr(config, part), **{key: value})})
    torch.manual_seed(1)
    found = METHODS[name](config, STATES, 2, 0)
    scramble(found.network, 0.5)
    if isinstance(found.network, BeliefNetwork):
        found.network.belief.fit(lambda: CORPUS)
    found.network.eval()
    return found


def total(method: Method, nfe: int, label: int, copies: int = 1) -> float:
    """Return the sum of `exp(-value)` over all sequences, each with the same random numbers."""
    values = []
    for ids in EVERY:
        batch = Batch(ids.expand(copies, -1), torch.full((copies,), label))
        values.append(method.bound(batch, nfe, torch.Generator().manual_seed(3)).mean())
    law = torch.stack(values).neg().exp()
    assert float(law.max() / law.min()) > 2  # the network distinguishes them
    return float(law.sum())


EXACT = [(name, choices) for name, choices in CASES if METHODS[name].claims_bound and name != "rdlm"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "choices"), EXACT, ids=lambda case: case if isinstance(case, str) else str(case))
def test_the_probabilities_of_one_call_add_up_to_one(name: str, choices: dict[str, Any]) -> None:
    gauss = choices.get("matrix") == "gauss"
    method = made(name, **choices, **({"betas": (1.0, 4.0)} if gauss else {}))  # else tokens do not become uniform
    slack = 1e-3 if choices.get("graph") == "uniform" else 1e-5
    for label in (0, 1):
        assert total(method, 1, label) == pytest.approx(1, abs=slack)


@pytest.mark.parametrize("belief", ["ngram", "hmm"])
@pytest.mark.parametrize("name", ["mdlm", "ardm", "mac", "bert_mouth", "autoregressive"])
def test_an_inference_layer_does_not_see_what_it_predicts(name: str, belief: str) -> None:
    assert total(made(name, belief), 1, 0) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["bfn", "bit_diffusion", "plaid", "diffusion_lm"])
def test_a_self_conditioned_prediction_depends_on_the_state_alone(name: str) -> None:
    assert total(made(name, self_condition=True), 2, 1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("belief", ["none", "ngram", "hmm"])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_calls_of_a_canonical_order_follow_the_chain_rule(stride: int, belief: str) -> None:
    """As many copies as calls: each call is evaluated once."""
    method = made("mac", belief, stride=stride)
    for calls in (2, LENGTH):
        assert total(method, calls, 0, copies=calls) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("block", [1, 2])
def test_blocks_follow_the_chain_rule(block: int) -> None:
    """The last block of two is shorter; every block has one call."""
    assert total(made("block_diffusion", block=block), -(-LENGTH // block), 1) == pytest.approx(1, abs=1e-5)


# -- RDLM ----------------------------------------------------------------------------------------

ORDERS = {
    "synchronous": (TokenSchedule(), 1),
    "random": (TokenSchedule(ONE_STEP, "random"), 2),
    "strided": (TokenSchedule(ONE_STEP, "strided"), LENGTH),
    "left to right": (TokenSchedule(ONE_STEP, "left_to_right"), LENGTH),
    "blocks of 1": (TokenSchedule(ONE_STEP, "strided", 1), LENGTH),
    "blocks of 2": (TokenSchedule(ONE_STEP, "strided", 2), 2),
    "blocks of 2, one by one": (TokenSchedule(ONE_STEP, "strided", 2), 4),
}
NETWORKS: dict[str, dict[str, Any]] = {
    "evidence": {},
    "n-gram": {"model": replace(SMALL, belief="ngram", order=3, states=12)},
    "hidden Markov": {"model": replace(SMALL, belief="hmm", states=5)},
    "belief as input": {"model": replace(SMALL, belief="ngram", order=3, states=12, belief_input=True)},
    "codes": {"codes": "learned", "dimension": 4, "features": "mean"},
    "gaussian": {"bridge": "gaussian"},
    "coordinates": {"evidence": False, "features": "coordinates"},
    "self-conditioning": {"model": replace(SMALL, self_condition=True)},
    "packed tokens": {"base": 2},
    "serial": {"base": 2, "layout": "serial"},
    "timed": {"time": True},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_paths_of_one_step_per_position_follow_the_chain_rule(network: str, order: str) -> None:
    """The offsets are those of one seed, the same for all sequences."""
    schedule, nfe = ORDERS[order]
    states = 4 if "base" in NETWORKS[network] else STATES
    model = method(states, 2, **NETWORKS[network])
    scramble(model.network, 0.5)
    if isinstance(model.network, BeliefNetwork):
        model.network.belief.fit(lambda: CORPUS)
    model.network.eval()

    def nats(ids: Tensor) -> Tensor:
        problem = model.problem(Batch(ids[None], torch.tensor([1])), nfe, token_schedule=schedule)
        return path_bound(problem, 1, torch.Generator().manual_seed(6)).sum()

    law = torch.stack([nats(ids) for ids in torch.tensor(list(itertools.product(range(states), repeat=LENGTH)))])
    law = law.neg().exp()
    assert float(law.sum()) == pytest.approx(1, abs=2e-5)
    assert float(law.max() / law.min()) > 2
