"""OpenAI's legacy completions: request bodies as sampling options, and samples as answers or streams.

Tokens become final in any order. A stream sends a token once all tokens before it are final: for synchronous models
everything at the end, from left to right, or window by window past the model's length, as it is generated. The pieces
of a stream always add up to the whole text.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from rdlm.api.generate import generate, prepare
from rdlm.api.orders import ChosenOrder
from rdlm.config import SamplingOptions
from rdlm.data.tokenizer import Tokenizer
from rdlm.sampling.prompt import encode_prompt, infilled
from rdlm.serve import http_errors
from rdlm.serve.engine import Finished, Job, Progress, RunningSample
from rdlm.serve.http_errors import HttpError, answer
from rdlm.serve.schema import MOST_TOKENS, Body, CompletionBody, sampling_of
from rdlm.serve.service import ServedModel, Service, while_connected

HEADERS: Final = {"X-Accel-Buffering": "no"}
"""Tells proxies not to buffer events."""


def data(content: object, event: str | None = None) -> bytes:
    """Return a server-sent event; text is sent as it is, everything else as JSON on one line."""
    body = content if isinstance(content, str) else json.dumps(content, allow_nan=False, separators=(",", ":"))
    return (f"event: {event}\n" if event else "").encode() + f"data: {body}\n\n".encode()


def pulse() -> bytes:
    """Return a comment, which clients ignore: it shows that the stream is alive."""
    return b": at work\n\n"


UNREADABLE = "\ufffd"
"""The replacement for bytes that are not, or not yet, a whole character."""


class StreamedText:
    """The text of tokens `begin` to `end` of a sample, as far as it is final."""

    def __init__(self, tokenizer: Tokenizer, begin: int, end: int, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.begin, self.end, self.stops = tokenizer, begin, end, stops
        self.ids: list[int] = []
        self.stopped = False
        """Whether a stop sequence was found."""
        self._sent = ""

    def add(self, final: Sequence[int]) -> str:
        """Return the text that becomes final with these tokens."""
        if self.stopped or not final:
            return ""
        self.ids += final
        text = self.tokenizer.decode(self.ids[self.begin : self.end]).rstrip(UNREADABLE)
        cut = self._cut(text)
        if cut is not None:
            return self._send(text[:cut])
        # What may be the beginning of a stop sequence is held back.
        held = max((len(stop) for stop in self.stops), default=1) - 1
        return self._send(text[: max(len(text) - held, 0)])

    def finish(self, tokens: Sequence[int]) -> str:
        """Return the rest of the text, given all tokens."""
        if self.stopped:
            return ""
        text = self.tokenizer.decode(tokens[self.begin : self.end])
        cut = self._cut(text)
        return self._send(text if cut is None else text[:cut])

    @property
    def text(self) -> str:
        """Return the text returned so far."""
        return self._sent

    @property
    def reason(self) -> str:
        """Return why the text ends, in OpenAI's words."""
        return "stop" if self.stopped else "length"

    def _cut(self, text: str) -> int | None:
        """Return where the first stop sequence begins."""
        found = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        self.stopped = bool(found)
        return min(found, default=None)

    def _send(self, text: str) -> str:
        piece = text[len(self._sent) :]
        self._sent += piece
        return piece


COLDEST = 0.01
"""Temperatures below this decode the most likely token, at this temperature."""


@dataclass(frozen=True, eq=False)
class CompletionRequest:
    """One prompt: its sampling options, and which tokens of a sample are the completion."""

    options: SamplingOptions
    prompt: str
    begin: int
    end: int
    """The completion's tokens are `begin` to `end`, between those of the prompt and of the suffix."""


def options_of(served: ServedModel, body: Body) -> SamplingOptions:
    """Return the sampling options of a body; without a seed a new one is drawn."""
    given: dict[str, Any] = {"steps": served.steps, "gap": served.gap, "seed": secrets.randbelow(1 << 31)}
    given |= sampling_of(body)
    if given.get("temperature", 1.0) < COLDEST:
        given |= {"temperature": COLDEST, "greedy": True}
    if "top_p" in given:
        given["top_p"] = None if given["top_p"] == 1 else max(given["top_p"], 1e-9)
    if "label" in given:
        given["label"] = str(given["label"])
    return SamplingOptions(**given)


