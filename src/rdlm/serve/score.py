"""`/v1/score`: likelihood bounds of texts, with the forward passes batched by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float
from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.api.orders import ChosenOrder
from rdlm.api.score import (
    MIN_DRAWS,
    MIN_TOKENS,
    Effort,
    Encoded,
    Score,
    conditionals,
    effort_for,
    encode_text,
    order_for,
    score_continuations,
    score_encoded,
    score_note,
    split_windows,
)
from rdlm.errors import InputError
from rdlm.likelihood.terms import Posterior
from rdlm.methods.rdlm import Rdlm
from rdlm.model.denoiser import BlockMask
from rdlm.sampling.constraints import encode_prompt
from rdlm.sampling.denoisers import Query
from rdlm.serve.engine import Engine, Job
from rdlm.serve.http_errors import HttpError, answer
from rdlm.serve.schema import ScoreBody
from rdlm.serve.service import ServedModel, Service, order_fields, while_connected

BUDGET = 4096
"""Largest number of rows through the network per text; above it, single steps are estimated in place of whole paths."""


class BatchedRdlm(Rdlm):
    """A method whose forward passes run in the batches of an engine."""

    def __init__(self, method: Rdlm, engine: Engine, job: Job) -> None:
        self.__dict__.update(method.__dict__)
        self._engine, self._job = engine, job

    def posterior(
        self, condition: Tensor | None = None, block_mask: BlockMask | None = None, given: Tensor | None = None
    ) -> Posterior:
        """Return the function `log p(token | states)`, evaluated by the engine; texts have no condition."""

        own = super().posterior(condition, block_mask, given)

        def log_probs(state: Tensor, remaining: Tensor) -> Tensor:
            if block_mask is not None and block_mask.cache is not None:  # rows of a cache are evaluated on this thread
                self._job.check()
                return own(state, remaining)
            query = Query(state, remaining.expand(state.shape[:2]), block_mask=block_mask, given=given)
            return self._engine.evaluate(query, self._job)

        return log_probs


def batched(served: ServedModel, job: Job) -> LanguageModel:
    """Return the model with its forward passes in the engine; baselines are returned unchanged."""
    if served.engine is None:
        return served.model
    return replace(served.model, method=BatchedRdlm(served.model.rdlm, served.engine, job))


def effort_of(served: ServedModel, text: Encoded, nfe: int, order: ChosenOrder | None) -> Effort:
    """Return whole paths if they fit the budget, otherwise as many single steps as fit."""
    own, count = served.model.method.bound_estimator, len(split_windows(text.ids, served.model.length))
    if own is not None:
        return Effort(nfe, "path", MIN_DRAWS) if own == "path" else Effort(nfe, "steps", 16)
    return effort_for(served.model, count, nfe, order=order, budget=BUDGET)


def _encoded(model: LanguageModel, text: str, field: str = "input", least: int = MIN_TOKENS) -> Encoded:
    """Return the tokens of a text; a mistake is that of the field, and states no flags of the command."""
    try:
        encode_prompt(model.tokenizer, text, "text")
        return encode_text(model, text, least=least)
    except InputError as mistake:
        raise HttpError(400, f"{field}: {mistake}".partition("; --unknown")[0], field) from None


def token_log_probs(
    served: ServedModel, job: Job, ids: Sequence[int], order: ChosenOrder | None
) -> Float[Tensor, "length v"]:
    """Return `log p(. | tokens before)` of every token, in the windows in which `rdlm score` takes a text."""
    model, found = batched(served, job), []
    for window in split_windows(torch.tensor(list(ids), dtype=torch.long), served.model.length):
        padded = torch.cat([window, window[-1:]]) if len(window) < MIN_TOKENS else window
        with served.interruptible(job):
            found.append(conditionals(model, padded[None], order)[0, : len(window)])
    return torch.cat(found)


def _scores(model: LanguageModel, text: Encoded, effort: Effort, prompt: str | None) -> list[Score]:
    if prompt is None:
        return score_encoded(model, [text], effort)
    return score_continuations(model, [(_encoded(model, prompt, "prompt", 0), text)], effort)


async def score(service: Service, served: ServedModel, body: ScoreBody, request: Request) -> Response:
    """Return the bound of each text, equal to that of `rdlm score` for the text alone."""
    service.check_worker()
    job = service.new_job()
    changed = await job.run(lambda: served.normalise(body))
    texts = [body.input] if isinstance(body.input, str) else body.input
    steps = body.steps or service.limits.steps
    order = order_for(served.model, body.order or "auto", steps, body.block)
    nfe = order.nfe if order is not None else steps or served.steps

    def bounds() -> dict[str, object]:
        model = batched(served, job)
        rows, encodings, scores = [], [], []
        for index, text in enumerate(texts):
            encoded = _encoded(model, text, least=MIN_TOKENS if body.prompt is None else 1)
            effort = effort_of(served, encoded, nfe, order)
            with served.interruptible(job):
                (found,) = _scores(model, encoded, effort, body.prompt)
            encodings.append(encoded)
            scores.append(found)
            rows.append({"index": index, **found.row(positions=True)})
        return {"note": score_note(model, encodings, scores), "data": rows}

    service.work(job, bounds)
    found = cast("dict[str, object]", await while_connected(request, job, anext(job.events())))
    about = {"object": "score", "model": served.name, "steps": nfe, "normalised": changed}
    return answer({**about, **order_fields(order), **found})
