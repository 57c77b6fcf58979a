"""A trace: how one sample takes shape, what the model thinks of each token and where its states are on the sphere.

Traces as moving pictures: a web page that asks nothing of anybody, and a GIF where pillow is installed.

A still picture of a sample while it sharpens.

Samples as files: text, DNA as FASTA, images as one PNG of all of them in a grid.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.data.image import encode_png
from rdlm.display.figure import canvas
from rdlm.errors import InputError
from rdlm.sampling.recall import answered
from rdlm.storage.files import write_atomic

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

    from rdlm.api.generate import Generation, Sample


UNASKED = -2
"""In place of a token of which the model has not been asked yet."""
SHOWN_SPHERES = 24
"""Positions whose states are kept, evenly spread over the sample."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One step: the likeliest token of each position with its probability, and points of the unit sphere."""

    tokens: tuple[str, ...]
    certainty: tuple[float, ...]
    points: tuple[tuple[float, float, float], ...]
    """Of the shown positions: coordinates on the token that they end in, on the mask, and all others' length."""


@dataclass(eq=False)
class Trace:
    """The frames of a sample; `look` records a step, `finish` tells how it ended."""

    model: LanguageModel
    frames: list[Frame] = field(default_factory=list)
    _seen: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def look(self, state: Float[Tensor, "positions *spheres d"], log_probs: Float[Tensor, "positions v"]) -> None:
        """Record a step: states and log-probabilities of one sample."""
        method = self.model.rdlm
        best = log_probs.max(-1)
        # [positions] -> [length, digits]: a token of several digits is as certain as all of them together.
        certainty = best.values.view(-1, method.symbols_per_token).sum(-1).exp()
        kept = state.flatten(0, -2)[self._shown(state.flatten(0, -2).shape[0])]
        told = answered(log_probs).view(-1, method.symbols_per_token).any(-1).cpu()
        ids = method.spell(best.indices[None].cpu())[0].masked_fill(~told, UNASKED)
        self._seen.append((ids, certainty.cpu(), kept.cpu()))

    def finish(self, token: Int[Tensor, " length"]) -> None:
        """Turn what was recorded into frames, now that the end is known."""
        codec = self.model.rdlm.process.codec
        digit = codec.encode(token[None]).flatten()
        chosen = digit[self._shown(len(digit))]
        for ids, certainty, state in self._seen:
            on_token = state.gather(-1, chosen[:, None])[:, 0]
            on_mask = state[:, -1]
            rest = (1 - on_token.square() - on_mask.square()).clamp_min(0).sqrt()
            points = torch.stack([on_token, on_mask, rest], -1)
            self.frames.append(Frame(self._words(ids), tuple(certainty.tolist()), tuple(map(tuple, points.tolist()))))
        ends = ((1.0, 0.0, 0.0),) * len(chosen)
        self.frames.append(Frame(self._words(token), (1.0,) * len(token), ends))

    def _words(self, ids: Tensor) -> tuple[str, ...]:
        strange = {UNASKED: "", -1: "\ufffd"}  # digits may spell no token
        return tuple(strange[i] if i in strange else self.model.tokenizer.decode([i]) for i in ids.tolist())

    def _shown(self, spheres: int) -> Tensor:
        return torch.linspace(0, spheres - 1, min(SHOWN_SPHERES, spheres)).round().long()


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>__TITLE__</title><style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; color: #222; background: #fff }
#text { font: 15px/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; min-height: 12em }
#text span { border-radius: 2px } canvas { display: block; margin: 1rem auto }
input { width: 24rem; vertical-align: middle }
</style></head><body>
<h1>__TITLE__</h1>
<p><button id="play" type="button">Pause</button>
<label>step <input id="step" type="range" min="0"> <output id="at"></output></label></p>
<div id="text" aria-live="off"></div>
<canvas id="sphere" width="420" height="420" role="img"
 aria-label="states moving from the mask to the vertices of their tokens"></canvas>
