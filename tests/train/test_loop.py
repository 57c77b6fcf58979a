from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from toy import LENGTH, Toy, blockwise_config, failing, spoiling, toy_config, toy_corpus

from rdlm.data.batch import Batch
from rdlm.display import progress
from rdlm.errors import DivergedError, InputError, InterruptedRunError
from rdlm.methods import build
from rdlm.methods.rdlm import Rdlm
from rdlm.random import Draw
from rdlm.storage import run_folder
from rdlm.train import loop, record
from rdlm.train.fit import CAUTION, FIXED_SECONDS, Pace
from rdlm.train.interruption import AbandonedError, Interruption
from rdlm.train.loop import Budget, Result, let_signals_in, train
from rdlm.train.parallel import Team

HERE = Path(__file__).parent


def run(place: Path, trouble: object = None, minutes: float | None = None, **training: object) -> Result:
    build = partial(Toy, trouble=trouble) if trouble else Toy
    return train(toy_config(**training), place, build, minutes=minutes, load=toy_corpus)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    place = tmp_path_factory.mktemp("runs") / "whole"
    run(place)
    return place


def test_a_run_learns_and_leaves_everything_behind(whole: Path, runs) -> None:
    result = run(whole)  # finished: nothing is trained, the result is the same
    assert (result.steps, result.skipped, result.unit) == (20, 0, "bits per character")
    lines = record.read_lines(whole)
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    bounds = [line["bits"] for line in lines if line["kind"] == "validation"]
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [10, 20]
    assert losses[-1] == result.loss < losses[0] - 0.2
    assert result.bound is not None and bounds[-1] == pytest.approx(result.bound.bits) and bounds[-1] < bounds[0]
    assert 3.5 < result.bound.bits < math.log2(27) + 0.1  # a unigram's bound, near its start
    assert {"config.yaml", "record.jsonl", "report.html", "latest.json", "best.json"} <= set(os.listdir(whole))
    assert sorted(p.name for p in whole.glob("checkpoint-*")) == ["checkpoint-00000015", "checkpoint-00000020"]
    assert json.loads((whole / "best.json").read_text())["step"] == 20
    assert result.to_json()["bound"]["low"] < result.bound.bits < result.to_json()["bound"]["high"]


@pytest.mark.parametrize("step", [3, 5, 13])
def test_a_crash_at_any_step_loses_nothing(step: int, whole: Path, tmp_path: Path, runs) -> None:
    place = tmp_path / "run"
    with pytest.raises(RuntimeError, match="struck"):
        run(place, failing(step, tmp_path / "mark", "raise"))
    run(place)
    runs.assert_same(place, whole)


@pytest.mark.parametrize("save_every", [25, 13])
def test_levels_by_information_are_measured_again_or_restored(save_every: int, tmp_path: Path, runs) -> None:
    """The information is measured before step 25: after a crash at step 27 again from 25, or as saved from 26 on."""
    config = blockwise_config(save_every=save_every, validate_every=50)

    class Struck(Rdlm):
        def loss(self, batch: Batch, draw: Draw) -> torch.Tensor:
            if draw.step == 27:
                raise RuntimeError("struck")
            return super().loss(batch, draw)

    train(config, tmp_path / "whole", build, load=toy_corpus)
    with pytest.raises(RuntimeError, match="struck"):
        train(config, tmp_path / "run", lambda c, corpus: Struck(c, corpus.tokenizer.size), load=toy_corpus)
    assert run_folder.newest(tmp_path / "run") == {25: 25, 13: 26}[save_every]
    train(config, tmp_path / "run", build, load=toy_corpus)
    runs.assert_same(tmp_path / "run", tmp_path / "whole")
    unmeasured = build(config, toy_corpus(config)).proposal.mass
    assert not torch.equal(runs.tensors(tmp_path / "run")["method/proposal.mass"], unmeasured)


