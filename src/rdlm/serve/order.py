"""Orders: what a completion's body asks for, as requests to the sampler."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from rdlm.sampler.request import Request
from rdlm.sampler.template import encode, infilled
from rdlm.serve.error import Refusal
from rdlm.serve.host import Host
from rdlm.serve.schema import CompletionBody, Sampling

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


def sampling(host: Host, body: Sampling, seed: int) -> Request:
    """Return the settings that all requests for samples share."""
    cold = body.temperature is not None and body.temperature < COLDEST
    temperature = COLDEST if cold else 1.0 if body.temperature is None else body.temperature
    top_p = None if body.top_p in (None, 1.0) else max(body.top_p or 0.0, 1e-9)
    return Request(
        steps=body.steps or host.steps, solver=body.solver or "mixture", grid=body.grid or "time", seed=seed,
        infill=body.infill, gap=host.gap, temperature=temperature, greedy=cold, top_p=top_p,
        label=None if body.label is None else str(body.label), guidance=1.0 if body.guidance is None else body.guidance,
        window=body.window, order=body.order, chunk=body.chunk,
    )  # fmt: skip


def seed_of(body: Sampling) -> int:
    """Return the seed that was asked for, or a new one."""
    return secrets.randbelow(1 << 31) if body.seed is None else body.seed


def refuse_what_means_nothing(body: CompletionBody) -> None:
    """Refuse the fields of OpenAI's that have no honest answer here."""
    if body.logprobs is not None:
        words = "tokens are not drawn one after the other, so none has a log-probability given those before it; "
        raise Refusal(400, f"logprobs: {words}POST /v1/score bounds the likelihood of a text", "logprobs")
    if body.best_of not in (None, body.n or 1):
        raise Refusal(400, "best_of: samples are not ranked; ask for n of them", "best_of")
    for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
        if getattr(body, name):
            raise Refusal(400, f"{name}: not supported; leave it out", name)
    if body.infill is not None and (body.prompt or body.suffix or body.max_tokens or body.echo):
        words = "an infill is a whole text: leave out prompt, suffix, max_tokens and echo"
        raise Refusal(400, f"infill: {words}", "infill")


def orders(host: Host, body: CompletionBody) -> list[Order]:
    """Return the prompts of a request, checked against the model; seeds are those of the first sample of each."""
    settings = sampling(host, body, seed_of(body))
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    return [_order(host, body, settings, prompt) for prompt in prompts]


def _order(host: Host, body: CompletionBody, settings: Request, prompt: str) -> Order:
    tokenizer, room = host.model.tokenizer, host.model.length
    if body.infill is not None:
        return Order(settings, "", 0, len(infilled(tokenizer, body.infill, host.gap)))
    first = len(encode(tokenizer, prompt, "prompt"))
    last = len(encode(tokenizer, body.suffix or "", "suffix"))
    # Past the model's length windows slide along the text: a block of half that length is what comes next.
    count = body.max_tokens or (room - first - last if first + last < room else max(1, room // 2))
    request = replace(settings, prompt=prompt, suffix=body.suffix or "", length=first + count + last)
    return Order(request, prompt, first, first + count)