<p>Each token is the likeliest one at this step, bluer where the model is more certain. Each dot is one position's state
on the unit sphere: up is the mask, right is the token that it ends in, towards you are all the others.</p>
<script type="application/json" id="frames">__FRAMES__</script>
<script>
const frames = JSON.parse(document.getElementById("frames").textContent);
const [text, step, at, play] = ["text", "step", "at", "play"].map(id => document.getElementById(id));
const canvas = document.getElementById("sphere"), pen = canvas.getContext("2d");
let timer = null;
step.max = frames.length - 1;
function project([x, y, z]) { return [60 + 300 * (x + 0.35 * z), 350 - 300 * (y + 0.2 * z) + 60 * z]; }
function arc(from, to) {
  pen.beginPath();
  for (let i = 0; i <= 40; i++) {
    const a = Math.PI / 2 * i / 40, p = from.map((v, k) => Math.cos(a) * v + Math.sin(a) * to[k]);
    pen.lineTo(...project(p));
  }
  pen.stroke();
}
function show(n) {
  const frame = frames[n];
  text.replaceChildren(...frame.tokens.map((word, i) => {
    const span = document.createElement("span"), c = frame.certainty[i];
    span.textContent = word;
    span.style.background = `rgba(33, 102, 172, ${(0.85 * c).toFixed(3)})`;
    span.style.color = c > 0.6 ? "#fff" : "#222";
    span.title = `${(100 * c).toFixed(1)}%`;
    return span;
  }));
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.strokeStyle = "#aaa"; pen.fillStyle = "#222"; pen.font = "14px sans-serif";
  const [token, mask, others] = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
  arc(token, mask); arc(mask, others); arc(others, token);
  pen.fillText("its token", 330, 375); pen.fillText("mask", 40, 40); pen.fillText("other tokens", 90, 375);
  pen.fillStyle = "rgba(178, 24, 43, 0.7)";
  for (const point of frame.points) { pen.beginPath(); pen.arc(...project(point), 4, 0, 7); pen.fill(); }
  step.value = n; at.textContent = `${n} of ${frames.length - 1}`;
}
function toggle() {
  if (timer) { clearInterval(timer); timer = null; play.textContent = "Play"; return; }
  play.textContent = "Pause";
  timer = setInterval(() => show((+step.value + 1) % frames.length), 120);
}
play.onclick = toggle; step.oninput = () => { if (timer) toggle(); show(+step.value); };
show(0);
if (matchMedia("(prefers-reduced-motion: reduce)").matches) { play.textContent = "Play"; } else { toggle(); }
</script></body></html>
"""

COLUMNS = 43
"""Tokens per line of a GIF: three lines of a text of 128."""
CELL = 18, 28
LETTER = 19
"""Pixels of a letter."""
GLOBE = 260
"""Pixels of the sphere's side."""
BLUE, RED, GREY = (33, 102, 172), (178, 24, 43), (140, 140, 140)


def write_animation(trace: Trace, path: Path) -> None:
    """Write a trace as HTML or GIF, by the ending of `path`."""
    match path.suffix.lower():
        case ".html" | ".htm":
            write_atomic(path, html(trace))
        case ".gif":
            write_atomic(path, gif(trace))
        case other:
            raise InputError(f"a trace is written as .html or .gif, not as {other or 'a file without ending'!r}")


def html(trace: Trace) -> str:
    """Return the trace as one page with everything inside it."""
    frames = [
        {
            "tokens": frame.tokens,
            "certainty": [round(value, 4) for value in frame.certainty],
            "points": [[round(value, 4) for value in point] for point in frame.points],
        }
        for frame in trace.frames
    ]
    # A text may hold what would end the script: '<' is written as an escape.
    content = json.dumps(frames).replace("<", "\\u003c")
    return PAGE.replace("__TITLE__", "A sample takes shape").replace("__FRAMES__", content)