def test_a_kill_loses_nothing_also_with_accumulation(tmp_path: Path, runs) -> None:
    code = (
        "import sys; from functools import partial; from pathlib import Path; from toy import *;"
        "from rdlm.train.loop import train; place = Path(sys.argv[1]);"
        "build = partial(Toy, trouble=failing(8, place.parent / 'mark'));"
        "train(toy_config(accumulate=2), place, build, load=toy_corpus)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    killed = subprocess.run(command, env=environment, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "run" / "checkpoint-00000005").is_dir()
    for place in ("run", "other"):
        run(tmp_path / place, accumulate=2)
    runs.assert_same(tmp_path / "run", tmp_path / "other")


def test_sigterm_saves_the_current_step_and_the_run_continues(whole: Path, tmp_path: Path, runs) -> None:
    place = tmp_path / "run"
    with pytest.raises(InterruptedRunError, match="after step 8") as stopped:
        run(place, failing(7, tmp_path / "mark", "terminate"))
    assert stopped.value.code == 143
    assert run_folder.find_checkpoint(place, "latest").name == "checkpoint-00000008"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    run(place)
    runs.assert_same(place, whole)


class Quiet(Toy):
    """Nothing random: how a batch is cut must not matter."""

    def loss(self, batch: Batch, draw: Draw) -> Tensor:
        return self.bound(batch, 1, torch.Generator()).mean() / LENGTH


@pytest.mark.parametrize("parts", [2, 8])
def test_parts_of_a_batch_add_up_to_it(parts: int, tmp_path: Path, runs) -> None:
    for accumulate in (1, parts):
        config = toy_config(accumulate=accumulate)
        config = replace(config, model=replace(config.model, dropout=0.0))
        train(config, tmp_path / str(accumulate), Quiet, load=toy_corpus)
    assert 0 < runs.distance(tmp_path / "1", tmp_path / str(parts)) < 1e-5


def test_a_run_with_a_time_limit_states_no_number_of_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    run(tmp_path / "limited", minutes=1e-9)
    assert "rdlm: limited (1e-09 minutes): 1 steps, 0 s" in capsys.readouterr().err
    run(tmp_path / "whole")
    assert "rdlm: whole: 20 of 20 steps" in capsys.readouterr().err


def test_a_time_limit_stops_a_run_and_the_next_call_continues(whole: Path, tmp_path: Path, runs) -> None:
    place = tmp_path / "run"
    first = run(place, minutes=1e-9)
    assert first.steps == 1 and first.bound is not None and (place / "report.html").exists()
    assert run(place).steps == 20
    a, b = runs.tensors(place), runs.tensors(whole)
    assert all(a[name].equal(b[name]) for name in b)


def test_a_number_that_is_not_finite_is_skipped_and_counted(tmp_path: Path, runs) -> None:
    result = run(tmp_path / "run", spoiling(4, 5, 11), tolerance=3)
    assert (result.steps, result.skipped) == (20, 3)
    assert [line["skipped"] for line in runs.record(tmp_path / "run") if line["step"] in (3, 6, 12)] == [0, 2, 3]
    tensors = runs.tensors(tmp_path / "run")
    assert tensors["optimizer/head.bias.step"] == 17
    assert tensors["method/memory"].isfinite().all()


class Steep(Toy):
    """At some steps the loss is finite and its gradient is not: the slope of a root at zero."""

    def loss(self, batch: Batch, draw: Draw) -> Tensor:
        found = super().loss(batch, draw)
        weights = next(self.network.parameters())
        return found + (weights - weights.detach()).abs().sqrt().sum() if draw.step in (4, 5) else found


def test_a_gradient_that_is_not_finite_is_skipped_though_the_loss_is(tmp_path: Path, runs) -> None:
    result = train(toy_config(tolerance=3), tmp_path / "run", Steep, load=toy_corpus)
    assert (result.steps, result.skipped) == (20, 2) and result.loss is not None and math.isfinite(result.loss)
    with pytest.raises(DivergedError, match=r"step 5: loss \d\.\d+, gradient norm nan in input\.weight, not"):
        train(toy_config(tolerance=2), tmp_path / "strict", Steep, load=toy_corpus)


class Infinite(Toy):
    """A method whose bound is not finite, though its weights are."""

    def bound(self, batch: Batch, nfe: int, generator: torch.Generator | None = None) -> Tensor:
        return super().bound(batch, nfe, generator) * torch.inf


def test_a_run_whose_validation_is_not_finite_can_be_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(toy_config(), tmp_path / "run", Infinite, load=toy_corpus)
    assert result.bound is None and "the validation bound is inf nats, not finite" in capsys.readouterr().err
    again = train(toy_config(), tmp_path / "run", Infinite, load=toy_corpus)
    assert again.steps == result.steps


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    # The gradient is clipped, hence finite, but so is no weight after a step of this size.
    with pytest.raises(DivergedError, match="not finite"):
        run(tmp_path / "run", lr=1e38, warmup=0, save_every=1, tolerance=20)
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_too_many_of_them_end_the_run_with_the_batch(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"step 8: loss nan, gradient norm nan in input\.weight.*3 steps in a row"):
        run(tmp_path / "run", spoiling(6, 7, 8), tolerance=3)
    dump = json.loads((tmp_path / "run" / "nonfinite-00000008.json").read_text())
    assert dump["step"] == 8 and dump["loss"] == "nan" and "head.weight" in dump["parameters"]
    assert len(dump["rows"]) == 8 and len(dump["ids"][0]) == LENGTH


def test_a_run_without_any_update_has_diverged(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"step 19: loss nan, .*not finite for 20 steps in a row"):
        run(tmp_path / "run", spoiling(*range(20)), tolerance=100)
    run(tmp_path / "other", spoiling(*range(1, 20)), tolerance=100)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"batch": 6, "accumulate": 4}, "batch 6 is not a multiple of training.accumulate 4"),
        ({"device": "gpu"}, "training.device 'gpu' is not available; this machine has: .*cpu"),
        ({"ema": 1.0}, r"training\.ema must lie in \[0, 1\), got 1"),
    ],
)
def test_mistakes_show_before_anything_is_made(training: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        run(tmp_path / "run", **training)
    assert not (tmp_path / "run").exists()


def test_a_corpus_shorter_than_the_length_is_named(tmp_path: Path) -> None:
    config = toy_config()
    config = replace(config, data=replace(config.data, length=10_000))
    with pytest.raises(InputError, match="fewer than a sequence of 10,000"):
        train(config, tmp_path / "run", Toy, load=toy_corpus)
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="not a writable folder"):
        train(toy_config(), tmp_path / "file" / "run", Toy, load=toy_corpus)


