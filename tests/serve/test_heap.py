from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

THREADS = """
import ctypes, os, threading
from rdlm.serve import heap

libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc.restype = ctypes.c_void_p
shared = heap.share()
meet = threading.Barrier(9)

def allocate():
    libc.malloc(50_000)
    meet.wait()

for _ in range(8):
    threading.Thread(target=allocate).start()
meet.wait()
print(shared, flush=True)
stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, stream)
libc.fflush(stream)
"""


def arenas(**environment: str) -> tuple[str, int]:
    """Return whether the heap is shared, and in how many arenas nine threads have allocated."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    found = subprocess.run(
        [sys.executable, "-c", THREADS], env=inherited | environment, capture_output=True, text=True, check=True
    ).stdout
    return found.partition("\n")[0], found.count("<heap nr=")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
def test_all_threads_share_one_arena_unless_the_user_chose_otherwise() -> None:
    assert arenas() == ("True", 1)
    shared, count = arenas(MALLOC_ARENA_MAX="4")
    assert shared == "False" and count > 1
