"""Scores: likelihood bounds of texts of any length, with confidence intervals.

A text of up to the model's length is one sequence, and its bound is that of the sampler of that many tokens. A longer
text is split into consecutive windows of the model's length, which are scored independently and summed; the last window
may be shorter (if it would be a single token, it takes the last token of the window before). So the score is a bound
for the model that samples windows independently.
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
from rdlm.api.orders import ChosenOrder, choose_order
from rdlm.config import OrderChoice
from rdlm.data.batch import Batch
from rdlm.data.tokenizer import Characters, Ids, Unknown
from rdlm.errors import InputError
from rdlm.likelihood import Estimate, path_bound, per_window_bound, sum_over_rows
from rdlm.likelihood.estimators import Advance
from rdlm.methods.base import DEFAULT_NFE, check_nfe
from rdlm.methods.bound import Estimator, check_weights, uniform_note
from rdlm.process.order import TokenSchedule
from rdlm.random import generator_of

MIN_TOKENS = 2
"""Least number of tokens of a text."""

MIN_DRAWS = 3
"""Least number of draws per window for a confidence interval."""

BUDGET = 1 << 15
"""Default number of network evaluations of windows; exceeded where an interval needs more."""

BATCH_SIZE = 64
"""Windows scored in one batch."""


@dataclass(frozen=True)
class Score:
    """The bound on `-log p` of a text, its number of characters, and each token's share of the bound."""

    nats: Estimate
    chars: int
    tokens: tuple[str, ...]
    """The text of each token."""
    positions: tuple[float, ...]
    """Unbiased estimate of each token's share in bits; their sum is the bound. Empty for baselines."""
    windows: int = 1

    @property
    def bits_per_char(self) -> float:
        """The bound in bits per character of the text."""
        return self.nats.value / self.chars / math.log(2)

    def __repr__(self) -> str:
        word = "upper bound" if self.nats.claims_bound else "not a bound"
        margin = (self.nats.high - self.nats.low) / 2 / self.chars / math.log(2)
        return f"<Score of {self.chars} characters: {self.bits_per_char:.4g} ± {margin:.2g} bits each, {word}>"

    def _repr_html_(self) -> str:
        from rdlm.api import notebook

        return notebook.score(self)

    def row(self, positions: bool = False) -> dict[str, object]:
        """Return the score as a JSON row; with `positions`, also every token and its share."""
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
    """The settings of a score: network evaluations M, the estimator, and its draws per window."""

    nfe: int = DEFAULT_NFE
    estimator: Estimator = "path"
    draws: int = 4
    """Paths, or random steps, per window."""
    seed: int = 0
    order: ChosenOrder | None = None
    """The order of generation; None: the model's own."""

    def __post_init__(self) -> None:
        check_nfe(self.nfe)
        if self.draws < MIN_DRAWS:
            raise InputError(f"an interval needs at least {MIN_DRAWS} draws of each text, got {self.draws}")

    @property
    def schedule(self) -> TokenSchedule | None:
        """The token schedule of the order; None: the model's own."""
        return None if self.order is None else self.order.schedule

    def passes(self, model: LanguageModel) -> int:
        """Return the network evaluations of one draw for one window; all blocks are evaluated in parallel."""
        if self.estimator == "steps":
            return 1
        schedule = self.schedule or model.method.token_schedule
        return self.nfe if schedule is None else schedule.discretize(self.nfe, model.length).side_by_side().nfe

    def cost(self, model: LanguageModel, windows: int) -> int:
        """Return the network evaluations for a number of windows, over all paths of a mixture."""
        paths = 1 if model.method.token_schedule is None else len(model.rdlm.process.mixture.paths)
        return windows * paths * self.draws * self.passes(model)


