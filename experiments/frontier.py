"""The frontier of sample quality: generative perplexity against entropy, by temperature, steps and solver.

A low perplexity alone is not a sign of quality: repetitive samples have one. Every setting is therefore a point, with
the entropy of its samples on the x axis and their perplexity under a scorer on the y axis, and the temperature traces a
curve. Of two curves, the lower one at equal entropy is better. Held-out data are a point, too: the target.

| column | convention |
|---|---|
| `perplexity` | exp(nats of all samples / their tokens) under the scorer, over the tokens of its rule |
| `entropy` | nats per token: entropy of the token frequencies within a sample, mean over samples |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from rdlm.api.generate import generate
from rdlm.api.language_model import LanguageModel
from rdlm.display.figure import canvas
from rdlm.errors import InputError
from rdlm.evaluate.metrics import Metric, Scorer, generative_perplexity, sample_entropy
from rdlm.likelihood.estimators import Advance
from rdlm.sampling.solvers import solver_of

TEMPERATURES = (0.5, 0.7, 0.85, 1.0, 1.15)
STEPS = (16, 64)
PAPER_STEPS = (64, 256, 1024)

ROWS = 16
"""Samples per forward pass."""


@dataclass(frozen=True)
class Frontier:
    """The settings: a curve over temperatures for each solver and each number of steps."""

    temperatures: tuple[float, ...] = TEMPERATURES
    steps: tuple[int, ...] = STEPS
    solvers: tuple[str, ...] = ("mixture",)
    window: float | None = None
    """Share of the sampling time during which one token moves; by default the model's."""
    samples: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.solvers:
            solver_of(name)
        if not (self.temperatures and self.steps and self.solvers) or min(*self.steps, 1) < 1:
            raise InputError("a frontier needs temperatures, solvers and numbers of steps of at least 1")
        if self.samples < 2:
            raise InputError(f"an interval needs at least 2 samples, got {self.samples}")

    @property
    def cost(self) -> int:
        """The steps of all samples, for a progress bar."""
        return sum(self.steps) * len(self.solvers) * len(self.temperatures)


def measure(
    model: LanguageModel,
    data: Int[Tensor, "n length"],
    scorer: Scorer,
    frontier: Frontier,
    advance: Advance = lambda count: None,
) -> Iterator[dict[str, object]]:
    """Yield the row of the data, as many sequences as there are samples, and then one for each point."""
    if model.kind != "text":
        raise InputError(f"a frontier is for text; {model.name} is a model of {model.kind}")
    yield {"solver": "data", **_point(model, data[: frontier.samples], scorer)}
    for solver in frontier.solvers:
        for steps in frontier.steps:
            for temperature in frontier.temperatures:
                made = generate(
                    model,
                    num=frontier.samples,
                    steps=steps,
                    solver=solver,
                    temperature=temperature,
                    window=frontier.window,
                    seed=frontier.seed,
                    batch=ROWS,
                    rows=ROWS,
                )
                advance(steps)
                setting = {"solver": solver, "steps": steps, "calls": made.network_calls, "temperature": temperature}
                yield setting | _point(model, made.tokens, scorer)


def _point(model: LanguageModel, tokens: Int[Tensor, "n length"], scorer: Scorer) -> dict[str, object]:
    entropy = sample_entropy(tokens, model.tokenizer.size)["entropy_per_sample_nats"]
    texts = [model.tokenizer.decode(row) for row in tokens.tolist()]
    perplexity = generative_perplexity(texts, scorer)["generative_perplexity_corpus"]
    return {**_interval("perplexity", perplexity), **_interval("entropy", entropy), "sample": texts[0]}


def _interval(name: str, found: Metric) -> dict[str, object]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def conventions(scorer: Scorer) -> dict[str, str]:
    """Return the meaning of the columns."""
    return {
        "perplexity": f"exp(nats of all samples / their tokens) under {scorer.name}, {scorer.rule}",
        "entropy": "nats per token: entropy of the token frequencies within a sample, mean over samples",
        "interval": "95%, over samples",
    }


def plot(rows: Sequence[Mapping[str, object]], scorer: str, path: Path) -> None:
    """Plot a curve over temperatures for each solver and number of steps, with 95% intervals; the data are a star."""
    solvers = list(dict.fromkeys(str(row["solver"]) for row in rows))
    steps = sorted({_number(row["steps"]) for row in rows if "steps" in row})
    with canvas(path, width=6.4, height=4.4) as (axis,):
        from matplotlib.ticker import LogLocator, NullLocator  # `canvas` has checked that it is installed

        for points in _curves(rows):
            x, y = ([_number(row[name]) for row in points] for name in ("entropy", "perplexity"))
            solver, number = str(points[0]["solver"]), points[0].get("steps")
            style: dict[str, Any] = {"fmt": "*", "markersize": 13, "color": "black", "label": "held-out data"}
            if number is not None:
                line = ("-", "--", ":", "-.")[(solvers.index(solver) - 1) % 4]  # the first entry is the data
                colour = f"C{steps.index(_number(number))}"
                style = {"fmt": f"o{line}", "markersize": 4, "color": colour, "label": f"{solver}, {number} steps"}
                for row, *at in zip(points, x, y, strict=True):
                    axis.annotate(f"{row['temperature']:g}", (at[0], at[1]), (4, 4), textcoords="offset points", size=6)
            across, up = _margins(points, "entropy"), _margins(points, "perplexity")
            axis.errorbar(x, y, up, across, elinewidth=0.6, **style)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set(xlabel="entropy of a sample's tokens, nats", ylabel=f"generative perplexity under {scorer}")
        axis.set_title("Generative perplexity against entropy, by temperature")
        axis.legend()


def _curves(rows: Sequence[Mapping[str, object]]) -> list[list[Mapping[str, object]]]:
    """Return the rows of each solver and number of steps."""
    curves: dict[tuple[object, object], list[Mapping[str, object]]] = {}
    for row in rows:
        curves.setdefault((row["solver"], row.get("steps")), []).append(row)
    return list(curves.values())


def _margins(points: Sequence[Mapping[str, object]], name: str) -> list[list[float]]:
    """Return the distances from each point to the ends of its interval."""
    ends = [(_number(row[name]), _number(row[f"{name}_low"]), _number(row[f"{name}_high"])) for row in points]
    return [[value - low for value, low, _ in ends], [high - value for value, _, high in ends]]


def _number(value: object) -> float:
    return float(str(value))
