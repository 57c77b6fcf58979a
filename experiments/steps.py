"""Sample quality and likelihood bound against network calls, by solver, grid and token schedule.

    rdlm analyze steps RUN --scorer AUTOREGRESSIVE_RUN

The defaults of the sampler were chosen from this table. Rows are compared at an equal number of network calls: a solver
that calls the network twice per step takes half as many steps. With windows, steps in which no token moves need no
call. Temperatures other than 1 are used only for the perplexity at the entropy of the data, as repetitive samples have
a low perplexity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from jaxtyping import Int
from torch import Tensor

from experiments.row_cache import Row, Work, uncached
from rdlm.api.generate import Generation, generate, grid_of
from rdlm.api.language_model import LanguageModel
from rdlm.config import GridName
from rdlm.data.batch import Batch
from rdlm.display.figure import canvas
from rdlm.errors import InputError, unknown
from rdlm.evaluate.metrics import Scorer, divergences, generative_perplexity, sample_entropy
from rdlm.likelihood.estimators import Advance, stratified_bound
from rdlm.methods.bound import check_weights
from rdlm.process.order import Order, TokenSchedule
from rdlm.random import generator_of
from rdlm.sampling.solvers import SOLVERS, solver_of
from rdlm.storage.measurements import CURVE, fingerprint

ROWS = 16
"""Samples per forward pass."""

ORDERS: tuple[Order, ...] = ("strided", "random", "left_to_right")
PLOTTED = ("bound", "bigram")


@dataclass(frozen=True)
class Setting:
    """Solver, grid and token schedule at a number of network calls."""

    nfe: int
    solver: str = "mixture"
    grid: str = "time"
    width: float = 1.0
    """Share of the sampling time during which one token moves; 0 is a single step."""
    order: Order = "strided"
    block: int = 0
    """Tokens of a block; 0: the whole sequence is one block."""

    @property
    def steps(self) -> int:
        """The number of steps that the network calls allow."""
        per_step = SOLVERS[self.solver].nfe if self.width > 0 else 1
        # Every step takes `per_step` calls except for those that only decode: the last one where all tokens move
        # together, and every one where a token moves for a single step.
        return max(1, (self.nfe + (per_step - 1) * (self.width == 1)) // per_step)

    @property
    def window(self) -> TokenSchedule:
        """The token schedule, with a window of at least one step."""
        return TokenSchedule(max(self.width, 1 / self.steps), self.order, self.block)

    @property
    def clock(self) -> str:
        """The name of the token schedule."""
        if self.block:
            return f"blocks of {self.block}"
        if self.width == 1:
            return "synchronous"
        return f"{self.order} {self.width:g}" if self.width else f"{self.order}, one step"


@dataclass(frozen=True)
class Steps:
    """The settings: every solver on every grid, and the first solver with windows and blocks."""

    nfe: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    solvers: tuple[str, ...] = tuple(SOLVERS)
    grids: tuple[str, ...] = get_args(GridName)
    widths: tuple[float, ...] = (0.5, 0.25, 0.0)
    orders: tuple[Order, ...] = ORDERS
    temperatures: tuple[float, ...] = (0.8, 1.0, 1.2)
    block: int = 0
    """Tokens of a block; 0: no rows with blocks."""
    length: int = 0
    """Tokens of a sequence, on which the number of calls for blocks depends."""
    samples: int = 64
    evaluations: int = 1024
    """Network evaluations of sequences per bound."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.solvers:
            solver_of(name)
        for name in self.grids:
            if name not in get_args(GridName):
                raise unknown("grid", name, get_args(GridName))
        if not (self.nfe and self.solvers and self.grids) or min(*self.nfe, 1) < 1:
            raise InputError("the table needs solvers, grids and numbers of network calls of at least 1")
        if not all(0 <= width < 1 for width in self.widths):
            raise InputError(f"widths of windows must lie in [0, 1), got {', '.join(map(str, self.widths))}")
        if self.samples < 2:
            raise InputError(f"an interval needs at least 2 samples, got {self.samples}")

    def settings(self) -> Iterator[Setting]:
        """Yield all settings by their number of calls; windows that amount to a single step are listed once."""
        for nfe in self.nfe:
            yield from (Setting(nfe, solver, grid) for solver in self.solvers for grid in self.grids)
            widths = [width for width in self.widths if width == 0 or round(width * nfe) > 1]
            yield from (Setting(nfe, self.solvers[0], "time", w, order) for w in widths for order in self.orders)
            blocks = Setting(nfe, self.solvers[0], "time", 0.0, block=self.block)
            if self.block and blocks.window.discretize(nfe, self.length).block:  # else there are too few calls
                yield blocks

    @property
    def cost(self) -> int:
        """The network calls of all samples, for a progress bar."""
        return sum(setting.nfe for setting in self.settings()) * len({1.0, *self.temperatures})


