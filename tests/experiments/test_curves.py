"""The picture of runs side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.curves import draw_curves
from rdlm.errors import InputError
from rdlm.train.record import Record


def test_runs_are_plotted_and_other_folders_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "empty").mkdir()
    with Record(tmp_path / "run", 0) as record:
        record.write("step", 1, loss=2.0)
        record.write("validation", 1, bits=3.0, margin=0.1)
    draw_curves([tmp_path / "run"], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="no training record"):
        draw_curves([tmp_path / "empty"], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
