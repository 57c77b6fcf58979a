"""Server-sent events: how the service writes a stream.

The text of a sample while it settles: pieces that never change again, and the place where it stops.

A sample's tokens become final in any order, so only those that have nothing open before them can be sent. For a model
whose positions run together that is everything at once, at the end; from left to right, or window by window past the
model's length, the text grows as it is written. The pieces always add up to the whole.

Orders: what a completion's body asks for, as requests to the sampler.

Completions: samples turned into OpenAI's answers, whole or as a stream.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from rdlm.api.generate import generate
from rdlm.api.plan import Plan
from rdlm.api.request import Request
from rdlm.data.tokenizer import Tokenizer
from rdlm.sampling.prompt import encode, infilled
from rdlm.serve import http_errors as error
from rdlm.serve.engine import Sample
from rdlm.serve.http_errors import HttpError, answer
from rdlm.serve.job import Finished, Job, Progress
from rdlm.serve.schema import CompletionBody, Sampling
from rdlm.serve.service import ServedModel, Service, while_connected

HEADERS: Final = {"X-Accel-Buffering": "no"}
"""Asks a proxy to pass events on as they come."""


def data(content: object, event: str | None = None) -> bytes:
    """Return an event; a text goes as it is, everything else as JSON, which has no line breaks of its own."""
    body = content if isinstance(content, str) else json.dumps(content, allow_nan=False, separators=(",", ":"))
    return (f"event: {event}\n" if event else "").encode() + f"data: {body}\n\n".encode()


def pulse() -> bytes:
    """Return a comment, which every client passes over: it only shows that the stream lives."""
    return b": at work\n\n"


UNREADABLE = "\ufffd"
"""What stands for bytes that are no character, or not yet a whole one."""


class Draft:
    """The text of tokens `begin` to `end` of a sample, as far as it is settled."""

    def __init__(self, tokenizer: Tokenizer, begin: int, end: int, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.begin, self.end, self.stops = tokenizer, begin, end, stops
        self.ids: list[int] = []
        self.stopped = False
        """Whether a stop has been met: nothing that comes later matters."""
        self._sent = ""

    def add(self, settled: Sequence[int]) -> str:
        """Return the text that has become certain with some more settled tokens."""
        if self.stopped or not settled:
            return ""
        self.ids += settled
        text = self.tokenizer.decode(self.ids[self.begin : self.end]).rstrip(UNREADABLE)
        cut = self._cut(text)
        if cut is not None:
            return self._send(text[:cut])
        # What may yet turn out to be the beginning of a stop is held back.
        held = max((len(stop) for stop in self.stops), default=1) - 1
        return self._send(text[: max(len(text) - held, 0)])

    def finish(self, tokens: Sequence[int]) -> str:
        """Return the rest of the text, now that all tokens are known."""
        if self.stopped:
            return ""
        text = self.tokenizer.decode(tokens[self.begin : self.end])
        cut = self._cut(text)
        return self._send(text if cut is None else text[:cut])

    @property
    def text(self) -> str:
        """Return all that was returned so far."""
        return self._sent

    @property
    def reason(self) -> str:
        """Return why the text ends, in OpenAI's words."""
        return "stop" if self.stopped else "length"

    def _cut(self, text: str) -> int | None:
        """Return where the first stop begins."""
        found = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        self.stopped = bool(found)
        return min(found, default=None)

    def _send(self, text: str) -> str:
        piece = text[len(self._sent) :]
        self._sent += piece
        return piece


COLDEST = 0.01
"""The temperature that 0 and all below this stand for, beside decoding the likeliest token."""


@dataclass(frozen=True, eq=False)
class Order:
    """One prompt, ready to be sampled: its request, and which tokens of a sample are the completion."""

    request: Request
    prompt: str
    begin: int
    end: int
    """The completion's tokens; before them are the prompt's, after them the suffix's."""


def sampling(host: ServedModel, body: Sampling, seed: int) -> Request:
    """Return the settings that all requests for samples share."""
    cold = body.temperature is not None and body.temperature < COLDEST
    temperature = COLDEST if cold else 1.0 if body.temperature is None else body.temperature
    top_p = None if body.top_p in (None, 1.0) else max(body.top_p or 0.0, 1e-9)
    return Request(
        steps=body.steps or host.steps,
        solver=body.solver or "mixture",
        grid=body.grid or "time",
        seed=seed,
        infill=body.infill,
        gap=host.gap,
        temperature=temperature,
        greedy=cold,
        top_p=top_p,
        label=None if body.label is None else str(body.label),
        guidance=1.0 if body.guidance is None else body.guidance,
        window=body.window,
        order=body.order,
        block=body.block,
    )


def seed_of(body: Sampling) -> int:
    """Return the seed that was asked for, or a new one."""
    return secrets.randbelow(1 << 31) if body.seed is None else body.seed


