"""The heap of the service: one for all threads, and given back to the system when there is nothing to do.

glibc gives every thread an arena of its own and keeps there what the thread has freed. Requests wander over a dozen
threads, so that each arena comes to hold the room of the largest request that its thread ever met. What is free in the
midst of an arena stays with the process until somebody asks for it to be given back: 20 MB after 20,000 requests.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import threading
from collections.abc import Callable
from typing import Final

ARENA_MAX: Final = -8
"""The setting's number in glibc's malloc.h."""
REST: Final = 2.0
"""Seconds between two looks whether the service has come to rest."""


def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


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
