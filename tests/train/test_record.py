from __future__ import annotations

import importlib.util
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rdlm.train import record
from rdlm.train.record import Record

needs_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")


def test_lines_beyond_a_step_are_cut_and_halves_are_dropped(tmp_path: Path) -> None:
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


def test_damage_inside_cuts_what_follows(tmp_path: Path) -> None:
    path = tmp_path / record.NAME
    path.write_bytes(b'{"kind": "step", "step": 1}\n[]\n{"kind": "step", "step": 2}\n')
    record.truncate(path, 9)
    assert path.read_bytes() == b'{"kind": "step", "step": 1}\n'
    record.truncate(tmp_path / "none", 9)
    assert record.read_lines(tmp_path / "none") == []


def test_without_tensorboard_the_record_alone_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with Record(tmp_path, 0) as lines:
        lines.write("step", 1, loss=1.0)
    assert [p.name for p in tmp_path.iterdir()] == [record.NAME]


@needs_tensorboard
def test_tensorboard_shows_every_step_once_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for begin, scale in ((0, 1.0), (2, 2.0)):
        with Record(tmp_path, begin) as lines:
            for step in range(begin + 1, begin + 4):
                lines.write("step", step, loss=scale * step, note=None)
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert board.Tags()["scalars"] == ["step/loss"]
    shown = [(event.step, event.value) for event in board.Scalars("step/loss")]
    assert shown == [(1, 1.0), (2, 2.0), (3, 6.0), (4, 8.0), (5, 10.0)]


@needs_tensorboard
def test_a_full_disk_is_an_error_of_the_write_itself_and_of_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with Record(tmp_path, 0) as lines:
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
