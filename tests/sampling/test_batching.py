"""Batching: rows that share a batcher pass, of one sampler or many, get the bits that they get alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rdlm.api.generate import PreparedSampling, prepare
from rdlm.api.language_model import LanguageModel
from rdlm.config import DenoiserConfig, ProcessConfig, RunConfig, SamplingOptions, TransformerConfig
from rdlm.methods.rdlm import Rdlm
from rdlm.sampling.denoisers import Batcher, Query, drive
from rdlm.sampling.sampler import Output
from rdlm.sampling.solvers import SOLVERS
from tests.sampling.untrained import tiny


def untrained(process: ProcessConfig | None = None, **network: bool) -> Rdlm:
    torch.manual_seed(0)
    model = TransformerConfig(width=32, layers=1, heads=2, time_width=8, **network)
    made = Rdlm(RunConfig(process=process or ProcessConfig(), model=model), 27)
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


def batcher_of(method: Rdlm, threads: int = 1) -> Batcher:
    return Batcher(method.denoiser, method.network, method.config.model.self_condition, threads)


def alone(method: Rdlm, query: Query) -> Tensor:
    with torch.no_grad():
        rows = [
            method.denoiser(method.network, query.state[i : i + 1], query.remaining[i : i + 1])
            for i in range(len(query.state))
        ]
    return torch.cat(rows)


@pytest.mark.parametrize("threads", [1, 2])
def test_log_probs_are_those_of_single_rows(method: Rdlm, threads: int) -> None:
    """Lengths of all kinds, including those at which a shared pass would round differently."""
    batcher = batcher_of(method, threads)
    shapes = [(1, 16), (3, 16), (2, 1), (5, 1), (3, 2), (4, 3), (11, 16), (2, 7), (1, 7), (3, 33), (8, 13)]
    for turn in range(10):
        queries = [query(rows, length, 100 * turn + seed) for seed, (rows, length) in enumerate(shapes)]
        for one, log_probs in zip(queries, batcher(queries), strict=True):
            assert torch.equal(log_probs, alone(method, one))
    batcher.close()


def test_rows_of_one_length_share_passes(method: Rdlm) -> None:
    batcher = batcher_of(method)
    batcher([query(1, 16, seed) for seed in range(8)])
    assert batcher.nfe == 1
    batcher([query(1, 16, seed) for seed in range(9)])
    assert batcher.nfe == 3


def test_rows_are_evaluated_alone_where_sharing_changes_bits(method: Rdlm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation of the denoiser: other rows change the last bits, and the batcher finds out."""
    real = method.denoiser.__call__

    def mixing(network: object, state: Tensor, *rest: object) -> Tensor:
        return real(network, state, *rest) + 1e-6 * (len(state) - 1)

    monkeypatch.setattr(type(method.denoiser), "__call__", lambda self, *given: mixing(*given))
    one = query(4, 16, 0)
    (log_probs,) = batcher_of(method)([one])
    monkeypatch.undo()
    assert torch.equal(log_probs, alone(method, one))


def test_self_conditioned_networks_begin_without_a_prediction() -> None:
    method = untrained(self_condition=True)
    one = query(3, 16, 0)
    batcher = batcher_of(method)
    (first,) = batcher([one])
    assert torch.equal(first, alone(method, one))
    previous = method.denoiser.previous(first)
    again, fresh = batcher([one._replace(previous=previous), one])
    assert torch.equal(fresh, first) and not torch.equal(again, first)


def test_queries_with_equal_block_masks_share_a_pass() -> None:
    method = untrained(ProcessConfig(window=0.01, block=1))
    batcher = batcher_of(method)
    chain = method.chain(method.process.mixture.paths[0], 16, length=16)
    token = torch.randint(27, (3, 16), generator=torch.Generator().manual_seed(1))
    state, remaining = query(3, 16, 2)[:2]
    masks = (None, method.block_mask(chain), method.block_mask(chain, token))
    queries = [Query(state, remaining, block_mask=mask) for mask in (*masks, *masks)]
    found = batcher(queries)
    assert batcher.nfe == 3
    for mask, first, second in zip(masks, found[:3], found[3:], strict=True):
        rows = [slice(i, i + 1) for i in range(3)]
        apart = [method.posterior(None, mask and mask.part(row))(state[row], remaining[row]) for row in rows]
        assert torch.equal(first, torch.cat(apart)) and torch.equal(second, torch.cat(apart))
    batcher.close()


# -- many samplers -----------------------------------------------------------------------------------


