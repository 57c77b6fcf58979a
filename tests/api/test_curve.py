"""Grids from a measured curve: equal information per step, and files that are checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdlm.api.generate import read_curve
from rdlm.errors import DamagedFileError, InputError
from rdlm.process.schedule import equal_information


@given(st.integers(1, 40))
def test_every_step_gains_as_much(steps: int) -> None:
    remaining = torch.linspace(1, 0, 201, dtype=torch.float64)
    nats = 3 * (1 - remaining.square())  # B = sqrt(1 - nats / 3)
    grid = equal_information(remaining, nats, steps)
    assert grid.steps == steps and grid.total == 1
    torch.testing.assert_close(
        torch.diff(3 * (1 - grid.remaining.square())), torch.full((steps,), 3 / steps).double(), rtol=0, atol=2e-3
    )


def test_a_curve_that_is_flat_or_falls_still_makes_a_grid() -> None:
    remaining = torch.linspace(1, 0, 11, dtype=torch.float64)
    nats = torch.tensor([0, 1, 0.9, 2, 2, 2, 2, 2, 2, 2, 2], dtype=torch.float64)
    levels = equal_information(remaining, nats, 16).remaining
    assert bool((levels.diff() < 0).all())
    assert float(levels[-2]) > 0.7 - 1e-6  # nothing is gained below it
    assert equal_information(remaining, torch.zeros(11), 4).steps == 4


def test_files_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({"noise": [0.5, 0.2, 0.0], "nats": [0.0, 1.0, 3.0]}))
    assert read_curve(path, 0.5)[1].tolist() == [0, 1, 3]
    with pytest.raises(DamagedFileError, match=r"total noise of 0.5, not 0.04"):
        read_curve(path, 0.04)
    wrong = "{", '{"noise": [1, 0]}', '{"noise": [0, 1], "nats": [0, 1]}', '{"noise": [1, 0], "nats": [0, NaN]}'
    for content in wrong:
        path.write_text(content)
        with pytest.raises(DamagedFileError, match="damaged"):
            read_curve(path, 1.0)
    with pytest.raises(InputError, match="one finite value in nats per level"):
        equal_information(torch.tensor([1.0, 0.0]), torch.zeros(3), 2)
