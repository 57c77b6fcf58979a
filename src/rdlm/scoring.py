"""The likelihood of texts under a model: bounds with intervals, text by text or for a document of any length.

A text is scored as a whole sequence of its own length: the bound is that of the sampler that draws so many tokens.
A document is cut into consecutive windows of the model's length, which are scored independently and added up; the
rest, shorter than a window, is a window of its own (if it would be a single token, the window before gives up its
last one). So a document's score is a bound under the model that writes window after window without looking back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from rdlm.data.batch import Batch
from rdlm.data.tokenizer import Characters, Ids, Unknown
from rdlm.errors import InputError
from rdlm.evaluation.bound import Estimator, check_weights
from rdlm.language_model import LanguageModel
from rdlm.likelihood import Estimate, by_comb, by_paths, by_steps, sample_mean
from rdlm.likelihood.data import BATCH, Advance
from rdlm.randomness import generator_of

SHORTEST = 2
"""Fewest tokens of a text."""


@dataclass(frozen=True)
class Score:
    """The bound on `-log p` of a text, and what it is divided by."""

    nats: Estimate
    tokens: int
    chars: int
    windows: int = 1

    @property
    def bits_per_char(self) -> float:
        """Return the bound in bits per character of the text."""
        return self.nats.value / self.chars / math.log(2)

    def row(self) -> dict[str, object]:
        """Return the score for machines."""
        nats = self.nats
        return {
            "nats": nats.value, "stderr": nats.stderr, "low": nats.low, "high": nats.high, "chars": self.chars,
            "tokens": self.tokens, "windows": self.windows, "bits_per_char": self.bits_per_char,
        }  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """How texts are scored: network calls M, the estimator, and its draws for each text."""

    calls: int = 64
    estimator: Estimator = "path"
    draws: int = 4
    """Paths of each text, or random steps of each."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise InputError(f"at least one network call is needed, got {self.calls}")
        if self.draws < 3:
            raise InputError(f"an interval needs at least 3 draws of each text, got {self.draws}")

    @property
    def cost(self) -> int:
        """Return how often a text goes through the network."""
        return self.draws * (self.calls if self.estimator == "path" else 1)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text as tokens, and the characters that these stand for."""

    ids: Int[Tensor, " length"]
    chars: int


def score(
    model: LanguageModel,
    texts: Sequence[str],
    effort: Effort | None = None,
    unknown: Unknown = "error",
    advance: Advance = lambda count: None,
) -> list[Score]:
    """Return the bound of every text, each a sequence of its own, up to the model's length."""
    effort = effort or Effort()
    rows = [encode(model, text, unknown) for text in texts]
    for number, row in enumerate(rows):
        if len(row.ids) > model.length:
            raise InputError(
                f"text {number + 1} has {len(row.ids)} tokens, the model's sequences have {model.length}: "
                "score it as a document"
            )
    nats = _score_rows(model, [row.ids for row in rows], effort, advance)
    return [Score(value, len(row.ids), row.chars) for value, row in zip(nats, rows, strict=True)]


def score_document(
    model: LanguageModel,
    text: str,
    effort: Effort | None = None,
    unknown: Unknown = "error",
    advance: Advance = lambda count: None,
) -> Score:
    """Return the bound of a text of any length, window by window; see the rule above."""
    effort = effort or Effort()
    encoded = encode(model, text, unknown)
    parts = windows(encoded.ids, model.length)
    whole = [part for part in parts if len(part) == len(parts[0])]
    rest = parts[len(whole) :]
    if effort.estimator == "path" or len(whole) < BATCH:
        nats = _score_rows(model, parts, effort, advance)
    else:
        nats = [_mean_step(model, torch.stack(whole), effort, advance), *_score_rows(model, rest, effort, advance)]
    total = nats[0]
    for value in nats[1:]:
        total = total + value
    return Score(total, len(encoded.ids), encoded.chars, len(parts))


def windows(ids: Int[Tensor, " length"], length: int) -> list[Int[Tensor, " window"]]:
    """Return consecutive windows of a document; the last may be shorter, but never a single token."""
    parts = list(ids.split(length))
    if len(parts) > 1 and len(parts[-1]) < SHORTEST:
        parts[-2:] = list(torch.cat(parts[-2:]).split([length - 1, SHORTEST]))
    return parts


def encode(model: LanguageModel, text: str, unknown: Unknown = "error") -> Encoded:
    """Return a text's tokens; what the vocabulary cannot write is an error, is skipped, or is replaced."""
    tokenizer = model.tokenizer
    if model.kind == "image":
        raise InputError("an image model scores no text")
    if isinstance(tokenizer, Characters):
        ids = replace(tokenizer, unknown=unknown).encode(text)
        chars = len(ids)
    else:
        ids, chars = tokenizer.encode(text), len(text)
        description = tokenizer.to_json()
        if description["kind"] == "wordpiece":
            ids = _known(ids, int(description["model"]["model"]["vocab"]["[UNK]"]), text, unknown)
    if len(ids) < SHORTEST:
        raise InputError(f"a text of at least {SHORTEST} tokens is needed, got {len(ids)} in {text[:40]!r}")
    return Encoded(torch.from_numpy(ids.astype(np.int64)), chars)


def _known(ids: Ids, missing: int, text: str, unknown: Unknown) -> Ids:
    if unknown == "error" and bool((ids == missing).any()):
        raise InputError(
            f"the vocabulary has no pieces for some word of {text[:40]!r}; --unknown skip leaves such words out, "
            "--unknown replace scores them as [UNK]"
        )
    return ids[ids != missing] if unknown == "skip" else ids


def _score_rows(
    model: LanguageModel, rows: Sequence[Int[Tensor, " length"]], effort: Effort, advance: Advance
) -> list[Estimate]:
    """Return every row's bound; rows of one length go through the network together."""
    check_weights(model.rdlm.network)
    found: list[Estimate | None] = [None] * len(rows)
    lengths = torch.tensor([len(row) for row in rows])
    for length in lengths.unique().tolist():
        for part in (lengths == length).nonzero()[:, 0].split(BATCH):
            ids = torch.stack([rows[i] for i in part.tolist()])
            values = _draws(model, ids, effort, generator_of("score", effort.seed, *part.tolist()), advance)
            for place, value in zip(part.tolist(), values.T, strict=True):
                found[place] = sample_mean(value)
    return [value for value in found if value is not None]


def _draws(
    model: LanguageModel, ids: Int[Tensor, "n length"], effort: Effort, generator: torch.Generator, advance: Advance
) -> Tensor:
    """Return [draws, n] estimates of the rows' bounds: sums along paths, or single steps."""
    problem = model.rdlm.problem(Batch(ids), effort.calls)
    if effort.estimator == "path":
        return by_paths(problem, effort.draws, generator, advance=advance).sum(1)
    return by_comb(problem, effort.draws, generator, advance=advance)


def _mean_step(
    model: LanguageModel, ids: Int[Tensor, "n length"], effort: Effort, advance: Advance
) -> Estimate:
    """Return the sum over many windows from single steps, stratified over all of them."""
    check_weights(model.rdlm.network)
    problem = model.rdlm.problem(Batch(ids), effort.calls)
    generator = generator_of("score", effort.seed)
    return by_steps(problem, effort.draws * len(ids), generator, advance=advance).total * len(ids)
