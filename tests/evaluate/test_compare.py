"""Comparisons: rows, resuming after an interruption, budgets, errors of the estimate, and the command."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from rdlm import methods as method
from rdlm.cli import main as cli
from rdlm.cli.compare import lrs_of, minutes_of
from rdlm.config import ConvolutionConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.evaluate import compare as race
from rdlm.evaluate.compare import Contest, compare, draw_comparison, repeated_bound
from rdlm.storage import run_folder as folder
from rdlm.train.interruption import InterruptedRunError

KEYS = {"method", "bound", "stderr", "unit", "claims_bound", "relative_step_cost", "steps"}


def weights(run):
    return load_file(folder.find_checkpoint(run, "latest") / "ema.safetensors")


def test_all_methods_give_their_rows_and_a_picture(toy, tmp_path):
    contest = Contest(toy.config, tuple(method.METHODS), nfe=3, sequences=16, samples=4)
    rows = compare(contest, tmp_path, steps=3, load=toy.corpus)
    assert [row["method"] for row in rows] == list(method.METHODS)
    for row in rows:
        assert row.keys() >= KEYS
        assert row["steps"] == 3 and row["unit"] == "bits per character" and row["relative_step_cost"] > 0
        assert math.isfinite(row["bound"]) and row["low"] < row["bound"] < row["high"]
        assert row["claims_bound"] == (row["method"] != "fisher_flow")
        assert 0 < row["quality"]["bigram_divergence"]["value"] <= 1
    assert rows[4]["relative_step_cost"] == 1
    assert rows[4]["sampling_calls"] == toy.config.data.length and rows[1]["sampling_calls"] == 3
    assert json.loads((tmp_path / "compare.json").read_text())["rows"] == rows
    draw_comparison(rows, tmp_path / "compare.png")
    assert (tmp_path / "compare.png").stat().st_size > 5000


def test_what_is_trained_and_measured_is_not_done_again(toy, tmp_path, monkeypatch):
    contest = Contest(toy.config, ("mdlm", "autoregressive"), nfe=2, sequences=8, samples=2)
    rows = compare(contest, tmp_path, steps=2, load=toy.corpus)

    def again(*_):
        raise AssertionError("done again")

    monkeypatch.setattr(race, "accumulate", again)
    monkeypatch.setattr("rdlm.evaluate.compare.repeated_bound", again)
    assert compare(contest, tmp_path, steps=2, load=toy.corpus) == rows
    with pytest.raises(AssertionError, match="done again"):
        compare(replace(contest, nfe=3), tmp_path, steps=2, load=toy.corpus)


def test_every_method_takes_the_best_of_the_same_rates(toy, tmp_path, monkeypatch):
    contest = Contest(toy.config, ("mdlm", "autoregressive"), 2, 8, 2, lrs=(1e-6, 3e-3), trial=20)
    rows = compare(contest, tmp_path, steps=2, load=toy.corpus)
    tried = json.loads((tmp_path / "rates.json").read_text())
    assert [(name, set(found)) for name, found in tried.items()] == [(m, {"1e-06", "0.003"}) for m in contest.methods]
    assert [row["rate"] for row in rows] == [3e-3, 3e-3]  # the other one barely moves
    for row in rows:
        assert folder.find_checkpoint(tmp_path / "search" / f"{row['method']}-1e-06", "latest").is_dir()
        assert tried[row["method"]]["0.003"] == min(tried[row["method"]].values())
    monkeypatch.setattr(race, "accumulate", None)
    assert compare(contest, tmp_path, steps=2, load=toy.corpus) == rows  # nothing is trained again


def test_a_stopped_comparison_continues_to_the_same_weights(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(race, "SLICE", 2)
    contest = Contest(toy.config, ("mdlm", "autoregressive"), nfe=2, sequences=8, samples=2)
    whole = compare(contest, tmp_path / "whole", steps=7, load=toy.corpus)
    seen = []

    def stopping(config, corpus):
        built = method.build(config, corpus)
        loss = built.loss

        def stop(batch, draw):
            seen.append((config.method, draw.step))
            if draw.step == 4 and config.method == "mdlm":
                os.kill(os.getpid(), signal.SIGTERM)
            return loss(batch, draw)

        built.loss = stop
        return built

    with pytest.raises(InterruptedRunError) as stopped:
        compare(contest, tmp_path / "parts", steps=7, load=toy.corpus, make=stopping)
    assert stopped.value.code == 143
    assert seen[:6] == [
        ("mdlm", 0),
        ("mdlm", 1),
        ("autoregressive", 0),
        ("autoregressive", 1),
        ("mdlm", 2),
        ("mdlm", 3),
    ]
    parts = compare(contest, tmp_path / "parts", steps=7, load=toy.corpus)
    assert [row["bound"] for row in parts] == [row["bound"] for row in whole]
    for name in contest.methods:
        one, other = weights(tmp_path / "whole" / name), weights(tmp_path / "parts" / name)
        assert all(one[key].equal(other[key]) for key in one)


def test_a_budget_becomes_steps_once(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("rdlm.evaluate.compare.seconds_per_step", lambda configs, *_: {c.method: 0.5 for c in configs})
    contest = Contest(toy.config, ("mdlm", "udlm"), nfe=2, sequences=4, samples=2)
    rows = compare(contest, tmp_path, minutes=0.1, load=toy.corpus)
    assert [row["steps"] for row in rows] == [6, 6]
    assert [row["relative_step_cost"] for row in rows] == [1, 1]
    more = replace(contest, methods=("mdlm", "udlm", "sedd"))
    assert [row["steps"] for row in compare(more, tmp_path, minutes=99, load=toy.corpus)] == [6, 6, 6]


def test_without_the_reference_its_cost_is_measured(toy, tmp_path):
    contest = Contest(toy.config, ("mdlm",), nfe=2, sequences=4, samples=2)
    (row,) = compare(contest, tmp_path, steps=1, load=toy.corpus)
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
    assert [row["method"] for row in printed["rows"]] == ["mdlm", "autoregressive"]
    assert printed["rows"][0].keys() >= KEYS
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "not a bound" not in out and "autoregressive" in out and "95% intervals" in out


def test_a_convolution_has_no_reference(toy, tmp_path):
    config = replace(toy.config, model=ConvolutionConfig(width=8, stacks=1, dilations=(1,)))
    contest = Contest(config, ("mdlm",), nfe=2, sequences=4, samples=2)
    (row,) = compare(contest, tmp_path, steps=1, load=toy.corpus)
    assert row["relative_step_cost"] is None
    with pytest.raises(InputError, match="needs a transformer"):
        compare(replace(contest, methods=("autoregressive",)), tmp_path, steps=1, load=toy.corpus)


def test_methods_that_read_no_evidence_have_no_inference_layer(toy):
    config = replace(toy.config, model=replace(toy.config.model, belief="ngram", states=64))
    contest = Contest(config, ("rdlm", "mdlm", "autoregressive", "udlm", "sedd", "fisher_flow"))
    beliefs = [contest.configuration(name, 5).model.belief for name in contest.methods]
    assert beliefs == ["ngram"] * 3 + ["none"] * 3
    assert contest.configuration("udlm", 5).training.steps == 5


def test_rates_are_numbers_of_a_list():
    assert lrs_of("1e-3,2e-3") == (1e-3, 2e-3) and lrs_of("") == ()
    with pytest.raises(InputError, match="not a list of numbers such as 1e-3,2e-3"):
        lrs_of("1e-3;2e-3")


def test_rates_must_be_positive(toy):
    with pytest.raises(InputError, match=r"--lrs must be positive, got 0\.001, -1"):
        Contest(toy.config, ("mdlm",), lrs=(1e-3, -1.0))
