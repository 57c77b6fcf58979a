"""The numbers that a run carries along, and how they are read back from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rdlm.errors import DamagedFileError


@dataclass
class Counters:
    """The numbers that a run carries along; all of them stand in its checkpoints."""

    step: int = 0
    """Steps taken, the skipped ones included."""
    updates: int = 0
    """Steps that moved the weights."""
    skipped_in_row: int = 0
    seconds: float = 0.0
    """Time spent training, resumed parts added up."""
    window: int = 0
    """Updates since the last line of the record, whose losses and norms these are sums of."""
    window_loss: float = 0.0
    window_norm: float = 0.0
    loss: float | None = None
    """Mean loss in the last line of the record."""
    validation: dict[str, Any] | None = None
    """Step, bound and standard error of the last validation, in nats per sequence."""
    best: dict[str, Any] | None = None
    """The same of the best one."""

    @property
    def skipped(self) -> int:
        """Return how many steps were skipped because a number was not finite."""
        return self.step - self.updates


WHOLE = ("step", "updates", "skipped_in_row", "window")


def read(path: Path, state: Mapping[str, Any]) -> Counters:
    """Return the counters of a checkpoint's state; numbers of another kind, or that disagree, are damage."""
    found = state.get("counters")
    if not isinstance(found, dict) or set(found) != {field.name for field in fields(Counters)}:
        raise DamagedFileError(f"{path / 'state.json'} is damaged: its counters are not those of a run")
    for name, value in found.items():
        if not _suits(name, value):
            raise DamagedFileError(f"{path / 'state.json'} is damaged: its counter {name} is {value!r:.80}")
    counters = Counters(**found)
    measured = [bound["step"] for bound in (counters.validation, counters.best) if bound is not None]
    parts = [counters.updates, counters.skipped, counters.skipped_in_row, counters.window, *measured]
    if counters.step != state["step"] or not all(0 <= part <= counters.step for part in parts):
        raise DamagedFileError(f"{path / 'state.json'} is damaged: its counters do not agree with its step")
    return counters


def _suits(name: str, value: object) -> bool:
    if name in ("validation", "best"):
        return value is None or (
            isinstance(value, dict)
            and set(value) == {"step", "bound", "stderr"}
            and type(value["step"]) is int
            and all(type(value[key]) in (int, float) for key in ("bound", "stderr"))
        )
    if name == "loss" and value is None:
        return True
    return type(value) is int if name in WHOLE else type(value) in (int, float)
