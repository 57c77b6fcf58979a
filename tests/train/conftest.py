"""What the tests of training share: the toy method, and runs compared bit by bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rdlm.storage import checkpoint, run_folder
from rdlm.train import record

sys.path.insert(0, str(Path(__file__).parent))  # the toy is imported by tests and by the processes that they start


def assembled(path: Path, part: str) -> dict[str, Tensor]:
    """Return the tensors of a part, those of shards put together row by row."""
    files = sorted(path.glob(f"{part}-*.safetensors")) or [path / f"{part}.safetensors"]
    pieces = [load_file(file) for file in files]
    found = {name: [one[name] for one in pieces if name in one] for name in pieces[0]}
    return {name: torch.cat(parts) if parts[0].ndim else parts[0] for name, parts in found.items()}


class Runs:
    """Reads what runs left behind."""

    @staticmethod
    def tensors(run: Path, which: str = "latest") -> dict[str, Tensor]:
        path = run_folder.find_checkpoint(run, which)
        checkpoint.verify(path)
        found = {part: assembled(path, part) for part in checkpoint.PARTS}
        return {f"{part}/{name}": tensor for part, tensors in found.items() for name, tensor in tensors.items()}

    @staticmethod
    def record(run: Path) -> list[dict[str, Any]]:
        """The lines without what the clock says."""
        clocked = {"seconds", "tokens_per_second"}
        return [{k: v for k, v in line.items() if k not in clocked} for line in record.read_lines(run)]

    @classmethod
    def assert_same(cls, one: Path, other: Path) -> None:
        a, b = cls.tensors(one), cls.tensors(other)
        assert a.keys() == b.keys() and len(a) > 10
        for name in a:
            assert a[name].equal(b[name]), name
        assert cls.record(one) == cls.record(other)
        assert len(cls.record(one)) > 3

    @classmethod
    def distance(cls, one: Path, other: Path, but: str = "?") -> float:
        """Return the largest difference of two runs' tensors, those left aside whose names contain `but`."""
        a, b = cls.tensors(one), cls.tensors(other)
        assert a.keys() == b.keys()
        return max(float((a[name].double() - b[name].double()).abs().max()) for name in a if but not in name)


@pytest.fixture
def runs() -> Runs:
    return Runs()
