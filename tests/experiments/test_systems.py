"""The bench of all systems: what is measured of whom, samples at the entropy of data, and tables that continue."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import nn

from experiments import systems
from experiments.systems import BENCHES, Bench, best_orders, margin, matched, measure, quality, summary, tempered
from rdlm.config import DataConfig, MethodName, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.methods.autoregressive import Autoregressive

TINY = TransformerConfig(width=16, layers=1, heads=1, time_width=8)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A bench of three methods on a short text."""
    (tmp_path / "book.txt").write_text("how vexingly quick daft zebras jump " * 60)
    config = RunConfig(
        data=DataConfig("textfile", length=8, file=tmp_path / "book.txt"),
        process=ProcessConfig(levels=16, pairs=256),
        model=TINY,
        training=TrainingConfig(batch=4, warmup=1, ema=0.9, validation_sequences=4, device="cpu"),
    )
    few = {"trial": 1, "sequences": 4, "samples": 4, "measured": 6, "estimated": 4, "scorer_steps": 2}
    return Bench(config, ("mdlm", "autoregressive", "tau_ldr"), lrs=(1e-3,), seeds=2, **few)


def test_a_table_has_every_method_seed_order_and_number_of_calls_and_continues(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = measure(bench, tmp_path / "out", 2, tmp_path / "table.csv")
    of_mdlm = [(row["seed"], row["asked"], row["order"]) for row in rows if row["method"] == "mdlm"]
    assert of_mdlm == [(seed, calls, order) for seed in (0, 1) for calls in (8, 64) for order in ("random", "strided")]
    kinds = {row["method"]: row["kind"] for row in rows[:-1]}
    assert kinds == {"mdlm": "bound", "autoregressive": "exact", "tau_ldr": "estimate"}
    sampled = [row for row in rows if "perplexity" in row]
    assert [row["method"] for row in sampled] == [*bench.methods, "data"]
    assert all(row["best"] and row["asked"] == 64 and row["seed"] == 0 for row in sampled[:-1])
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 1 + len(rows)
    assert len(summary(rows)) == 4 and all("±, 64 calls" in line for line in summary(rows))

    monkeypatch.setattr(systems, "repeated_bound", None)  # a finished table measures nothing again
    monkeypatch.setattr(systems, "sample_entropy", None)
    assert measure(bench, tmp_path / "out", 2, None) == rows


def test_gaussian_noise_is_also_measured_with_many_calls(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systems, "MANY", 12)
    rows = measure(replace(bench, methods=("bfn",), seeds=1), tmp_path / "out", 2, None)
    assert [(row["asked"], row["calls"]) for row in rows[:-1]] == [(8, 8), (64, 64), (12, 12)]
    assert "bits, 12 calls" in summary(rows)[0] and [row.get("best") for row in rows[:-1]] == [True] * 3


def test_more_steps_continue_the_runs(bench: Bench, tmp_path: Path) -> None:
    bench = replace(bench, methods=("autoregressive",), seeds=1)
    first = measure(bench, tmp_path / "out", 2, None)
    further = measure(bench, tmp_path / "out", 4, None)
    whole = measure(bench, tmp_path / "whole", 4, None)
    assert [row["steps"] for row in further[:-1]] == [4, 4] and further[0]["bits"] != first[0]["bits"]
    assert further[0]["bits"] == whole[0]["bits"]


def test_the_perplexity_at_an_entropy_is_interpolated_and_never_extrapolated() -> None:
    points = [{"entropy": 3.0, "perplexity": 16.0}, {"entropy": 2.0, "perplexity": 4.0}]
    assert matched(points, 2.5) == pytest.approx(8.0)
    assert matched(points, 3.0) == pytest.approx(16.0)
    assert matched(points, 1.9) is None and matched(points, 3.1) is None


def test_a_temperature_divides_logits_inside_of_the_block_only() -> None:
    network, inputs = nn.Linear(3, 4), torch.ones(2, 3)
    plain = network(inputs)
    with tempered(network, 2.0):
        assert network(inputs).equal(plain / 2)
    assert network(inputs).equal(plain)


def test_the_quality_of_sequences_is_the_perplexity_of_the_scorer() -> None:
    torch.manual_seed(0)
    scorer = Autoregressive(RunConfig(method="autoregressive", model=TINY), 5)
    tokens = torch.randint(5, (20, 6))
    found = quality(tokens, 5, scorer)
    nats = -scorer.log_likelihood(tokens).mean() / 6
    assert found["perplexity"] == pytest.approx(math.exp(float(nats)))
    assert found["entropy"] <= math.log(5)


def test_the_best_order_is_that_of_the_mean_over_seeds() -> None:
    bits = {("random", 0): 3.0, ("random", 1): 3.2, ("strided", 0): 2.9, ("strided", 1): 3.4}
    rows = [{"method": "mdlm", "asked": 8, "order": order, "bits": value} for (order, _), value in bits.items()]
    assert best_orders(rows) == {("mdlm", 8): "random"}
    assert margin([1.0]) == "" and float(margin([1.0, 1.0, 4.0])) == pytest.approx(4.303, abs=1e-3)


def test_a_learning_rate_is_the_middle_one_unless_another_is_better_beyond_noise(bench: Bench) -> None:
    bench = replace(bench, lrs=(1e-3, 3e-3, 9e-3))
    assert bench.chosen_lr({1e-3: 4.10, 3e-3: 4.11, 9e-3: 4.12}) == 3e-3
    assert bench.chosen_lr({1e-3: 4.08, 3e-3: 4.11, 9e-3: 4.12}) == 1e-3
    assert bench.chosen_lr({1e-3: 4.12, 3e-3: math.inf, 9e-3: 4.20}) == 1e-3
    assert bench.chosen_lr({1e-3: 4.12, 3e-3: 4.1, 9e-3: 4.0, 2.7e-2: 3.0}) == 9e-3
    assert bench.chosen_lr({3e-4: 3.9, 1e-3: 4.0, 3e-3: 4.1, 9e-3: 4.2}) == 3e-4


def test_benches_are_fair() -> None:
    benches = {name: make() for name, make in BENCHES.items()}
    assert benches["text8"].methods == get_args(MethodName)
    for bench in benches.values():
        assert bench.seeds == 3 and len(bench.lrs) >= 3 and {"rdlm", "mdlm"} <= {*bench.methods}
        assert bench.config.model.belief == "none" and not bench.config.objective.blockwise
    assert benches["digits"].config.d3pm.matrix == "gauss" and benches["digits"].config.tau_ldr.rates == "gauss"
    assert benches["dna"].configuration("autoregressive", 1).model == benches["dna"].causal
