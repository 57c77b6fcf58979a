"""Likeliest whole sequences against enumeration."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from rdlm.api.decoding import beam_search, likeliest_given, most_certain_first
from rdlm.api.score import conditionals, exact_order
from rdlm.config import ObjectiveConfig
from rdlm.methods.rdlm import Rdlm
from rdlm.model.belief import BeliefNetwork, Ngram
from rdlm.serve.engine import Engine, Job
from rdlm.serve.texts import BatchedRdlm
from tests.api.test_restore import LENGTH, SIZE, log_posterior, markov_model

BLOCKWISE = ObjectiveConfig(blockwise=0.5)


def parts(method: Rdlm) -> tuple[BeliefNetwork, Ngram]:
    assert isinstance(method.network, BeliefNetwork) and isinstance(method.network.belief, Ngram)
    return method.network, method.network.belief


def test_a_beam_finds_the_mode_of_a_source_of_known_law() -> None:
    method = markov_model(objective=BLOCKWISE).rdlm
    evidence = 1.5 * torch.randn(40, LENGTH, SIZE, generator=torch.Generator().manual_seed(1))
    joint = [log_posterior(row) for row in evidence]
    best = torch.stack([one.max() for one in joint])

    def reached(found: Tensor) -> Tensor:
        return torch.stack([one[tuple(row)] for one, row in zip(joint, found.tolist(), strict=True)])

    narrow = reached(likeliest_given(method, evidence))
    assert torch.equal(reached(beam_search(method, parts(method)[1], evidence, width=64)), best)
    assert (narrow == best).sum() >= 36
    assert narrow.mean() > reached(most_certain_first(method, evidence, LENGTH)).mean()


@pytest.mark.parametrize("seed", range(3))
def test_a_beam_of_all_prefixes_finds_the_likeliest_sequence_of_the_network(seed: int) -> None:
    """The network differs from its chain, and is evaluated behind a cache."""
    length = 3
    model = markov_model(length, objective=BLOCKWISE)
    network, chain = parts(model.rdlm)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.network.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    evidence = torch.randn(1, length, SIZE, generator=generator)
    every = torch.tensor(list(itertools.product(range(SIZE), repeat=length)))
    log_probs = conditionals(model, every, exact_order(model, length)).gather(-1, every[..., None])[..., 0]
    value = (log_probs + evidence.log_softmax(-1).expand(len(every), -1, -1).gather(-1, every[..., None])[..., 0]).sum(
        1
    )
    assert beam_search(model.rdlm, chain, evidence, width=SIZE**2)[0].tolist() == every[value.argmax()].tolist()


def test_a_network_without_training_behind_clean_blocks_decides_the_most_certain_positions_first() -> None:
    method = markov_model().rdlm
    evidence = torch.randn(4, LENGTH, SIZE, generator=torch.Generator().manual_seed(2))
    assert torch.equal(likeliest_given(method, evidence), most_certain_first(method, evidence, 8))


def test_in_the_service_rows_with_a_cache_are_evaluated_on_the_thread_of_the_request() -> None:
    method = markov_model(objective=BLOCKWISE).rdlm
    evidence = torch.randn(3, LENGTH, SIZE, generator=torch.Generator().manual_seed(4))
    checks: list[int] = []
    job = cast("Job", SimpleNamespace(check=lambda: checks.append(1)))
    served = BatchedRdlm(method, cast("Engine", None), job)
    assert torch.equal(likeliest_given(served, evidence), likeliest_given(method, evidence))
    assert len(checks) == LENGTH
