"""The stand-alone example runs, learns its source, and its bound stays above the entropy; the notebooks run."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "minimal.py"
SAMPLES = 8000

# In a process of its own: the example sets torch's default dtype.
PROGRAM = f"""
import json, torch, minimal
torch.set_num_threads(1)
joint, excess, error = minimal.main(steps=400, samples={SAMPLES})
print(json.dumps(dict(joint=joint.tolist(), source=minimal.SOURCE.tolist(), excess=excess, error=error)))
"""


def test_minimal_is_short_and_needs_torch_alone() -> None:
    text = EXAMPLE.read_text()
    modules = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").split(".")[0])
    assert modules <= {"math", "torch"}
    assert len(text.splitlines()) < 100


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], cwd=EXAMPLE.parent, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "entropy 2.2203 nats, bound 2.2" in done.stdout
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_minimal_samples_the_source(result: dict[str, Any]) -> None:
    joint, source = (list(chain.from_iterable(result[name])) for name in ("joint", "source"))
    assert sum(source) == pytest.approx(1)
    distance = sum(abs(a - b) for a, b in zip(joint, source, strict=True)) / 2
    # Chance alone gives about sum sqrt(2 p / (pi n)) / 2 = 0.016 here, independent tokens 0.42, and the finite
    # number of network calls some 0.01.
    assert distance < 0.06


def test_minimal_bound_is_at_the_entropy_and_not_below(result: dict[str, Any]) -> None:
    excess, error = result["excess"], result["error"]
    assert excess > -4 * error
    # Bayes' posterior reaches 0.010 nats with 64 calls; independent tokens would cost 0.4.
    assert excess < 0.05
    assert 0 < error < 0.005


NOTEBOOKS = sorted(EXAMPLE.parent.glob("*.ipynb"))
SECONDS = 600
"""Time limit of a notebook, each of which takes less than a minute on one free core."""

# The code cells one after the other in one namespace, as in Jupyter, which is not needed.
RUNNER = """
import json, resource, sys, torch
torch.set_num_threads(1)
space = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open(sys.argv[1], encoding="utf-8"))["cells"]):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"{sys.argv[1]}, cell {number}", "exec"), space)
used = resource.getrusage(resource.RUSAGE_SELF)
print("seconds of processor time:", used.ru_utime + used.ru_stime)
"""


def run_notebook(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(folder), "RDLM_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", RUNNER, str(path)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_there_are_three_notebooks_without_outputs() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["exact_law", "own_data", "write_score_restore"]
    for path in NOTEBOOKS:
        cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
        assert cells and not any(cell["outputs"] or cell["execution_count"] for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_within_a_minute(path: Path, tmp_path: Path) -> None:
    done = run_notebook(path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1].rpartition(" ")[2]) < 60


def test_a_failing_cell_is_named(tmp_path: Path) -> None:
    cells = [{"cell_type": "markdown", "source": ["1 / 0"]}]
    cells += [{"cell_type": "code", "source": source} for source in (["x = 1"], ["y = x - 1\n", "x / y"])]
    (tmp_path / "broken.ipynb").write_text(json.dumps({"cells": cells}))
    done = run_notebook(tmp_path / "broken.ipynb", tmp_path)
    assert done.returncode == 1 and "cell 2" in done.stderr and "ZeroDivisionError" in done.stderr
