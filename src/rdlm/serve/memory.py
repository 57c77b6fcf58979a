"""The heap of the program: kept while it works, and of the service given back when there is nothing to do.

glibc returns what is freed to the system, and what is then asked for anew must be found and cleared page by page. A
network's activations come and go at every step: 40,000 pages of them took up to a tenth of a step's time.

In the service glibc gives every thread an arena of its own and keeps there what the thread has freed. Requests wander
over a dozen threads, so that each arena comes to hold the room of the largest request that its thread ever met. What is
free in the midst of an arena stays with the process until somebody asks for it to be given back: 20 MB after 20,000
requests.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import threading
from collections.abc import Callable
from typing import Final

TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
ARENA_MAX: Final = -8
"""The settings' numbers in glibc's malloc.h."""
HELD: Final = (2**30, 2**25)
"""Bytes up to which a tensor's memory is kept; older versions of glibc take no more than the second."""
REST: Final = 2.0
"""Seconds between two looks whether the service has come to rest."""


def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def hold() -> bool:
    """Keep memory that is freed for the next step; False where the user or the system decides that.

    It is no more than the program had at once.
    """
    libc = _glibc()
    if libc is None or any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")):
        return False
    held = any(bool(libc.mallopt(MMAP_THRESHOLD, size)) for size in HELD)
    return held and bool(libc.mallopt(TRIM_THRESHOLD, 2**31 - 1))


def share() -> bool:
    """Have threads that begin from now on allocate from one arena; False where the user or the system decides that."""
    libc = _glibc()
    if "MALLOC_ARENA_MAX" in os.environ or libc is None:
        return False
    return bool(libc.mallopt(ARENA_MAX, 1))


def settle() -> None:
    """Have Python's collector pass over all that is there now: models and modules stay, and are a million objects.

    It looks for cycles among old objects only once there are a quarter more of them, which without this would be many,
    and its look at all of them takes 0.4 s, during which nobody is served; afterwards 0.1 ms.
    """
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Free what only cycles hold, and return to the system every page of the heap on which nothing is left."""
    gc.collect()
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


class Keeper:
    """A thread that gives memory back whenever the service rests and has answered something since it last did."""

    def __init__(self, resting: Callable[[], bool], answered: Callable[[], int]) -> None:
        self._resting, self._answered = resting, answered
        self._closed = threading.Event()
        threading.Thread(target=self._keep, name="rdlm-keeper", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _keep(self) -> None:
        kept = 0
        while not self._closed.wait(REST):
            count = self._answered()
            if count != kept and self._resting():
                give_back()
                kept = count
