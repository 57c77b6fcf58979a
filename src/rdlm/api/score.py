"""Scores: likelihood bounds of texts of any length, with confidence intervals.

A text of up to the model's length is one sequence, and its bound is that of the sampler of that many tokens. A longer
text is split into consecutive windows of the model's length, which are scored independently and summed; the last window
may be shorter (if it would be a single token, it takes the last token of the window before). So the score is a bound
for the model that samples windows independently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.api.orders import ChosenOrder, choose_order, is_trained_for
from rdlm.config import OrderChoice
from rdlm.data.batch import Batch
from rdlm.data.tokenizer import Characters, Ids, Unknown
from rdlm.errors import InputError
from rdlm.likelihood.estimate import Estimate, sum_over_rows
from rdlm.likelihood.estimators import Advance, path_bound, per_window_bound
from rdlm.methods.autoregressive import Autoregressive
from rdlm.methods.base import DEFAULT_NFE, BoundEstimator
from rdlm.methods.bound import check_weights, uniform_note
from rdlm.methods.discrete import check_nfe
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
    exact: bool | None = None
    """Of a continuation: whether the value is `-log p` itself, not a bound on it."""

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
        nats, text = self.nats, {"chars": self.chars, "bits_per_char": self.bits_per_char}
        row: dict[str, object] = {"nats": nats.value, "stderr": nats.stderr, "low": nats.low, "high": nats.high}
        row |= {**text, "claims_bound": nats.claims_bound, "windows": self.windows}
        row |= {} if self.exact is None else {"exact": self.exact}
        return row | ({"positions": list(self.positions), "tokens": list(self.tokens)} if positions else {})


@dataclass(frozen=True)
class Effort:
    """The settings of a score: network evaluations M, the estimator, and its draws per window."""

    nfe: int = DEFAULT_NFE
    estimator: BoundEstimator = "path"
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

    def passes(self, model: LanguageModel, length: int | None = None) -> int:
        """Return the network evaluations of one draw for one window; all blocks are evaluated in parallel."""
        if self.estimator == "steps":
            return 1
        schedule, length = self.schedule or model.method.token_schedule, length or model.length
        return self.nfe if schedule is None else schedule.discretize(self.nfe, length).side_by_side().nfe

    def is_exact(self, model: LanguageModel, length: int) -> bool:
        """Return whether all paths of a window are the same: then one path gives its exact `-log p`."""
        chosen = self.estimator == "path" and self.order is not None
        return chosen and not_exact_because(model, self.order, length) is None

    def cost(self, model: LanguageModel, windows: int, length: int | None = None) -> int:
        """Return the network evaluations for windows of a length, the model's by default, over all paths."""
        paths = 1 if model.method.token_schedule is None else len(model.rdlm.process.mixture.paths)
        draws = 1 if self.is_exact(model, length or model.length) else self.draws
        return windows * paths * draws * self.passes(model, length)


