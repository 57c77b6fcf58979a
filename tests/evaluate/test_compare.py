"""Comparisons: rows by order, seeds, the search for learning rates, resuming, budgets, and the command."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import time
from dataclasses import replace
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file
from scipy import stats
from torch import nn

from rdlm import methods as method
from rdlm.cli import main as cli
from rdlm.cli.compare import lrs_of, methods_of, minutes_of
from rdlm.config import READ_EVIDENCE, ConvolutionConfig, MethodName
from rdlm.data.batch import Batch
from rdlm.display.figure import draw_comparison
from rdlm.errors import DivergedError, InputError, InterruptedRunError
from rdlm.evaluate import compare as module
from rdlm.evaluate.compare import (
    Comparison,
    Session,
    compare,
    evaluation_costs,
    fit_evaluation,
    fitted_seconds,
    repeated_bound,
)
from rdlm.evaluate.metrics import over_seeds
from rdlm.model.belief import BeliefNetwork
from rdlm.storage import run_folder as folder
from rdlm.train import interruption
from rdlm.train.fit import next_lr
from rdlm.train.parallel import Team

KEYS = {"method", "order", "bound", "stderr", "unit", "claims_bound", "relative_step_cost", "steps"}
ORDERS = {
    "rdlm": ["synchronous", "random", "strided"],
    "mdlm": ["random", "strided"],
    "autoregressive": ["left-to-right"],
    "ardm": ["random"],
    "bert_mouth": ["random"],
    "mac": ["canonical"],
    "block_diffusion": ["left-to-right"],
}
"""Orders of methods with named ones."""


def weights(run):
    return load_file(folder.find_checkpoint(run, "latest") / "ema.safetensors")


def test_all_methods_give_their_rows_and_a_picture(toy, tmp_path):
    comparison = Comparison(toy.config, tuple(method.METHODS), nfe=3, sequences=16, samples=4)
    rows = compare(comparison, tmp_path, steps=3, load=toy.corpus)
    expected = [(m, order) for m in method.METHODS for order in ORDERS.get(m, [None])]
    assert [(row["method"], row["order"]) for row in rows] == expected
    for row in rows:
        assert row.keys() >= KEYS
        assert row["steps"] == 3 and row["unit"] == "bits per character" and row["relative_step_cost"] > 0
        assert math.isfinite(row["bound"]) and row["low"] < row["bound"] < row["high"]
        assert row["claims_bound"] == (row["method"] not in ("fisher_flow", "tau_ldr", "dirichlet_flow", "ddsm"))
        own = [other for other in rows if other["method"] == row["method"]]
        assert row["best"] == (row["bound"] == min(other["bound"] for other in own))
        assert (row["quality"] is not None) == row["best"] == (row["sample"] is not None)
        assert row["quality"] is None or 0 < row["quality"]["bigram_divergence"]["value"] <= 1
        calls = toy.config.data.length if row["method"] == "autoregressive" else 3
        assert row["sampling_calls"] == calls and row["calls"] == 3
        assert row["seeds"] == 1 and row["stderr_over_seeds"] is None and row["bounds"] == [row["bound"]]
        assert row["relative_step_cost"] == own[0]["relative_step_cost"]
        assert row["method"] != "autoregressive" or row["relative_step_cost"] == 1
    assert len({row["bound"] for row in rows}) == len(rows)
    assert json.loads((tmp_path / "compare.json").read_text())["rows"] == rows
    draw_comparison(rows, tmp_path / "compare.png")
    assert (tmp_path / "compare.png").stat().st_size > 5000


def test_what_is_trained_and_measured_is_not_done_again(toy, tmp_path, monkeypatch):
    comparison = Comparison(toy.config, ("mdlm", "autoregressive"), nfe=2, sequences=8, samples=2)
    rows = compare(comparison, tmp_path, steps=2, load=toy.corpus)

    def again(*_):
        raise AssertionError("done again")

    monkeypatch.setattr(module, "accumulate_or_restore", again)
    monkeypatch.setattr("rdlm.evaluate.compare.repeated_bound", again)
    assert compare(comparison, tmp_path, steps=2, load=toy.corpus) == rows
    with pytest.raises(AssertionError, match="done again"):
        compare(replace(comparison, nfe=3), tmp_path, steps=2, load=toy.corpus)


def test_every_method_takes_the_best_of_the_same_rates(toy, tmp_path, monkeypatch):
    comparison = Comparison(toy.config, ("mdlm", "autoregressive"), 2, 8, 2, lrs=(1e-6, 3e-3), trial=20)
    rows = compare(comparison, tmp_path, steps=2, load=toy.corpus)
    tried = json.loads((tmp_path / "rates.json").read_text())
    # 1e-6 barely moves, so a rate beyond 3e-3 by the same factor is tried; it is too large
    assert [(name, set(found)) for name, found in tried.items()] == [
        (m, {"1e-06", "0.003", "9"}) for m in comparison.methods
    ]
    assert [row["rate"] for row in rows] == [3e-3] * 3
    for row in rows:
        assert row["trials"] == dict(sorted(tried[row["method"]].items(), key=lambda trial: float(trial[0])))
        assert folder.find_checkpoint(tmp_path / "search" / f"{row['method']}-1e-06", "latest").is_dir()
        assert tried[row["method"]]["0.003"] == min(tried[row["method"]].values())
    monkeypatch.setattr(module, "accumulate_or_restore", None)
    assert compare(comparison, tmp_path, steps=2, load=toy.corpus) == rows  # nothing is trained again


@pytest.mark.parametrize("lrs", [(), (1e-3, 2e-3)])
def test_a_signal_ends_the_preparation_of_runs(toy, tmp_path, lrs):
    """It was noticed after all runs had been built, which is after minutes or never."""
    built = []

    def stopping(config, corpus):
        built.append(config.training.seed)
        os.kill(os.getpid(), signal.SIGHUP)
        return method.build(config, corpus)

    comparison = Comparison(toy.config, ("mdlm",), nfe=2, sequences=8, samples=2, seeds=50, lrs=lrs)
    with pytest.raises(InterruptedRunError, match="before the first step") as stopped:
        compare(comparison, tmp_path, steps=7, load=toy.corpus, make=stopping)
    assert stopped.value.code == 129 and len(built) == 1


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_stopped_comparison_continues_to_the_same_weights(seeds, toy, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SLICE", 2)
    comparison = Comparison(toy.config, ("mdlm", "autoregressive"), nfe=2, sequences=8, samples=2, seeds=seeds)
    whole = compare(comparison, tmp_path / "whole", steps=7, load=toy.corpus)
    seen = []

    def stopping(config, corpus):
        built = method.build(config, corpus)
        loss = built.loss

        def stop(batch, draw):
            seen.append((config.method, config.training.seed, draw.step))
            if draw.step == 4 and config.method == "mdlm":
                os.kill(os.getpid(), signal.SIGTERM)
            return loss(batch, draw)

        built.loss = stop
        return built

    with pytest.raises(InterruptedRunError) as stopped:
        compare(comparison, tmp_path / "parts", steps=7, load=toy.corpus, make=stopping)
    assert stopped.value.code == 143
    runs = [(name, seed) for seed in range(seeds) for name in comparison.methods]
    turns = [(*run, step) for first in (0, 2) for run in runs for step in (first, first + 1)]
    assert seen == [*turns, ("mdlm", 0, 4)]
    parts = compare(comparison, tmp_path / "parts", steps=7, load=toy.corpus)
    assert [row["bound"] for row in parts] == [row["bound"] for row in whole]
    names = [f"{name}{'-seed1' if seed else ''}" for name, seed in runs]
    for name in names:
        one, other = weights(tmp_path / "whole" / name), weights(tmp_path / "parts" / name)
        assert all(one[key].equal(other[key]) for key in one)


def test_a_budget_becomes_steps_once(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rdlm.evaluate.compare.seconds_per_step", lambda configs, *_: {c.method: 50 for c in configs})
    monkeypatch.setattr("rdlm.evaluate.compare.evaluation_costs", lambda *_: (0.0, 200.0))
    comparison = Comparison(toy.config, ("mdlm", "udlm"), nfe=2, sequences=4, samples=2)
    rows = compare(comparison, tmp_path, minutes=25, load=toy.corpus)
    assert [row["steps"] for row in rows] == [9, 9, 9], "1,500 seconds, of them 400 of evaluation; 100 for a step"
    assert [row["relative_step_cost"] for row in rows] == [1, 1, 1]
    more = replace(comparison, methods=("mdlm", "udlm", "sedd"))
    assert [row["steps"] for row in compare(more, tmp_path, minutes=99, load=toy.corpus)] == [9, 9, 9, 9]
    twice = compare(replace(comparison, seeds=2), tmp_path / "seeds", minutes=25, load=toy.corpus)
    assert [row["steps"] for row in twice] == [4, 4, 4]
    monkeypatch.setattr("rdlm.evaluate.compare.evaluation_costs", lambda *_: (900.0, 0.0))
    assert compare(comparison, tmp_path / "none", minutes=25, load=toy.corpus)[0]["steps"] == 1
    assert "more than the budget: give fewer --methods" in capsys.readouterr().err


def test_a_budget_limits_the_evaluation(toy, tmp_path, monkeypatch, capsys):
    """A comparison of two minutes took more than four, since its bounds and samples were always those of --steps."""
    comparison = Comparison(toy.config, ("mdlm", "udlm"), nfe=2, sequences=400, samples=40)
    costs = (0.01, 0.2)  # 32 estimates: 128 seconds and 8
    assert fit_evaluation(comparison, costs, 136) is comparison
    assert fit_evaluation(comparison, costs, 20) == replace(comparison, repeats=3)
    few = fit_evaluation(comparison, costs, 10)
    assert few == replace(comparison, repeats=3, sequences=200, samples=20) and fitted_seconds(few, costs) == 10
    assert fit_evaluation(comparison, costs, 0.5) == replace(comparison, repeats=3, sequences=16, samples=8)
    given = replace(comparison, given=("sequences",))
    assert fit_evaluation(given, costs, 10) == replace(given, repeats=3, samples=20)
    small = replace(comparison, sequences=4, samples=2)
    assert fit_evaluation(small, (10.0, 10.0), 1) == replace(small, repeats=3)
    monkeypatch.setattr("rdlm.evaluate.compare.evaluation_costs", lambda *_: (0.05, 0.0))
    rows = compare(replace(comparison, samples=2), tmp_path, minutes=0.2, load=toy.corpus)
    (count,) = {row["sequences"] for row in rows}
    assert 16 <= count <= 32, "two fifths of 12 seconds, without those of measuring"
    assert f"{count} sequences and up to 3 estimates of a bound, 2 samples" in capsys.readouterr().err
    again = compare(replace(comparison, samples=2), tmp_path, minutes=0.2, load=toy.corpus)
    assert [row["bound"] for row in again] == [row["bound"] for row in rows], "what was chosen is kept"


def test_the_cost_of_an_evaluation_is_measured(toy, tmp_path):
    comparison = Comparison(toy.config, ("mdlm", "rdlm"), nfe=2, sequences=8, samples=2)
    session = Session(tmp_path, Team(), toy.corpus(toy.config), method.build)
    costs = evaluation_costs(comparison, session)
    assert min(costs) > 0
    began = time.monotonic()
    compare(comparison, tmp_path / "run", steps=1, load=toy.corpus)
    assert time.monotonic() - began > 0.01 * fitted_seconds(comparison, costs), (
        "it is an upper limit of the right order"
    )


def test_without_the_reference_its_cost_is_measured(toy, tmp_path):
    comparison = Comparison(toy.config, ("mdlm",), nfe=2, sequences=4, samples=2)
    row, other = compare(comparison, tmp_path, steps=1, load=toy.corpus)
    assert row["relative_step_cost"] == other["relative_step_cost"]
    assert 0.1 < row["relative_step_cost"] < 10
    assert set(json.loads((tmp_path / "pace.json").read_text())["seconds"]) == {"mdlm", "autoregressive"}
    assert not (tmp_path / "autoregressive").exists()


class Noisy:
    """Sequences of known values, estimated with noise that an even spread over the batch cancels in part."""

    def __init__(self, noise: float) -> None:
        self.noise, self.calls = noise, 0
        self.network = nn.Linear(1, 1)

    def bound(self, batch, calls, generator):
        self.calls += 1
        return batch.ids[:, 0].double() + self.noise * torch.randn(len(batch.ids), generator=generator)


def test_the_error_has_both_parts():
    ids = torch.randint(0, 100, (64, 1), generator=torch.Generator().manual_seed(0))
    spread = float(ids.double().std()) / 8
    sure, loud = Noisy(0.0), Noisy(400.0)
    exact = repeated_bound(sure, Batch(ids), 1, seed=0)
    assert sure.calls == 3
    assert exact.mean == float(ids.double().mean()) and exact.stderr == pytest.approx(spread)
    guess = repeated_bound(loud, Batch(ids), 1, seed=0)
    assert loud.calls == 32
    own = 400 / math.sqrt(64 * 32)
    assert 0.6 * own < guess.stderr < 3 * math.hypot(spread, own)
    assert abs(guess.mean - exact.mean) < 4 * own


@pytest.mark.parametrize(("text", "minutes"), [("90s", 1.5), ("30m", 30), ("2h", 120), ("1.5", 1.5)])
def test_durations(text, minutes):
    assert minutes_of(text) == minutes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "mdml"], "unknown method 'mdml': did you mean 'mdlm'?"),
        (["--methods", "mdlm,mdlm"], "each named once"),
        (["--budget", "soon"], "not a duration"),
        (["--budget", "1m", "--steps", "3"], "not both"),
        (["--nfe", "0"], "--nfe must be at least 1"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--seeds", "101"], "--seeds must be at least 1 and at most 100, got 101"),
        (["--samples", "1000000000000"], "--samples must be at least 1 and at most 1,048,576"),
        (
            ["--methods", "udlm,mdlm", "--model.belief", "ngram"],
            "autoregressive, ardm, mac, bert_mouth can be compared, udlm cannot",
        ),
        (["--method", "mdlm"], "by --methods"),
    ],
)
def test_mistakes_are_named(options, message, capsys, tmp_path):
    assert cli.main(["compare", "demo", *options, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_prints_rows(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "__kwdefaults__", {**compare.__kwdefaults__, "load": toy.corpus})
    small = ["--model.width", "16", "--model.layers", "1", "--model.heads", "1", "--data.length", "16"]
    counts = ["--steps", "2", "--nfe", "2", "--sequences", "4", "--samples", "2", "--training.batch", "4"]
    arguments = ["compare", "demo", "--methods", "masked,autoregressive", *small, *counts, "--out", str(tmp_path)]
    assert cli.main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    labels = [("mdlm", "random"), ("mdlm", "strided"), ("autoregressive", "left-to-right")]
    assert [(row["method"], row["order"]) for row in printed["rows"]] == labels
    assert printed["rows"][0].keys() >= KEYS
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "not a bound" not in out and "autoregressive" in out
    assert "95% intervals over sequences and noise, with one training seed" in out and "learning rates" not in out
    assert [line.split()[2] == "*" for line in out.splitlines()[2:5]] == [row["best"] for row in printed["rows"]]


def test_the_command_prints_seeds_and_trials(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "__kwdefaults__", {**compare.__kwdefaults__, "load": toy.corpus})
    monkeypatch.setattr(module, "_trial_bound", lambda _, compared: -compared.run.config.training.lr)
    small = ["--model.width", "16", "--model.layers", "1", "--model.heads", "1", "--data.length", "16"]
    small += [
        "--objective.blockwise",
        "0",
        "--objective.asynchronous",
        "1",
        "--objective.mixed",
        "0",
        "--process.pairs",
        "256",
        "--process.levels",
        "16",
    ]
    counts = ["--steps", "2", "--nfe", "2", "--sequences", "4", "--samples", "2", "--training.batch", "4"]
    more = ["--seeds", "2", "--lrs", "1e-3", "--trial", "1", "--out", str(tmp_path)]
    assert cli.main(["compare", "demo", "--methods", "rdlm", *small, *counts, *more]) == 0
    out = capsys.readouterr().out
    assert "95% intervals over 2 training seeds (Student's t), all measured on the same sequences" in out
    assert "note: rdlm synchronous is not trained for this order" in out
    assert [line.split()[1] for line in out.splitlines() if line.split()[-1:] in (["yes"], ["no"])] == [
        "0.001000",
        "0.002000",
        "0.004000",
        "0.008000",
        "0.01600",
    ]
    assert "the best learning rate of rdlm is at the edge of those tried" in out


def test_a_convolution_has_no_reference(toy, tmp_path):
    config = replace(toy.config, model=ConvolutionConfig(width=8, stacks=1, dilations=(1,)))
    comparison = Comparison(config, ("mdlm",), nfe=2, sequences=4, samples=2)
    rows = compare(comparison, tmp_path, steps=1, load=toy.corpus)
    assert [row["relative_step_cost"] for row in rows] == [None, None]
    with pytest.raises(InputError, match="needs a causal network"):
        compare(replace(comparison, methods=("autoregressive",)), tmp_path, steps=1, load=toy.corpus)


def test_rates_are_numbers_of_a_list():
    assert lrs_of("1e-3,2e-3") == (1e-3, 2e-3) and lrs_of("") == ()
    with pytest.raises(InputError, match="not a list of numbers such as 1e-3,2e-3"):
        lrs_of("1e-3;2e-3")


def test_rates_must_be_positive(toy):
    with pytest.raises(InputError, match=r"--lrs must be positive, got 0\.001, -1"):
        Comparison(toy.config, ("mdlm",), lrs=(1e-3, -1.0))


# -- seeds -----------------------------------------------------------------------------------------------------------


def test_seeds_have_runs_of_their_own_and_a_mean(toy, tmp_path, monkeypatch):
    comparison = Comparison(toy.config, ("mdlm", "autoregressive"), nfe=2, sequences=8, samples=2)
    alone = compare(comparison, tmp_path, steps=3, load=toy.corpus)
    trained, measured = [], []
    step, bound = module.accumulate_or_restore, module.repeated_bound
    monkeypatch.setattr(
        module, "accumulate_or_restore", lambda run, *rest: trained.append(run.folder.name) or step(run, *rest)
    )
    monkeypatch.setattr(module, "repeated_bound", lambda m, *rest: measured.append(rest) or bound(m, *rest))
    rows = compare(replace(comparison, seeds=3), tmp_path, steps=3, load=toy.corpus)
    assert set(trained) == {f"{name}-seed{seed}" for name in comparison.methods for seed in (1, 2)}
    assert len(measured) == 2 * 3 and len({batch.ids.sum().item() for batch, *_ in measured}) == 1
    assert {seed for _, _, seed, _ in measured} == {1, 2}
    for one, row in zip(alone, rows, strict=True):
        assert row["bounds"][0] == one["bound"] and len(set(row["bounds"])) == row["seeds"] == 3
        assert row["bound"] == pytest.approx(statistics.fmean(row["bounds"]))
        assert row["stderr_over_seeds"] == pytest.approx(statistics.stdev(row["bounds"]) / math.sqrt(3))
        assert row["interval"] == "seeds" and one["interval"] == "sequences and noise"
    draw_comparison(rows, tmp_path / "compare.png")
    monkeypatch.setattr(module, "accumulate_or_restore", None)
    monkeypatch.setattr(module, "repeated_bound", None)
    monkeypatch.setattr(module, "_samples", None)
    assert compare(replace(comparison, seeds=3), tmp_path, steps=3, load=toy.corpus) == rows


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_the_interval_over_seeds_is_students(count):
    common = {"stderr": 0.5, "low": 0, "high": 9, "seconds_per_step": 1, "loss": 2, "skipped": 1, "note": None}
    runs = [{**common, "bound": 2 + 0.1 * seed**2, "seed": seed} for seed in range(count)]
    runs[1]["note"] = "worse than guessing"
    row = over_seeds(runs)
    values = [run["bound"] for run in runs]
    low, high = stats.t.interval(0.95, count - 1, statistics.fmean(values), stats.sem(values))
    assert row["low"] == pytest.approx(low, rel=0.01) and row["high"] == pytest.approx(high, rel=0.01)
    assert row["stderr"] == 0.5 and row["skipped"] == count and row["note"] == "worse than guessing"


# -- learning rates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "beyond"),
    [
        ({1e-3: 3.0, 2e-3: 2.0, 6e-3: 1.0}, 1.8e-2),
        ({1e-3: 1.0, 2e-3: 2.0, 6e-3: 3.0}, 5e-4),
        ({1e-3: 2.0, 2e-3: 1.0, 6e-3: 3.0}, None),
        ({1e-3: 2.0}, 2e-3),
        ({1e-3: math.inf, 2e-3: math.inf}, 5e-4),
        ({1e-3: 2.0, 2e-3: 2.0}, 5e-4),
    ],
)
def test_the_rate_beyond_the_best(bounds, beyond):
    assert next_lr(bounds) == beyond


@pytest.mark.parametrize(
    ("lrs", "best", "tried"),
    [
        ((1e-3, 2e-3), 5e-3, ["0.001", "0.002", "0.004", "0.008"]),
        ((1e-3, 3e-3), 1.1e-4, ["0.003", "0.001", "0.000333333", "0.000111111", "3.7037e-05"]),
        ((1e-3, 2e-3, 4e-3), 2e-3, ["0.001", "0.002", "0.004"]),
        ((1e-3,), 9.0, ["0.001", "0.002", "0.004", "0.008", "0.016"]),
        ((1e-3,), 1.1e-3, ["0.001", "0.002", "0.0005"]),
    ],
)
def test_the_search_goes_on_until_the_best_rate_is_inside(lrs, best, tried, toy, tmp_path, monkeypatch):
    def bound(_, compared):
        return abs(math.log(compared.run.config.training.lr / best))

    monkeypatch.setattr(module, "_trial_bound", bound)
    comparison = Comparison(toy.config, ("mdlm",), 2, 4, 2, lrs=lrs, trial=1, seeds=2)
    rows = compare(comparison, tmp_path, steps=1, load=toy.corpus)
    found = json.loads((tmp_path / "rates.json").read_text())["mdlm"]
    assert set(found) == set(rows[0]["trials"]) == set(tried)
    assert {row["rate"] for row in rows} == {min((float(lr) for lr in tried), key=lambda lr: abs(math.log(lr / best)))}
    assert {place.name for place in (tmp_path / "search").iterdir()} == {f"mdlm-{lr}" for lr in tried}
    monkeypatch.setattr(module, "_trial_bound", None)
    assert compare(comparison, tmp_path, steps=1, load=toy.corpus) == rows


def test_a_rate_that_diverges_is_not_chosen(toy, tmp_path, monkeypatch):
    update = module.update

    def diverging(run, loss, norm):
        if run.config.training.lr > limit:
            raise DivergedError("too large")
        update(run, loss, norm)

    monkeypatch.setattr(module, "update", diverging)
    monkeypatch.setattr(module, "_trial_bound", lambda _, compared: -compared.run.config.training.lr)
    limit = 3e-3
    comparison = Comparison(toy.config, ("mdlm", "autoregressive"), 2, 4, 2, lrs=(1e-3, 2e-3), trial=1)
    rows = compare(comparison, tmp_path, steps=1, load=toy.corpus)
    assert rows[0]["trials"] == {"0.001": -0.001, "0.002": -0.002, "0.004": None} and rows[0]["rate"] == 2e-3
    limit = 0.0
    with pytest.raises(DivergedError, match=r"mdlm diverged with every learning rate: 6\.25e-05, .*, 0\.002"):
        compare(comparison, tmp_path / "all", steps=1, load=toy.corpus)


def test_a_stopped_search_continues(toy, tmp_path, monkeypatch):
    measured = []

    def bound(_, compared):
        lr = compared.run.config.training.lr
        measured.append(lr)
        if len(measured) == 3:  # beyond the given rates
            os.kill(os.getpid(), signal.SIGTERM)
        return abs(lr - 4e-3)

    monkeypatch.setattr(module, "_trial_bound", bound)
    comparison = Comparison(toy.config, ("mdlm",), 2, 4, 2, lrs=(1e-3, 2e-3), trial=1)
    with pytest.raises(InterruptedRunError):
        compare(comparison, tmp_path, steps=1, load=toy.corpus)
    rows = compare(comparison, tmp_path, steps=1, load=toy.corpus)
    assert measured == [1e-3, 2e-3, 4e-3, 8e-3] and rows[0]["rate"] == 4e-3


@pytest.mark.parametrize("phase", ["repeated_bound", "_samples", "_trial_bound", "evaluation_costs", "accumulate"])
def test_a_signal_ends_every_phase_of_a_comparison(phase, toy, tmp_path, monkeypatch):
    """Bounds and samples went on to their end, however long."""

    def endless(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(
        "rdlm.train.loop.accumulate" if phase == "accumulate" else f"{module.__name__}.{phase}", endless
    )
    monkeypatch.setattr(interruption, "GRACE", 0.1)
    lrs = (1e-3,) if phase == "_trial_bound" else ()
    comparison = Comparison(toy.config, ("mdlm",), nfe=2, sequences=8, samples=2, lrs=lrs, trial=1)
    budget = {"minutes": 1.0} if phase == "evaluation_costs" else {"steps": 2}
    began = time.monotonic()
    with pytest.raises(InterruptedRunError):
        compare(comparison, tmp_path, **budget, load=toy.corpus)
    assert time.monotonic() - began < 20


# -- inference layer -------------------------------------------------------------------------------------------------


def test_methods_that_read_evidence_share_the_inference_layer(toy, tmp_path):
    config = replace(toy.config, model=replace(toy.config.model, belief="ngram", order=2, states=32))
    comparison = Comparison(config, ("rdlm", "mdlm", "autoregressive"), nfe=4, sequences=8, samples=2)
    layers = {}

    def make(config, corpus):
        built = method.build(config, corpus)
        layers[config.method] = built.network.belief if isinstance(built.network, BeliefNetwork) else None
        return built

    rows = compare(comparison, tmp_path, steps=2, load=toy.corpus, make=make)
    assert [row["method"] for row in rows] == ["rdlm"] * 3 + ["mdlm"] * 2 + ["autoregressive"]
    tables = [layer.weight for layer in layers.values()]
    assert len(layers) == 3 and all(table.equal(tables[0]) for table in tables) and float(tables[0].sum()) > 0
    plain = compare(replace(comparison, config=toy.config), tmp_path / "plain", steps=2, load=toy.corpus)
    for row, other in zip(rows, plain, strict=True):
        assert row["bound"] < other["bound"] - 0.5  # hardly trained, but the layer knows the bigrams
    with pytest.raises(InputError, match=r"rdlm, mdlm, .*, mac, bert_mouth can be compared, udlm, sedd cannot"):
        replace(comparison, methods=("udlm", "mdlm", "sedd"))


def test_all_means_every_method_that_the_configuration_allows(toy):
    config = toy.config
    assert methods_of("all", config) == get_args(MethodName)
    layered = replace(config, model=replace(config.model, belief="ngram"))
    assert set(methods_of("all", layered)) == set(READ_EVIDENCE)
    assert methods_of("mdlm,,bfn", config) == ("mdlm", "bfn")
