"""Completions: samples turned into OpenAI's answers, whole or as a stream."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from rdlm.generation import generate
from rdlm.sampler.plan import Plan
from rdlm.serve import error
from rdlm.serve.error import answer
from rdlm.serve.event import HEADERS, data, pulse
from rdlm.serve.host import Host
from rdlm.serve.order import Order, orders, refuse_what_means_nothing
from rdlm.serve.sample import Sample
from rdlm.serve.schema import CompletionBody
from rdlm.serve.service import Service, while_present
from rdlm.serve.text import Draft
from rdlm.serve.ticket import Finished, Progress, Ticket

PULSE = 0.5
"""Seconds between signs of life in a stream that has no text to send."""


class Completion:
    """A request for completions under way: its samples, and their texts as far as they are settled."""

    def __init__(self, service: Service, host: Host, body: CompletionBody) -> None:
        refuse_what_means_nothing(body)
        self.service, self.host, self.body, self.count = service, host, body, body.n or 1
        prompts = 1 if isinstance(body.prompt, str) else len(body.prompt)
        if host.engine is None:
            service.check_worker()
        else:
            host.engine.check_room(prompts * self.count)
        stops = body.stop if isinstance(body.stop, list) else [body.stop] if body.stop else []
        self.stops: list[str] = stops
        self.ticket = Ticket(service.limits.deadline, wants_progress=bool(body.stream or stops))
        self.samples: list[Sample] = []
        self._about = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()),
                       "model": host.name}  # fmt: skip

    async def respond(self, request: HttpRequest) -> Response:
        """Return the answer, or the stream of it; whatever can be refused is refused before a stream begins."""
        await asyncio.to_thread(self._prepare)
        self._begin()
        pieces = self._pieces()
        if self.body.stream:
            first = await while_present(request, self.ticket, anext(pieces))
            return StreamingResponse(self._stream(first, pieces), headers=HEADERS, media_type="text/event-stream")
        return await while_present(request, self.ticket, self._whole(pieces))

    def _prepare(self) -> None:
        """Check and plan all samples; on a thread, since a long prompt takes its time."""
        self.orders: list[Order] = orders(self.host, self.body)
        model = self.host.model
        if self.host.engine is not None:
            self.plans = [Plan.of(model, order.request) for order in self.orders]
            self.samples = [
                Sample(plan, plan.request.seed + number, self.ticket, place * self.count + number)
                for place, plan in enumerate(self.plans) for number in range(self.count)
            ]  # fmt: skip
        self.drafts = [
            Draft(model.tokenizer, order.begin, order.end, self.stops) for order in self.orders
            for _ in range(self.count)
        ]  # fmt: skip

    def _begin(self) -> None:
        if self.host.engine is not None:
            self.host.engine.submit(self.samples)
            return
        self.service.work(self.ticket, self._rival)

    def _rival(self) -> None:
        """Sample from a method without an engine, and post each sample as it is made."""
        for place, order in enumerate(self.orders):
            for number in range(self.count):
                request = replace(order.request, seed=order.request.seed + number, gap="_")
                with self.host.interruptible(self.ticket):
                    made = generate(self.host.model, request)
                finished = Finished(place * self.count + number, made.samples[0].tokens, made.network_calls)
                self.ticket.post(finished)

    async def _pieces(self) -> AsyncIterator[tuple[int, str, bool]]:
        """Yield the number of a choice, a piece of its text, and whether it is the last."""
        left = set(range(len(self.drafts)))
        try:
            async for event in self.ticket.events():
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
            self.ticket.over = True

    async def _whole(self, pieces: AsyncIterator[tuple[int, str, bool]]) -> Response:
        async for _ in pieces:
            pass
        choices = [self._choice(index, self._echo(index) + draft.text, draft.reason)
                   for index, draft in enumerate(self.drafts)]  # fmt: skip
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
            yield data(error.of(reason).body())
        finally:
            self.ticket.over = True

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
        calls = max(sample.calls for sample in self.samples) if self.samples else None
        bound = all(plan.claims_bound for plan in self.plans) if self.samples else self.host.model.method.claims_bound
        return {"seed": request.seed, "steps": request.steps, "solver": request.solver, "grid": request.grid,
                "network_calls": calls, "claims_bound": bound}  # fmt: skip
