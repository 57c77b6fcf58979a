"""The experiment over training budgets: ratios, their trend, and the figure."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import ablation, budgets
from rdlm.config import DataConfig, RunConfig, TransformerConfig


def rows() -> list[dict[str, Any]]:
    """Return bounds of two seeds, whose ratio falls from 1.2 to 1.1 in the synchronous order."""
    found = []
    for seed in (0, 1):
        for steps, ratio in ((1000, 1.2), (2000, 1.15), (4000, 1.1)):
            masked = 3.0 - 0.1 * math.log2(steps / 1000) + 0.01 * seed
            bounds = (
                ("masked", "random, 64", masked * 1.01),
                ("masked", "strided, 64", masked),
                ("codes 16", "synchronous, 64", masked * ratio),
                ("codes 16", "strided, 16", masked * 1.05),
            )
            found += [
                {"method": method, "width": 64, "seed": seed, "steps": steps, "order, calls": order, "bits": bits}
                for method, order, bits in bounds
            ]
    return found


def test_ratios_compare_each_method_in_its_best_order() -> None:
    synchronous = budgets.ratios(rows(), "synchronous")[64]
    assert list(synchronous) == [1000, 2000, 4000]
    assert list(synchronous.values()) == pytest.approx([1.2, 1.15, 1.1])
    assert list(budgets.ratios(rows())[64].values()) == pytest.approx([1.05] * 3)


def test_budgets_without_a_counterpart_have_no_ratio() -> None:
    alone = [row for row in rows() if row["method"] == "codes 16" or row["steps"] > 1000]
    assert list(budgets.ratios(alone)[64]) == [2000, 4000]


def test_the_trend_is_the_change_per_doubling() -> None:
    assert budgets.trend({1000: 1.2, 2000: 1.15, 4000: 1.1}) == pytest.approx(-0.05)
    assert math.isnan(budgets.trend({1000: 1.2}))


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    budgets.plot(rows(), tmp_path / "budgets.png")
    assert (tmp_path / "budgets.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_continues_to_the_next_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = tmp_path / "book.txt"
    book.write_text("a small book about the first of the many ways to the sea\n" * 60, "utf-8")

    def tiny(method: str, seed: int, steps: int) -> RunConfig:
        config = configuration(method, seed, steps)
        training = replace(config.training, batch=2, validation_sequences=2, precision="float32")
        model = TransformerConfig(width=16, layers=1, heads=2)
        return replace(config, data=DataConfig("textfile", length=8, file=book), model=model, training=training)

    configuration = ablation.configuration
    monkeypatch.setattr(ablation, "configuration", tiny)
    monkeypatch.setattr(ablation, "SEQUENCES", 4)
    monkeypatch.setattr(ablation, "EVALUATIONS", 8)
    for method in budgets.METHODS:
        for steps in (2, 4):
            budgets.run(method, 16, 0, steps, tmp_path / "out")
    found = budgets.collected(tmp_path / "out")
    assert {(row["method"], row["steps"]) for row in found} == {(m, s) for m in budgets.METHODS for s in (2, 4)}
    assert set(budgets.ratios(found)[16]) == {2, 4}
