"""Draw the figures of docs/figures whose data are tables in docs/data: `python scripts/plots.py [NAME ...]`.

Without a name all of them are drawn. The other figures are written by the commands that measure them (docs/log).
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
DATA, FIGURES = ROOT / "docs" / "data", ROOT / "docs" / "figures"

Row = dict[str, str]
COLORS = ("#1f5fae", "#b01c2e", "#1d7d35", "#762a83", "#e08214", "#4d4d4d", "#35978f", "#c51b7d", "#8c6d1f")
DATA_PERPLEXITY, DATA_BIGRAM, DATA_BIGRAM_64 = 4.6, 0.071, 0.026  # held-out text8 under the same scorers: docs/log

UNIGRAMS = 4.12  # bits per character of text8-74m by the frequencies of characters: docs/log


def read(name: str) -> list[Row]:
    """Return the rows of one table of docs/data."""
    with (DATA / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def plain(axes: Axes, x: str, y: str, ticks: list[int] | None = None) -> None:
    """Label the axes, hide the upper and right spines, and put `ticks` on a base-2 logarithmic x axis."""
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if ticks:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])


def error_bar(rows: list[Row], value: str, low: str, high: str) -> tuple[list[float], list[list[float]]]:
    """Return the values of `rows` and the lengths of their error bars below and above."""
    values = [float(row[value]) for row in rows]
    below = [float(row[value]) - float(row[low]) for row in rows]
    above = [float(row[high]) - float(row[value]) for row in rows]
    return values, [below, above]


def bounds() -> Figure:
    """Likelihood bound over NFE: RDLM with token schedules, RDLM block-wise, MDLM and autoregression at equal cost."""
    shown = {
        ("muon-3000", "rdlm, 90% narrow, strided"): "RDLM, strided token schedule",
        ("muon-1765", "rdlm, also block-wise"): "RDLM, also trained block-wise",
        ("muon-3000", "mdlm"): "MDLM",
        ("muon-3000", "autoregressive"): "autoregressive",
    }
    table, nfe = read("bounds-text8"), [4, 8, 16, 32, 64, 128, 256]
    figure, axes = plt.subplots(figsize=(7.2, 4.4))
    for color, (key, label) in zip(COLORS, shown.items(), strict=False):
        rows = [row for row in table if (row["run"], row["model"]) == key]
        y, bar = error_bar(rows, "bound_bits_per_char", "low95_bits_per_char", "high95_bits_per_char")
        axes.errorbar([int(row["nfe"]) for row in rows], y, bar, marker="o", ms=5, capsize=2, color=color, label=label)
    plain(axes, "NFE (64 characters)", "upper bound, bits per character", nfe)
    axes.legend(frameon=False, fontsize=9)
    return figure


def compare() -> Figure:
    """Six methods on the same network: likelihood and bigram divergence of samples at 64 NFE."""
    order = ("rdlm", "mdlm", "udlm", "sedd", "autoregressive", "fisher_flow")
    rows = sorted(read("methods-text8"), key=lambda row: -order.index(row["method"]))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.6), sharey=True)
    values, (below, above) = error_bar(rows, "bits_per_char", "low95_bits_per_char", "high95_bits_per_char")
    for place, row in enumerate(rows):
        color = COLORS[order.index(row["method"])]
        face = color if row["is_bound"] == "yes" else "white"
        bar = [[below[place]], [above[place]]]
        left.errorbar(values[place], place, xerr=bar, fmt="o", ms=7, color=color, mfc=face)
        bigram, stderr = float(row["bigram_divergence_bits"]), float(row["bigram_stderr_bits"])
        right.errorbar(bigram, place, xerr=stderr, fmt="o", ms=7, color=color)
    left.set_yticks(range(len(rows)), [row["method"] for row in rows])
    right.axvline(DATA_BIGRAM_64, color="black", ls="--", lw=1)
    plain(left, "bits per character, 64 NFE (hollow: not a bound)", "")
    plain(right, "bigram divergence of 64 samples, bits (dashed: data)", "")
    return figure


def steps() -> Figure:
    """Bound, bigram divergence and perplexity over NFE, by token schedule and solver (uniform time grid)."""
    table = [row for row in read("steps-text8-windows") if row["grid"] in ("", "time")]
    panels = {
        "bound_bits_per_char": "bound, bits per character",
        "bigram_divergence_bits": "bigram divergence, bits",
        "perplexity": "perplexity under an autoregressive model",
    }
    figure, row_of_axes = plt.subplots(1, 3, figsize=(14, 4.6))
    series = list(dict.fromkeys((row["token_schedule"], row["solver"]) for row in table))
    for axes, (column, label) in zip(row_of_axes, panels.items(), strict=True):
        for color, (schedule, solver) in zip(COLORS, series, strict=True):
            rows = [
                row for row in table if (row["token_schedule"], row["solver"]) == (schedule, solver) and row[column]
            ]
            style = "--" if schedule == "synchronous" else "-"
            x, y = [int(row["nfe"]) for row in rows], [float(row[column]) for row in rows]
            axes.plot(x, y, style, marker="o", ms=4, color=color, label=f"{schedule}, {solver}")
        plain(axes, "NFE", label, [8, 16, 32, 64, 128, 256])
    row_of_axes[1].axhline(DATA_BIGRAM, color="black", ls=":", label="held-out data")
    row_of_axes[2].axhline(DATA_PERPLEXITY, color="black", ls=":")
    handles, labels = row_of_axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.16, 1, 1))
    return figure


def pretrained() -> Figure:
    """Sample quality of the pretrained text8 model over NFE: token schedules and two synchronous solvers."""
    table = [row for row in read("steps-text8-pretrained") if row["grid"] in ("", "time")]
    shown = {
        ("left to right in blocks", "mixture"): "left to right, block-wise",
        ("strided, one step", "mixture"): "strided token schedule",
        ("random, one step", "mixture"): "random token schedule",
        ("synchronous", "mixture"): "synchronous, mixture kernel",
        ("synchronous", "euler"): "synchronous, Euler (the paper's sampler)",
    }
    figure, axes = plt.subplots(figsize=(7.2, 4.4))
    for color, (key, label) in zip(COLORS, shown.items(), strict=False):
        rows = [row for row in table if (row["token_schedule"], row["solver"]) == key]
        x, y = [int(row["nfe"]) for row in rows], [float(row["perplexity_at_data_entropy"]) for row in rows]
        axes.plot(x, y, marker="o", ms=5, color=color, label=label)
    axes.axhline(3.8, color="black", ls=":", label="held-out data")
    axes.set_ylim(0, 40)
    plain(axes, "NFE (128 characters)", "perplexity at the entropy of data", [8, 16, 32, 64, 128, 256])
    axes.legend(frameon=False, fontsize=9, ncols=2)
    return figure


def reliability() -> Figure:
    """How often the restored symbols of each certainty are right, by kind of noise; bars are two standard errors.

    Bins with fewer than 20 predictions are left out.
    """
    kinds: dict[str, list[Row]] = {}
    for row in read("reliability"):
        if int(row["count"]) >= 20:
            kinds.setdefault(row["noise"], []).append(row)
    figure, grid = plt.subplots(3, 4, figsize=(10.5, 8), sharex=True, sharey=True)
    for axes, (noise, rows) in zip(grid.flat, kinds.items(), strict=False):
        x, y, count = ([float(row[name]) for row in rows] for name in ("certainty", "right", "count"))
        bars = [2 * (p * (1 - p) / n) ** 0.5 for p, n in zip(x, count, strict=True)]
        axes.plot([0, 1], [0, 1], color="black", lw=0.8, ls=":")
        axes.errorbar(x, y, bars, color=COLORS[0], marker="o", ms=3.5, lw=1.2, capsize=2)
        axes.set_ylim(-0.03, 1.05)
        plain(axes, "", "")
        axes.set_title(f"{noise}: {float(rows[0]['error']):.3f} (floor {float(rows[0]['floor']):.3f})", fontsize=9)
    for axes in grid.flat[len(kinds) :]:
        axes.set_visible(False)
    figure.supxlabel("certainty of the most likely symbol")
    figure.supylabel("share right")
    figure.tight_layout()
    return figure


def soak() -> Figure:
    """Memory, threads and descriptors of the service over time; p99 of small requests with and without long ones."""
    rows, found = read("soak"), json.loads((ROOT / "docs" / "soak.json").read_text())
    minutes = [float(row["seconds"]) / 60 for row in rows]
    figure, (memory, counts, latency) = plt.subplots(1, 3, figsize=(12.6, 3.4))
    memory.plot(minutes, [float(row["megabytes"]) for row in rows], color=COLORS[0])
    memory.set_ylim(0)
    plain(memory, "minutes", "resident memory (MB)")
    for name, color in zip(("threads", "descriptors"), COLORS, strict=False):
        counts.plot(minutes, [float(row[name]) for row in rows], color=color, label=name)
    counts.set_ylim(0)
    counts.legend(frameon=False)
    plain(counts, "minutes", "count")
    kinds = list(found["p99 loaded / alone"])
    for shift, state, color in ((-0.2, "alone", COLORS[0]), (0.2, "loaded", COLORS[1])):
        p99 = [found["latencies (ms)"][f"{kind}, {state}"]["p99"] for kind in kinds]
        latency.bar([index + shift for index in range(len(kinds))], p99, 0.4, color=color, label=state)
    latency.set_yscale("log")
    latency.legend(frameon=False)
    plain(latency, "", "p99 of small requests (ms)")
    latency.set_xticks(range(len(kinds)), kinds)
    figure.tight_layout()
    return figure


def systems() -> Figure:
    """Every method in its orders on text8-74m: the number at 8 and at 64 calls, mean of three seeds and each seed.

    Means outside of the axis are written at its end.
    """
    low, high = 2.35, 8.0
    groups: dict[str, dict[str, list[float]]] = {}
    kinds: dict[str, str] = {}
    for row in read("systems-text8"):
        if row["method"] != "data":
            name = " ".join(filter(None, (row["method"], row["order"])))
            groups.setdefault(name, {}).setdefault(row["asked"], []).append(float(row["bits"]))
            kinds[name] = row["kind"]
    names = sorted(groups, key=lambda name: -sum(groups[name]["64"]))
    figure, axes = plt.subplots(figsize=(8, 0.27 * len(names) + 1))
    for place, name in enumerate(names):
        face, outside = "white" if kinds[name] == "estimate" else None, []
        for calls, mark, color in (("8", "s", COLORS[4]), ("64", "o", COLORS[0])):
            bits = groups[name][calls]
            axes.plot(bits, [place] * len(bits), "|", color=color, ms=6)
            mean = sum(bits) / len(bits)
            axes.plot(mean, place, mark, color=color, mfc=face, ms=6, label=f"{calls} calls" if not place else None)
            outside += [f"{mean:.1f} at {calls} calls"] if not low < mean < high else []
        axes.text(high, place, ", ".join(outside) + " ", ha="right", va="center", size="small")
    axes.set_yticks(range(len(names)), names)
    axes.axvline(UNIGRAMS, color="grey", ls=":", lw=1, label="character frequencies")
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks([2.5, 3, 3.5, 4, 5, 6, 8], ["2.5", "3", "3.5", "4", "5", "6", "8"])
    axes.minorticks_off()
    axes.legend(loc="upper right")
    plain(axes, "bits per character (hollow: an estimate, not a bound)", "")
    return figure


PLOTS: dict[str, Callable[[], Figure]] = {
    "bounds": bounds,
    "compare": compare,
    "pretrained": pretrained,
    "reliability": reliability,
    "soak": soak,
    "steps": steps,
    "systems": systems,
}


def main() -> None:
    """Draw the figures that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(PLOTS)}; default: all")
    names = parser.parse_args().names or list(PLOTS)
    if unknown := sorted(set(names) - set(PLOTS)):
        parser.error(f"unknown figure {', '.join(unknown)}; known: {', '.join(PLOTS)}")
    for name in names:
        figure = PLOTS[name]()
        figure.savefig(FIGURES / f"{name}.png", dpi=130, bbox_inches="tight")
        plt.close(figure)
        print(FIGURES / f"{name}.png")


if __name__ == "__main__":
    main()
