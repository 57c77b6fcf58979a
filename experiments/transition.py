"""The discrepancy of the laws from the simulated bridge (the paper's figure), and radial convergence.

    python -m experiments.transition --out docs/figures

Takes under three minutes on one thread. Samples of each law are compared with the random walk in `d` dimensions by the
squared maximum mean discrepancy, Eq. (43), in units of its 97.5% quantile under random exchanges: below 1 the two
cannot be distinguished.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from experiments.discrepancy import permutation_test
from experiments.radial import plot_radial
from rdlm.display.progress import bar
from rdlm.display.text_table import table
from rdlm.process.bridge import Bridge, masked_start, uniform_start
from rdlm.process.exact import tabulate
from rdlm.process.law import SimulatedLaw
from rdlm.process.normal import KummerName, from_projections, mean_projections
from rdlm.process.path import Law
from rdlm.process.schedule import Geometric, uniform_in_time

TIMES: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
LAWS: Final = ("exact", "normal, corrected", "normal, printed", "normal, coded")
STARTS: Final = {"masked": masked_start, "uniform": uniform_start}
_KUMMER: Final[tuple[KummerName, ...]] = ("corrected", "printed", "coded")


@dataclass(frozen=True)
class Case:
    """One dimension of the figure, with its number of samples and of simulation steps."""

    dimension: int
    samples: int
    steps: int


# In high dimension the random walk needs small steps to be close to its continuous limit, the normal law.
CASES: Final = (Case(4, 2000, 256), Case(28, 2000, 256), Case(256, 1500, 512), Case(30522, 64, 256))


@dataclass(frozen=True)
class Row:
    """One law against the simulation at one time: squared discrepancy, interval under exchanges, p-value."""

    dimension: int
    samples: int
    start: str
    time: float
    law: str
    value: float
    low: float
    high: float
    p_value: float


def compare(case: Case, start_name: str, generator: torch.Generator) -> Iterator[Row]:
    """Yield a row for every time and law, Eq. (43), with the paper's schedule and bridge."""
    schedule = Geometric()
    bridge = Bridge(STARTS[start_name](case.dimension - 1), schedule.total, "logarithm")
    truth = SimulatedLaw(bridge, uniform_in_time(schedule, case.steps))
    laws = build_laws(bridge, schedule, case.steps, generator)
    token = torch.zeros(case.samples, dtype=torch.long)
    for time in TIMES:
        remaining = schedule.remaining(time)
        simulated = truth.draw(token, remaining, generator)
        for name, law in laws.items():
            found = permutation_test(simulated, law.draw(token, remaining, generator), 200, generator)
            yield Row(
                case.dimension, case.samples, start_name, time, name, found.value, found.low, found.high, found.p_value
            )


def build_laws(bridge: Bridge, schedule: Geometric, steps: int, generator: torch.Generator) -> dict[str, Law]:
    """Return the laws of the figure by name, Eq. (20) and Eq. (22); the normal ones share one precomputation."""
    laws: dict[str, Law] = {"exact": tabulate(bridge, uniform_in_time(schedule, steps), 16384, generator)}
    fine = uniform_in_time(schedule, 2000)
    means = mean_projections(bridge, fine, 16384, generator=generator)
    for kummer in _KUMMER:
        laws[f"normal, {kummer}"] = from_projections(bridge, fine, *means, kummer)
    return laws


def cases(paper_scale: bool = False) -> tuple[Case, ...]:
    """Return the figure's dimensions; at the paper's scale with four times the samples and steps."""
    scale = 4 if paper_scale else 1
    return tuple(Case(case.dimension, scale * case.samples, scale * case.steps) for case in CASES)


def run(out: Path, paper_scale: bool = False, seed: int = 0) -> list[dict[str, object]]:
    """Return the rows of the figure, and plot it."""
    rows = compare_all(seed, cases(paper_scale))
    plot(rows, out / "transition.png")
    return [asdict(row) for row in rows]


def compare_all(seed: int = 0, wanted: Sequence[Case] = CASES) -> list[Row]:
    """Return the rows of the whole figure: every dimension, start, time and law."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[Row] = []
    with bar(len(wanted) * len(STARTS) * len(TIMES) * len(LAWS), "discrepancies") as progress:
        for case in wanted:
            for start in STARTS:
                for row in compare(case, start, generator):
                    rows.append(row)
                    progress.update()
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Draw the discrepancies over time, a panel for each dimension and start."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter

    sizes = dict.fromkeys((row.dimension, row.samples) for row in rows)
    figure, axes = pyplot.subplots(
        len(STARTS), len(sizes), figsize=(12, 5.6), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    styles = dict(zip(LAWS, ("o-", "s-", "v--", "^:"), strict=True))
    for line, start in enumerate(STARTS):
        for column, (dimension, samples) in enumerate(sizes):
            axis = axes[line, column]
            axis.axhspan(-1, 1, color="0.9", zorder=0)
            for law in LAWS:
                chosen = [r for r in rows if (r.dimension, r.start, r.law) == (dimension, start, law)]
                ratio = [r.value / r.high for r in chosen]
                axis.plot([r.time for r in chosen], ratio, styles[law], label=law, markersize=5)
            axis.set_yscale("symlog", linthresh=1)
            axis.yaxis.set_major_locator(FixedLocator([-1, 0, 1, 10, 100]))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_title(f"{start}, d = {dimension} ({samples} samples)", fontsize=10)
    figure.supxlabel("time t  (grey: range under random exchanges; one point in 40 may lie above it)")
    figure.supylabel("MMD² to the simulation / 97.5% quantile")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(LAWS), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Write both figures and print the discrepancies."""
    parser = argparse.ArgumentParser(description="Discrepancies of the laws, and radial convergence.")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder of the figures")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plot_radial(arguments.out / "radial.png", arguments.seed)
    rows = compare_all(arguments.seed)
    plot(rows, arguments.out / "mmd.png")
    print(table([asdict(row) for row in rows], list(Row.__dataclass_fields__)))
    print(f"wrote {arguments.out / 'mmd.png'} and {arguments.out / 'radial.png'}", file=sys.stderr)


if __name__ == "__main__":
    main()
