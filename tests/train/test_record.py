from __future__ import annotations

import importlib.util
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from toy import Toy, toy_config, toy_corpus

from rdlm.cli.main import main
from rdlm.errors import DamagedFileError, InputError, InterruptedRunError
from rdlm.train import record
from rdlm.train.loop import train
from rdlm.train.record import Record, open_trackers
from tests.storage.crafted import rewrite_state

needs_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")


def test_lines_after_a_step_and_incomplete_lines_are_removed(tmp_path: Path) -> None:
    with Record(tmp_path, 0) as lines:
        for step in range(1, 6):
            lines.write("step", step, loss=1 / step)
        lines.sync()
    path = tmp_path / record.NAME
    path.write_bytes(path.read_bytes() + b'{"kind": "step", "st')
    assert [line["step"] for line in record.read_lines(tmp_path)] == [1, 2, 3, 4, 5]
    with Record(tmp_path, 3) as lines:
        lines.write("validation", 4, bits=2.0, note=None)
    found = record.read_lines(tmp_path)
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    assert found[-1] == {"kind": "validation", "step": 4, "bits": 2.0, "note": None}
    assert found[2]["loss"] == 1 / 3  # a float comes back as it was


def test_a_record_is_a_regular_file_and_ends_before_an_endless_line(tmp_path: Path) -> None:
    with Record(tmp_path, 0) as lines:
        lines.write("step", 1, loss=1.0)
    path = tmp_path / record.NAME
    size = path.stat().st_size
    os.truncate(path, 1 << 40)  # zeros that take no place on the disk
    assert [line["step"] for line in record.read_lines(tmp_path)] == [1]
    record.truncate(path, 1)
    assert path.stat().st_size == size
    path.rename(tmp_path / "other")
    for make in (os.mkfifo, partial(os.symlink, tmp_path / "other"), partial(os.symlink, "/dev/zero")):
        make(path)
        with pytest.raises(DamagedFileError, match=r"record\.jsonl is damaged: .*; remove it"):
            record.read_lines(tmp_path)
        path.unlink()


def test_a_damaged_line_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / record.NAME
    old = b'{"kind": "step", "step": 1}\n'  # as version 0.1.0 wrote it, without a checksum
    path.write_bytes(old + b"[]\n")
    with Record(tmp_path, 9) as lines:
        lines.write("step", 2, loss=1.25)
        lines.write("step", 3, loss=1.25)
    assert [line["step"] for line in record.read_lines(tmp_path)] == [1, 2, 3] and "1 of its lines" in caplog.text
    whole = path.read_bytes()
    assert whole.count(b"1.25") == 2
    path.write_bytes(whole.replace(b"1.25", b"1.26", 1))  # one digit of one line
    assert [line["step"] for line in record.read_lines(tmp_path)] == [1, 3] and "2 of its lines" in caplog.text
    record.truncate(path, 2)
    assert path.read_bytes().startswith(old + b"[]\n") and path.read_bytes().count(b"\n") == 3
    record.truncate(tmp_path / "none", 9)
    assert record.read_lines(tmp_path / "none") == []


