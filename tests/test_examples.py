"""The stand-alone example runs, learns its source, and its bound stays above the entropy."""

from __future__ import annotations

import ast
import json
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
