"""How soon the command line answers, in processor seconds of processes of its own."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.measure import Figure, Work, alternate, children_time, within

ALLOWED = 0.5
"""Seconds that an answer without work may take."""
LIGHT = "import sys; from rdlm.cli import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
CASES = {"rdlm --help": ["--help"], "rdlm with a wrong flag": ["train", "demo", "--no-such-flag"]}


def startup(quick: bool) -> list[Figure]:
    """Return `rdlm --help` and a mistake over Python's own start."""
    works: dict[str, Work] = {name: _run("-m", "rdlm", *arguments) for name, arguments in CASES.items()}
    taken = alternate(works | {"python": _run("-c", "pass")}, 3 if quick else 9, children_time, least=0.0)
    figures = []
    for name, arguments in CASES.items():
        note = "without torch" if _run("-c", LIGHT, *arguments)() == 0 else "imports torch"
        figures.append(Figure.of(name, "python -c pass", taken[name], taken["python"], within(ALLOWED), note))
    return figures


def _run(*arguments: str) -> Work:
    command = [sys.executable, *arguments]
    return lambda: subprocess.run(command, check=False, capture_output=True).returncode
