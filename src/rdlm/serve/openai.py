"""OpenAI's legacy completions: request bodies as sampling options, and samples as responses or streams.

Tokens become final in any order. A stream sends a token once all tokens before it are final: for synchronous models
everything at the end, from left to right, or window by window past the model's length, as it is generated. The pieces
of a stream always add up to the whole text.
"""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import torch
from jaxtyping import Float
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from torch import Tensor

from rdlm.api.generate import generate, prepare
from rdlm.api.language_model import LanguageModel
from rdlm.api.orders import ChosenOrder
from rdlm.api.score import exact_order, not_exact_because, order_for
from rdlm.config import SamplingOptions
from rdlm.data.tokenizer import Tokenizer
from rdlm.sampling.constraints import encode_prompt, infilled
from rdlm.serve import http_errors
from rdlm.serve.engine import Finished, Job, Progress, RunningSample
from rdlm.serve.http_errors import HttpError, answer
from rdlm.serve.schema import MOST_TOKENS, Body, CompletionBody, sampling_of
from rdlm.serve.service import ServedModel, Service, order_fields, while_connected
from rdlm.serve.texts import token_log_probs

HEADERS: Final = {"X-Accel-Buffering": "no"}
"""Tells proxies not to buffer events."""


def data(content: object, event: str | None = None) -> bytes:
    """Return a server-sent event; text is sent as it is, everything else as JSON on one line."""
    body = content if isinstance(content, str) else json.dumps(content, allow_nan=False, separators=(",", ":"))
    return (f"event: {event}\n" if event else "").encode() + f"data: {body}\n\n".encode()


PULSE, PULSE_SECONDS = b": at work\n\n", 0.5
"""A comment, which clients ignore, and the seconds between comments in a stream that has no text to send."""

UNREADABLE = "\ufffd"
"""The replacement for bytes that are not, or not yet, a whole character."""


