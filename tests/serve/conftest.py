"""The service that most tests of this folder share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "torture"))  # tests here run a small part of the siege
sys.path.insert(0, str(Path(__file__).parent))

from running import Served, save, serving


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: `together`, `ordered` (left to right), `baseline` (MDLM), `classed` (two classes), `blockwise`."""
    place = tmp_path_factory.mktemp("runs")
    save(place / "together")
    save(place / "ordered", window=0.1, order="left_to_right")
    save(place / "baseline", method="mdlm")
    save(place / "classed", corpus={"classes": ["cat", "dog"]})
    save(place / "blockwise", window=0.1, block=1)
    return place


@pytest.fixture(scope="session")
def served(runs: Path) -> Iterator[Served]:
    names = ("together", "ordered", "baseline", "classed", "blockwise")
    with serving(*(str(runs / name) for name in names), "--steps", "8") as found:
        yield found
