"""Denoisers: the KV cache of finished blocks predicts what whole sequences do; guidance and self-conditioning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.config import DenoiserConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.tokenizer import TEXT8_ALPHABET, Characters
from rdlm.methods.rdlm import Rdlm
from rdlm.model.transformer import Cache, Transformer
from rdlm.process.order import TokenSchedule
from rdlm.random import RandomStreams, generator_of
from rdlm.sampling.denoisers import Batcher, GuidedDenoiser, drive, evaluated
from rdlm.sampling.sampler import Sampler, StepInfo
from rdlm.sampling.solvers import SOLVERS
from tests.sampling.untrained import tiny

LENGTH = 11
LAYOUTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "serial": {"process": {"base": 3, "layout": "serial"}},
    "packed": {"process": {"base": 3}},
    "digits": {"process": {"base": 3}, "denoiser": {"head": "digit"}},
}


def untrained(process: dict[str, Any] | None = None, denoiser: dict[str, Any] | None = None, **model: Any) -> Rdlm:
    network = TransformerConfig(width=16, layers=2, heads=2, time_width=8, **model)
    settings = ProcessConfig(levels=8, pairs=64, **(process or {}))
    config = RunConfig(process=settings, denoiser=DenoiserConfig(**(denoiser or {})), model=network)
    torch.manual_seed(0)
    method = Rdlm(config, 27)
    for parameter in method.network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    method.network.eval()
    return method


def blockwise() -> LanguageModel:
    """Return a model with blocks of one letter."""
    method = untrained({"window": 0.01, "block": 1})
    about = {"kind": "text", "length": LENGTH, "classes": [], "signal": False}
    return LanguageModel("blockwise", method, Characters(TEXT8_ALPHABET), method.config, about)


class Run:
    """The tokens of a sampler, the lengths of its forward passes, and the log-probabilities of active positions."""

    def __init__(
        self, method: Rdlm, token_schedule: TokenSchedule, steps: int, solver: str, cached: bool, rows: int = 1
    ) -> None:
        path = method.process.mixture.paths[0]
        chain = method.chain(path, steps, token_schedule=token_schedule, length=LENGTH)
        assert chain.token_steps.block > 0
        self.lengths: list[int] = []
        self.log_probs: list[Tensor] = []
        assert isinstance(method.network, Transformer)
        hook = method.network.register_forward_pre_hook(lambda _, inputs: self.lengths.append(inputs[0].shape[1]))
        sampler = Sampler(
            GuidedDenoiser(method.denoiser, block_mask=method.block_mask(chain)),
            chain,
            SOLVERS[solver],
            method.process.schedule,
            callback=self.record,
            make_cache=method.network.cache if cached else None,
        )
        symbols = method.layout.symbols_per_token
        known = torch.full((3, LENGTH * symbols), -1)
        known[:, :symbols] = 1  # a prompt of one token
        batcher = Batcher(method.denoiser, method.network, rows=rows)
        self.token = drive(sampler.sample(known, RandomStreams([generator_of(i) for i in range(3)], 3)), batcher).token
        hook.remove()

    def record(self, info: StepInfo) -> None:
        step, offsets = info.before.step, info.before.offsets
        active = (step >= offsets) & (step < offsets + info.sampler.chain.grid.steps)
        self.log_probs.append(info.log_probs[active])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("token_schedule", "steps"),
    [
        (TokenSchedule(0.01, "strided", 1), 11),
        (TokenSchedule(0.01, "strided", 4), 7),
        (TokenSchedule(0.5, "random", 3), 24),  # samples are at steps and blocks of their own
        (TokenSchedule(1.0, "random", 2), 18),
    ],
)
def test_log_probs_and_tokens_are_those_of_whole_sequences(
    layout: str, token_schedule: TokenSchedule, steps: int
) -> None:
    method = untrained(**LAYOUTS[layout])
    whole, cached = (Run(method, token_schedule, steps, "mixture", cached) for cached in (False, True))
    assert torch.equal(whole.token, cached.token)
    for a, b in zip(whole.log_probs, cached.log_probs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_works_with_the_cache(solver: str) -> None:
    method, token_schedule = untrained(), TokenSchedule(1.0, "random", 4)
    whole, cached = (Run(method, token_schedule, 12, solver, cached, rows) for cached, rows in ((False, 1), (True, 3)))
    assert torch.equal(whole.token, cached.token)


def test_a_block_is_evaluated_alone_and_once_more_when_it_is_finished() -> None:
    method = untrained()
    assert set(Run(method, TokenSchedule(0.01, "strided", 1), 11, "mixture", cached=False).lengths) == {LENGTH}
    cached = Run(method, TokenSchedule(0.01, "strided", 1), 11, "mixture", cached=True)
    assert set(cached.lengths) == {2}  # with the prompt's token, or the one just finished
    wider = Run(method, TokenSchedule(1.0, "random", 4), 12, "mixture", cached=True)
    assert set(wider.lengths) == {3, 4, 7, 8}  # the last block has three


def test_a_cache_of_some_rows_is_a_cache_of_its_own() -> None:
    whole = Cache(2)
    for layer in range(2):
        whole.extend(layer, torch.rand(3, 2, 5, 4), torch.rand(3, 2, 5, 4))
    parts = [whole.rows(slice(0, 1)), whole.rows(torch.tensor([1, 2]))]
    for part in parts:
        part.keep(4)
    assert whole.length == 5 and {part.length for part in parts} == {4}
    again = Cache(2).take(parts)
    for before, after in zip([*whole.keys, *whole.values], [*again.keys, *again.values], strict=True):
        assert before is not None and after is not None and torch.equal(before[:, :, :4], after)
    assert Cache(2).take([Cache(2), Cache(2)]).length == 0


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({}, 2),
        ({"prompt": "ab c"}, 5),
        ({"temperature": 0.7, "top_k": 5}, 2),
        ({"regex": "[ab ]*"}, LENGTH),
        ({"classifier": lambda p: p[..., 0].sum(-1)}, LENGTH),
    ],
    ids=["free", "prompt", "truncated", "regex", "classifier"],
)
def test_constraints_on_tokens_ahead_evaluate_whole_sequences(options: dict[str, Any], longest: int) -> None:
    model = blockwise()
    lengths: list[int] = []
    model.rdlm.network.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    model.generate(**options)
    assert max(lengths) == longest


def test_a_trace_shows_no_token_that_was_not_evaluated() -> None:
    trace = blockwise().generate(trace=True).trace
    assert trace is not None
    for at, frame in enumerate(trace.frames[:-1]):
        assert [token == "" for token in frame.tokens] == [False] * (at + 1) + [True] * (LENGTH - 1 - at)


def test_unevaluated_positions_have_uniform_log_probs() -> None:
    log_probs = torch.log_softmax(torch.tensor([[0.0, 0.0, 0.0], [0.0, 1e-6, 0.0]]), -1)
    assert evaluated(log_probs).tolist() == [False, True]


# -- guidance, temperature and self-conditioning -----------------------------------------------------


def denoised(model: LanguageModel, state: Tensor, remaining: Tensor, *options: Any) -> Tensor:
    denoise = GuidedDenoiser(model.rdlm.denoiser, *options)
    return drive(denoise(state, remaining), Batcher(model.rdlm.denoiser, model.rdlm.network, rows=4))


def start_of(model: LanguageModel) -> tuple[Tensor, Tensor]:
    process = model.rdlm.process
    return process.bridge.start.point().repeat(4, 16, 1), torch.full((4, 16), process.schedule.total)


def test_guidance_weighs_the_condition() -> None:
    """Eq. (45): the two halves of one query are what two queries would have been."""
    model = tiny(classes=3)
    state, remaining = start_of(model)
    label = torch.tensor([0, 1, 2, 1])
    absent, present = (denoised(model, state, remaining, at) for at in (torch.full((4,), -1), label))
    for weight in (0.0, 1.0, 2.5):
        found = denoised(model, state, remaining, label, weight)
        expected = torch.log_softmax(absent + weight * (present - absent), -1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_condition_of_one_row_applies_to_all() -> None:
    model = tiny(classes=3)
    state, remaining = start_of(model)
    for guidance in (1.0, 2.5):
        one, each = (denoised(model, state, remaining, torch.full((rows,), 2), guidance) for rows in (1, 4))
        assert torch.equal(one, each)


def test_temperature_divides_what_the_context_predicts_alone() -> None:
    """Eq. (27): log-probabilities are a context's part plus the evidence, which keeps its weight."""
    model = tiny()
    state = torch.nn.functional.normalize(torch.rand(4, 16, 28, generator=torch.Generator().manual_seed(0)), dim=-1)
    remaining = torch.full((4, 16), 0.5 * model.rdlm.process.schedule.total)
    scores = model.rdlm.denoiser.predict(model.rdlm.network, state, remaining)
    assert scores.evidence is not None
    found = denoised(model, state, remaining, None, 1.0, 0.5)
    expected = torch.log_softmax(scores.logits / 0.5 + scores.evidence, -1)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-4)


def test_self_conditioning_passes_the_last_prediction_on() -> None:
    model = tiny(network={"self_condition": True})
    state, remaining = start_of(model)
    denoise = GuidedDenoiser(model.rdlm.denoiser, self_condition=True)
    batcher = Batcher(model.rdlm.denoiser, model.rdlm.network, rows=4)
    asking = denoise(state, remaining)
    first = next(asking)
    assert first.previous is None
    log_probs = batcher.evaluate(first)
    with pytest.raises(StopIteration):
        asking.send(log_probs)
    second = next(denoise(state, remaining))
    assert second.previous is not None and torch.equal(second.previous, model.rdlm.denoiser.previous(log_probs))
    assert not torch.equal(batcher.evaluate(second), log_probs)
