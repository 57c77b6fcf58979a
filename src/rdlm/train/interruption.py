"""SIGTERM and SIGINT: the first one saves a checkpoint and stops the run, the second one stops it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class InterruptedRunError(Exception):
    """A run stopped after a signal and has saved a checkpoint; `code` is the exit code, 130 or 143."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"interrupted after step {step}, which is saved; the same command continues from there")
        self.code = 128 + number


class Interruption:
    """Context manager that stores the first SIGTERM or SIGINT in `received`; a second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def raise_if_received(self, step: int) -> None:
        """Raise InterruptedRunError if a signal was received; the caller has saved this step."""
        if self.received:
            raise InterruptedRunError(self.received, step)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number
