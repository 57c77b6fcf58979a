"""`rdlm bench`: measure the speed of the package against targets, as ratios within one run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.registry import REGISTRY, chosen, measured
from rdlm.display.progress import bar
from rdlm.display.text_table import print_json, say, table
from rdlm.errors import InputError

COLUMNS = ("name", "against", "ratio", "quartiles", "target", "ok", "note")


@dataclass(frozen=True)
class Bench:
    """Measure the speed of the package on one thread, as ratios of two workloads that alternate within this run.

    Ratios are medians over repetitions with their quartiles, mostly of processor time, which depends little on the
    load of the machine. Missed targets are reported without an error. Needs a checkout of the repository.
    """

    json: bool = False
    """Print one JSON object instead of a table."""
    quick: bool = False
    """Measure small sizes, which takes about two minutes; the targets, which are for full sizes, are not applied."""
    only: str | None = None
    """Figures to measure, separated by commas; by default all. An unknown name prints the list."""
    out: Path | None = None
    """Folder for bench.json and growth.png; by default nothing is written."""

    def run(self) -> int:
        """Measure, report, and return 0."""
        names = chosen(self.only)
        if not names:
            raise InputError(f"--only names no known figure; choose from: {', '.join(REGISTRY)}")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise InputError(f"--out {self.out} is a file; give a folder")
        rows = _measure(names, self.quick)
        result = {"rows": rows, "quick": self.quick, **_machine()}
        if self.out is not None:
            _write(self.out, result, rows)
        if self.json:
            print_json(result)
        else:
            _show(rows, self.quick)
        return 0


def _measure(names: Sequence[str], quick: bool) -> list[dict[str, object]]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that some figures start
    import torch

    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    with bar(len(names), "bench", "figure") as progress:
        for name in names:
            progress.set_postfix_str(REGISTRY[name].summary)
            rows += [figure.row() for figure in measured(name, quick)]
            progress.update()
    return rows


def _machine() -> dict[str, object]:
    import platform

    import torch

    return {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "load": os.getloadavg()[0],
    }


def _show(rows: Sequence[Mapping[str, object]], quick: bool) -> None:
    columns = [name for name in COLUMNS if not quick or name not in ("target", "ok")]
    print(table([row | {"quartiles": _quartiles(row)} for row in map(dict, rows)], columns))
    if quick:
        print(f"\nSmall sizes: the targets are for the full ones; load {os.getloadavg()[0]:.1f}.")
        return
    judged = [row for row in rows if row["ok"] is not None]
    missed = [row for row in judged if not row["ok"]]
    print(f"\n{len(judged) - len(missed)} of {len(judged)} targets met; load {os.getloadavg()[0]:.1f}.")


def _quartiles(row: Mapping[str, object]) -> str:
    spread = row["spread"]
    assert isinstance(spread, list)
    return " to ".join(f"{value:.3g}" for value in spread)


def _write(out: Path, result: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> None:
    from benchmarks.growth import plot
    from rdlm.storage.files import write_atomic

    write_atomic(out / "bench.json", json.dumps(result, indent=2) + "\n")
    written = [out / "bench.json"]
    if any(row.get("points") for row in rows):
        plot(rows, out / "growth.png")
        written.append(out / "growth.png")
    say(f"wrote {' and '.join(map(str, written))}")
