"""Memory of the service: requests leave no objects behind, threads share one arena, and free memory is returned.

The stress test watches the memory of the whole process, where a leak shows only when it reaches megabytes; here every
small object counts.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import save

import rdlm
from rdlm.serve.app import create
from rdlm.serve.middleware import Metrics
from rdlm.serve.service import Limits, Service
from rdlm.storage import memory

REQUESTS: list[tuple[str, bytes]] = [
    ("/v1/completions", b'{"prompt": "a", "steps": 2, "seed": 1}'),
    ("/v1/completions", b'{"prompt": "a", "steps": 2, "seed": 1, "stream": true}'),
    ("/v1/trajectory", b'{"prompt": "a", "steps": 2, "seed": 1}'),
    ("/v1/score", b'{"input": "abc", "steps": 2}'),
    ("/v1/completions", b'{"prompt": 5}'),
    ("/v1/completions", b'{"prompt": "\\ud800"}'),
    ("/v1/completions", b"["),
    ("/v1/nothing", b""),
]
ROUNDS = 25
"""Repetitions of each request between two measurements."""
MEASUREMENTS = 6
"""The first two are taken while threads start and free lists fill: some 300 blocks, once."""


async def send_request(app: Any, path: str, body: bytes, leaves: bool) -> None:
    """Send a request and receive the whole response, or disconnect when it begins."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    begun, ended = asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await (begun if leaves else ended).wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        begun.set()
        if message["type"] == "http.response.body" and not message.get("more_body"):
            ended.set()

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "POST",
        "path": path,
        "headers": headers,
        "query_string": b"",
        "root_path": "",
        "http_version": "1.1",
    }
    await app(scope, receive, send)


def grown(service: Service) -> float:
    """Return the memory blocks that each request leaves behind, after warming up."""
    app, counts = create(service), []

    async def run() -> None:
        for _ in range(MEASUREMENTS):
            for _ in range(ROUNDS):
                for number, (path, body) in enumerate(REQUESTS):
                    await send_request(app, path, body, leaves=number in (1, 2))
            while not service.idle:
                await asyncio.sleep(0.002)
            gc.collect()
            counts.append(sys.getallocatedblocks())

    asyncio.run(asyncio.wait_for(run(), 300))
    return (counts[-1] - counts[2]) / ((MEASUREMENTS - 3) * ROUNDS * len(REQUESTS))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    found = Service([rdlm.load(save(tmp_path / "run"))], Limits(steps=2))
    yield found
    found.close()


def test_requests_leave_no_objects(service: Service) -> None:
    assert grown(service) < 0.5


def test_a_leak_of_one_object_per_request_is_detected(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    answered = Metrics.answered
    monkeypatch.setattr(Metrics, "answered", lambda *given: (kept.append(object()), answered(*given))[1])
    assert grown(service) > 0.8


THREADS = """
import ctypes, os, threading
from rdlm.storage import memory

libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc.restype = ctypes.c_void_p
shared = memory.use_one_arena()
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
    """Return the result of `use_one_arena`, and the number of arenas in which nine threads have allocated."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    found = subprocess.run(
        [sys.executable, "-c", THREADS], env=inherited | environment, capture_output=True, text=True, check=True
    ).stdout
    return found.partition("\n")[0], found.count("<heap nr=")


GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


@GLIBC
def test_threads_share_one_arena_unless_the_user_set_the_number() -> None:
    assert arenas() == ("True", 1)
    shared, count = arenas(MALLOC_ARENA_MAX="4")
    assert shared == "False" and count > 1


HOLES = """
import ctypes
from rdlm.storage import memory

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
for place in found[:-1]:  # the last one keeps the end of the heap in use, so that free() does not trim it
    libc.free(place)
freed = resident()
memory.release_memory()
print(full, freed, resident())
"""


@GLIBC
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_free_memory_inside_the_heap_is_returned() -> None:
    said = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True).stdout
    full, freed, after = map(int, said.split())
    assert freed > full - 10 and after < full - 60  # of 76 MB


def test_memory_is_released_once_after_requests_and_never_during_them(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[int] = []
    now = {"idle": False, "answered": 0}
    monkeypatch.setattr(memory, "INTERVAL", 0.01)
    monkeypatch.setattr(memory, "release_memory", lambda: released.append(now["answered"]))
    thread = memory.IdleRelease(lambda: bool(now["idle"]), lambda: now["answered"])
    try:
        states = ((True, 0, []), (False, 5, []), (True, 5, [5]), (False, 6, [5]), (True, 6, [5, 6]))
        for idle, answered, expected in states:
            now |= {"idle": idle, "answered": answered}
            end = time.monotonic() + 20
            while released != expected and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.1)  # several checks later
            assert released == expected
    finally:
        thread.close()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")
def test_freed_tensors_are_reused_in_training() -> None:
    """A freed tensor of 64 MB costs no page faults when it is allocated again, which it does by default.

    The first ten or so allocations do, because blocks aligned to cache lines do not yet fit into what was freed.
    """
    code = """
import resource, torch
from rdlm.storage.memory import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
default = faults()
assert keep_freed_memory()
for _ in range(6):
    faults()
print(default, faults())
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    run = [sys.executable, "-c", code]
    found = subprocess.run(run, env=environment, capture_output=True, text=True, check=True, timeout=120)
    default, kept = (int(number) for number in found.stdout.split())
    assert kept < default / 10
    set_by_user = environment | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    refused = [sys.executable, "-c", "from rdlm.storage.memory import keep_freed_memory; print(keep_freed_memory())"]
    assert "False" in subprocess.run(refused, env=set_by_user, capture_output=True, text=True, timeout=120).stdout
