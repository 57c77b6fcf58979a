"""Fault injection: `python torture/campaign.py --kills 100 --mutations 10000`; `make torture` runs it.

Runs are killed, stopped by signals, run out of disk space, lose one of two processes or wait for it, and are started
from two hosts; each must end with the same bytes as an undisturbed run. Meanwhile thousands of corrupted checkpoints
and published models are read. Then the command line meets prepared attacks, and the service malformed requests and a
load test. All these processes run without the privileges of root. The counts and the losses are written to a JSON file
and summarised on standard output. The exit code is 1 if anything was lost or let in, or hung.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import platform
import queue
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import faults
import torch
from attacks import Record, attack
from fuzz import Outcome, fuzz
from process import become_ordinary
from siege import Siege, besiege
from victim import ALONE, PAIR, Victim, different

COLD = 10
"""Every tenth kill hits a newly started process instead of a forked one."""

WORDS = "the quick brown fox jumps over a lazy dog and then runs away from it as fast as it can "
VARIANTS: list[dict[str, Any]] = [
    {},
    {"training.accumulate": 2, "objective.asynchronous": 0.5},
    {"method": "mdlm", "training.decay": "cosine"},
]
"""Options of the killed runs, in turn."""


class Campaign:
    """Injects faults into runs, counts them, and compares the runs with undisturbed ones."""

    def __init__(self, place: Path, seed: int, steps: int) -> None:
        self.place, self.rng, self.steps = place, random.Random(seed), steps
        self.counts: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.lost: list[str] = []
        place.mkdir(parents=True, exist_ok=True)
        self.book = place / "book.txt"
        self.book.write_text(WORDS * 40)

    def kills(self, count: int) -> None:
        """Kill runs `count` times in total, divided over the variants; another run follows one that finishes early."""
        for number, options in enumerate(VARIANTS):
            goal = (count * (number + 1)) // len(VARIANTS)
            extra = 0
            while self.counts["kills"] < goal:
                chosen = options | {"training.seed": extra}
                self._killed(Victim(self.place / f"killed-{number}-{extra}", self.book, self.steps, chosen), goal)
                extra += 1

    def _killed(self, victim: Victim, goal: int) -> None:
        whole = self._whole(victim)
        startup = faults.seconds_to_first_save(victim)
        self.counts["kills"] += 1
        while self.counts["kills"] < goal and victim.newest < victim.steps:
            cold = self.counts["kills"] % COLD == 0
            launched = victim.moved(victim.run, ALONE if cold else None)
            self.counts["kills"] += faults.kill(launched, self.rng, startup + 5 * cold, self.seen)
            self.counts["restarts"] += 1
            self.say()
        victim.finish()
        self.counts["restarts"] += 1
        self.compare(victim, whole)

    def signals(self, count: int) -> None:
        """Stop a run by SIGTERM, SIGINT and SIGHUP in turn, and start a second run in its folder."""
        victim = Victim(self.place / "stopped", self.book, self.steps)
        whole = self._whole(victim)
        for number in range(count):
            faults.stop(victim, self.rng, tuple(faults.CODES)[number % 3])
            self.counts["signals"] += 1
            self.say()
        faults.intrude(victim)
        self.counts["second runs refused"] += 1
        victim.finish()
        self.compare(victim, whole)

    def full_disks(self, count: int) -> None:
        """Fill the disk of a run repeatedly; if no disk can be mounted, only limit the size of its files."""
        victim = Victim(self.place / "starved", self.book, self.steps)
        whole = self._whole(victim)
        for _ in range(count):
            faults.starve(victim, self.rng)
            self.counts["file size limits"] += 1
            self.say()
        victim.finish()
        self.compare(victim, whole)
        with faults.small_disk(self.place / "disk", 3) as disk:
            if disk is None:
                print("a small disk cannot be mounted here: only file sizes were limited", file=sys.stderr)
                return
            victim = victim.moved(disk / "full")
            while (left := 2 * count - self.counts["full disks"]) > 0:
                if faults.fill(victim, disk, self.rng) is not None:
                    self.counts["full disks"] += 2  # once during the run, once at its start
                    faults.kill(victim, self.rng, 3.0, Counter())  # with free space it must continue
                self.say()
                if left == 2 or victim.newest == victim.steps:  # a finished run is followed by another
                    victim.finish()
                    self.compare(victim, whole)
                    shutil.rmtree(victim.run)

    def companions(self, count: int) -> None:
        """Kill one of two processes under torchrun, which restarts both."""
        victim = Victim(self.place / "pair-killed", self.book, self.steps // 4, launcher=PAIR)
        whole = victim.moved(self.place / "pair-whole")
        whole.finish()
        self.counts["kills of one of two"] += faults.kill_companions(victim, self.rng, count)
        self.compare(victim, whole)

    def pauses(self, count: int) -> None:
        """Stop one of two processes for ten seconds, and continue it."""
        victim = Victim(self.place / "pair-paused", self.book, self.steps // 4, launcher=PAIR)
        whole = victim.moved(self.place / "pair-whole-again")
        whole.finish()
        self.counts["pauses of one of two"] += faults.pause_companions(victim, count, 10.0)
        self.compare(victim, whole)

    def hosts(self, count: int) -> None:
        """Start runs in one folder from several hosts."""
        victim = Victim(self.place / "hosts", self.book, self.steps)
        whole = self._whole(victim)
        for _ in range(count):
            faults.two_hosts(victim)
            self.counts["runs of another host refused"] += 2
            self.say()
        victim.finish()
        self.compare(victim, whole)

    def _whole(self, victim: Victim) -> Victim:
        whole = victim.moved(self.place / f"{victim.run.name}-whole")
        whole.finish()
        return whole

    def compare(self, victim: Victim, whole: Victim) -> None:
        """Count the equal bytes of two finished runs; any difference is a loss."""
        names, size = different(victim.run, whole.run)
        self.counts["runs compared"] += 1
        self.counts["bytes equal"] += size if not names else 0
        self.lost += [f"{victim.run.name}: {name} differs from the uninterrupted run's" for name in names]

    def say(self) -> None:
        """Print the counts."""
        tell(str(dict(self.counts)))

    def line(self) -> str:
        """Return the counts as one line of text."""
        counts = self.counts
        return (
            f"runs: {counts['kills']} kills ({self.seen['inside the write']} inside a checkpoint's writing), "
            f"{counts['restarts']} restarts, {counts['full disks']} full disks, {counts['file size limits']} file size "
            f"limits, {counts['signals']} signals, {counts['kills of one of two']} kills and "
            f"{counts['pauses of one of two']} pauses of one of two, {counts['runs of another host refused']} runs of "
            f"another host refused; "
            f"{counts['runs compared']} runs, {counts['bytes equal']:,} bytes equal; lost: {len(self.lost)}"
        )


def spoilt(place: Path, count: int, seed: int, answer: Any) -> None:
    """Fuzz in a separate process, which may crash."""
    become_ordinary()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        answer.put(fuzz(place, count, seed))


class Fuzzing:
    """Processes that read corrupted files in the background."""

    def __init__(self, place: Path, count: int, seed: int, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.answer = context.Queue()
        shares = [count // workers + (number < count % workers) for number in range(workers)]
        self.processes = [
            context.Process(target=spoilt, args=(place / str(number), share, seed * workers + number, self.answer))
            for number, share in enumerate(shares)
            if share
        ]
        for process in self.processes:
            process.start()

    def result(self, seconds: float) -> Outcome:
        """Return the results of all processes; one that crashed or hung is a defect."""
        outcomes: list[Outcome] = []
        end = time.monotonic() + seconds
        while len(outcomes) < len(self.processes) and time.monotonic() < end:
            working = any(process.is_alive() for process in self.processes)
            try:
                outcomes.append(self.answer.get(timeout=1))
            except queue.Empty:
                if not working:
                    break
        for process in self.processes:
            process.join(10)
            process.kill()
        silent = ["a reader died or hung"] * (len(self.processes) - len(outcomes))
        return sum(outcomes, Outcome(defects=silent))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    counts = {
        "kills": 100,
        "signals": 10,
        "disks": 15,
        "companions": 3,
        "pauses": 2,
        "hosts": 2,
        "mutations": 10_000,
        "requests": 10_000,
        "clients": 200,
        "seconds": 60,
    }
    for name, count in counts.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--attacks", default="", help="attacks whose name contains this; 'none' for none")
    parser.add_argument("--steps", type=int, default=400, help="steps of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that read corrupted files")
    parser.add_argument("--out", type=Path, default=Path("build/torture.json"))
    return parser.parse_args()


def main() -> int:
    options, begin = parsed(), time.monotonic()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and the runs would inherit that
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rdlm-torture-") as folder:
        place = Path(folder)
        os.environ["RDLM_CACHE"], os.environ["HOME"] = str(place / "cache"), str(place / "home")
        fuzzing = Fuzzing(place / "fuzz", options.mutations, options.seed, options.workers)
        campaign = Campaign(place, options.seed, options.steps)
        for name in ("kills", "signals", "disks", "companions", "pauses", "hosts"):
            if count := getattr(options, name):
                try:
                    {"disks": campaign.full_disks}.get(name, getattr(campaign, name, None))(count)
                except AssertionError as error:
                    campaign.lost.append(f"{name}: {error}")
        print(campaign.line(), flush=True)
        outcome = fuzzing.result(600 + options.mutations)
        print(outcome.line(), flush=True)
        record = Record() if options.attacks == "none" else attack(place / "attacks", tell, options.attacks)
        print(record.line(), flush=True)
        siege = Siege()
        if options.requests:
            siege = besiege(place / "siege", options.requests, options.clients, options.seconds, options.seed, tell)
            print("\n".join(siege.lines()), flush=True)
    return report(campaign, outcome, record, siege, options, time.monotonic() - begin)


def tell(line: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def untried(counts: Counter[str], options: argparse.Namespace) -> list[str]:
    """Return the faults that were injected less often than requested."""
    asked = {
        "kills": options.kills,
        "signals": options.signals,
        "file size limits": options.disks,
        "full disks": 2 * options.disks,
        "kills of one of two": options.companions,
        "pauses of one of two": options.pauses,
        "runs of another host refused": 2 * options.hosts,
    }
    return [f"{name}: {counts[name]} of {count}" for name, count in asked.items() if counts[name] < count]


def report(
    campaign: Campaign, outcome: Outcome, record: Record, siege: Siege, options: argparse.Namespace, seconds: float
) -> int:
    """Write the JSON file, print the last line, and return the exit code."""
    lost, missing, out = campaign.lost + outcome.lost + siege.defects, untried(campaign.counts, options), options.out
    versions = {name: metadata.version(name) for name in ("torch", "safetensors", "uvicorn", "schemathesis")}
    found = {
        "command": shlex.join(["python", *sys.argv]),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
        "seconds": round(seconds, 1),
        "privileges of root": False,
        "lost": lost,
        "let in": record.let_in,
        "hung": record.hung,
        "not tried": missing,
        **campaign.counts,
        "where the kills struck": dict(campaign.seen),
        "mutations": outcome.tried,
        "mutations refused": dict(outcome.refused),
        "mutations read": dict(outcome.read),
        "slowest reading (s)": round(outcome.slowest, 2),
        "memory grown (MB)": round(outcome.grown, 1),
        "attacks": record.summary(),
        "service": siege.summary(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")
    failures = lost + record.let_in + record.hung
    print("\n".join(loss[:2000] for loss in failures[:30] + missing), file=sys.stderr)
    found_out = f"lost: {len(lost)}, let in: {len(record.let_in)}, hung: {len(record.hung)}"
    print(f"torture: {found_out} ({out}, {seconds:.0f} s)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