def refuse_what_means_nothing(body: CompletionBody) -> None:
    """Refuse the fields of OpenAI's that have no honest answer here."""
    if body.logprobs is not None:
        words = "tokens are not drawn one after the other, so none has a log-probability given those before it; "
        raise HttpError(400, f"logprobs: {words}POST /v1/score bounds the likelihood of a text", "logprobs")
    if body.best_of not in (None, body.n or 1):
        raise HttpError(400, "best_of: samples are not ranked; ask for n of them", "best_of")
    for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
        if getattr(body, name):
            raise HttpError(400, f"{name}: not supported; leave it out", name)
    if body.infill is not None and (body.prompt or body.suffix or body.max_tokens or body.echo):
        words = "an infill is a whole text: leave out prompt, suffix, max_tokens and echo"
        raise HttpError(400, f"infill: {words}", "infill")


def orders(host: ServedModel, body: CompletionBody) -> list[Order]:
    """Return the prompts of a request, checked against the model; seeds are those of the first sample of each."""
    settings = sampling(host, body, seed_of(body))
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    return [_order(host, body, settings, prompt) for prompt in prompts]


def _order(host: ServedModel, body: CompletionBody, settings: Request, prompt: str) -> Order:
    tokenizer, room = host.model.tokenizer, host.model.length
    if body.infill is not None:
        return Order(settings, "", 0, len(infilled(tokenizer, body.infill, host.gap)))
    first = len(encode(tokenizer, prompt, "prompt"))
    last = len(encode(tokenizer, body.suffix or "", "suffix"))
    # Past the model's length windows slide along the text: a block of half that length is what comes next.
    count = body.max_tokens or (room - first - last if first + last < room else max(1, room // 2))
    request = replace(settings, prompt=prompt, suffix=body.suffix or "", length=first + count + last)
    return Order(request, prompt, first, first + count)


PULSE = 0.5
"""Seconds between signs of life in a stream that has no text to send."""


class Completion:
    """A request for completions under way: its samples, and their texts as far as they are settled."""

    def __init__(self, service: Service, host: ServedModel, body: CompletionBody) -> None:
        refuse_what_means_nothing(body)
        self.service, self.host, self.body, self.count = service, host, body, body.n or 1
        prompts = 1 if isinstance(body.prompt, str) else len(body.prompt)
        if host.engine is None:
            service.check_worker()
        else:
            host.engine.check_room(prompts * self.count)
        stops = body.stop if isinstance(body.stop, list) else [body.stop] if body.stop else []
        self.stops: list[str] = stops
        self.job = Job(service.limits.deadline, wants_progress=bool(body.stream or stops))
        self.samples: list[Sample] = []
        self._about = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": host.name,
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
        self.orders: list[Order] = orders(self.host, self.body)
        model = self.host.model
        if self.host.engine is not None:
            self.plans = [Plan.of(model, order.request) for order in self.orders]
            self.samples = [
                Sample(plan, plan.request.seed + number, self.job, place * self.count + number)
                for place, plan in enumerate(self.plans)
                for number in range(self.count)
            ]
        self.drafts = [
            Draft(model.tokenizer, order.begin, order.end, self.stops)
            for order in self.orders
            for _ in range(self.count)
        ]

    def _begin(self) -> None:
        if self.host.engine is not None:
            self.host.engine.submit(self.samples)
            return
        self.service.work(self.job, self._rival)

    def _rival(self) -> None:
        """Sample from a method without an engine, and post each sample as it is made."""
        for place, order in enumerate(self.orders):
            for number in range(self.count):
                request = replace(order.request, seed=order.request.seed + number, gap="_")
                with self.host.interruptible(self.job):
                    made = generate(self.host.model, request)
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
                piece = draft.add(event.settled) if isinstance(event, Progress) else draft.finish(event.tokens)
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
            yield data(error.http_error_of(reason).body())
        finally:
            self.job.over = True

    def _piece(self, index: int, text: str, done: bool) -> bytes:
        return self._chunk(self._choice(index, text, self.drafts[index].reason if done else None))

    def _chunk(self, choice: dict[str, object]) -> bytes:
        return data({**self._about, "choices": [choice], "rdlm": self._own()})

    def _choice(self, index: int, text: str, reason: str | None) -> dict[str, object]:
        seed = self.orders[index // self.count].request.seed + index % self.count
        return {"text": text, "index": index, "logprobs": None, "finish_reason": reason, "seed": seed}

    def _echo(self, index: int) -> str:
        return self.orders[index // self.count].prompt if self.body.echo else ""

    def _usage(self) -> dict[str, int]:
        tokenizer = self.host.model.tokenizer
        asked = sum(order.begin for order in self.orders)
        made = sum(len(tokenizer.encode(draft.text)) for draft in self.drafts)
        return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}

    def _own(self) -> dict[str, object]:
        request = self.orders[0].request
        nfe = max(sample.nfe for sample in self.samples) if self.samples else None
        bound = all(plan.claims_bound for plan in self.plans) if self.samples else self.host.model.method.claims_bound
        return {
            "seed": request.seed,
            "steps": request.steps,
            "solver": request.solver,
            "grid": request.grid,
            "network_calls": nfe,
            "claims_bound": bound,
        }
