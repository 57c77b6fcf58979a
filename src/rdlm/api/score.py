"""The likelihood of texts under a model: bounds with intervals, for texts of any length.

A text of up to the model's length is scored as a whole sequence of its own length: the bound is that of the sampler
that draws so many tokens. A longer one is cut into consecutive windows of the model's length, which are scored
independently and added up; the rest, shorter than a window, is a window of its own (if it would be a single token,
the window before gives up its last one). So its score is a bound under the model that writes window after window
without looking back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.data.batch import Batch
from rdlm.data.tokenizer import Characters, Ids, Unknown
from rdlm.errors import InputError
from rdlm.likelihood import Estimate, path_bound, per_window_bound, sum_over_rows
from rdlm.likelihood.estimators import Advance
from rdlm.methods.base import DEFAULT_NFE
from rdlm.methods.bound import Estimator, check_weights
from rdlm.random import generator_of

SHORTEST = 2
"""Fewest tokens of a text."""

FEWEST = 3
"""Fewest draws of a window behind an interval."""

BUDGET = 1 << 15
"""Windows through the network that are spent unless told otherwise, where so few allow an interval."""

PIECE = 64
"""Windows that are scored together."""


@dataclass(frozen=True)
class Score:
    """The bound on `-log p` of a text, what it is divided by, and how it is spread over the tokens."""

    nats: Estimate
    chars: int
    tokens: tuple[str, ...]
    """The text's tokens, each as text."""
    positions: tuple[float, ...]
    """Each token's share in bits, estimated without bias; together they are the bound. Rivals' bounds have none."""
    windows: int = 1

    @property
    def bits_per_char(self) -> float:
        """Return the bound in bits per character of the text."""
        return self.nats.value / self.chars / math.log(2)

    def __repr__(self) -> str:
        word = "upper bound" if self.nats.claims_bound else "not a bound"
        margin = (self.nats.high - self.nats.low) / 2 / self.chars / math.log(2)
        return f"<Score of {self.chars} characters: {self.bits_per_char:.4g} ± {margin:.2g} bits each, {word}>"

    def _repr_html_(self) -> str:
        from rdlm.api import notebook as display

        return display.score(self)

    def row(self, positions: bool = False) -> dict[str, object]:
        """Return the score for machines; where wanted, with every token and its share."""
        nats = self.nats
        row: dict[str, object] = {
            "nats": nats.value,
            "stderr": nats.stderr,
            "low": nats.low,
            "high": nats.high,
            "chars": self.chars,
            "bits_per_char": self.bits_per_char,
            "claims_bound": nats.claims_bound,
            "windows": self.windows,
        }
        return row | ({"positions": list(self.positions), "tokens": list(self.tokens)} if positions else {})


