from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rdlm.training import record
from rdlm.training.record import Record


def test_lines_beyond_a_step_are_cut_and_halves_are_dropped(tmp_path: Path) -> None:
    with Record(tmp_path, 0) as lines:
        for step in range(1, 6):
            lines.write("step", step, loss=1 / step)
        lines.sync()
    path = tmp_path / record.NAME
    path.write_bytes(path.read_bytes() + b'{"kind": "step", "st')
    assert [line["step"] for line in record.lines(tmp_path)] == [1, 2, 3, 4, 5]
    with Record(tmp_path, 3) as lines:
        lines.write("validation", 4, bits=2.0, note=None)
    found = record.lines(tmp_path)
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    assert found[-1] == {"kind": "validation", "step": 4, "bits": 2.0, "note": None}
    assert found[2]["loss"] == 1 / 3  # a float comes back as it was


def test_damage_inside_cuts_what_follows(tmp_path: Path) -> None:
    path = tmp_path / record.NAME
    path.write_bytes(b'{"kind": "step", "step": 1}\n[]\n{"kind": "step", "step": 2}\n')
    record.cut(path, 9)
    assert path.read_bytes() == b'{"kind": "step", "step": 1}\n'
    record.cut(tmp_path / "none", 9)
    assert record.lines(tmp_path / "none") == []


def test_without_tensorboard_the_record_alone_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with Record(tmp_path, 0) as lines:
        lines.write("step", 1, loss=1.0)
    assert [p.name for p in tmp_path.iterdir()] == [record.NAME]


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")
def test_with_tensorboard_its_files_are_written(tmp_path: Path) -> None:
    with Record(tmp_path, 0) as lines:
        lines.write("step", 1, loss=1.0)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