def test_every_flipped_bit_of_a_line_is_found(tmp_path: Path) -> None:
    with Record(tmp_path, 0) as lines:
        lines.write("step", 1, loss=0.5)
    path = tmp_path / record.NAME
    (whole,) = record.read_lines(tmp_path)
    content = path.read_bytes()
    for bit in range(8 * (len(content) - 1)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        for line in record.read_lines(tmp_path):  # only the name of the checksum may differ
            assert {key: line[key] for key in whole} == whole


def test_without_tensorboard_the_record_alone_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with Record(tmp_path, 0) as lines:
        lines.write("step", 1, loss=1.0)
    assert [p.name for p in tmp_path.iterdir()] == [record.NAME]


@needs_tensorboard
def test_tensorboard_shows_every_step_once_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for begin, scale in ((0, 1.0), (2, 2.0)):
        with Record(tmp_path, begin, open_trackers((), tmp_path, begin, {})) as lines:
            for step in range(begin + 1, begin + 4):
                lines.write("step", step, loss=scale * step, note=None)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["step/loss"]
    shown = [(event.step, event.value) for event in events.Scalars("step/loss")]
    assert shown == [(1, 1.0), (2, 2.0), (3, 6.0), (4, 8.0), (5, 10.0)]


@needs_tensorboard
def test_a_full_disk_is_an_error_of_the_write_itself_and_of_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with Record(tmp_path, 0, open_trackers((), tmp_path, 0, {})) as lines:
        lines.write("step", 1, loss=1.0)
        assert threading.active_count() == before
        size = max(path.stat().st_size for path in (tmp_path / "tensorboard").iterdir())
        with files_up_to(size), pytest.raises(OSError, match="File too large"):
            lines.write("step", 2, loss=1.0)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let this process write no file beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(step=4),
        lambda c: c.update(updates="5"),
        lambda c: c.update(seconds=None),
        lambda c: c.update(best={"step": "../..", "bound": 1.0, "stderr": 0.1}),
        lambda c: c.update(window=-1),
        lambda c: c.update(best={"step": 99, "bound": 1.0, "stderr": 0.1}),
        lambda c: c.pop("loss"),
        lambda c: c.update(extra=1),
        lambda c: c.update(updates=True),
    ],
)
def test_invalid_counters_are_refused(change: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    train(toy_config(steps=5), tmp_path / "run", Toy, load=toy_corpus)
    rewrite_state(tmp_path / "run" / "checkpoint-00000005", lambda state: change(state["counters"]))
    with pytest.raises(DamagedFileError, match="counter"):
        train(toy_config(steps=5), tmp_path / "run", Toy, load=toy_corpus)


def test_lines_of_version_0_1_0_are_read_with_the_new_key_of_the_learning_rate(tmp_path: Path) -> None:
    (tmp_path / "record.jsonl").write_text('{"kind": "step", "step": 5, "loss": 2.5, "rate": 0.25}\n')
    with Record(tmp_path, 5) as lines:
        lines.write("step", 10, loss=2.0, lr=0.125)
    assert [line["lr"] for line in record.read_lines(tmp_path)] == [0.25, 0.125]
    assert all("rate" not in line for line in record.read_lines(tmp_path))


# -- trackers ---------------------------------------------------------------------------------------


class Service:
    """A module in place of wandb: what it is called with."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.codes: list[int] = []
        self.metrics: list[tuple[str, str]] = []
        self.broken = ""

    def init(self, **options: Any) -> Service:
        if self.broken == "init":
            raise OSError("no route to host")
        self.started.append(options)
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics.append((name, step_metric))

    def log(self, values: dict[str, Any]) -> None:
        if self.broken == "log":
            raise OSError("no route to host")
        self.logged.append(values)

    def finish(self, exit_code: int) -> None:
        self.codes.append(exit_code)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Service:
    service, module = Service(), ModuleType("wandb")
    module.init = service.init  # type: ignore[attr-defined]
    module.__spec__ = ModuleSpec("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return service


def test_wandb_has_the_numbers_of_the_record(tmp_path: Path, wandb: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    config = toy_config()
    train(config, folder, Toy, load=toy_corpus, track=["wandb"])
    (started,) = wandb.started
    assert started["name"] == "run" and started["project"] == "rdlm" and started["resume"] == "allow"
    assert started["config"]["training"]["steps"] == config.training.steps
    lines = [line for line in record.read_lines(folder)]
    assert [found["training_step"] for found in wandb.logged] == [line["step"] for line in lines]
    for found, line in zip(wandb.logged, lines, strict=True):
        numbers = {
            f"{line['kind']}/{key}": v for key, v in line.items() if isinstance(v, int | float) and key != "step"
        }
        assert found == {**numbers, "training_step": line["step"]}
    assert wandb.codes == [0] and wandb.metrics == [("*", "training_step")]
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    train(config, folder, Toy, load=toy_corpus, track=["wandb"])
    assert wandb.started[1]["id"] == started["id"] and wandb.started[1]["project"] == "mine"


def test_wandb_is_finished_when_a_run_fails_or_is_stopped(tmp_path: Path, wandb: Service) -> None:
    def fail(draw: object) -> float:
        raise RuntimeError("struck")

    with pytest.raises(RuntimeError, match="struck"):
        train(toy_config(), tmp_path / "failed", partial(Toy, trouble=fail), load=toy_corpus, track=["wandb"])

    def stop(draw: object) -> float:
        os.kill(os.getpid(), signal.SIGTERM)
        return 1.0

    with pytest.raises(InterruptedRunError):
        train(toy_config(), tmp_path / "stopped", partial(Toy, trouble=stop), load=toy_corpus, track=["wandb"])
    assert wandb.codes == [1, 143]


def test_trouble_of_wandb_does_not_end_the_training(
    tmp_path: Path, wandb: Service, caplog: pytest.LogCaptureFixture
) -> None:
    wandb.broken = "log"
    assert train(toy_config(), tmp_path / "run", Toy, load=toy_corpus, track=["wandb"]).steps == 20
    assert caplog.text.count("no route to host; the training goes on") == 1 and wandb.codes == [0]
    wandb.broken = "init"
    with pytest.raises(InputError, match="wandb did not start: no route to host; `wandb login`, or WANDB_MODE=offline"):
        train(toy_config(), tmp_path / "other", Toy, load=toy_corpus, track=["wandb"])


def test_a_missing_or_unknown_tracker_is_named_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name))
    message = r'--track wandb needs the package wandb: pip install "rdlm\[wandb\]"'
    with pytest.raises(InputError, match=message):
        train(toy_config(), tmp_path / "run", Toy, load=toy_corpus, track=["wandb"])
    with pytest.raises(InputError, match="unknown tracker 'wandbb': did you mean 'wandb'"):
        train(toy_config(), tmp_path / "run", Toy, load=toy_corpus, track=["wandbb"])  # type: ignore[list-item]
    monkeypatch.chdir(tmp_path)
    assert main(["train", "demo", "--track", "wandb"]) == 2
    assert "rdlm[wandb]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "nothing is created"


def test_a_tracker_of_the_user_gets_the_numbers(tmp_path: Path) -> None:
    class Mine:
        def __init__(self) -> None:
            self.steps: list[tuple[str, int]] = []
            self.code: int | None = None

        def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
            self.steps.append((kind, step))

        def close(self, code: int) -> None:
            self.code = code

    mine = Mine()
    train(toy_config(), tmp_path / "run", Toy, load=toy_corpus, track=[mine])
    assert mine.steps == [(line["kind"], line["step"]) for line in record.read_lines(tmp_path / "run")]
    assert mine.code == 0
