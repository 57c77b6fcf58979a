"""`/v1/score` and `/v1/restore`: given texts, whose forward passes are batched by the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.api.orders import ChosenOrder
from rdlm.api.reading_likelihood import ErrorRate, observation_bound, pseudo_log_likelihood
from rdlm.api.restore import channel_alphabet, read_text_through, restore, symbols_of
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
from rdlm.data.channels import confusion_of
from rdlm.data.evidence import Reading, from_json_lines
from rdlm.data.word_evidence import WordReading, has_word_pieces
from rdlm.errors import InputError
from rdlm.likelihood.terms import Posterior
from rdlm.methods.rdlm import Rdlm
from rdlm.model.denoiser import BlockMask
from rdlm.sampling.constraints import encode_prompt
from rdlm.sampling.denoisers import Query
from rdlm.serve.engine import Engine, Job
from rdlm.serve.http_errors import HttpError, answer
from rdlm.serve.schema import MOST_TOKENS, RestoreBody, ScoreBody
from rdlm.serve.service import ServedModel, Service, order_fields

Result = TypeVar("Result")

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

    found = await service.result(job, bounds, request)
    about = {"object": "score", "model": served.name, "steps": nfe, "normalised": changed}
    return answer({**about, **order_fields(order), **found})


# -- restoration -----------------------------------------------------------------------------------------------------

MOST_SYMBOLS = 2048
"""Largest alphabet: a channel is a matrix of this size."""
MOST_NUMBERS = 1 << 22
"""Most positions times symbols of one request."""
PIECE = 4
"""Characters of a text for each position that a model of word pieces may have: pieces of text are longer on average."""


async def restoration(service: Service, served: ServedModel, body: RestoreBody, request: Request) -> Response:
    """Return the posterior of a reading as `model.restore` does, and its likelihood if requested."""
    service.check_worker()
    job = service.new_job()
    changed = await job.run(lambda: served.normalise(body))
    _check(served, body)

    def restored() -> dict[str, object]:
        model = batched(served, job)
        reading, error = _reading(model, body)
        names = ("whole", "passes", "samples", "steps", "order", "seed")
        options: dict[str, Any] = {name: getattr(body, name) for name in names}
        found = restore(model, reading, **options)
        rate, interval = error or (None, None)
        about = {"error": rate, "error_interval": interval}
        return {**found.to_json(), **about, "likelihood": _likelihood(model, reading, body)}

    found = await service.result(job, restored, request)
    return answer({"object": "restoration", "model": served.name, "normalised": changed, **found})


def positions(text: str) -> int:
    """Return the number of positions of a text: quoted characters, alternatives, and other characters; in one pass."""
    count = at = 0
    last = text.rfind("]")
    while at < len(text):
        if text[at] == "[" and at < last:
            at = text.index("]", at) + 1
        else:
            at += 2 if text[at] == "\\" else 1
        count += 1
    return count


def _check(served: ServedModel, body: RestoreBody) -> None:
    """Reject a model without restoration, and a body that is empty or too large."""
    if served.cannot_restore is not None:
        raise HttpError(400, f"{served.name} cannot restore: {served.cannot_restore}", "model", "cannot_restore")
    if (body.text is None) == (body.evidence is None):
        raise HttpError(400, "give either text, with ? for unreadable characters, or evidence per position", "text")
    if body.evidence is not None and body.channel is not None:
        raise HttpError(400, "channel: a channel applies to text; evidence has the probabilities already", "channel")
    if body.evidence is not None and body.normalise:
        raise HttpError(400, "normalise: only a text is normalised, and evidence names symbols", "normalise")
    name, size = ("text" if body.evidence is None else "evidence"), served.model.tokenizer.size
    count = len(body.evidence if body.evidence is not None else body.text or "")
    if body.evidence is None and not body.literal:
        count = positions(body.text or "")
    words = has_word_pieces(served.model.tokenizer)
    if size > MOST_SYMBOLS and not words:
        raise HttpError(400, f"{served.name} has {size} symbols; at most {MOST_SYMBOLS} are restored here", "model")
    most = min(MOST_TOKENS, MOST_NUMBERS // size * (PIECE if words else 1))
    if count > most:
        raise HttpError(400, f"{name}: at most {most} positions, got {count}; send the parts one by one", name)
    if body.likelihood is not None and count > served.model.length:
        most = served.model.length
        raise HttpError(400, f"likelihood: for at most {most} positions, the model's length, got {count}", "likelihood")


def _reading(model: LanguageModel, body: RestoreBody) -> tuple[Reading | WordReading, ErrorRate | None]:
    """Return the evidence of a body and the error rate of its channel; a mistake names the field and the place."""
    channel: str | Tensor | None = None if isinstance(body.channel, dict) else body.channel
    error = body.error if isinstance(body.channel, str) else None
    if isinstance(body.channel, dict):
        channel = _named("channel", partial(confusion_of, body.channel, channel_alphabet(model), "the matrix"))
    if body.evidence is not None:
        lines = "\n".join(map(json.dumps, body.evidence))
        return _named("evidence", lambda: from_json_lines(lines, "".join(symbols_of(model)))), None
    return _named("text", lambda: read_text_through(model, body.text or "", channel, error, body.literal))


def _named(field: str, make: Callable[[], Result]) -> Result:
    """Return what `make` returns; an InputError becomes that of a field."""
    try:
        return make()
    except InputError as mistake:
        raise HttpError(400, f"{field}: {mistake}", field) from None


def _likelihood(model: LanguageModel, reading: Reading | WordReading, body: RestoreBody) -> dict[str, object] | None:
    """Return the likelihood of the reading in nats under the name of what it is."""
    if body.likelihood is None:
        return None
    if body.likelihood == "pseudo":
        value = pseudo_log_likelihood(model, reading.evidence)
        return {"kind": "negative pseudo-log-likelihood", "nats": -value, "claims_bound": False}
    bound = observation_bound(model, reading.evidence, seed=body.seed)
    about = {"kind": "upper bound on the negative log-likelihood", "nats": bound.value, "stderr": bound.stderr}
    return {**about, "low": bound.low, "high": bound.high, "claims_bound": bound.claims_bound}
