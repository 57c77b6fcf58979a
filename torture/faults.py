"""Faults that a run must survive: kills, full disks, signals, second runs, and a peer that is killed or stopped."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from process import Process, die_at_touch, limit_files
from victim import Victim, wait_until

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
"""What a run that was told to stop exits with."""


class Loss(AssertionError):
    """Data was lost, or an error was not reported as it should be."""


def seconds_to_first_save(victim: Victim) -> float:
    """Return the seconds from the start of a run to its first checkpoint, and kill it there."""
    begin = time.monotonic()
    process = victim.start()
    if not wait_until(lambda: list(victim.run.glob("checkpoint-*")), process):
        raise Loss(f"the run ended by itself: {victim.messages[-2000:]}")
    end(process)
    return time.monotonic() - begin


def end(process: Process) -> None:
    """Kill a process and its children, and wait for them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill(victim: Victim, rng: random.Random, startup: float, seen: Counter[str]) -> bool:
    """Start the run, kill it at a random time, inspect what is left, and return whether the kill hit it.

    Four of ten forked runs die just before they touch some file of the run's folder, of which a checkpoint's writing
    takes some thirty touches. One of ten runs is watched and struck while a checkpoint is being written. The others are
    struck at any time from their start on.
    """
    before, way = victim.newest, rng.random()
    forked = victim.launcher is None
    trap = partial(die_at_touch, victim.run, rng.randrange(1, 250)) if way < 0.4 and forked else lambda: None
    process = victim.start(trap)
    if 0.4 <= way < 0.5:
        wait_until(victim.half_written, process)
        time.sleep(rng.uniform(0, 0.004))
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=startup + 30 if way < 0.4 and forked else rng.uniform(0.1 * startup, startup + 2))
    end(process)
    if process.returncode not in (0, -signal.SIGKILL):
        raise Loss(f"exit code {process.returncode}: {victim.messages[-2000:]}")
    inspect(victim, before, seen)
    return process.returncode != 0


def inspect(victim: Victim, before: int, seen: Counter[str]) -> None:
    """Count what a kill interrupted, and check that every checkpoint is complete."""
    if victim.newest < before:
        raise Loss(f"checkpoint {before} is gone, {victim.newest} is the newest")
    if list(victim.run.glob("damaged-*")):
        raise Loss("a checkpoint was damaged")
    seen["inside the write"] += any("gone" not in path.name for path in victim.half_written())
    seen["inside a removal"] += any("gone" in path.name for path in victim.half_written())
    latest = victim.run / "latest.json"
    seen["before the pointer"] += latest.exists() and f'"step": {victim.newest},' not in latest.read_text()
    seen["before the first checkpoint"] += victim.newest == 0


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path | None]:
    """Yield a folder on a small separate disk, or None if this user cannot mount one."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(victim: Victim, disk: Path, rng: random.Random, patience: float = 2.0) -> str | None:
    """Fill the disk while the run goes on, let it fail, free the disk again, and return what the run said.

    None if it came to its end first, or needed no more than was left: then it is whole.
    """
    before = victim.newest
    process = victim.start()
    if not wait_until(victim.run.exists, process):
        raise Loss(victim.messages[-2000:])
    # From the first line of the record on, within so many seconds; then less than a checkpoint stays free.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=rng.uniform(0, patience))
    ballast = disk / "ballast"
    fill_up(ballast, rng.randrange(0, 40_000))
    try:
        if ended_in_order(victim, process.wait(timeout=300)):
            return None
        said = victim.messages
        if ended_in_order(victim, victim.start().wait(timeout=300)):  # the disk is still full
            return None
        inspect(victim, before, Counter())
        return said
    finally:
        ballast.unlink()


def ended_in_order(victim: Victim, code: int) -> bool:
    """Return whether a run finished; one that did not must have reported that the disk is full."""
    if code == 0:
        report = victim.run / "report.html"
        if victim.newest != victim.steps or not report.read_text().endswith("</html>\n"):
            raise Loss(f"exit code 0 at step {victim.newest}: {victim.messages[-3000:]}")
        return True
    failed_in_order(victim, code, victim.messages)
    return False


def fill_up(ballast: Path, free: int) -> None:
    """Fill a disk with one file, and leave `room` bytes."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    os.truncate(ballast, max(0, ballast.stat().st_size - free))


def starve(victim: Victim, rng: random.Random) -> str:
    """Run with a file size limit below the size of a checkpoint, and return the messages of the run."""
    before = victim.newest
    code = victim.start(partial(limit_files, rng.randrange(2_000, 20_000))).wait(timeout=300)
    failed_in_order(victim, code, victim.messages)
    inspect(victim, before, Counter())
    return victim.messages


def failed_in_order(victim: Victim, code: int, said: str) -> None:
    """Check that a run reported a full disk, with the exit code of a user error."""
    if code != 2 or "Traceback" in said or "cannot write" not in said or victim.run.name not in said:
        raise Loss(f"exit code {code}: {said[-3000:]}")


