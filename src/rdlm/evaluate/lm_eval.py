"""A model class for lm-evaluation-harness: `python -m rdlm.evaluate.lm_eval --model rdlm --model_args run=RUN ...`.

Versions of the harness after 0.4.13 find the class by its entry point: `lm_eval --model rdlm ...`. Earlier ones know
only models that have been imported, so this command registers `rdlm` and then runs `lm_eval`; in Python,
`import rdlm.evaluate.lm_eval` before `lm_eval.simple_evaluate(model="rdlm", model_args="run=RUN")`.

| request | value |
|---|---|
| `loglikelihood` | `log p(continuation given context)`, exact where a call decodes one token; else minus a bound |
| `loglikelihood_rolling` | `log p(text)` as in `rdlm score`, window by window |
| `generate_until` | a sample, greedy unless a temperature is given, up to the first stop |
"""

from __future__ import annotations

import logging
from typing import Any, get_args

import torch

from rdlm.api.generate import generate
from rdlm.api.language_model import load
from rdlm.api.score import (
    MIN_TOKENS,
    Encoded,
    conditionals,
    continuation_windows,
    effort_for,
    encode_text,
    exact_order,
    not_exact_because,
    order_for,
    score_continuations,
    score_encoded,
)
from rdlm.config import OrderChoice
from rdlm.data.tokenizer import Unknown, check_rule, normalised
from rdlm.errors import InputError, unknown

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as missing:
    raise ImportError("this needs lm-evaluation-harness: pip install 'rdlm[lm-eval]'") from missing

log = logging.getLogger(__name__)

TOKENS = 64
"""Default number of tokens of `generate_until`."""


@register_model("rdlm")
class HarnessModel(LM):
    """A trained model with the interface of the harness.

    Model arguments: `run` (a run, a published folder or a hub name; the packaged model if not given), `order`,
    `steps` (network calls), `unknown` (error, skip or replace characters outside the vocabulary), `lowercase`,
    `normalise` (the rule of a small alphabet, as in `rdlm score --normalise`; metrics per byte or word count those of
    the given text), `seed`.
    """

    def __init__(
        self,
        run: str | None = None,
        order: OrderChoice = "auto",
        steps: int | None = None,
        unknown: Unknown = "error",
        lowercase: bool = False,
        normalise: bool = False,
        seed: int = 0,
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.model = load(run)
        self.unknown, self.lowercase, self.seed = _checked(unknown), lowercase, seed
        if normalise:
            check_rule(self.model.tokenizer)
        self.normalise = normalise
        engine = self.model.method.token_schedule is not None
        exact = exact_order(self.model, self.model.length) if engine and order == "auto" and steps is None else None
        self.order = exact or order_for(self.model, order, steps)
        self.effort = effort_for(self.model, 1, steps, None, seed, self.order)
        self.reason = not_exact_because(self.model, self.order, self.model.length)
        if self.reason is not None:
            log.warning("log-likelihoods are bounds: %s", self.reason)

    def _prepared(self, text: str) -> str:
        text = text.lower() if self.lowercase else text
        return normalised(self.model.tokenizer, text)[0] if self.normalise else text

    def _encoded(self, text: str, least: int) -> Encoded:
        return encode_text(self.model, self._prepared(text), self.unknown, least)

    def _pair(self, context: str, text: str) -> tuple[Encoded, Encoded]:
        """Return context and continuation, normalised as one text, so that the continuation does not repeat a space."""
        before = self._prepared(context)
        after = self._prepared(context + text)[len(before) :]
        return encode_text(self.model, before, self.unknown, 0), encode_text(self.model, after, self.unknown, 1)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether each of its tokens is the most likely one.

        Without exact conditionals the value is minus an upper bound on `-log p`, and no token counts as the most
        likely.
        """
        pairs = [self._pair(context, text) for context, text in _arguments(requests)]
        if self.reason is None:
            return [self._exact(context, text) for context, text in pairs]
        return [(-one.nats.value, False) for one in score_continuations(self.model, pairs, self.effort)]

    def _exact(self, context: Encoded, text: Encoded) -> tuple[float, bool]:
        total, likeliest = 0.0, True
        for window, known in continuation_windows(context.ids, text.ids, self.model.length):
            law, token = conditionals(self.model, window[None], self.order)[0, known:], window[known:]
            total += float(law.gather(-1, token[:, None]).sum())
            likeliest = likeliest and bool(torch.equal(law.argmax(-1), token))
        return total, likeliest

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, in windows of the model's length, or minus the bound on it."""
        texts = [self._encoded(text, MIN_TOKENS) for (text,) in _arguments(requests)]
        return [-score_encoded(self.model, [text], self.effort)[0].nats.value for text in texts]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return a continuation of each context, cut at the first stop."""
        return [self._generated(context, dict(options)) for context, options in _arguments(requests)]

    def _generated(self, context: str, options: dict[str, Any]) -> str:
        if self.model.method.token_schedule is None:
            raise InputError(f"a model of the method {self.model.config.method!r} samples without prompts")
        ids = self._encoded(context, 0).ids.tolist()
        count, temperature = int(options.get("max_gen_toks") or TOKENS), float(options.get("temperature") or 0)
        sampling: dict[str, Any] = {"temperature": temperature} if temperature else {"greedy": True}
        order: dict[str, Any] = {} if self.order is None else {"order": self.order.order, "block": self.order.block}
        found = generate(
            self.model,
            prompt=self.model.tokenizer.decode(ids),
            length=len(ids) + count,
            steps=self.effort.nfe,
            seed=self.seed,
            **sampling,
            **order,
        )
        text = self.model.tokenizer.decode(found.samples[0].tokens[len(ids) :])
        stops = options.get("until") or []
        places = [text.find(stop) for stop in ([stops] if isinstance(stops, str) else stops) if stop]
        return text[: min((place for place in places if place >= 0), default=len(text))]


def _arguments(requests: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(request.args) for request in requests]


def _checked(choice: Unknown) -> Unknown:
    if choice not in get_args(Unknown):
        raise unknown("treatment of unknown characters", choice, get_args(Unknown))
    return choice


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
