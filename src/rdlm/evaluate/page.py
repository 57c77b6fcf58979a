"""The report of an evaluation: one HTML page without external files."""

from __future__ import annotations

import base64
import html
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rdlm.api.language_model import LanguageModel
from rdlm.display.figure import canvas
from rdlm.evaluate.evaluate import Evaluation
from rdlm.evaluate.metrics import unigrams
from rdlm.likelihood.estimators import Profile
from rdlm.train.report import html_page, html_table, text_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SHOWN = 8
"""Number of samples on the page."""

FREQUENT = 40
"""Tokens in the plot of frequencies."""

MORE_STYLE = "img.plot { width: 34rem; max-width: 100%; image-rendering: auto; background: #fff; }"


def evaluation_page(model: LanguageModel, evaluation: Evaluation) -> str:
    """Return the page: metrics with their conventions, plots, the bound over M, samples, environment."""
    plan = evaluation.plan
    facts = [
        ["corpus", str(model.about["protocol"])],
        ["split", plan.split],
        ["sequences", str(len(evaluation.held_out.ids))],
        ["seed", str(plan.seed)],
    ]
    over_calls = [
        [f"M = {row['calls']}", _interval(row["value"], row["low"], row["high"]), str(row["unit"])]
        for row in evaluation.rows
    ]
    body = [
        html_table(facts),
        "<h2>Metrics</h2>",
        f"<p>With 95% intervals.{'' if evaluation.note is None else f' Note: {html.escape(evaluation.note)}.'}</p>",
        html_table(
            [name, _interval(found.value, found.low, found.high), found.unit, found.convention]
            for name, found in evaluation.metrics.items()
        ),
        "<h2>Plots</h2>",
        *_pictures(model, evaluation),
        "<h2>The bound at M network calls</h2>",
        html_table(over_calls),
        *_samples(model, evaluation),
    ]
    return html_page(f"Evaluation of {model.name}", body, MORE_STYLE)


def _interval(value: object, low: object, high: object) -> str:
    return f"{value:.4g}" if low is None else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def _samples(model: LanguageModel, evaluation: Evaluation) -> Iterator[str]:
    if evaluation.samples is None or model.kind == "image":
        return
    yield "<h2>Samples</h2><p>The first ones, not selected.</p>"
    for ids in evaluation.samples[:SHOWN].tolist():
        yield f"<pre>{html.escape(text_of(model.tokenizer, ids))}</pre>"


def _pictures(model: LanguageModel, evaluation: Evaluation) -> Iterator[str]:
    if importlib.util.find_spec("matplotlib") is None:
        yield "<p>Plots need matplotlib: pip install 'rdlm[viz]'.</p>"
        return
    if evaluation.profile is not None:
        spent = evaluation.profile
        yield _picture("information over the noise", lambda axis: _draw_information(axis, spent))
    if len(evaluation.rows) > 1:
        yield _picture("the bound over network calls", lambda axis: _draw_calls(axis, evaluation))
    if evaluation.samples is not None:
        yield _picture("token frequencies", lambda axis: _draw_frequencies(axis, evaluation, model.tokenizer.size))


def _picture(name: str, draw: Callable[[Axes], None]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plot.png"
        with canvas(path) as axes:
            draw(axes[0])
        content = base64.b64encode(path.read_bytes()).decode()
    return f'<img class="plot" alt="{html.escape(name)}" src="data:image/png;base64,{content}">'


def _draw_information(axis: Axes, profile: Profile) -> None:
    """Plot the cumulative nats over the share of the noise that is spent, or over steps if token times differ."""
    spent, remaining = profile.cumulative(), profile.remaining
    part = (
        [i / (len(spent) - 1) for i in range(len(spent))]
        if remaining is None
        else (1 - remaining / remaining[0]).tolist()
    )
    axis.plot(part, spent.tolist())
    axis.set(xlabel="steps / M" if remaining is None else "noise spent / S", ylabel="cumulative nats per sequence")
    axis.set_title("Information over the noise spent")


def _draw_calls(axis: Axes, evaluation: Evaluation) -> None:
    rows = [row for row in evaluation.rows if row["calls"] != "inf"]
    value = [float(str(row["value"])) for row in rows]
    error = [float(str(row["high"])) - float(str(row["value"])) for row in rows]
    axis.errorbar([int(str(row["calls"])) for row in rows], value, error, marker="o", capsize=3, label="M calls")
    for row in evaluation.rows:
        if row["calls"] == "inf":
            axis.axhline(float(str(row["value"])), linestyle="--", linewidth=0.9, label="continuous time")
            axis.axhspan(float(str(row["low"])), float(str(row["high"])), alpha=0.12)
    axis.set_xscale("log", base=2)
    axis.set(xlabel="network calls M", ylabel=str(evaluation.rows[0]["unit"]))
    axis.set_title("The bound over network calls")
    axis.legend()


def _draw_frequencies(axis: Axes, evaluation: Evaluation, vocabulary: int) -> None:
    assert evaluation.samples is not None
    for name, ids in (("data", evaluation.held_out.ids), ("samples", evaluation.samples)):
        count = unigrams(ids, vocabulary).sum(0)
        frequency = count / count.sum()
        if name == "data":
            order = frequency.argsort(descending=True)[:FREQUENT]
        axis.plot(frequency[order].tolist(), marker="." if name == "samples" else None, label=name)
    axis.set(xlabel="token, by its frequency in the data", ylabel="frequency")
    axis.set_title("Token frequencies")
    axis.legend()