def test_another_configuration_is_refused_until_it_is_accepted(whole: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    run(place, steps=5)
    with pytest.raises(InputError, match=r"training\.steps was 5, is 6; training\.lr was 0\.01, is 0\.02\. Choose"):
        run(place, steps=6, lr=0.02)
    assert run(place, steps=5, accumulate=2).steps == 5  # only divides the work
    result = train(toy_config(steps=6, lr=0.02), place, Toy, accept_changes=True, load=toy_corpus)
    assert result.steps == 6
    assert run(place, steps=6, lr=0.02).steps == 6


def test_bfloat16_runs_the_network_alone_in_it(tmp_path: Path, runs) -> None:
    result = run(tmp_path / "run", precision="bfloat16")
    assert result.loss is not None and result.loss < 3.2
    assert all(t.dtype.itemsize == 4 for t in runs.tensors(tmp_path / "run").values())


class Slow(Toy):
    """Receives SIGTERM in one phase, which would then take a minute."""

    phase, step = "loss", 7

    def _stall(self, phase: str) -> None:
        if phase == self.phase:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(6000):
                time.sleep(0.01)

    def loss(self, batch: Batch, draw: Draw) -> Tensor:
        if draw.step == self.step:
            self._stall("loss")
        return super().loss(batch, draw)

    def bound(self, batch: Batch, nfe: int, generator: torch.Generator | None = None) -> Tensor:
        self._stall("bound")
        return super().bound(batch, nfe, generator)

    def generate(self, count: int, length: int, nfe: int, generator: torch.Generator | None = None) -> Tensor:
        self._stall("generate")
        return super().generate(count, length, nfe, generator)


@pytest.mark.parametrize(("phase", "saved"), [("loss", 7), ("bound", 10), ("generate", 20)])
def test_sigterm_ends_any_phase_within_seconds_and_nothing_is_lost(
    phase: str, saved: int, whole: Path, tmp_path: Path, runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run"
    monkeypatch.setattr(Slow, "phase", phase)
    began = time.monotonic()
    with pytest.raises(InterruptedRunError, match=f"after step {saved},"):
        train(toy_config(), place, Slow, load=toy_corpus)
    assert time.monotonic() - began < 10
    assert run_folder.find_checkpoint(place, "latest").name == f"checkpoint-{saved:08d}"
    run(place)
    ours, theirs = runs.tensors(place), runs.tensors(whole)
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert (place / "report.html").exists()


def test_a_backward_pass_can_be_abandoned() -> None:
    """Python handles signals between the gradients of two parameters, thanks to hooks without effect."""
    network = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(3)])
    seen = []

    class Stub:
        def __init__(self) -> None:
            self.network = network

    let_signals_in(Stub())  # type: ignore[arg-type]
    network[2].weight.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGTERM))
    network[0].weight.register_hook(lambda gradient: seen.append(gradient))
    with Interruption() as interruption:
        interruption._over = True
        with pytest.raises(AbandonedError), interruption.abandonable():
            network(torch.ones(1, 2)).sum().backward()
    assert not seen