@dataclass(frozen=True)
class Effort:
    """How texts are scored: network calls M, the estimator, and its draws for each window."""

    nfe: int = DEFAULT_NFE
    estimator: Estimator = "path"
    draws: int = 4
    """Paths of each window, or random steps of each."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.nfe < 1:
            raise InputError(f"at least one network call is needed, got {self.nfe}")
        if self.draws < FEWEST:
            raise InputError(f"an interval needs at least {FEWEST} draws of each text, got {self.draws}")

    def passes(self, model: LanguageModel) -> int:
        """Return how often one draw sends a window through the network; chunks go through it side by side."""
        if self.estimator == "steps":
            return 1
        order = model.method.token_schedule
        return self.nfe if order is None else order.discretize(self.nfe, model.length).side_by_side().nfe

    def cost(self, model: LanguageModel, windows: int) -> int:
        """Return how many windows go through the network; those of a mixture do so for each of its paths."""
        paths = 1 if model.method.token_schedule is None else len(model.rdlm.process.mixture.paths)
        return windows * paths * self.draws * self.passes(model)


def effort_for(
    model: LanguageModel, windows: int, nfe: int | None = None, estimator: Estimator | None = None, seed: int = 0
) -> Effort:
    """Return an effort of about `BUDGET`: four paths a window where they fit, else single steps, as many as fit.

    A rival has no choice: its own bound follows a path (flow) or looks at one step (the others).
    """
    own = model.method.bound_estimator
    if own is not None and estimator not in (None, own):
        raise InputError(f"a run of the method {model.config.method!r} is scored by its {own} estimator alone")
    nfe = model.nfe if nfe is None else nfe
    few = Effort(nfe).cost(model, windows) <= BUDGET
    chosen = own or estimator or ("path" if few else "steps")
    if chosen == "path":
        return Effort(nfe, "path", seed=seed)
    return Effort(nfe, "steps", max(FEWEST, min(nfe, BUDGET // windows)), seed)


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
    """Return the bound of every text; without an effort, that of `effort_for`."""
    return score_encoded(model, [encode(model, text, unknown) for text in texts], effort, advance)


def score_encoded(
    model: LanguageModel,
    texts: Sequence[Encoded],
    effort: Effort | None = None,
    advance: Advance = lambda count: None,
) -> list[Score]:
    """Return the bound of every text, window by window; see the rule above."""
    check_weights(model.method.network)
    parts = [windows(text.ids, model.length) for text in texts]
    rows = [row for part in parts for row in part]
    effort = effort or effort_for(model, len(rows))
    effort_for(model, len(rows), effort.nfe, effort.estimator)  # refuses what the method has not
    values = iter(_values(model, rows, effort, advance))
    return [_score(model, text, [next(values) for _ in part]) for text, part in zip(texts, parts, strict=True)]


def _score(model: LanguageModel, text: Encoded, values: list[Float[Tensor, "draws length"]]) -> Score:
    """Return a text's score from the draws of its windows; windows of one length are alike."""
    by_length: dict[int, list[Tensor]] = {}
    for value in values:
        by_length.setdefault(value.shape[1], []).append(value.sum(-1))
    claims = model.method.claims_bound
    sums = [sum_over_rows(torch.stack(alike, dim=1), claims) for alike in by_length.values()]
    bits = torch.cat([value.mean(0) for value in values]) / math.log(2)
    names = {i: model.tokenizer.decode([i]) for i in text.ids.unique().tolist()}
    tokens = tuple(names[i] for i in text.ids.tolist())
    positions = () if model.method.token_schedule is None else tuple(bits.tolist())
    return Score(sum(sums[1:], start=sums[0]), text.chars, tokens, positions, len(values))


def _values(
    model: LanguageModel, rows: Sequence[Int[Tensor, " length"]], effort: Effort, advance: Advance
) -> list[Float[Tensor, "draws length"]]:
    """Return the draws of every row in nats; rows of one length go through the network together."""
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    lengths = torch.tensor([len(row) for row in rows])
    for length in lengths.unique().tolist():
        for part in (lengths == length).nonzero()[:, 0].split(PIECE):
            ids = torch.stack([rows[i] for i in part.tolist()])
            generator = generator_of("score", effort.seed, length, int(part[0]))
            values = _draws(model, Batch(ids), effort, generator, advance)
            for place, value in zip(part.tolist(), values.unbind(1), strict=True):
                found[place] = value
    return found


@torch.no_grad()
def _draws(
    model: LanguageModel, batch: Batch, effort: Effort, generator: torch.Generator, advance: Advance
) -> Float[Tensor, "draws n length"]:
    """Return estimates of the tokens' shares in their rows' bounds; a rival's share is the whole, in one place."""
    if model.method.token_schedule is None:
        found = []
        for _ in range(effort.draws):
            found.append(model.method.bound(batch, effort.nfe, generator).double().cpu()[:, None])
            advance(len(batch.ids) * effort.passes(model))
        return torch.stack(found)
    problem = model.rdlm.problem(batch, effort.nfe)
    if effort.estimator == "path":
        shares = path_bound(problem, effort.draws, generator, advance=advance).sum(1)
    else:
        shares = per_window_bound(problem, effort.draws, generator, advance=advance)
    count, length = batch.ids.shape
    return shares.view(effort.draws, count, length, -1).sum(-1)  # the digits of a token are its own


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
