"""The heap of the service: one for all threads, so that what one of them has freed serves the others.

glibc gives every thread an arena of its own and keeps there what the thread has freed. Requests wander over a dozen
threads, so that each arena comes to hold the room of the largest request that its thread ever met.
"""

from __future__ import annotations

import ctypes
import os
import platform

ARENA_MAX = -8
"""The setting's number in glibc's malloc.h."""


def share() -> bool:
    """Have threads that begin from now on allocate from one arena; False where the user or the system decides that."""
    if "MALLOC_ARENA_MAX" in os.environ or platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).mallopt(ARENA_MAX, 1))