class StreamedText:
    """The text of tokens `begin` to `end` of a sample, as far as it is final."""

    def __init__(self, tokenizer: Tokenizer, begin: int, end: int, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.begin, self.end, self.stops = tokenizer, begin, end, stops
        self.ids: list[int] = []
        self.stopped = False
        """Whether a stop sequence was found."""
        self.text = ""
        """The text returned so far."""

    def add(self, final: Sequence[int]) -> str:
        """Return the text that becomes final with these tokens."""
        if self.stopped or not final:
            return ""
        self.ids += final
        if len(self.ids) >= self.end:
            return self.finish(self.ids)
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
        self.ids = list(tokens)
        text = self.tokenizer.decode(tokens[self.begin : self.end])
        return self._send(text[: self._cut(text)])

    @property
    def reason(self) -> str:
        """The reason for the end of the text, as in OpenAI's API."""
        return "stop" if self.stopped else "length"

    def _cut(self, text: str) -> int | None:
        """Return where the first stop sequence begins."""
        found = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        self.stopped = bool(found)
        return min(found, default=None)

    def _send(self, text: str) -> str:
        piece = text[len(self.text) :]
        self.text += piece
        return piece


COLDEST = 0.01
"""Temperatures below this decode the most likely token, at this temperature."""


@dataclass(frozen=True, eq=False)
class CompletionRequest:
    """One prompt: its sampling options, and which tokens of a sample are the completion."""

    options: SamplingOptions
    prompt: str
    ids: tuple[int, ...]
    """The tokens of the prompt."""
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


def refuse_unsupported(body: CompletionBody) -> None:
    """Reject fields of OpenAI's API that are not supported."""
    if not {"prompt", "suffix", "infill", "label"} & body.model_fields_set:
        raise HttpError(400, 'prompt: give a text, "" for a sample without a prompt, or an infill', "prompt")
    given = sampling_of(body)
    others = [name for name in ("suffix", "stream") if getattr(body, name)]
    others += [name for name in ("infill", "label") if name in given]
    if body.logprobs is not None and others:
        reason = "log-probabilities are those of finished tokens given the text before them"
        raise HttpError(400, f"logprobs: {reason}; leave out {', '.join(others)}", "logprobs")
    if body.best_of not in (None, body.n or 1):
        raise HttpError(400, "best_of: samples are not ranked; ask for n of them", "best_of")
    for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
        if getattr(body, name):
            raise HttpError(400, f"{name}: not supported; leave it out", name)
    if "infill" in given and (body.prompt or body.suffix or body.max_tokens or body.echo):
        reason = "an infill is a whole text: leave out prompt, suffix, max_tokens and echo"
        raise HttpError(400, f"infill: {reason}", "infill")


def prompts_of(body: CompletionBody) -> list[str | list[int]]:
    """Return the prompts of a body, each a text or token ids."""
    prompt: Any = body.prompt
    single = isinstance(prompt, str) or not prompt or isinstance(prompt[0], int)
    return [prompt] if single else list(prompt)


def _ids(served: ServedModel, prompt: str | list[int], sampled: bool) -> tuple[str, tuple[int, ...]]:
    """Return the text of a prompt and its tokens; a sampler takes the text, so ids must be those of their text."""
    tokenizer = served.model.tokenizer
    if isinstance(prompt, str):
        return prompt, tuple(encode_prompt(tokenizer, prompt, "prompt").tolist())
    wrong = [(at, token) for at, token in enumerate(prompt) if token >= tokenizer.size]
    if wrong:
        at, token = wrong[0]
        raise HttpError(400, f"prompt: token {token} at {at} is none of the {tokenizer.size} tokens", "prompt")
    text = tokenizer.decode(prompt)
    if sampled and tokenizer.encode(text).tolist() != prompt:
        raise HttpError(400, "prompt: these ids are not the tokens of their own text; send the text", "prompt")
    return text, tuple(prompt)


def _request(
    served: ServedModel, body: CompletionBody, options: SamplingOptions, given: str | list[int]
) -> CompletionRequest:
    tokenizer, room = served.model.tokenizer, min(served.model.length, MOST_TOKENS)
    if options.infill is not None:
        return CompletionRequest(options, "", (), 0, len(infilled(tokenizer, options.infill, served.gap)))
    prompt, ids = _ids(served, given, body.max_tokens != 0)
    first, last = len(ids), len(encode_prompt(tokenizer, body.suffix or "", "suffix"))
    if body.max_tokens == 0:
        return CompletionRequest(options, prompt, ids, first, first)
    # Past the model's length, windows slide along the text: half that length is what the next one adds.
    half = max(1, room // 2)
    count = body.max_tokens or (room - first - last if first + last < room else half)
    length = first + count + last
    if not last:  # the same windows for any number of tokens: fewer of them are the beginning of the same text
        length = room + -(-max(0, length - room) // half) * half
    options = replace(options, prompt=prompt, suffix=body.suffix or "", length=length)
    return CompletionRequest(options, prompt, ids, first, first + count)


def _may_be_exact(body: CompletionBody) -> bool:
    """Return whether a body leaves the number of calls open, in an order that can have log-probabilities."""
    given = sampling_of(body)
    return given.get("order", "auto") in ("auto", "left-to-right") and not given.keys() & {"steps", "block", "window"}


def _with_exact_order(model: LanguageModel, body: CompletionBody, request: CompletionRequest) -> CompletionRequest:
    """Return a request whose order has log-probabilities, if the body allows it and the model was trained for one."""
    if not _may_be_exact(body):
        return request
    found = exact_order(model, min(model.length, request.options.length or model.length))
    if found is None:
        return request
    return replace(request, options=replace(request.options, order=found.order, steps=found.nfe, block=found.block))


def _order(served: ServedModel, body: CompletionBody) -> ChosenOrder | None:
    """Return the order in which the tokens of a prompt are scored."""
    model, given = served.model, sampling_of(body)
    if served.engine is not None and _may_be_exact(body):
        found = exact_order(model, model.length)
        if found is not None:
            return found
    return order_for(model, given.get("order", "auto"), given.get("steps", served.steps), given.get("block"))


def _check_exact(served: ServedModel, request: CompletionRequest, order: ChosenOrder | None) -> None:
    """Reject log-probabilities if tokens have none given those before them."""
    model, sampled = served.model, request.end > request.begin
    if sampled and (request.options.length or 0) > model.length:
        reason = f"a completion past the model's {model.length} tokens is sampled in windows that overlap"
    else:
        length = min(model.length, max(2, (request.options.length or 0) if sampled else len(request.ids)))
        reason = not_exact_because(model, order, length) or ""
    if reason:
        advice = "order 'left-to-right' with one call per token has them; POST /v1/score bounds a text or continuation"
        raise HttpError(400, f"logprobs: {reason}. {advice}", "logprobs")


def kept_tokens(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> tuple[int, ...]:
    """Return the tokens of a completion that begin before the end of its text, which a stop may have cut."""
    at, kept = 0, []
    for token in ids:
        if at >= len(text):
            break
        kept.append(token)
        at += len(tokenizer.decode([token]))
    return tuple(kept)


LEAST_LOG_PROB: Final = -9999.0
"""In place of minus infinity, as in OpenAI's answers."""


def log_probs_as_openai(
    tokenizer: Tokenizer, ids: Sequence[int], law: Float[Tensor, "n v"], begin: int, top: int
) -> dict[str, object]:
    """Return tokens, their log-probabilities, the likeliest ones and offsets in the text, as OpenAI's completions."""
    law = law.clamp_min(LEAST_LOG_PROB)
    own = law.gather(-1, torch.tensor(list(ids), dtype=torch.long)[:, None])[:, 0].tolist() if ids else []
    tokens = [tokenizer.decode([token]) for token in ids]
    offsets = [begin, *(begin + end for end in itertools.accumulate(map(len, tokens)))][: len(tokens)]
    likeliest = None
    if top:
        best = law.topk(min(top, law.shape[1]), -1)
        pairs = torch.stack([best.values, best.indices.to(law)], -1).flip(1).tolist()  # the likeliest one last
        likeliest = [{tokenizer.decode([int(token)]): value for value, token in row} for row in pairs]
    return {"tokens": tokens, "token_logprobs": own, "top_logprobs": likeliest, "text_offset": offsets}


@dataclass(frozen=True, eq=False)
class Choice:
    """A completion under way, and its text as far as it is settled."""

    index: int
    request: CompletionRequest
    seed: int
    order: ChosenOrder | None
    draft: StreamedText
    sample: RunningSample | None
    """None for a prompt that is only scored, and for samples of a method without an engine."""

    def written(self, text: str, reason: str | None = None) -> dict[str, object]:
        """Return a piece of this choice as OpenAI's clients expect it."""
        return {"text": text, "index": self.index, "logprobs": None, "finish_reason": reason, "seed": self.seed}


class Completion:
    """A request for completions under way."""

    def __init__(self, service: Service, served: ServedModel, body: CompletionBody) -> None:
        refuse_unsupported(body)
        self.changed: str | None = None
        self.service, self.served, self.body, self.count = service, served, body, body.n or 1
        if served.engine is None or body.max_tokens == 0:
            service.check_worker()
        else:
            served.engine.check_room(len(prompts_of(body)) * self.count)
        self.stops = body.stop if isinstance(body.stop, list) else [body.stop] if body.stop else []
        self.job = service.new_job(wants_progress=bool(body.stream or self.stops or body.max_tokens))
        self.choices: list[Choice] = []
        self._about = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
        }

    async def respond(self, request: HttpRequest) -> Response:
        """Return the response or its stream; invalid requests are rejected before a stream begins."""
        await self.job.run(self._prepare)
        self._begin()
        pieces = self._pieces()
        if self.body.stream:
            first = await while_connected(request, self.job, anext(pieces))
            return StreamingResponse(self._stream(first, pieces), headers=HEADERS, media_type="text/event-stream")
        return await while_connected(request, self.job, self._whole(pieces))

    def _prepare(self) -> None:
        """Check and plan all choices; on a thread, since a long prompt takes its time."""
        self.changed = self.served.normalise(self.body)
        model, options, log_probs = (
            self.served.model,
            options_of(self.served, self.body),
            self.body.logprobs is not None,
        )
        requests = [_request(self.served, self.body, options, prompt) for prompt in prompts_of(self.body)]
        for request in requests:
            prepared = order = None
            if self.body.max_tokens == 0:
                order = _order(self.served, self.body) if log_probs else None
            elif self.served.engine is not None:
                request = _with_exact_order(model, self.body, request) if log_probs else request
                prepared = prepare(model, request.options)
                order = prepared.order
            if log_probs:
                _check_exact(self.served, request, order)
            for seed in range(request.options.seed, request.options.seed + self.count):
                index, draft = len(self.choices), StreamedText(model.tokenizer, request.begin, request.end, self.stops)
                sample = None if prepared is None else RunningSample(prepared, seed, self.job, index)
                self.choices.append(Choice(index, request, seed, order, draft, sample))

    def _begin(self) -> None:
        if self.body.max_tokens == 0:
            for choice in self.choices:
                self.job.post(Finished(choice.index, (), 0))
        elif self.served.engine is not None:
            self.served.engine.submit(self._samples)
        else:
            self.service.work(self.job, self._sample_baseline)

    @property
    def _samples(self) -> list[RunningSample]:
        return [choice.sample for choice in self.choices if choice.sample is not None]

    def _sample_baseline(self) -> None:
        """Sample from a method without an engine, and post each sample as it is made."""
        for choice in self.choices:
            options = replace(choice.request.options, seed=choice.seed, gap="_")
            with self.served.interruptible(self.job):
                made = generate(self.served.model, options)
            self.job.post(Finished(choice.index, made.samples[0].tokens, made.network_calls))

    async def _pieces(self) -> AsyncIterator[tuple[Choice, str, bool]]:
        """Yield a choice, a piece of its text, and whether it is the last."""
        left = set(range(len(self.choices)))
        try:
            async for event in self.job.events():
                if not isinstance(event, Progress | Finished) or event.index not in left:
                    continue
                choice = self.choices[event.index]
                draft = choice.draft
                piece = draft.add(event.final) if isinstance(event, Progress) else draft.finish(event.tokens)
                done = draft.stopped or isinstance(event, Finished) or 0 < draft.end <= len(draft.ids)
                if done:
                    left.discard(event.index)
                    if choice.sample is not None:
                        choice.sample.dropped = True  # tokens after a stop are not needed
                yield choice, piece, done
                if not left:
                    return
        finally:
            self.job.over = True

    async def _whole(self, pieces: AsyncIterator[tuple[Choice, str, bool]]) -> Response:
        async for _ in pieces:
            pass
        written = [one.written(self._echo(one) + one.draft.text, one.draft.reason) for one in self.choices]
        if self.body.logprobs is not None:
            for choice, found in zip(written, await self._all_log_probs(), strict=True):
                choice["logprobs"] = found
        return answer({**self._about, "choices": written, "usage": self._usage(), "rdlm": self._own()})

    async def _stream(
        self, first: tuple[Choice, str, bool], rest: AsyncIterator[tuple[Choice, str, bool]]
    ) -> AsyncIterator[bytes]:
        """Yield chunks whose texts add up to the whole, keep-alive comments before them, and the end."""
        try:
            for choice in self.choices:
                yield self._chunk(choice, self._echo(choice))
            if first[1] or first[2]:
                yield self._chunk(*first)
            last = time.monotonic()
            async for choice, text, done in rest:
                if text or done:
                    yield self._chunk(choice, text, done)
                elif time.monotonic() - last < PULSE_SECONDS:
                    continue
                else:
                    yield PULSE
                last = time.monotonic()
            if self.body.stream_options is not None and self.body.stream_options.include_usage:
                yield data({**self._about, "choices": [], "usage": self._usage()})
            yield data("[DONE]")
        except Exception as reason:
            yield data(http_errors.http_error_of(reason).body())
        finally:
            self.job.over = True

    def _chunk(self, choice: Choice, text: str, done: bool = False) -> bytes:
        written = choice.written(text, choice.draft.reason if done else None)
        return data({**self._about, "choices": [written], "rdlm": self._own()})

    async def _all_log_probs(self) -> list[object]:
        """Return the log-probabilities of every choice; the job of the samples has ended, so this is another one."""
        job = self.service.new_job()
        job.deadline, job.closing = self.job.deadline, self.job.closing
        try:
            self.service.work(job, lambda: [self._log_probs(choice, job) for choice in self.choices])
            return cast("list[object]", await anext(job.events()))
        finally:
            job.over = True

    def _log_probs(self, choice: Choice, job: Job) -> dict[str, object]:
        """Return the log-probabilities of a choice in OpenAI's format, those of the prompt with `echo`."""
        request, draft, tokenizer = choice.request, choice.draft, self.served.model.tokenizer
        made = kept_tokens(tokenizer, draft.ids[request.begin : request.end], draft.text)
        ids, law = (*request.ids, *made), torch.zeros(0, tokenizer.size)
        if ids:
            law = token_log_probs(self.served, job, ids, choice.order)
        first = 0 if self.body.echo else request.begin
        begin = 0 if self.body.echo else len(request.prompt)
        return log_probs_as_openai(tokenizer, ids[first:], law[first:], begin, self.body.logprobs or 0)

    def _echo(self, choice: Choice) -> str:
        return choice.request.prompt if self.body.echo else ""

    def _usage(self) -> dict[str, int]:
        tokenizer = self.served.model.tokenizer
        asked = sum(choice.request.begin for choice in self.choices[:: self.count])
        made = sum(len(tokenizer.encode(choice.draft.text)) for choice in self.choices)
        return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}

    def _own(self) -> dict[str, object]:
        options, order, samples = self.choices[0].request.options, self.choices[0].order, self._samples
        bound = self.served.model.method.claims_bound
        return {
            "seed": options.seed,
            "steps": options.steps if order is None else order.nfe,
            **order_fields(order),
            "solver": options.solver,
            "grid": options.grid,
            "network_calls": max((sample.nfe for sample in samples), default=None),
            "claims_bound": all(sample.prepared.claims_bound for sample in samples) if samples else bound,
            "normalised": self.changed,
        }
