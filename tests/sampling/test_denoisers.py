"""A model that recalls finished chunks says what it would say if it were asked about everything again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rdlm.sampling.course import Look
from rdlm.sampling.walk import Walker
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.config import DenoiserConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.tokenizer import TEXT8_ALPHABET, Characters
from rdlm.methods.rdlm import Rdlm
from rdlm.model.transformer import Cache, Transformer
from rdlm.process.order import TokenSchedule
from rdlm.random import Noise, generator_of
from rdlm.sampling.denoisers import Predictor
from rdlm.sampling.solvers import SOLVERS

LENGTH = 11
LAYOUTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "serial": {"process": {"base": 3, "layout": "serial"}},
    "packed": {"process": {"base": 3}},
    "digits": {"process": {"base": 3}, "denoiser": {"head": "digit"}},
}


def subject(process: dict[str, Any] | None = None, denoiser: dict[str, Any] | None = None, **model: Any) -> Rdlm:
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
    """Return a model that writes letter after letter."""
    method = subject({"window": 0.01, "chunk": 1})
    about = {"kind": "text", "length": LENGTH, "classes": [], "signal": False}
    return LanguageModel("chunked", method, Characters(TEXT8_ALPHABET), method.config, about)


class Run:
    """The tokens of a walk, and of each step the states, the laws and the moving positions' laws."""

    def __init__(
        self, method: Rdlm, window: TokenSchedule, steps: int, solver: str, recalls: bool, rows: int = 1
    ) -> None:
        chain = method.chain(method.process.mixture.paths[0], steps, window=window, length=LENGTH)
        assert chain.token_steps.block > 0
        self.asked: list[int] = []
        method.network.register_forward_pre_hook(lambda _, inputs: self.asked.append(inputs[0].shape[1]))
        self.laws: list[Tensor] = []
        remember = method.network.cache if recalls else None
        assert isinstance(method.network, Transformer)
        walker = Walker(
            Predictor(method, rows=rows, block_mask=method.block_mask(chain)),
            chain,
            SOLVERS[solver],
            method.process.clock,
            callback=self.look,
            remember=remember,
        )
        known = torch.full((3, LENGTH * method.symbols_per_token), -1)
        known[:, : method.symbols_per_token] = 1  # a prompt of one token
        random = Noise([generator_of(i) for i in range(3)], 3)
        begun = walker.begin(known, Noise([generator_of(i) for i in range(3)], 3))
        self.offsets, self.lane = begun.offsets, chain.grid.steps
        self.token = walker.run(known, random).token

    def look(self, look: Look) -> None:
        offsets, step = self.offsets[look.row], look.step[:, None]
        moving = (step >= offsets) & (step < offsets + self.lane)
        self.laws.append(look.log_probs[moving])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("window", "steps"),
    [
        (TokenSchedule(0.01, "strided", 1), 11),
        (TokenSchedule(0.01, "strided", 4), 7),
        (TokenSchedule(0.5, "random", 3), 24),  # samples are at steps and chunks of their own
        (TokenSchedule(1.0, "random", 2), 18),
    ],
)
def test_laws_and_tokens_are_those_of_a_model_that_is_asked_about_all(
    layout: str, window: TokenSchedule, steps: int
) -> None:
    method = subject(**LAYOUTS[layout])
    whole, recalled = (Run(method, window, steps, "mixture", recalls) for recalls in (False, True))
    assert torch.equal(whole.token, recalled.token)
    for a, b in zip(whole.laws, recalled.laws, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_recalls(solver: str) -> None:
    method, window = subject(), TokenSchedule(1.0, "random", 4)
    whole, recalled = (Run(method, window, 12, solver, recalls, rows) for recalls, rows in ((False, 1), (True, 3)))
    assert torch.equal(whole.token, recalled.token)


def test_a_chunk_is_asked_about_alone_and_once_more_when_it_is_finished() -> None:
    method = subject()
    assert set(Run(method, TokenSchedule(0.01, "strided", 1), 11, "mixture", recalls=False).asked) == {LENGTH}
    recalled = Run(method, TokenSchedule(0.01, "strided", 1), 11, "mixture", recalls=True)
    assert set(recalled.asked) == {2}  # with the prompt's token, or the one just finished
    wider = Run(method, TokenSchedule(1.0, "random", 4), 12, "mixture", recalls=True)
    assert set(wider.asked) == {3, 4, 7, 8}  # the last chunk has three


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
        ({"wish": lambda law: law[..., 0].sum(-1)}, LENGTH),
    ],
    ids=["free", "prompt", "cut", "regex", "wish"],
)
def test_what_looks_ahead_is_asked_about_everything(options: dict[str, Any], longest: int) -> None:
    model = blockwise()
    asked: list[int] = []
    model.rdlm.network.register_forward_pre_hook(lambda _, inputs: asked.append(inputs[0].shape[1]))
    model.generate(**options)
    assert max(asked) == longest


def test_a_trace_shows_nothing_where_nothing_was_asked() -> None:
    trace = blockwise().generate(trace=True).trace
    assert trace is not None
    for at, frame in enumerate(trace.frames[:-1]):
        assert [token == "" for token in frame.tokens] == [False] * (at + 1) + [True] * (LENGTH - 1 - at)
