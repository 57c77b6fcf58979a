"""`/v1/restore`: the posterior of an uncertain reading, with the forward passes batched by the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.api.reading_likelihood import ErrorRate, observation_bound, pseudo_log_likelihood
from rdlm.api.restore import channel_alphabet, read_text_through, restore, symbols_of
from rdlm.data.channels import confusion_of
from rdlm.data.evidence import Reading, from_json_lines
from rdlm.data.word_evidence import WordReading, has_word_pieces
from rdlm.errors import InputError
from rdlm.serve.http_errors import HttpError, answer
from rdlm.serve.schema import MOST_TOKENS, RestoreBody
from rdlm.serve.score import batched
from rdlm.serve.service import ServedModel, Service, while_connected

Result = TypeVar("Result")

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

    service.work(job, restored)
    found = cast("dict[str, object]", await while_connected(request, job, anext(job.events())))
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