def order_fields(order: ChosenOrder | None) -> dict[str, object]:
    """Return the fields of an answer that describe the order of generation; None is that of a baseline."""
    if order is None:
        return {"order": None, "block": None, "notices": []}
    return {"order": order.name, "block": order.block, "notices": list(order.notices)}


def refuse_unsupported(body: CompletionBody) -> None:
    """Refuse OpenAI's fields that have no meaning here."""
    if body.logprobs is not None:
        reason = "tokens are not drawn one after the other, so none has a log-probability given those before it; "
        raise HttpError(400, f"logprobs: {reason}POST /v1/score bounds the likelihood of a text", "logprobs")
    if body.best_of not in (None, body.n or 1):
        raise HttpError(400, "best_of: samples are not ranked; ask for n of them", "best_of")
    for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
        if getattr(body, name):
            raise HttpError(400, f"{name}: not supported; leave it out", name)
    if "infill" in sampling_of(body) and (body.prompt or body.suffix or body.max_tokens or body.echo):
        reason = "an infill is a whole text: leave out prompt, suffix, max_tokens and echo"
        raise HttpError(400, f"infill: {reason}", "infill")


def requests_of(served: ServedModel, body: CompletionBody) -> list[CompletionRequest]:
    """Return one request per prompt, checked against the model."""
    options = options_of(served, body)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    return [_request(served, body, options, prompt) for prompt in prompts]