def stop(victim: Victim, rng: random.Random, number: signal.Signals) -> int:
    """Send a signal to the run and return the step that it saved."""
    process = victim.start()
    known = set(victim.run.glob("checkpoint-*"))
    if not wait_until(lambda: set(victim.run.glob("checkpoint-*")) - known, process):
        raise Loss(victim.messages[-2000:])
    time.sleep(rng.uniform(0, 0.3))
    process.send_signal(number)
    code = process.wait(timeout=300)
    if code != CODES[number] or f"interrupted after step {victim.newest}, which is saved" not in victim.messages:
        raise Loss(f"exit code {code}: {victim.messages[-2000:]}")
    return victim.newest


def intrude(victim: Victim) -> str:
    """Start the run twice, kill both, and return the error of the second one, which names the first."""
    process = victim.start()
    try:
        if not wait_until((victim.run / "lock").exists, process):
            raise Loss(victim.messages[-2000:])
        wait_until(lambda: (victim.run / "lock").read_text().startswith(f"process {process.pid} "), process)
        second = victim.start()
        code, said = second.wait(timeout=300), victim.messages
        if code != 2 or f"is in use by process {process.pid}" not in said or process.poll() is not None:
            raise Loss(f"exit code {code}: {said[-2000:]}")
        return said
    finally:
        end(process)


def two_hosts(victim: Victim) -> None:
    """Train in one folder from two hosts: the second is refused until the first one dies, and then a third is."""
    first = victim.start(partial(name_host, "alpha"))
    try:
        # Checkpoints alone may be those of an earlier run.
        if not wait_until(lambda: holds(victim, first, "alpha") and list(victim.run.glob("checkpoint-*")), first):
            raise Loss(victim.messages[-2000:])
        refused_by(victim, "beta", f"is in use by process {first.pid} on alpha")
    finally:
        end(first)  # with SIGKILL: it cannot release anything
    before = victim.newest
    second = victim.start(partial(name_host, "beta"))
    try:
        if not wait_until(lambda: holds(victim, second, "beta"), second):
            raise Loss(victim.messages[-2000:])
        refused_by(victim, "gamma", f"is in use by process {second.pid} on beta")
    finally:
        end(second)
    inspect(victim, before, Counter())


def holds(victim: Victim, process: Process, host: str) -> bool:
    """Return whether a process of a host has the lock of the run's folder."""
    lock = victim.run / "lock"
    return lock.is_file() and lock.read_text() == f"process {process.pid} on {host}\n"


def refused_by(victim: Victim, host: str, says: str) -> None:
    """Start the run on a host, which must refuse it with a message that contains `says`."""
    code = victim.start(partial(name_host, host)).wait(timeout=300)
    if code != 2 or says not in victim.messages:
        raise Loss(f"exit code {code} on {host}: {victim.messages[-2000:]}")


def name_host(name: str) -> None:
    """Give this process the name of a host: what distinguishes two machines on one file system."""
    socket.gethostname = lambda: name


def pause_companions(victim: Victim, pauses: int, seconds: float) -> int:
    """Train with two processes, stop one of them (SIGSTOP) some times and continue it, and return how often.

    The other one waits for it: the run must neither fail nor change.
    """
    process, done = victim.start(), 0
    try:
        while done < pauses:
            known = set(victim.run.glob("checkpoint-*"))
            if not wait_until(lambda known=known: set(victim.run.glob("checkpoint-*")) - known, process):
                break
            workers = children(process.pid)
            os.kill(workers[done % len(workers)], signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(workers[done % len(workers)], signal.SIGCONT)
            done += 1
        if process.wait(timeout=300):
            raise Loss(f"exit code {process.returncode}: {victim.messages[-3000:]}")
    finally:
        end(process)
    return done


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, rest = stat.parent.name, stat.read_text().rpartition(")")[2]
            if int(rest.split()[1]) == pid:
                found.append(int(number))
    return sorted(found)


def kill_companions(victim: Victim, rng: random.Random, kills: int) -> int:
    """Train with two processes, kill one of them repeatedly after some checkpoints, and return the number of kills.

    Nobody starts anything anew: torchrun does.
    """
    process, done = victim.start(), 0
    try:
        while done < kills:
            known = set(victim.run.glob("checkpoint-*"))
            if not wait_until(lambda known=known: set(victim.run.glob("checkpoint-*")) - known, process):
                break
            time.sleep(rng.uniform(0, 0.3))
            if workers := children(process.pid):
                os.kill(rng.choice(workers), signal.SIGKILL)
                done += 1
        if process.wait(timeout=300):
            raise Loss(f"exit code {process.returncode}: {victim.messages[-3000:]}")
    finally:
        end(process)
    return done
