"""SIGTERM, SIGINT and SIGHUP: the first one saves a checkpoint and stops the run, the second one stops it at once.

The current step or validation is finished if it ends within `GRACE` seconds. If not, it is abandoned.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from rdlm.errors import InterruptedRunError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGHUP: the terminal was closed; ignored if it was at the start of the process, as by nohup."""

GRACE = 1.0
"""Seconds for which work that can be abandoned continues after a signal."""


class AbandonedError(BaseException):
    """Raised inside `Interruption.abandonable` when the time after a signal is over; no `except Exception` stops it."""


class Interruption:
    """Context manager that stores the first of the signals in `received`; a second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[signal.Signals, Any] = {}
        self._over = self._abandonable = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Interruption:
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            wanted = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._handle) for number in wanted}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def raise_if_received(self, step: int) -> None:
        """Raise InterruptedRunError if a signal was received; the caller has saved this step."""
        if self.received:
            raise InterruptedRunError(self.received, step)

    @contextmanager
    def abandonable(self, possible: bool = True) -> Iterator[None]:
        """Context manager for work without effect on the saved state; AbandonedError ends it `GRACE` after a signal."""
        self._abandonable = possible
        try:
            if self._over and possible:
                raise AbandonedError
            yield
        finally:
            self._abandonable = False

    @contextmanager
    def ending(self, step: int, possible: bool = True) -> Iterator[None]:
        """Context manager like `abandonable`, for the last work of a run: InterruptedRunError ends it."""
        try:
            with self.abandonable(possible):
                yield
        except AbandonedError:
            raise InterruptedRunError(self.received, step) from None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._over:
            if self._abandonable:
                raise AbandonedError
        elif self.received:
            raise KeyboardInterrupt
        else:
            self.received = number
            self._timer = threading.Timer(GRACE, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _expire(self) -> None:
        """Repeat the signal for the main thread, the only one in which work can be abandoned."""
        self._over = True
        _thread.interrupt_main(signal.Signals(self.received))