def _request(served: ServedModel, body: CompletionBody, options: SamplingOptions, prompt: str) -> CompletionRequest:
    tokenizer, room = served.model.tokenizer, min(served.model.length, MOST_TOKENS)
    if options.infill is not None:
        return CompletionRequest(options, "", 0, len(infilled(tokenizer, options.infill, served.gap)))
    first = len(encode_prompt(tokenizer, prompt, "prompt"))
    last = len(encode_prompt(tokenizer, body.suffix or "", "suffix"))
    # Past the model's length, windows slide along the text: half that length is what the next one adds.
    count = body.max_tokens or (room - first - last if first + last < room else max(1, room // 2))
    options = replace(options, prompt=prompt, suffix=body.suffix or "", length=first + count + last)
    return CompletionRequest(options, prompt, first, first + count)


PULSE = 0.5
"""Seconds between comments in a stream that has no text to send."""


class Completion:
    """A request for completions under way: its samples, and their texts as far as they are settled."""

    def __init__(self, service: Service, served: ServedModel, body: CompletionBody) -> None:
        refuse_unsupported(body)
        self.service, self.served, self.body, self.count = service, served, body, body.n or 1
        prompts = 1 if isinstance(body.prompt, str) else len(body.prompt)
        if served.engine is None:
            service.check_worker()
        else:
            served.engine.check_room(prompts * self.count)
        stops = body.stop if isinstance(body.stop, list) else [body.stop] if body.stop else []
        self.stops: list[str] = stops
        self.job = Job(service.limits.deadline, wants_progress=bool(body.stream or stops))
        self.samples: list[RunningSample] = []
        self._about = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
        }

    async def respond(self, request: HttpRequest) -> Response:
        """Return the answer, or the stream of it; whatever can be refused is refused before a stream begins."""
        await asyncio.to_thread(self._prepare)
        self._begin()
        pieces = self._pieces()
        if self.body.stream:
            first = await while_connected(request, self.job, anext(pieces))
            return StreamingResponse(self._stream(first, pieces), headers=HEADERS, media_type="text/event-stream")
        return await while_connected(request, self.job, self._whole(pieces))

    def _prepare(self) -> None:
        """Check and plan all samples; on a thread, since a long prompt takes its time."""
        self.requests: list[CompletionRequest] = requests_of(self.served, self.body)
        model = self.served.model
        if self.served.engine is not None:
            self.prepared = [prepare(model, request.options) for request in self.requests]
            self.samples = [
                RunningSample(one, one.options.seed + number, self.job, place * self.count + number)
                for place, one in enumerate(self.prepared)
                for number in range(self.count)
            ]
        self.drafts = [
            StreamedText(model.tokenizer, request.begin, request.end, self.stops)
            for request in self.requests
            for _ in range(self.count)
        ]

    def _begin(self) -> None:
        if self.served.engine is not None:
            self.served.engine.submit(self.samples)
            return
        self.service.work(self.job, self._sample_baseline)

    def _sample_baseline(self) -> None:
        """Sample from a method without an engine, and post each sample as it is made."""
        for place, asked in enumerate(self.requests):
            for number in range(self.count):
                options = replace(asked.options, seed=asked.options.seed + number, gap="_")
                with self.served.interruptible(self.job):
                    made = generate(self.served.model, options)
                finished = Finished(place * self.count + number, made.samples[0].tokens, made.network_calls)
                self.job.post(finished)

    async def _pieces(self) -> AsyncIterator[tuple[int, str, bool]]:
        """Yield the number of a choice, a piece of its text, and whether it is the last."""
        left = set(range(len(self.drafts)))
        try:
            async for event in self.job.events():
                if not isinstance(event, Progress | Finished) or event.index not in left:
                    continue
                draft = self.drafts[event.index]
                piece = draft.add(event.final) if isinstance(event, Progress) else draft.finish(event.tokens)
                done = draft.stopped or isinstance(event, Finished)
                if done:
                    left.discard(event.index)
                    if self.samples:
                        self.samples[event.index].dropped = True  # what comes after a stop is not wanted
                yield event.index, piece, done
                if not left:
                    return
        finally:
            self.job.over = True

    async def _whole(self, pieces: AsyncIterator[tuple[int, str, bool]]) -> Response:
        async for _ in pieces:
            pass
        choices = [
            self._choice(index, self._echo(index) + draft.text, draft.reason) for index, draft in enumerate(self.drafts)
        ]
        return answer({**self._about, "choices": choices, "usage": self._usage(), "rdlm": self._own()})

    async def _stream(
        self, first: tuple[int, str, bool], rest: AsyncIterator[tuple[int, str, bool]]
    ) -> AsyncIterator[bytes]:
        """Yield chunks whose texts add up to the whole, signs of life before them, and the end."""
        try:
            for index in range(len(self.drafts)):
                yield self._chunk(self._choice(index, self._echo(index), None))
            if first[1] or first[2]:
                yield self._piece(*first)
            last = time.monotonic()
            async for index, text, done in rest:
                if text or done:
                    yield self._piece(index, text, done)
                elif time.monotonic() - last < PULSE:
                    continue
                else:
                    yield pulse()
                last = time.monotonic()
            if self.body.stream_options is not None and self.body.stream_options.include_usage:
                yield data({**self._about, "choices": [], "usage": self._usage()})
            yield data("[DONE]")
        except Exception as reason:
            yield data(http_errors.http_error_of(reason).body())
        finally:
            self.job.over = True

    def _piece(self, index: int, text: str, done: bool) -> bytes:
        return self._chunk(self._choice(index, text, self.drafts[index].reason if done else None))

    def _chunk(self, choice: dict[str, object]) -> bytes:
        return data({**self._about, "choices": [choice], "rdlm": self._own()})

    def _choice(self, index: int, text: str, reason: str | None) -> dict[str, object]:
        seed = self.requests[index // self.count].options.seed + index % self.count
        return {"text": text, "index": index, "logprobs": None, "finish_reason": reason, "seed": seed}

    def _echo(self, index: int) -> str:
        return self.requests[index // self.count].prompt if self.body.echo else ""

    def _usage(self) -> dict[str, int]:
        tokenizer = self.served.model.tokenizer
        asked = sum(request.begin for request in self.requests)
        made = sum(len(tokenizer.encode(draft.text)) for draft in self.drafts)
        return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}

    def _own(self) -> dict[str, object]:
        options = self.requests[0].options
        nfe = max(sample.nfe for sample in self.samples) if self.samples else None
        bound = (
            all(one.claims_bound for one in self.prepared) if self.samples else self.served.model.method.claims_bound
        )
        order = self.prepared[0].order if self.samples else None
        return {
            "seed": options.seed,
            "steps": options.steps if order is None else order.nfe,
            **order_fields(order),
            "solver": options.solver,
            "grid": options.grid,
            "network_calls": nfe,
            "claims_bound": bound,
        }
