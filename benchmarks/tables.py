"""Times the tables of the laws on one thread: `python benchmarks/tables.py [--json]`.

| name | what | target |
|---|---|---|
| exact, d = 28 | pairs of the exact law, 256 levels x 16,384 | 5 s |
| exact, d = 30522 | the same on the sphere of a whole word-piece vocabulary | 10 s |
| normal, d = 4 | the paper's precomputation, 10,000 times x 16,384 paths | 20 s |
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch

from rdlm.process.bridge import Bridge
from rdlm.process.clock import Geometric
from rdlm.process.grid import uniform_in_time
from rdlm.process.law.exact import tabulate
from rdlm.process.law.normal import precompute
from rdlm.process.start import masked
from rdlm.report import print_json, table

PAIRS = 16384


def exact(dimension: int) -> None:
    clock = Geometric()
    tabulate(Bridge(masked(dimension - 1), clock.total, "logarithm"), uniform_in_time(clock, 256), PAIRS)


def normal(dimension: int) -> None:
    clock = Geometric()
    precompute(Bridge(masked(dimension - 1), clock.total, "logarithm"), uniform_in_time(clock, 10_000), PAIRS)


CASES: dict[str, tuple[Callable[[], None], float]] = {
    "exact, d = 28": (lambda: exact(28), 5.0),
    "exact, d = 30522": (lambda: exact(30522), 10.0),
    "normal, d = 4": (lambda: normal(4), 20.0),
}


def measure(name: str) -> dict[str, object]:
    """Return wall and processor seconds: on a busy machine the second says what an idle one would take."""
    run, target = CASES[name]
    wall, processor = time.perf_counter(), time.process_time()
    run()
    seconds, busy = time.perf_counter() - wall, time.process_time() - processor
    return {"name": name, "seconds": seconds, "processor": busy, "target": target, "ok": seconds < target}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(name) for name in CASES]
    if arguments.json:
        print_json({"rows": rows, "load": os.getloadavg()[0]})
    else:
        print(table(rows, ["name", "seconds", "processor", "target", "ok"]))


if __name__ == "__main__":
    main()
