"""The figures by name, and where they are measured; torch is imported only when one of them is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from benchmarks.measure import Figure
from rdlm.errors import unknown


class Entry(NamedTuple):
    """Where a family of figures is measured and what it is."""

    module: str
    function: str
    summary: str


CATALOGUE = {
    "step": Entry("training", "step", "training step against the network on token ids, d = 28"),
    "chunks": Entry("training", "chunks", "the same from left to right"),
    "packed": Entry("training", "packed", "the same for 30,522 tokens as ten base-3 digits"),
    "unsplit": Entry("training", "unsplit", "the same for 30,522 tokens on one sphere"),
    "layout": Entry("layout", "layout", "packed against serial digits"),
    "paper-layout": Entry("layout", "paper_layout", "the same with a network of the paper's size"),
    "memory": Entry("memory", "memory", "peak memory of the step on one sphere"),
    "products": Entry("products", "products", "the network against its matrix products"),
    "numbers": Entry("draw", "numbers", "torch's normal numbers against those of a key"),
    "draw": Entry("draw", "draw", "a draw of the exact law against a pass of normal numbers"),
    "simulation": Entry("draw", "simulation", "a draw against the simulation it replaces"),
    "tables": Entry("draw", "tables", "building the laws' tables against drawing their random numbers"),
    "sampler": Entry("walking", "sampler", "a sampler's step without the network"),
    "recall": Entry("walking", "recall", "samples from left to right with and without recalling finished tokens"),
    "bound": Entry("bounding", "bound", "the likelihood bound against the network's calls, walks and simulation"),
    "loading": Entry("loading", "loading", "data loading against the training step"),
    "startup": Entry("startup", "startup", "rdlm --help and a wrong flag against python alone"),
    "parallel": Entry("parallel", "parallel", "two processes against one"),
    "growth": Entry("growth", "growth", "how cost grows in d, length and batch"),
}


def chosen(names: str | None) -> list[str]:
    """Return the names in a comma-separated list, all of them without one; an unknown one is an error."""
    wanted = list(CATALOGUE) if names is None else [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in CATALOGUE:
            raise unknown("figure", name, CATALOGUE)
    return wanted


def measured(name: str, quick: bool) -> Sequence[Figure]:
    """Return the figures of one family, at full size or as a quick look."""
    entry = CATALOGUE[name]
    module = importlib.import_module(f"rdlm.bench.{entry.module}")
    return cast(Callable[[bool], Sequence[Figure]], getattr(module, entry.function))(quick)
