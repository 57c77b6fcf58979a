"""The comparison of laws and its pictures, in small."""

from __future__ import annotations

import json

import pytest
import torch

from experiments import radial, transition
from experiments.radial import fine_grid, plot_radial, radial_quantiles
from experiments.transition import LAWS, TIMES, Case, compare, plot
from rdlm.cli import main as cli


@pytest.fixture(scope="module")
def rows():
    return list(compare(Case(4, 800, 64), "uniform", torch.Generator().manual_seed(0)))


def test_every_law_is_compared_at_every_time(rows):
    assert [(row.time, row.law) for row in rows] == [(time, law) for time in TIMES for law in LAWS]


def test_printed_function_is_far_from_the_simulation_and_the_exact_law_is_not(rows):
    value = {law: sum(row.value / row.high for row in rows if row.law == law) / len(TIMES) for law in LAWS}
    assert value["exact"] < 1 and value["normal, corrected"] < 1
    assert value["normal, printed"] > 4 and value["normal, printed"] > value["normal, coded"] > 1


def test_angle_falls_from_the_start_to_the_token():
    quantiles = radial_quantiles(28, fine_grid(0.03756, 300), 200, torch.Generator().manual_seed(1))
    assert quantiles[0, 1].item() == pytest.approx(torch.pi / 2)
    assert quantiles[-1, 2] < 0.01
    assert bool((quantiles[:, 0] <= quantiles[:, 2]).all())


def test_pictures_are_written(rows, tmp_path):
    pytest.importorskip("matplotlib")
    plot(rows, tmp_path / "figures" / "mmd.png")
    plot_radial(tmp_path / "figures" / "radial.png", paths=4)
    for name in ("mmd.png", "radial.png"):
        assert (tmp_path / "figures" / name).read_bytes().startswith(b"\x89PNG")


def test_both_run_from_the_command_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(transition, "CASES", (Case(4, 40, 8),))
    monkeypatch.setattr(radial, "DIMENSIONS", (4, 28))
    for name, rows in (("transition", 2 * len(TIMES) * len(LAWS)), ("radial", 10)):
        assert cli.main(["analyze", name, "--out", str(tmp_path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found["rows"]) == rows and found["conventions"]
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert len((tmp_path / f"{name}.txt").read_text().splitlines()) == rows + 2 + len(found["conventions"])


def test_paper_scale_has_more_samples_and_finer_simulations():
    assert [(c.dimension, c.samples, c.steps) for c in transition.cases(True)] == [
        (c.dimension, 4 * c.samples, 4 * c.steps) for c in transition.CASES
    ]
    assert {4, 256, 30522} <= {c.dimension for c in transition.CASES}