def effort_for(
    model: LanguageModel,
    windows: int,
    nfe: int | None = None,
    estimator: Estimator | None = None,
    seed: int = 0,
    order: ChosenOrder | None = None,
) -> Effort:
    """Return an effort of about `BUDGET` evaluations: four paths per window if they fit, else as many steps as fit.

    The estimator of a baseline is given: paths for Fisher-Flow, steps for the others. Of a chosen `order`, `nfe` is its
    number of calls.
    """
    only = model.method.bound_estimator
    if only is not None and estimator not in (None, only):
        raise InputError(f"the method {model.config.method!r} only has the {only} estimator, got {estimator}")
    nfe = order.nfe if order is not None else model.nfe if nfe is None else nfe
    affordable = Effort(nfe, order=order).cost(model, windows) <= BUDGET
    chosen = only or estimator or ("path" if affordable else "steps")
    if chosen == "path":
        return Effort(nfe, "path", seed=seed, order=order)
    return Effort(nfe, "steps", max(MIN_DRAWS, min(nfe, BUDGET // windows)), seed, order)


def order_for(
    model: LanguageModel, order: OrderChoice = "auto", nfe: int | None = None, block: int | None = None
) -> ChosenOrder | None:
    """Return the order in which a score assumes texts to be generated; None for baselines, which have no choice."""
    own = model.method.token_schedule
    if own is None:
        if order != "auto" or block is not None:
            raise InputError(f"the method {model.config.method!r} has one order: leave out order and block")
        return None
    chosen = choose_order(model, order, nfe, model.length, block)
    # With the model's own schedule, shorter windows may use more of the calls.
    return replace(chosen, nfe=nfe or model.nfe) if chosen.schedule == own else chosen


@dataclass(frozen=True, eq=False)
class Encoded:
    """The token ids of a text, and its number of characters."""

    ids: Int[Tensor, " length"]
    chars: int


def score(
    model: LanguageModel,
    texts: Sequence[str],
    effort: Effort | None = None,
    unknown: Unknown = "error",
    advance: Advance = lambda count: None,
) -> list[Score]:
    """Return the score of every text; the default effort is that of `effort_for` and `order_for`."""
    return score_encoded(model, [encode_text(model, text, unknown) for text in texts], effort, advance)


def score_encoded(
    model: LanguageModel,
    texts: Sequence[Encoded],
    effort: Effort | None = None,
    advance: Advance = lambda count: None,
) -> list[Score]:
    """Return the score of every text, split into windows as described above."""
    check_weights(model.method.network)
    parts = [split_windows(text.ids, model.length) for text in texts]
    rows = [row for part in parts for row in part]
    effort = effort or effort_for(model, len(rows), order=order_for(model))
    effort_for(model, len(rows), effort.nfe, effort.estimator)  # checks the estimator
    values = iter(_values(model, rows, effort, advance))
    # Single steps of a chain are paired in strata; the draws of baselines are independent.
    paired = effort.estimator == "steps" and model.method.token_schedule is not None
    return [_score(model, text, [next(values) for _ in part], paired) for text, part in zip(texts, parts, strict=True)]


def _score(
    model: LanguageModel, text: Encoded, values: list[Float[Tensor, "draws length"]], paired: bool = False
) -> Score:
    """Return the score of a text from the draws of its windows; windows of equal length share a variance estimate."""
    by_length: dict[int, list[Tensor]] = {}
    for value in values:
        by_length.setdefault(value.shape[1], []).append(value.sum(-1))
    claims = model.method.claims_bound
    sums = [sum_over_rows(torch.stack(group, dim=1), claims, paired) for group in by_length.values()]
    bits = torch.cat([value.mean(0) for value in values]) / math.log(2)
    names = {i: model.tokenizer.decode([i]) for i in text.ids.unique().tolist()}
    tokens = tuple(names[i] for i in text.ids.tolist())
    positions = () if model.method.token_schedule is None else tuple(bits.tolist())
    return Score(sum(sums[1:], start=sums[0]), text.chars, tokens, positions, len(values))


def _values(
    model: LanguageModel, rows: Sequence[Int[Tensor, " length"]], effort: Effort, advance: Advance
) -> list[Float[Tensor, "draws length"]]:
    """Return the draws of every row in nats; rows of equal length are batched."""
    draws: list[Tensor] = [torch.empty(0)] * len(rows)
    lengths = torch.tensor([len(row) for row in rows])
    for length in lengths.unique().tolist():
        for part in (lengths == length).nonzero()[:, 0].split(BATCH_SIZE):
            ids = torch.stack([rows[i] for i in part.tolist()])
            generator = generator_of("score", effort.seed, length, int(part[0]))
            values = _draws(model, Batch(ids), effort, generator, advance)  # [draws, n, length]
            for index, value in zip(part.tolist(), values.unbind(1), strict=True):
                draws[index] = value
    return draws


@torch.no_grad()
def _draws(
    model: LanguageModel, batch: Batch, effort: Effort, generator: torch.Generator, advance: Advance
) -> Float[Tensor, "draws n length"]:
    """Return estimates of each token's share of its row's bound; for baselines only their sum, [draws, n, 1]."""
    if model.method.token_schedule is None:
        totals = []
        for _ in range(effort.draws):
            totals.append(model.method.bound(batch, effort.nfe, generator).double().cpu()[:, None])
            advance(len(batch.ids) * effort.passes(model))
        return torch.stack(totals)
    problem = model.rdlm.problem(batch, effort.nfe, token_schedule=effort.schedule)
    if effort.estimator == "path":
        shares = path_bound(problem, effort.draws, generator, advance=advance).sum(1)
    else:
        shares = per_window_bound(problem, effort.draws, generator, advance=advance)
    count, length = batch.ids.shape
    return shares.view(effort.draws, count, length, -1).sum(-1)  # sum over the digits of a token


def score_note(model: LanguageModel, texts: Sequence[Encoded], scores: Sequence[Score]) -> str | None:
    """Return the remark on a bound of all texts together that is worse than the uniform code; None if it is better."""
    nats, chars = sum(one.nats.value for one in scores), sum(text.chars for text in texts)
    tokens, unit = sum(len(text.ids) for text in texts), "bits per character"
    note = uniform_note(nats, tokens, model.tokenizer.size, model.config, unit, chars)
    return None if note is None else f"{note}, or the text is unlike its training data"


def split_windows(ids: Int[Tensor, " length"], length: int) -> list[Int[Tensor, " window"]]:
    """Return consecutive windows of a document; the last may be shorter, but not a single token."""
    parts = list(ids.split(length))
    if len(parts) > 1 and len(parts[-1]) < MIN_TOKENS:
        parts[-2:] = list(torch.cat(parts[-2:]).split([length - 1, MIN_TOKENS]))
    return parts


def encode_text(model: LanguageModel, text: str, unknown: Unknown = "error") -> Encoded:
    """Return the tokens of a text; characters outside of the vocabulary are an error, skipped, or replaced."""
    tokenizer = model.tokenizer
    if model.kind == "image":
        raise InputError("an image model cannot score text")
    if isinstance(tokenizer, Characters):
        ids = replace(tokenizer, unknown=unknown).encode(text)
        chars = len(ids)
    else:
        ids, chars = tokenizer.encode(text), len(text)
        description = tokenizer.to_json()
        if description["kind"] == "wordpiece":
            ids = _known(ids, int(description["model"]["model"]["vocab"]["[UNK]"]), text, unknown)
    if len(ids) < MIN_TOKENS:
        raise InputError(f"a text needs at least {MIN_TOKENS} tokens, got {len(ids)} in {text[:40]!r}")
    return Encoded(torch.from_numpy(ids.astype(np.int64)), chars)


def _known(ids: Ids, missing: int, text: str, unknown: Unknown) -> Ids:
    if unknown == "error" and bool((ids == missing).any()):
        raise InputError(
            f"the vocabulary has no tokens for some word of {text[:40]!r}; --unknown skip leaves such words out, "
            "--unknown replace scores them as [UNK]"
        )
    return ids[ids != missing] if unknown == "skip" else ids
