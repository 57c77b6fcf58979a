"""What a generation leaves in files: samples, and the steps of one sample.

Samples are written as text, DNA as FASTA, images as one PNG with all of them in a grid. `Trace` records the most likely
tokens, their probabilities and some states at every step of a sample; `write_animation` writes it as a web page or an
animated GIF (needs pillow), and `draw` as a figure.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
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
from rdlm.sampling.denoisers import evaluated
from rdlm.storage.files import write_atomic

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

    from rdlm.api.generate import Generation, Sample

FASTA_WIDTH = 70
LONGEST_SIDE = 256
"""Least number of pixels per side of a grid; small images are enlarged by an integer factor."""


def write_samples(model: LanguageModel, generation: Generation, path: Path) -> None:
    """Write all samples into one file, in the format of the model's modality."""
    if path.is_dir():
        raise InputError(f"--out {path} is a folder: give a file")
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
    shape, levels = model.about["image"], model.tokenizer.size
    return grid([(np.array(sample.tokens).reshape(shape) * 255 // (levels - 1)).astype(np.uint8) for sample in samples])


def grid(images: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return images of one shape side by side in rows, a grey pixel between them, small ones enlarged."""
    height, width, channels = images[0].shape
    columns = math.ceil(math.sqrt(len(images)))
    rows = -(-len(images) // columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, channels), 128, np.uint8)
    for index, pixels in enumerate(images):
        top, left = index // columns * (height + 1), index % columns * (width + 1)
        sheet[top : top + height, left : left + width] = pixels
    factor = max(1, LONGEST_SIDE // max(sheet.shape[:2]))
    return sheet.repeat(factor, 0).repeat(factor, 1)


# -- the steps of a sample -------------------------------------------------------------------------------------------

NOT_EVALUATED = -2
"""Token id of a position at which the network has not been evaluated yet."""
SHOWN_SPHERES = 24
"""Number of spheres whose states are recorded, equally spaced over the sample."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One step: the most likely token of each position, its probability, and points on the unit sphere."""

    tokens: tuple[str, ...]
    certainty: tuple[float, ...]
    points: tuple[tuple[float, float, float], ...]
    """For each shown sphere: the coordinates of its final token and of the mask, and the norm of all others."""


@dataclass(eq=False)
class Trace:
    """The frames of a sample: `record` adds a step, `finish` adds the sample and builds the frames."""

    model: LanguageModel
    frames: list[Frame] = field(default_factory=list)
    _steps: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def record(self, state: Float[Tensor, "positions *spheres d"], log_probs: Float[Tensor, "positions v"]) -> None:
        """Record the states and log-probabilities of one sample at a step."""
        layout = self.model.rdlm.layout
        best = log_probs.max(-1)
        # [positions] -> [length, digits]: the probability of a token is the product over its digits.
        certainty = best.values.view(-1, layout.symbols_per_token).sum(-1).exp()
        spheres = state.flatten(0, -2)  # [spheres, d]
        shown = spheres[self._shown(len(spheres))]
        known = evaluated(log_probs).view(-1, layout.symbols_per_token).any(-1).cpu()
        ids = layout.ids(best.indices[None].cpu())[0].masked_fill(~known, NOT_EVALUATED)
        self._steps.append((ids, certainty.cpu(), shown.cpu()))

    def finish(self, token: Int[Tensor, " length"]) -> None:
        """Build the frames of the recorded steps, given the final tokens."""
        digit = self.model.rdlm.layout.encode(token[None]).flatten()
        final = digit[self._shown(len(digit))]
        for ids, certainty, state in self._steps:
            on_token = self.model.rdlm.process.bridge.tokens.cosine(state, final)
            on_mask = state[:, -1]
            rest = (1 - on_token.square() - on_mask.square()).clamp_min(0).sqrt()
            points = torch.stack([on_token, on_mask, rest], -1)
            self.frames.append(Frame(self._words(ids), tuple(certainty.tolist()), tuple(map(tuple, points.tolist()))))
        ends = ((1.0, 0.0, 0.0),) * len(final)
        self.frames.append(Frame(self._words(token), (1.0,) * len(token), ends))

    def _words(self, ids: Tensor) -> tuple[str, ...]:
        special = {NOT_EVALUATED: "", -1: "\ufffd"}  # -1: the digits are the code of no token
        return tuple(special[i] if i in special else self.model.tokenizer.decode([i]) for i in ids.tolist())

    def _shown(self, spheres: int) -> Tensor:
        return torch.linspace(0, spheres - 1, min(SHOWN_SPHERES, spheres)).round().long()


COLUMNS = 43
"""Tokens per line of a GIF: three lines for 128 tokens."""
CELL = 18, 28
"""Width and height of a token in pixels."""
LETTER = 19
"""Font size in pixels."""
GLOBE = 260
"""Height of the picture of the sphere in pixels."""
BLUE, RED, GREY = (33, 102, 172), (178, 24, 43), (140, 140, 140)


def write_animation(trace: Trace, path: Path) -> None:
    """Write a trace as HTML or GIF, depending on the suffix of `path`."""
    match path.suffix.lower():
        case ".html" | ".htm":
            write_atomic(path, html(trace))
        case ".gif":
            write_atomic(path, gif(trace))
        case other:
            raise InputError(f"a trace is written as .html or .gif, not as {other or 'a file without suffix'!r}")


def html(trace: Trace) -> str:
    """Return the trace as a self-contained web page."""
    frames = [
        {
            "tokens": frame.tokens,
            "certainty": [round(value, 4) for value in frame.certainty],
            "points": [[round(value, 4) for value in point] for point in frame.points],
        }
        for frame in trace.frames
    ]
    # Escape '<': a text may contain '</script>'.
    content = json.dumps(frames).replace("<", "\\u003c")
    page = (resources.files("rdlm.display") / "animation.html").read_text("utf-8")
    return page.replace("__TITLE__", "A sample takes shape").replace("__FRAMES__", content)


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
    globe = GLOBE if any(_moves(frame) for frame in trace.frames) else 0
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


def _moves(frame: Frame) -> bool:
    """Return whether a state lies between start and token; with one step per token none does."""
    return any(0.01 < on_token < 0.99 for on_token, _, _ in frame.points)


def _draw_tokens(pen: ImageDraw, frame: Frame) -> None:
    """Draw the tokens in lines, bluer for higher probabilities."""
    for index, (word, certainty) in enumerate(zip(frame.tokens, frame.certainty, strict=True)):
        left, top = 10 + index % COLUMNS * CELL[0], 10 + index // COLUMNS * CELL[1]
        shade = tuple(round(255 - 0.85 * certainty * (255 - full)) for full in BLUE)
        pen.rectangle((left, top, left + CELL[0] - 2, top + CELL[1] - 3), fill=shade)
        middle = left + CELL[0] / 2 - 1, top + CELL[1] / 2 - 1
        pen.text(middle, word[:1], fill="white" if certainty > 0.6 else "black", anchor="mm")


def _draw_sphere(pen: ImageDraw, frame: Frame, top: int) -> None:
    """Draw the states on the sphere: up is the mask, right the final token, towards the viewer the other tokens."""

    def project(point: Sequence[float]) -> tuple[float, float]:
        x, y, z = point
        return 30 + 0.6 * GLOBE * (x + 0.35 * z), top + 0.8 * GLOBE - 0.62 * GLOBE * y + 0.1 * GLOBE * z

    token, mask, others = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
    angles = [math.pi / 2 * part / 40 for part in range(41)]
    for start, end in ((token, mask), (mask, others), (others, token)):
        arc = [[math.cos(t) * a + math.sin(t) * b for a, b in zip(start, end, strict=True)] for t in angles]
        pen.line([project(point) for point in arc], fill=GREY)
    for word, corner, right, down in (("its token", token, 8, -10), ("mask", mask, 0, -28), ("others", others, 0, 6)):
        x, y = project(corner)
        pen.text((x + right, y + down), word, fill=GREY)
    for point in frame.points:
        x, y = project(point)
        pen.ellipse((x - 4, y - 4, x + 4, y + 4), fill=RED)


SHOWN_ROWS = 16
"""Largest number of steps in a figure, not counting the sample."""
SHOWN_LETTERS = 64
"""Largest number of tokens per row."""
CERTAIN = 0.99
"""Probability from which a token counts as certain in the choice of steps."""


def spaced(frames: Sequence[Frame], most: int) -> list[tuple[str, Frame]]:
    """Return up to `most` equally spaced steps, with their numbers from 1, and the sample, which is the last frame.

    The steps end with the first one from which on all tokens are certain: later ones look like the sample.
    """
    uncertain = [m for m, frame in enumerate(frames) if min(frame.certainty) < CERTAIN]
    last = min(max(uncertain, default=0) + 1, len(frames) - 2)
    shown = np.linspace(0, last, min(most, last + 1)).round().astype(int).tolist()
    return [(f"{m + 1}", frames[m]) for m in shown] + [("sample", frames[-1])]


def draw(frames: Sequence[Frame], path: Path) -> None:
    """Draw the first tokens at equally spaced steps, darker for higher probabilities, and the sample below."""
    rows = spaced(frames, SHOWN_ROWS)
    columns = min(SHOWN_LETTERS, len(frames[-1].tokens))
    with canvas(path, width=0.155 * columns + 1.5, height=0.24 * len(rows) + 0.9) as (axis,):
        shades = np.array([frame.certainty[:columns] for _, frame in rows])
        image = axis.imshow(shades, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
        for y, (_, frame) in enumerate(rows):
            for x in range(columns):
                colour = "white" if shades[y, x] > 0.75 else "black"
                axis.text(x, y, frame.tokens[x], ha="center", va="center", fontsize=8, family="monospace", color=colour)
        axis.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
        axis.set_xticks([])
        axis.grid(False)
        axis.set_xlabel("position")
        axis.set_ylabel("step")
        axis.set_title(f"most likely token at each position and step, of {len(frames) - 1} steps", fontsize=9)
        bar = axis.figure.colorbar(image, ax=axis, pad=0.01, fraction=0.03, aspect=30, label="its probability")
        bar.ax.set_ylim(0, 1)
