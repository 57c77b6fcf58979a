"""A sample while it sharpens: what the model thinks of every position at each network call, and a picture of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.figure import canvas
from rdlm.language_model import LanguageModel
from rdlm.randomness import generator_of
from rdlm.sampler.walk import walk

SHOWN_ROWS = 16
"""Moments of a picture."""
SHOWN_LETTERS = 64
"""Letters of a row."""


@dataclass(frozen=True, eq=False)
class Denoising:
    """One sample's likeliest tokens and their probabilities at every call, and what came of them."""

    likeliest: Int[Tensor, "calls length"]
    certainty: Float[Tensor, "calls length"]
    tokens: Int[Tensor, " length"]


def watch(model: LanguageModel, calls: int, seed: int = 0) -> Denoising:
    """Return the course of one sample of the model's own length; for models whose positions are tokens."""
    seen: list[tuple[Tensor, Tensor]] = []

    def look(step: int, state: Tensor, log_probability: Tensor) -> None:
        best = log_probability[0].max(-1)
        seen.append((best.indices, best.values.exp()))

    method = model.method
    chain = method.chain(method.process.mixture.paths[0], calls)
    tokens = walk(method.posterior(), chain, 1, model.length, generator_of("watch", seed), look)
    likeliest, certainty = (torch.stack(list(part)) for part in zip(*seen, strict=True))
    return Denoising(likeliest, certainty, tokens[0])


def draw(model: LanguageModel, course: Denoising, path: Path) -> None:
    """Draw the first letters at moments spread over the calls, darker where more certain, and the sample below."""
    calls, length = course.likeliest.shape
    moments = torch.linspace(0, calls - 1, min(SHOWN_ROWS, calls)).round().long().tolist()
    columns = min(SHOWN_LETTERS, length)
    rows = [(f"{m + 1}", course.likeliest[m], course.certainty[m]) for m in moments]
    rows.append(("sample", course.tokens, torch.ones(length)))
    with canvas(path, width=0.155 * columns + 0.8, height=0.24 * len(rows) + 0.7) as (axis,):
        shades = torch.stack([certainty[:columns] for _, _, certainty in rows])
        axis.imshow(shades, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
        for y, (_, tokens, certainty) in enumerate(rows):
            for x in range(columns):
                letter = model.tokenizer.decode([int(tokens[x])])
                colour = "white" if float(certainty[x]) > 0.75 else "black"
                axis.text(x, y, letter, ha="center", va="center", fontsize=7, family="monospace", color=colour)
        axis.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=7)
        axis.set_xticks([])
        axis.grid(False)
        axis.set_ylabel("network call")
        axis.set_title("the likeliest letter of each position, darker where more certain", fontsize=8)
