"""No host synchronisation in hot paths: no number read from a tensor, no shape that depends on values.

Everything runs on the CPU here; functions that read values are found by name, and each allowed one has a reason.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rdlm
from rdlm.config import ObjectiveConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.methods.rdlm import Rdlm
from rdlm.random import Draw

SOURCE = Path(rdlm.__file__).parent
WAITING = {"_local_scalar_dense", "nonzero", "_unique2", "masked_select", "unique_dim", "equal"}
ON_THE_CPU_ALONE = {
    "process/schedule.py:_checked": "checks the range of tensors on the CPU only",
    "model/layers.py:embed": "looks for equal times on the CPU only",
    "process/layout.py:encode": "checks the range of ids on the CPU only",
}


class Waits(TorchDispatchMode):
    """Collects the places in the package from which a tensor's values are read."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], list | tuple) else args[1:2])
        )
        if name in WAITING or masked:
            self.places.append(caller())
        return func(*args, **(kwargs or {}))


def caller() -> str:
    """Return the innermost place of the package on the stack."""
    frame = sys._getframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if SOURCE in path.parents:
            return f"{path.relative_to(SOURCE)}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "outside"


def method(**parts: Any) -> Rdlm:
    model = TransformerConfig(width=16, layers=1, heads=2)
    return Rdlm(RunConfig(model=model, **parts), 27)


def test_reading_a_number_is_seen() -> None:
    with Waits() as waits:
        assert bool(torch.ones(2).any())
        torch.arange(3)[torch.tensor([True, False, True])]
    assert len(waits.places) == 2


@pytest.mark.parametrize("windows", [0.0, 1.0])
@pytest.mark.parametrize("base", [None, 3])
def test_a_training_step_reads_nothing_from_the_device(windows: float, base: int | None) -> None:
    objective = ObjectiveConfig(asynchronous=windows)
    subject = method(objective=objective, process=ProcessConfig(levels=8, pairs=16, base=base))
    batch = Batch(torch.zeros(2, 6, dtype=torch.long))
    subject.loss(batch, Draw(0, 0))  # tables
    with Waits() as waits:
        subject.loss(batch, Draw(0, 1)).backward()
    assert set(waits.places) <= set(ON_THE_CPU_ALONE)