def effort_for(
    model: LanguageModel,
    windows: int,
    nfe: int | None = None,
    estimator: BoundEstimator | None = None,
    seed: int = 0,
    order: ChosenOrder | None = None,
    budget: int = BUDGET,
) -> Effort:
    """Return an effort of about `budget` evaluations: four paths per window if they fit, else as many steps as fit.

    The estimator of a baseline is given: paths for Fisher-Flow, steps for the others. Of a chosen `order`, `nfe` is its
    number of calls.
    """
    only = model.method.bound_estimator
    if only is not None and estimator not in (None, only):
        raise InputError(f"the method {model.config.method!r} only has the {only} estimator, got {estimator}")
    nfe = order.nfe if order is not None else model.nfe if nfe is None else nfe
    affordable = Effort(nfe, order=order).cost(model, windows) <= budget
    chosen = only or estimator or ("path" if affordable else "steps")
    if chosen == "path":
        return Effort(nfe, "path", seed=seed, order=order)
    return Effort(nfe, "steps", max(MIN_DRAWS, min(nfe, budget // windows)), seed, order)


def chosen_effort(
    model: LanguageModel,
    texts: Sequence[str],
    unknown: Unknown = "error",
    nfe: int | None = None,
    order: OrderChoice = "auto",
    block: int | None = None,
    estimator: BoundEstimator | None = None,
    draws: int | None = None,
    seed: int = 0,
) -> Effort:
    """Return the effort for these texts, of `order_for` and `effort_for`, with a number of draws if it is given."""
    windows = sum(len(split_windows(encode_text(model, text, unknown, 1).ids, model.length)) for text in texts)
    effort = effort_for(model, max(windows, 1), nfe, estimator, seed, order_for(model, order, nfe, block))
    return effort if draws is None else replace(effort, draws=draws)


def order_for(
    model: LanguageModel, order: OrderChoice = "auto", nfe: int | None = None, block: int | None = None
) -> ChosenOrder | None:
    """Return the order of generation that a score assumes; None for baselines, which have a single order.

    By default, it is one with exact likelihoods if that is as good as the best: it takes one call.
    """
    own = model.method.token_schedule
    if own is None:
        if order != "auto" or block is not None:
            raise InputError(f"the method {model.config.method!r} has one order: leave out order and block")
        return None
    chosen = choose_order(model, order, nfe, model.length, block, exact=nfe is None)
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
    prompts: Sequence[str] | None = None,
) -> list[Score]:
    """Return the score of every text; the default effort is that of `effort_for` and `order_for`.

    With `prompts`, one for each text, the scores are of `-log p(text | prompt)`, see `score_continuations`.
    """
    texts = list_of_texts(texts)
    if prompts is None:
        return score_encoded(model, [encode_text(model, text, unknown) for text in texts], effort, advance)
    prompts = list_of_texts(prompts)
    if len(prompts) != len(texts):
        raise InputError(f"there must be one prompt for each text, got {len(prompts)} and {len(texts)}")
    encoded = [encode_text(model, text, unknown, least=1) for text in texts]
    before = [encode_text(model, prompt, unknown, least=0) for prompt in prompts]
    return score_continuations(model, list(zip(before, encoded, strict=True)), effort)


def list_of_texts(texts: Iterable[str]) -> list[str]:
    """Return texts, or prompts, as a list; InputError for a single text, and for what are no texts."""
    if isinstance(texts, str):
        raise InputError("texts, and prompts, are lists of texts: write [text] for one")
    several = isinstance(texts, Iterable) and not isinstance(texts, bytes | Mapping | Tensor)
    found: list[Any] = list(texts) if several else [texts]
    if not all(isinstance(text, str) for text in found):
        wrong = next(type(text).__name__ for text in found if not isinstance(text, str))
        raise InputError(f"texts, and prompts, are lists of texts, got {wrong}")
    return found


def score_encoded(
    model: LanguageModel,
    texts: Sequence[Encoded],
    effort: Effort | None = None,
    advance: Advance = lambda count: None,
) -> list[Score]:
    """Return the score of every text, split into windows as described above."""
    check_weights(model.method.network)
    parts = [split_windows(text.ids, model.length) for text in texts]
    rows = [(row, 0) for part in parts for row in part]
    effort = effort or effort_for(model, len(rows), order=order_for(model))
    effort_for(model, len(rows), effort.nfe, effort.estimator)  # checks the estimator
    values = iter(_by_window(rows, partial(_draws, model, effort, advance)))
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


def _by_window(
    windows: Sequence[tuple[Int[Tensor, " length"], int]],
    draw: Callable[[Int[Tensor, "n length"], int, int], Float[Tensor, "draws n open"]],
) -> list[Float[Tensor, "draws open"]]:
    """Return the draws of every window in nats; windows of equal length and number of known tokens are batched.

    `draw` is given the tokens of a batch, how many of each row are known, and the place of the first row.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for place, (ids, known) in enumerate(windows):
        groups.setdefault((len(ids), known), []).append(place)
    found = [torch.empty(0)] * len(windows)
    for (_, known), places in groups.items():
        for at in range(0, len(places), BATCH_SIZE):
            part = places[at : at + BATCH_SIZE]
            values = draw(torch.stack([windows[place][0] for place in part]), known, part[0])
            for place, value in zip(part, values.unbind(1), strict=True):
                found[place] = value
    return found


@torch.no_grad()
def _draws(
    model: LanguageModel, effort: Effort, advance: Advance, ids: Int[Tensor, "n length"], known: int, first: int
) -> Float[Tensor, "draws n length"]:
    """Return estimates of each token's share of its row's bound; for baselines only their sum, [draws, n, 1]."""
    batch, generator = Batch(ids), generator_of("score", effort.seed, ids.shape[1], first)
    if model.method.token_schedule is None:
        totals = []
        for _ in range(effort.draws):
            totals.append(model.method.bound(batch, effort.nfe, generator).double().cpu()[:, None])
            advance(len(batch.ids) * effort.passes(model))
        return torch.stack(totals)
    problem = model.rdlm.problem(batch, effort.nfe, token_schedule=effort.schedule)
    if effort.estimator == "path":
        exact = effort.is_exact(model, batch.ids.shape[1])
        shares = path_bound(problem, 1 if exact else effort.draws, generator, advance=advance).sum(1)
        shares = shares.expand(effort.draws, *shares.shape[1:])
    else:
        shares = per_window_bound(problem, effort.draws, generator, advance=advance)
    count, length = batch.ids.shape
    return shares.reshape(effort.draws, count, length, -1).sum(-1)  # sum over the digits of a token


def score_note(model: LanguageModel, texts: Sequence[Encoded], scores: Sequence[Score]) -> str | None:
    """Return the note on a bound of all texts together that is worse than the uniform code; None if it is better."""
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


def encode_text(model: LanguageModel, text: str, unknown: Unknown = "error", least: int = MIN_TOKENS) -> Encoded:
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
            chars = min(chars, len(tokenizer.decode(ids.tolist())))  # spaces and unknown words may have been dropped
    if len(ids) < least:
        raise InputError(f"a text needs at least {least} tokens, got {len(ids)} in {text[:40]!r}")
    return Encoded(torch.from_numpy(ids.astype(np.int64)), chars)


def _known(ids: Ids, missing: int, text: str, unknown: Unknown) -> Ids:
    if unknown == "error" and bool((ids == missing).any()):
        raise InputError(
            f"the vocabulary has no tokens for some word of {text[:40]!r}; --unknown skip leaves such words out, "
            "--unknown replace scores them as [UNK]"
        )
    return ids[ids != missing] if unknown == "skip" else ids


# -- continuations ------------------------------------------------------------------------------------


def not_exact_because(model: LanguageModel, order: ChosenOrder | None, length: int) -> str | None:
    """Return the reason why tokens have no exact probability given those before them; None if they have one.

    They have one in autoregression, and if each call decodes one token, from left to right. `order` is None for
    baselines.
    """
    if isinstance(model.method, Autoregressive):
        return None
    if order is None:
        return f"the method {model.config.method!r} does not decode tokens from left to right"
    if model.config.model.self_condition:
        return "the network is conditioned on its own predictions, which differ between samples"
    if len(model.rdlm.process.mixture.paths) > 1:
        return "the process is a mixture of paths, over which the likelihood is bounded"
    if model.rdlm.layout.symbols_per_token > 1:
        return "tokens are split into digits, which are decoded independently of each other"
    if order.name != "left-to-right":
        what = "moves all tokens together" if order.name == "synchronous" else "decodes tokens in random order"
        return f"order {order.name} {what}, so that none has a probability given just those before it"
    steps = order.schedule.discretize(order.nfe, length)
    if steps.steps > 1:
        return f"each token is denoised in {steps.steps} steps, over which the likelihood is bounded"
    if steps.block != 1 and (steps.block or steps.order != "left_to_right" or steps.nfe < length):
        return f"{steps.nfe} calls for {length} tokens decode several tokens in one call: use {length} calls"
    return None


def exact_order(model: LanguageModel, length: int) -> ChosenOrder | None:
    """Return the order left to right, one call per token, if the model was trained for it; None if not."""
    for block in (1, 0) if model.rdlm.takes_blocks else (0,):
        order = choose_order(model, "left-to-right", length, length, block)
        if is_trained_for(model.config, order.schedule) and not_exact_because(model, order, length) is None:
            return order
    return None


@torch.no_grad()
def conditionals(
    model: LanguageModel, ids: Int[Tensor, "n length"], order: ChosenOrder | None
) -> Float[Tensor, "n length v"]:
    """Return `log p(. | tokens before)` of every position of windows, where `not_exact_because` is None."""
    if isinstance(model.method, Autoregressive):
        return model.method.conditionals(ids).double().cpu()
    assert order is not None
    problem = model.rdlm.problem(Batch(ids), order.nfe, token_schedule=order.schedule)
    (chain,), token = problem.chains, problem.token
    digit, (count, length) = chain.split(token), token.shape
    start = chain.path.bridge.start.point(device=token.device).repeat(*digit.shape, 1)
    level = chain.grid.remaining.to(start)
    if chain.token_steps.block:  # every position attends to the clean ones before it: one call for all
        rows, remaining = torch.arange(count, device=token.device), level[0].expand(token.shape)
        return replace(problem, batch=BATCH_SIZE).log_probs(rows, start, remaining).double().cpu()
    vertex, found = chain.path.bridge.tokens.at(digit, start), []
    for position in range(length):
        before = (torch.arange(length, device=token.device) < position).expand(token.shape)
        state = torch.where(chain.per_sphere(before, digit)[..., None], vertex, start)
        found.append(model.rdlm.posterior()(state, level[before.long() * chain.grid.steps])[:, position])
    return torch.stack(found, 1).double().cpu()


def score_continuations(
    model: LanguageModel, pairs: Sequence[tuple[Encoded, Encoded]], effort: Effort | None = None
) -> list[Score]:
    """Return the score of `-log p(continuation | prompt)` for pairs of a prompt and a continuation.

    The value is exact if the order decodes one token per call from left to right; otherwise it bounds the likelihood of
    the sampler with that prompt. A continuation longer than the model is scored half a length at a time; of the tokens
    before each part, those that fit are its prompt.
    """
    check_weights(model.method.network)
    effort = effort or effort_for(model, len(pairs), order=order_for(model))
    parts = [continuation_windows(before.ids, text.ids, model.length) for before, text in pairs]
    values = iter(_by_window([part for found in parts for part in found], partial(_continuation_draws, model, effort)))
    return [
        _continuation_score(model, text, [next(values) for _ in found])
        for (_, text), found in zip(pairs, parts, strict=True)
    ]


def continuation_windows(prompt: Tensor, text: Tensor, length: int) -> list[tuple[Int[Tensor, " window"], int]]:
    """Return windows of at most `length` tokens, and how many of each are known, that cover a continuation."""
    ids, at, found = torch.cat([prompt, text]), len(prompt), []
    if len(ids) < MIN_TOKENS:
        raise InputError(f"a prompt and its continuation need at least {MIN_TOKENS} tokens together, got {len(ids)}")
    while at < len(ids):
        end = min(len(ids), at + max(length // 2, length - at))
        begin = max(0, end - length)
        found.append((ids[begin:end], at - begin))
        at = end
    return found


def _continuation_draws(
    model: LanguageModel, effort: Effort, ids: Int[Tensor, "n length"], known: int, first: int
) -> Float[Tensor, "draws n rest"]:
    """Return estimates in nats of each open token's share of `-log p(open | known)`; one where that is exact."""
    reason = not_exact_because(model, effort.order, ids.shape[1])
    if reason is None:
        return -conditionals(model, ids, effort.order).gather(-1, ids[..., None])[None, :, known:, 0]
    if model.method.token_schedule is None:
        raise InputError(f"a continuation has no likelihood here: {reason}")
    problem = model.rdlm.problem(Batch(ids), effort.nfe, token_schedule=effort.schedule)
    generator = generator_of("continuation", effort.seed, *ids.shape, known)
    draws = max(effort.draws, MIN_DRAWS) if effort.estimator == "path" else MIN_DRAWS
    shares = path_bound(replace(problem, known=known), draws, generator).sum(1)
    return shares.view(draws, *ids.shape, -1).sum(-1)[:, :, known:]


def _continuation_score(model: LanguageModel, text: Encoded, values: list[Float[Tensor, "draws length"]]) -> Score:
    """Return the score of a continuation from the draws of its windows."""
    if all(len(value) == 1 for value in values):
        bits = torch.cat([value[0] for value in values])
        tokens = tuple(model.tokenizer.decode([i]) for i in text.ids.tolist())
        shares = tuple((bits / math.log(2)).tolist())
        return Score(Estimate(float(bits.sum()), 0.0), text.chars, tokens, shares, len(values), True)
    most = max(len(value) for value in values)
    return replace(_score(model, text, [value.expand(most, -1) for value in values]), exact=False)
