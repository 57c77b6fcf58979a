"""Signals that end a run in order: the first saves and stops, the second stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class InterruptedRunError(Exception):
    """A run was told to stop, and has saved a checkpoint; `code` is the exit code, 130 or 143."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"interrupted after step {step}, which is saved; the same command continues from there")
        self.code = 128 + number


class Interruption:
    """Inside its `with` block SIGTERM and SIGINT are only noted; a second one interrupts as usual."""

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        # Python lets only the main thread watch signals.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def obey(self, step: int) -> None:
        """Raise InterruptedRunError where a signal was noted; the run has saved this step."""
        if self.received:
            raise InterruptedRunError(self.received, step)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number
