"""Benchmark figures by name, with the function that measures each; torch is imported only when one is measured."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from benchmarks.measure import Figure
from rdlm.errors import unknown


class Entry(NamedTuple):
    """A group of figures: the module and the function that measure it, and one line of description."""

    module: str
    function: str
    summary: str


REGISTRY = {
    "step": Entry("training", "step", "training step against the network on token ids, d = 28"),
    "blocks": Entry("training", "blocks", "the same, trained block by block"),
    "packed": Entry("training", "packed", "the same for 30,522 tokens as ten base-3 digits"),
    "unsplit": Entry("training", "unsplit", "the same for 30,522 tokens on one sphere"),
    "layout": Entry("training", "layout", "packed against serial digits"),
    "paper-layout": Entry("training", "paper_layout", "the same with a network of the paper's size"),
    "loading": Entry("training", "loading", "data loading against the training step"),
    "products": Entry("products", "products", "the network against its matrix products"),
    "memory": Entry("processes", "memory", "peak memory of the training step on one sphere"),
    "startup": Entry("processes", "startup", "rdlm --help and a wrong flag against python alone"),
    "parallel": Entry("processes", "parallel", "two processes against one"),
    "numbers": Entry("draw", "numbers", "torch's normal numbers against counter-based ones"),
    "draw": Entry("draw", "draw", "a draw from the exact law against a pass of normal numbers"),
    "simulation": Entry("draw", "simulation", "a draw against the simulation that it replaces"),
    "tables": Entry("draw", "tables", "building the tables of the laws against drawing their random numbers"),
    "sampler": Entry("sampling", "sampler", "a sampler step without the network"),
    "kv-cache": Entry("sampling", "kv_cache", "left-to-right samples with and without the KV cache"),
    "bound": Entry("bound", "bound", "the likelihood bound against network calls, sampled paths and simulation"),
    "growth": Entry("growth", "growth", "how the cost grows with d, length and batch"),
}


def chosen(names: str | None) -> list[str]:
    """Return the names in a comma-separated list, or all names for None; an unknown name is an error."""
    wanted = list(REGISTRY) if names is None else [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in REGISTRY:
            raise unknown("figure", name, REGISTRY)
    return wanted


def measured(name: str, quick: bool) -> Sequence[Figure]:
    """Return the figures of one group, at full size or at the small sizes of `--quick`."""
    entry = REGISTRY[name]
    module = importlib.import_module(f"benchmarks.{entry.module}")
    return cast(Callable[[bool], Sequence[Figure]], getattr(module, entry.function))(quick)
