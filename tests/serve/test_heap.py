"""The heap is kept between steps, shared by a service's threads, and given back to the system when that rests."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time

import pytest

from rdlm.serve import memory as heap

THREADS = """
import ctypes, os, threading
from rdlm import heap

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


GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this is about glibc's heap")


@GLIBC
def test_all_threads_share_one_arena_unless_the_user_chose_otherwise() -> None:
    assert arenas() == ("True", 1)
    shared, count = arenas(MALLOC_ARENA_MAX="4")
    assert shared == "False" and count > 1


PAGES = """
import ctypes, resource
from rdlm import heap

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
held = heap.hold()

def step():
    places = [libc.malloc(size) for size in (400_000, 40_000_000, 3_000_000)]
    for place in places:
        ctypes.memset(place, 1, 400_000)
    for place in reversed(places):
        libc.free(place)

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(held, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(**environment: str) -> tuple[str, int]:
    """Return whether memory is held, and how many pages twenty steps had to find anew."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    said = subprocess.run(
        [sys.executable, "-c", PAGES], env=inherited | environment, capture_output=True, text=True, check=True
    ).stdout.split()
    return said[0], int(said[1])


@GLIBC
def test_a_step_finds_the_memory_of_the_last_one_unless_the_user_chose_otherwise() -> None:
    held, found = pages()
    assert held == "True" and found < 200
    held, found = pages(MALLOC_TRIM_THRESHOLD_="131072")
    assert held == "False" and found > 2000


HOLES = """
import ctypes
from rdlm import heap

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
found = [libc.malloc(40_000) for _ in range(2000)]
for place in found:
    ctypes.memset(place, 1, 40_000)
full = resident()
for place in found[:-1]:  # the last one holds the end of the heap, so that nothing is given back by itself
    libc.free(place)
freed = resident()
heap.give_back()
print(full, freed, resident())
"""


@GLIBC
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_free_in_the_midst_is_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True).stdout
    full, freed, after = map(int, said.split())
    assert freed > full - 10 and after < full - 60  # of 76 MB


def test_memory_is_given_back_once_after_work_and_never_during_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    now = {"resting": False, "answered": 0}
    monkeypatch.setattr(heap, "REST", 0.01)
    monkeypatch.setattr(heap, "give_back", lambda: given.append(now["answered"]))
    keeper = heap.Keeper(lambda: bool(now["resting"]), lambda: now["answered"])
    try:
        scenes = ((True, 0, []), (False, 5, []), (True, 5, [5]), (False, 6, [5]), (True, 6, [5, 6]))
        for resting, answered, expected in scenes:
            now |= {"resting": resting, "answered": answered}
            end = time.monotonic() + 20
            while given != expected and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.1)  # several looks later it is still so
            assert given == expected
    finally:
        keeper.close()
