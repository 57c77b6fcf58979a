"""The report of a run: a self-contained HTML page for light and dark screens, with SVG charts."""

from __future__ import annotations

import base64
import html
import math
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rdlm import __version__
from rdlm.config import RunConfig
from rdlm.data.image import encode_png
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Tokenizer
from rdlm.storage import config_file
from rdlm.storage.files import write_atomic
from rdlm.train import record

Series = Sequence[tuple[float, float, float]]
"""Points with half the length of their error bars: (x, y, margin)."""

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 30, 34

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --faint: #8884; --mark: #2166ac; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #161616; --mark: #79b4ee; } }
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif; max-width: 62rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td { padding: .15rem 1rem .15rem 0; vertical-align: top; }
td:first-child { opacity: .7; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--faint); border-radius: 6px;
      padding: .7rem; font-size: 13px; }
.curves { display: flex; flex-wrap: wrap; gap: 1rem; } svg { flex: 1 1 26rem; max-width: 100%; }
img { image-rendering: pixelated; width: 8rem; margin-right: .5rem; border: 1px solid var(--faint); }
"""


def write_report(
    config: RunConfig, corpus: Corpus, result: Mapping[str, Any], samples: Sequence[Sequence[int]], folder: Path
) -> None:
    """Write `report.html` into the run folder: result, curves, samples, configuration, environment."""
    lines = record.read_lines(folder)
    body = [
        html_table(_facts(result).items()),
        "<h2>Curves</h2>",
        f'<div class="curves">{"".join(_curves(lines, str(result["unit"])))}</div>',
        "<h2>Samples</h2>",
        "<p>Generated with the averaged weights; not selected.</p>",
        *_samples(corpus, samples),
        "<h2>Configuration</h2>",
        f"<pre>{html.escape(config_file.to_yaml(config))}</pre>",
    ]
    write_atomic(folder / "report.html", html_page(f"Run {folder.name}", body))


def html_page(title: str, body: Sequence[str], style: str = "") -> str:
    """Return a page without external files, with its title and the environment around the body.

    `style` is added to `STYLE`. What is not text is escaped.
    """
    heading = f"<h1>{html.escape(title)}</h1>"
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head>\n<body>\n"
        + "\n".join([heading, *body, "<h2>Environment</h2>", html_table(environment().items())])
        + "\n</body></html>\n"
    )
    return page.encode(errors="backslashreplace").decode()


def html_table(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as an HTML table."""
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def environment() -> dict[str, str]:
    """Return versions and hardware, without user and host names."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else platform.machine()
    return {
        "rdlm": __version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "system": platform.system(),
        "device": device,
        "processors": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }


def _facts(result: Mapping[str, Any]) -> dict[str, str]:
    bound = result["bound"]
    facts = {
        "corpus": str(result["protocol"]),
        "parameters": f"{result['parameters']:,}",
        "steps": f"{result['steps']:,}, of which skipped: {result['skipped']}",
        "time": f"{result['seconds']:.0f} s",
        "loss": "-" if result["loss"] is None else f"{result['loss']:.4f} nats per token",
    }
    if bound is not None:
        interval = f"95% interval {bound['low']:.4f} to {bound['high']:.4f}"
        note = "" if result.get("note") is None else f"; {result['note']}"
        facts["validation bound"] = f"{bound['value']:.4f} {result['unit']}, {interval}{note}"
    return facts


def _curves(lines: Sequence[Mapping[str, Any]], unit: str) -> Iterator[str]:
    losses: Series = [(x["step"], x["loss"], 0.0) for x in lines if x["kind"] == "step" and x["loss"] is not None]
    bounds: Series = [(x["step"], x["bits"], x["margin"]) for x in lines if x["kind"] == "validation"]
    if losses:
        yield chart("Training loss (nats per token)", losses)
    if bounds:
        yield chart(f"Validation bound ({unit}, 95% interval)", bounds)


def _samples(corpus: Corpus, samples: Sequence[Sequence[int]]) -> Iterator[str]:
    for ids in samples:
        if corpus.image is None:
            yield f"<pre>{html.escape(text_of(corpus.tokenizer, ids))}</pre>"
        else:
            content = base64.b64encode(encode_png(image_of(ids, corpus.image, corpus.tokenizer.size))).decode()
            yield f'<img alt="sample" src="data:image/png;base64,{content}">'


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of the ids; an id of -1, which is not a token, becomes U+FFFD."""
    parts: list[list[int]] = [[]]
    for i in ids:
        if i < 0:
            parts.append([])
        else:
            parts[-1].append(i)
    return "\N{REPLACEMENT CHARACTER}".join(tokenizer.decode(part) for part in parts)


def image_of(ids: Sequence[int], shape: tuple[int, int, int], levels: int) -> NDArray[np.uint8]:
    """Return the image [height, width, channels] of the ids; an id of -1 becomes black."""
    found = np.maximum(np.array(ids), 0)  # [height * width * channels]
    pixels: NDArray[np.uint8] = (found * 255 // (levels - 1)).astype(np.uint8)
    return pixels.reshape(shape)


# -- charts -----------------------------------------------------------------------------------------


def chart(title: str, series: Series) -> str:
    """Return a line chart with error bars as an `<svg>` element in the colours of the page; drop non-finite points."""
    points = [(x, y, e if math.isfinite(e) else 0.0) for x, y, e in series if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return ""
    xs = ticks(min(p[0] for p in points), max(p[0] for p in points))
    ys = ticks(min(y - e for _, y, e in points), max(y + e for _, y, e in points))

    def across(x: float) -> float:
        return LEFT + (x - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (y - ys[0]) / (ys[-1] - ys[0]) * (HEIGHT - TOP - BOTTOM)

    grid = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(y):.1f}" y2="{down(y):.1f}" stroke="currentColor" '
        f'opacity=".15"/><text x="{LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{y:.4g}</text>'
        for y in ys
    ]
    feet = [f'<text x="{across(x):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{x:.6g}</text>' for x in xs]
    line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y, _ in points)
    bars = [
        f'<line x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{down(y - e):.1f}" y2="{down(y + e):.1f}" '
        'stroke="var(--mark)" opacity=".6"/>'
        for x, y, e in points
        if e > 0
    ]
    dots = [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="2" fill="var(--mark)"/>' for x, y, _ in points]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" font-size="11" fill="currentColor" role="img" '
        f'aria-label="{html.escape(title)}"><text x="{LEFT}" y="16" font-size="13">{html.escape(title)}</text>'
        f'{"".join(grid)}{"".join(feet)}<polyline points="{line}" fill="none" stroke="var(--mark)" stroke-width="1.6"/>'
        f"{''.join(bars)}{''.join(dots) if len(points) < 60 else ''}</svg>"
    )


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers; the first and the last enclose [low, high]."""
    if high <= low:
        low, high = low - max(abs(low), 1) / 2, high + max(abs(high), 1) / 2
    rough = (high - low) / 4
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, last + 1)]