def together(batcher: Batcher, jobs: list[tuple[PreparedSampling, int]], delays: list[int]) -> list[Output]:
    """Return the outputs of samplers that are driven together, as the service does; each starts at its own turn."""
    running = {index: prepared.sample([seed]) for index, (prepared, seed) in enumerate(jobs)}
    queries, outputs, turn = dict[int, Query](), dict[int, Output](), 0
    while len(outputs) < len(jobs):
        for index, delay in enumerate(delays):
            if delay == turn:
                queries[index] = next(running[index])
        for index, log_probs in zip(list(queries), batcher(list(queries.values())), strict=True):
            try:
                queries[index] = running[index].send(log_probs)
            except StopIteration as stop:
                del queries[index]
                outputs[index] = stop.value
        turn += 1
    return [outputs[index] for index in range(len(jobs))]


MODELS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "solvers and lengths": (
        {},
        [{"solver": solver, "length": length} for solver in SOLVERS for length in (16, 7, 1)],
    ),
    "schedules and constraints": (
        {},
        [
            {"prompt": "the "},
            {"window": 0.5, "order": "random", "solver": "heun"},
            {"window": 0.25, "infill": "a___ b__ c___"},
            {"block": 4, "prompt": "ab"},
            {"length": 40, "stride": 8, "steps": 3},
            {"regex": "(ab|c)+", "length": 9, "solver": "corrector"},
            {"temperature": 0.7, "top_k": 5},
            {"greedy": True, "ban": "e"},
        ],
    ),
    "guidance": (
        {"classes": 3},
        [
            {},
            {"label": "1"},
            {"label": "2", "guidance": 2.5},
            {"label": "0", "guidance": 0.5, "solver": "heun", "window": 0.5},
            {"label": "2", "guidance": 3.0, "solver": "corrector", "length": 7},
        ],
    ),
    "self-conditioning": (
        {"network": {"self_condition": True}},
        [{}, {"solver": "heun"}, {"solver": "corrector", "length": 7}, {"window": 0.5}, {"block": 4}, {"steps": 3}],
    ),
    "KV cache": (
        {"window": 0.01, "block": 1},
        [
            {"steps": 16},
            {"steps": 16, "prompt": "abc"},
            {"block": 4, "window": 1.0, "steps": 12, "solver": "corrector"},
            {"block": 3, "window": 0.5, "order": "random", "steps": 24, "solver": "heun", "length": 11},
            {"block": 0, "length": 11},
        ],
    ),
    "digits": (
        {"base": 4, "head": "digit"},
        [{}, {"solver": "heun", "window": 0.5}, {"prompt": "ab", "length": 7}, {"top_p": 0.5, "solver": "euler"}],
    ),
    "mixture of paths": (
        {"path": "constant"},
        [{}, {"solver": "heun"}, {"window": 0.5}, {"prompt": "ab", "length": 9}],
    ),
}


def model_of(name: str) -> LanguageModel:
    settings = dict(MODELS[name][0])
    head = settings.pop("head", "token")
    return tiny(denoiser=DenoiserConfig(head=head), **settings)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_samplers_driven_together_give_the_tokens_of_each_alone(name: str, threads: int) -> None:
    """Bit for bit, whatever the others do: they start, end and evaluate at turns of their own."""
    model = model_of(name)
    model.rdlm.network.eval()
    options = [SamplingOptions(**{"steps": 5} | one) for one in MODELS[name][1]]
    jobs = [(prepare(model, one), seed) for one in options for seed in (3, 4)]
    batcher = batcher_of(model.rdlm, threads)
    found = together(batcher, jobs, [index % 4 for index in range(len(jobs))])
    batcher.close()
    for output, (prepared, seed) in zip(found, jobs, strict=True):
        alone = drive(prepared.sample([seed]), Batcher(model.rdlm.denoiser, model.rdlm.network, rows=1))
        assert torch.equal(output.token, alone.token) and torch.equal(output.nfe, alone.nfe)
        assert output.invalid == alone.invalid


def test_samplers_driven_together_share_passes() -> None:
    model = model_of("solvers and lengths")
    model.rdlm.network.eval()
    prepared = prepare(model, SamplingOptions(steps=5))
    batcher = batcher_of(model.rdlm)
    together(batcher, [(prepared, seed) for seed in range(8)], [0] * 8)
    assert batcher.nfe == 5


def test_a_wrong_row_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation: log-probabilities that go to the neighbouring sampler change its tokens."""
    model = model_of("solvers and lengths")
    model.rdlm.network.eval()
    prepared = prepare(model, SamplingOptions(steps=5))
    right = together(batcher_of(model.rdlm), [(prepared, 3), (prepared, 4)], [0, 0])
    real = Batcher.__call__
    monkeypatch.setattr(Batcher, "__call__", lambda self, queries: real(self, queries)[::-1])
    wrong = together(batcher_of(model.rdlm), [(prepared, 3), (prepared, 4)], [0, 0])
    assert not torch.equal(torch.cat([one.token for one in right]), torch.cat([one.token for one in wrong]))