def test_minutes_include_everything_and_the_run_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def timed() -> tuple[Result, float]:
        began = time.monotonic()
        found = train(
            toy_config(steps=10**6, save_every=10**6, validate_every=10**6),
            tmp_path / "run",
            Toy,
            minutes=0.1,
            given={"training.batch"},
            load=toy_corpus,
        )
        return found, time.monotonic() - began

    first, seconds = timed()
    assert 1 < seconds < 8 and first.steps > 20 and first.bound is not None
    said = capsys.readouterr().err
    assert "rdlm: 0.1 minutes: width" in said and f"{toy_config().training.batch} sequences" in said
    assert timed()[0].steps > first.steps


@pytest.mark.parametrize(
    ("half", "chosen", "expected"),
    [(0.5, (), "bfloat16"), (0.9, (), "float32"), (3.0, (), "float32"), (0.5, ("training.precision",), "float32")],
)
def test_minutes_choose_bfloat16_where_it_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: float, chosen: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr(
        loop, "measured_step", lambda run: 0.001 * (half if run.config.training.precision == "bfloat16" else 1.0)
    )
    budget = Budget(minutes=0.1, began=None, given=chosen)
    fitted = budget.fit(toy_config(), toy_corpus(toy_config()), Toy, Team(), tmp_path)
    assert fitted.training.precision == expected


def test_a_busy_machine_ends_the_training_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    training = toy_config(validation_sequences=16, validation_nfe=8).training
    budget = Budget(minutes=1.0, began=0.0, given=())
    budget.pace = Pace(step=0.1, sequence=0.1, call=0.5)
    reserve = budget.pace.reserve(training, CAUTION) + budget.pace.step

    def steps(*durations: float) -> None:
        nonlocal now
        for seconds in durations:
            with budget.step():
                now += seconds

    steps(0.9)  # the first step takes longer: a run of 25 steps ended after it
    assert budget.slowness == 1
    steps(0.1, 0.05, 0.1)
    assert budget.training_end(training) == pytest.approx(60 - reserve) and budget.affordable_nfe(8) == 8
    steps(9.0)  # one step that measures the information
    assert budget.slowness == pytest.approx(1)
    steps(0.3, 0.4, 0.4, 0.4, 0.4)
    assert budget.training_end(training) == pytest.approx(60 - 4 * reserve)
    assert budget.affordable_nfe(64) == int((60 - now - 1) / 2)


def test_a_few_interrupted_steps_of_a_millisecond_do_not_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of five such steps behind another process stood for a machine that is fifty times slower: a run of six
    seconds ended after 0.3."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    budget = Budget(minutes=0.1, began=0.0, given=())
    budget.pace = Pace(step=0.001, sequence=0.001, call=0.001)
    for at in range(1000):
        with budget.step():
            now += 0.05 if at % 200 in (0, 1, 2) else 0.001
        assert budget.slowness == pytest.approx(1)
    for _ in range(1000):
        with budget.step():
            now += 0.004
    assert budget.slowness == pytest.approx(4)


def test_a_validation_of_few_sequences_does_not_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sequences in three times the time per sequence stood for a machine that is three times slower: after the
    first validation, a run of 42 seconds ended at 14."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    training = toy_config(validation_sequences=4, validation_nfe=8).training
    budget = Budget(minutes=1.0, began=0.0, given=())
    budget.pace = Pace(step=0.1, sequence=0.1, call=0.5)
    with budget.validation(4):
        now += 4 * 0.3
    assert budget.slowness == 1
    assert budget.training_end(training) == pytest.approx(60 - 0.1 - CAUTION * (4 * 0.3 + 8 * 0.5) - FIXED_SECONDS)
