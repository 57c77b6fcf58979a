"""Rows that share a network call are answered as if each had been asked alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rdlm.config import RunConfig, TransformerConfig
from rdlm.methods.rdlm import Rdlm
from rdlm.sampling.batching import Forward, Query


def untrained(**network: bool) -> Rdlm:
    torch.manual_seed(0)
    made = Rdlm(RunConfig(model=TransformerConfig(width=32, layers=1, heads=2, time_width=8, **network)), 27)
    for parameter in made.network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    made.network.eval()
    return made


@pytest.fixture(scope="module")
def method() -> Rdlm:
    return untrained()


def query(rows: int, length: int, seed: int) -> Query:
    generator = torch.Generator().manual_seed(seed)
    state = torch.nn.functional.normalize(torch.rand(rows, length, 28, generator=generator), dim=-1)
    return Query(state, 0.03 * torch.rand(rows, length, generator=generator))


def alone(method: Rdlm, query: Query) -> Tensor:
    with torch.no_grad():
        rows = [
            method.denoiser(method.network, query.state[i : i + 1], query.remaining[i : i + 1])
            for i in range(len(query.state))
        ]
    return torch.cat(rows)


@pytest.mark.parametrize("threads", [1, 2])
def test_answers_are_those_of_single_rows(method: Rdlm, threads: int) -> None:
    """Lengths of all kinds, those included at which a shared call would round differently."""
    forward = Forward(method, threads)
    shapes = [(1, 16), (3, 16), (2, 1), (5, 1), (3, 2), (4, 3), (11, 16), (2, 7), (1, 7), (3, 33), (8, 13)]
    for turn in range(10):
        queries = [query(rows, length, 100 * turn + seed) for seed, (rows, length) in enumerate(shapes)]
        for asked, answer in zip(queries, forward(queries), strict=True):
            assert torch.equal(answer, alone(method, asked))
    forward.close()


def test_rows_of_one_length_share_calls(method: Rdlm) -> None:
    forward = Forward(method, 1)
    forward([query(1, 16, seed) for seed in range(8)])
    assert forward.nfe == 1
    forward([query(1, 16, seed) for seed in range(9)])
    assert forward.nfe == 3


def test_a_network_that_mixes_rows_is_asked_for_one_at_a_time(method: Rdlm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial's own test: where company changes a bit of the answer, rows go alone."""
    real = method.denoiser.__call__

    def mixing(network: object, state: Tensor, *rest: object) -> Tensor:
        return real(network, state, *rest) + 1e-6 * (len(state) - 1)

    monkeypatch.setattr(type(method.denoiser), "__call__", lambda self, *given: mixing(*given))
    asked = query(4, 16, 0)
    (answer,) = Forward(method, 1)([asked])
    monkeypatch.undo()
    assert torch.equal(answer, alone(method, asked))


def test_networks_that_remember_begin_with_nothing() -> None:
    method = untrained(self_condition=True)
    asked = query(3, 16, 0)
    forward = Forward(method, 1)
    (first,) = forward([asked])
    assert torch.equal(first, alone(method, asked))
    memory = method.denoiser.previous(first)
    again, fresh = forward([asked._replace(previous=memory), asked])
    assert torch.equal(fresh, first) and not torch.equal(again, first)