def grids_of(model: LanguageModel) -> tuple[str, ...]:
    """Return the grids that a model supports; the information grid needs a measured curve."""
    measured = model.folder is not None and (model.folder / CURVE).is_file()
    return tuple(name for name in get_args(GridName) if name != "information" or measured)


def measure(
    model: LanguageModel,
    data: Batch,
    scorer: Scorer | None,
    table: Steps,
    advance: Advance = lambda count: None,
    cache: Callable[[object, Work], Row] = uncached,
) -> Iterator[Row]:
    """Yield the row of the data, as many sequences as there are samples, and then one for each setting.

    `cache` returns the row of a key, which holds everything that the row depends on.
    """
    check_weights(model.rdlm.network)
    temperatures = sorted({1.0, *table.temperatures})
    of = (
        fingerprint(model.rdlm.network),
        scorer and scorer.name,
        data.ids.tolist(),
        table.samples,
        temperatures,
        table.evaluations,
        table.seed,
    )
    reference = _statistics(model, data.ids[len(data.ids) // 2 :][: table.samples], data.ids, scorer)
    yield {"solver": "data", **reference}
    for setting in table.settings():
        work = partial(_row, model, setting, data, scorer, table, reference["entropy"])
        yield cache((of, setting, grid_of(model, setting.grid)), work)
        advance(setting.nfe * len(temperatures))


def _row(
    model: LanguageModel, setting: Setting, data: Batch, scorer: Scorer | None, table: Steps, entropy: float
) -> Row:
    """Return the row of a setting; `entropy` is that of the data."""
    row: Row = {
        "calls": setting.nfe,
        "steps": setting.steps,
        "solver": setting.solver,
        "grid": setting.grid,
        "clock": setting.clock,
    }
    row |= bound(model, setting, data, table.evaluations, table.seed)
    found = {}
    for temperature in sorted({1.0, *table.temperatures}):
        made = samples(model, setting, table, temperature)
        found[temperature] = _statistics(model, made.tokens, data.ids, scorer)
        if temperature == 1:
            row["network_calls"] = made.network_calls
    row |= found[1.0]
    if scorer is not None and len(found) > 1:
        row["matched"] = matched(list(found.values()), entropy)
    return row


def samples(model: LanguageModel, setting: Setting, table: Steps, temperature: float = 1.0) -> Generation:
    """Return the samples of a setting."""
    window = setting.window
    return generate(
        model,
        num=table.samples,
        steps=setting.steps,
        solver=setting.solver,
        grid=setting.grid,
        seed=table.seed,
        window=window.width,
        order=window.order,
        block=window.block,
        temperature=temperature,
        batch=ROWS,
        rows=ROWS,
    )


def bound(model: LanguageModel, setting: Setting, data: Batch, evaluations: int, seed: int = 0) -> dict[str, object]:
    """Return the bound of a setting's sampler in bits per token, Eq. (28)-(32); empty for solvers without a bound."""
    kernel = SOLVERS[setting.solver].bound
    if kernel is None or model.config.model.self_condition:
        return {}
    method, grid = model.rdlm, grid_of(model, setting.grid)
    problem, length = method.problem(data, setting.steps, kernel, setting.window), data.ids.shape[1]
    chains = tuple(
        method.chain(path, setting.steps, kernel, setting.window, grid, length).side_by_side()
        for path in method.process.mixture.paths
    )
    with torch.no_grad():
        found = stratified_bound(replace(problem, chains=chains), evaluations, generator_of("steps", seed)).total
    bits = found * (1 / (data.ids.shape[1] * math.log(2)))
    return {"bound": bits.value, "bound_low": bits.low, "bound_high": bits.high}


def _statistics(
    model: LanguageModel, tokens: Int[Tensor, "n length"], data: Int[Tensor, "m length"], scorer: Scorer | None
) -> dict[str, float]:
    """Return the statistics of samples relative to the data."""
    size, apart = model.tokenizer.size, divergences(tokens, data, model.tokenizer.size)
    entropy = sample_entropy(tokens, size)["entropy_per_sample_nats"]
    unigram, bigram = apart["unigram_divergence"], apart["bigram_divergence"]
    found = {
        "unigram": unigram.value,
        "bigram": bigram.value,
        "bigram_stderr": bigram.stderr or 0.0,
        "entropy": entropy.value,
    }
    if scorer is not None:
        texts = [model.tokenizer.decode(row) for row in tokens.tolist()]
        perplexity = generative_perplexity(texts, scorer)["generative_perplexity_corpus"]
        found |= {"perplexity": perplexity.value, "perplexity_stderr": perplexity.stderr or 0.0}
    return found


def matched(points: Sequence[Mapping[str, float]], entropy: float) -> float:
    """Return the perplexity at an entropy, by a least-squares line of log-perplexity over entropy."""
    x, y = (torch.tensor([point[name] for point in points], dtype=torch.float64) for name in ("entropy", "perplexity"))
    y, centred = y.log(), x - x.mean()
    slope = float((centred * y).sum() / centred.square().sum().clamp_min(1e-12))
    return math.exp(float(y.mean()) + slope * (entropy - float(x.mean())))


def conventions(scorer: Scorer | None) -> dict[str, str]:
    """Return the meaning of the columns."""
    found = {
        "calls, network_calls": "calls allowed, and calls of a sample: steps in which no token moves need none",
        "bound": "bits per token, upper bound of this sampler on validation data; interval 95%",
        "unigram, bigram": "Jensen-Shannon divergence from validation data, bits; compare with the row of the data",
        "entropy": "nats per token: entropy of the token frequencies within a sample, mean over samples",
    }
    if scorer is not None:
        found["perplexity"] = f"exp(nats of all samples / their tokens) under {scorer.name}, {scorer.rule}"
        found["matched"] = "the same at the entropy of the data, on a line fitted to all temperatures"
    return found


def plot(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Plot bound, bigram divergence and (matched) perplexity over network calls; the data are a dotted line."""
    curves: dict[str, list[Mapping[str, object]]] = {}
    for row in rows[1:]:
        if row["grid"] == "time":
            curves.setdefault(f"{row['solver']}, {row['clock']}", []).append(row)
    matches = any("matched" in row for row in rows)
    wanted = (*PLOTTED, "matched" if matches else "perplexity")
    names = [name for name in wanted if any(name in row for row in rows)]
    with canvas(path, columns=len(names), height=4.2) as axes:
        for axis, name in zip(axes, names, strict=True):
            for number, (label, points) in enumerate(curves.items()):
                kept = [(int(str(row["calls"])), float(str(row[name]))) for row in points if name in row]
                if kept:
                    style = ("-", "--", ":")[number // 8 % 3]  # there are eight colours
                    axis.plot(*zip(*kept, strict=True), f"o{style}", color=f"C{number}", markersize=3, label=label)
            of_data = rows[0].get("perplexity" if name == "matched" else name)
            if of_data is not None:
                axis.axhline(float(str(of_data)), color="grey", linestyle=":")
            axis.set(xlabel="network calls", title=name, xscale="log", yscale="log" if name == "bigram" else "linear")
        axes[-1].legend(fontsize=6)