def gif(trace: Trace) -> bytes:
    """Return the trace as an animated GIF; needs pillow."""
    try:
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont
    except ImportError as missing:
        raise InputError("a GIF needs pillow: pip install 'rdlm[viz]'; a trace as .html does not") from missing
    lines = -(-len(trace.frames[0].tokens) // COLUMNS) * CELL[1] + 20
    wide = min(COLUMNS, len(trace.frames[0].tokens)) * CELL[0] + 20
    globe = GLOBE if any(_travels(frame) for frame in trace.frames) else 0
    font = PIL.ImageFont.load_default(LETTER)
    pictures: list[Image] = []
    for frame in trace.frames:
        picture = PIL.Image.new("RGB", (max(wide, globe), lines + globe), "white")
        pen = PIL.ImageDraw.Draw(picture)
        pen.font = font
        _draw_tokens(pen, frame)
        if globe:
            _draw_sphere(pen, frame, lines)
        pictures.append(picture)
    content = io.BytesIO()
    durations = [120] * (len(pictures) - 1) + [3000]
    pictures[0].save(content, "GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0)
    return content.getvalue()


def _travels(frame: Frame) -> bool:
    """Return whether a state is on its way: those that jump from the start to their tokens have none to show."""
    return any(0.01 < on_token < 0.99 for on_token, _, _ in frame.points)


def _draw_tokens(pen: ImageDraw, frame: Frame) -> None:
    """Draw the tokens in rows, bluer where the model is more certain."""
    for index, (word, certainty) in enumerate(zip(frame.tokens, frame.certainty, strict=True)):
        left, top = 10 + index % COLUMNS * CELL[0], 10 + index // COLUMNS * CELL[1]
        shade = tuple(round(255 - 0.85 * certainty * (255 - full)) for full in BLUE)
        pen.rectangle((left, top, left + CELL[0] - 2, top + CELL[1] - 3), fill=shade)
        middle = left + CELL[0] / 2 - 1, top + CELL[1] / 2 - 1
        pen.text(middle, word[:1], fill="white" if certainty > 0.6 else "black", anchor="mm")


def _draw_sphere(pen: ImageDraw, frame: Frame, top: int) -> None:
    """Draw the states on the sphere: up is the mask, right is the token that they end in, towards us the others."""

    def place(point: Sequence[float]) -> tuple[float, float]:
        x, y, z = point
        return 30 + 0.6 * GLOBE * (x + 0.35 * z), top + 0.8 * GLOBE - 0.62 * GLOBE * y + 0.1 * GLOBE * z

    token, mask, others = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
    turns = [math.pi / 2 * part / 40 for part in range(41)]
    for start, end in ((token, mask), (mask, others), (others, token)):
        arc = [[math.cos(t) * a + math.sin(t) * b for a, b in zip(start, end, strict=True)] for t in turns]
        pen.line([place(point) for point in arc], fill=GREY)
    for word, corner, right, down in (("its token", token, 8, -10), ("mask", mask, 0, -28), ("others", others, 0, 6)):
        x, y = place(corner)
        pen.text((x + right, y + down), word, fill=GREY)
    for point in frame.points:
        x, y = place(point)
        pen.ellipse((x - 4, y - 4, x + 4, y + 4), fill=RED)


SHOWN_ROWS = 16
"""Moments of a picture, the sample itself not counted."""
SHOWN_LETTERS = 64
"""Tokens of a row."""


def draw(frames: Sequence[Frame], path: Path) -> None:
    """Draw the first tokens at moments spread over the walk, darker where more certain, and the sample below."""
    nfe = len(frames) - 1  # the last frame is the sample
    moments = np.linspace(0, nfe - 1, min(SHOWN_ROWS, nfe)).round().astype(int).tolist()
    rows = [(f"{m + 1}", frames[m]) for m in moments] + [("sample", frames[-1])]
    columns = min(SHOWN_LETTERS, len(frames[-1].tokens))
    with canvas(path, width=0.155 * columns + 0.8, height=0.24 * len(rows) + 0.7) as (axis,):
        shades = np.array([frame.certainty[:columns] for _, frame in rows])
        axis.imshow(shades, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
        for y, (_, frame) in enumerate(rows):
            for x in range(columns):
                colour = "white" if shades[y, x] > 0.75 else "black"
                axis.text(x, y, frame.tokens[x], ha="center", va="center", fontsize=7, family="monospace", color=colour)
        axis.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
        axis.set_xticks([])
        axis.grid(False)
        axis.set_ylabel("network call")
        axis.set_title("the likeliest letter of each position, darker where more certain", fontsize=8)


FASTA_WIDTH = 70
LONGEST_SIDE = 256
"""Pixels at least of a grid of small images, which are enlarged by a whole factor."""


def write_samples(model: LanguageModel, generation: Generation, path: Path) -> None:
    """Write all samples into one file, in the form that the model's kind asks for."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: --out names a file")
    match model.kind:
        case "image":
            write_atomic(path, encode_png(picture(model, generation.samples)))
        case "dna":
            write_atomic(path, fasta(generation.samples))
        case _:
            write_atomic(path, "".join(f"{sample.text}\n" for sample in generation.samples))


def fasta(samples: Sequence[Sample]) -> str:
    """Return the samples in FASTA, each under its seed, in lines of 70 bases."""
    records = []
    for sample in samples:
        lines = [sample.text[at : at + FASTA_WIDTH] for at in range(0, len(sample.text), FASTA_WIDTH)]
        records.append("\n".join([f">sample seed={sample.seed} length={len(sample.text)}", *lines]))
    return "\n".join(records) + "\n"


def picture(model: LanguageModel, samples: Sequence[Sample]) -> NDArray[np.uint8]:
    """Return the samples side by side [height, width, channels], a pixel between them, small ones enlarged."""
    height, width, channels = model.about["image"]
    levels = model.tokenizer.size
    columns = math.ceil(math.sqrt(len(samples)))
    rows = -(-len(samples) // columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, channels), 128, np.uint8)
    for index, sample in enumerate(samples):
        pixels = np.array(sample.tokens).reshape(height, width, channels) * 255 // (levels - 1)
        top, left = index // columns * (height + 1), index % columns * (width + 1)
        sheet[top : top + height, left : left + width] = pixels
    factor = max(1, LONGEST_SIDE // max(sheet.shape[:2]))
    return sheet.repeat(factor, 0).repeat(factor, 1)
