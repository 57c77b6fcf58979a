"""No host synchronisation in hot paths: no number read from a tensor, no shape that depends on values.

Everything runs on the CPU here; functions that read values are found by name, and each allowed one has a reason.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rdlm.sampling.walk import Walker
from torch.utils._python_dispatch import TorchDispatchMode

import rdlm
from rdlm.config import ObjectiveConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.methods.rdlm import Rdlm
from rdlm.process.order import TokenSchedule
from rdlm.random import Draw, RandomStreams, generator_of
from rdlm.sampling.denoisers import Predictor
from rdlm.sampling.solvers import SOLVERS

SOURCE = Path(rdlm.__file__).parent
WAITING = {"_local_scalar_dense", "nonzero", "_unique2", "masked_select", "unique_dim", "equal"}
ON_THE_CPU_ALONE = {
    "process/schedule.py:_checked": "checks the range of tensors on the CPU only",
    "model/layers.py:moments": "looks for equal times on the CPU only",
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


class Copies(TorchDispatchMode):
    """Collects the places that wait until a tensor of the CPU has arrived on the device: the meta device stands for it.

    Values of that device cannot be read at all: who asks for one gets an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = func.overloadpacket.__name__, kwargs or {}
        to_device = name == "_to_copy" and options.get("device") == META and args[0].device != META
        by_host = (
            name.startswith("index")
            and args[0].device == META
            and any(
                isinstance(index, torch.Tensor) and index.device != META
                for index in (args[1] if isinstance(args[1], list | tuple) else args[1:])
            )
        )
        if by_host or (to_device and not options.get("non_blocking")):
            self.places.append(caller())
        return func(*args, **options)


META = torch.device("meta")
CLOCKS = {
    "together": {},
    "windows": {"window": TokenSchedule(0.5)},
    "one step": {"window": TokenSchedule(1 / 8, "strided")},
    "blocks": {"window": TokenSchedule(1 / 8, "strided", 2)},
}


def test_a_blocking_copy_is_seen() -> None:
    with Copies() as copies:
        torch.zeros(3, device=META)[torch.arange(2)]
        torch.zeros(3).to(META)
        torch.zeros(3).to(META, non_blocking=True)
    assert len(copies.places) == 2


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_sampling_never_waits_for_the_device(clock: str, solver: str) -> None:
    """It neither reads values from the device nor waits for copies to it."""
    subject = method(process=ProcessConfig(levels=8, pairs=16))
    chain = subject.chain(subject.process.mixture.paths[0], 8, **CLOCKS[clock], length=6)
    assert bool(chain.token_steps.block) == (clock == "blocks")
    subject.network.eval().to(META)
    model = Predictor(subject, rows=2, block_mask=subject.block_mask(chain))
    remember = subject.network.cache if chain.token_steps.block else None
    walker = Walker(model, chain, SOLVERS[solver], subject.process.schedule, device=META, clean=True, remember=remember)
    known = torch.full((2, 6), -1)
    known[0, :2] = 3
    walker.run(known, RandomStreams([generator_of(0), generator_of(1)], 2))  # tables
    with Copies() as copies:
        found = walker.run(known, RandomStreams([generator_of(0), generator_of(1)], 2))
    assert found.token.device == META and copies.places == []
