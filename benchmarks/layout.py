"""Packed digits, which share their token's position, against serial ones, the paper's, which follow each other."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.measure import Figure, alternate, at_least
from benchmarks.subject import NETWORK, PIECES, SPLIT, TINY, method, network_on_ids, tokens, training_step
from rdlm.config import DenoiserConfig, Head, RunConfig, TransformerConfig
from rdlm.process.layout import Layout

CASES: dict[str, tuple[Layout, Head]] = {
    "serial": ("serial", "digit"),
    "digit": ("packed", "digit"),
    "token": ("packed", "token"),
}
PAPER = TransformerConfig(width=768, layers=12, heads=12)


def layout(quick: bool) -> list[Figure]:
    """Return how many times faster the packed layout is with the small network."""
    return _compared(TINY, 32, 3) if quick else _compared(NETWORK, 128, 4)


def paper_layout(quick: bool) -> list[Figure]:
    """Return the same with a network of the paper's size, some minutes; nothing where a quick look is wanted."""
    return [] if quick else _compared(PAPER, 128, 2)


def _compared(network: TransformerConfig, length: int, turns: int) -> list[Figure]:
    ids = tokens(PIECES, 2, length)
    works = {}
    for name, (where, head) in CASES.items():
        config = RunConfig(process=replace(SPLIT, layout=where), denoiser=DenoiserConfig(head=head), model=network)
        works[name] = training_step(method(config, PIECES), ids)
    works["ids"] = network_on_ids(network, PIECES, ids)
    taken = alternate(works, turns)
    shape = f"width {network.width}, {network.layers} layers, length {length}"
    figures = [
        Figure.of(f"serial digits, {shape}", f"packed, head over {name}s", taken["serial"], taken[name], at_least(8.0))
        for name in ("token", "digit")
    ]
    # What no packed step with a head over tokens can surpass.
    return [*figures, Figure.of(f"serial digits, {shape}", "the network on ids", taken["serial"], taken["ids"])]
