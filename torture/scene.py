"""What attacks on the command line share: a folder for each, the command without privileges, and the results."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from faults import end
from fuzz import OPTIONS
from mutation import PUBLISHED, Shelf, seal, sign
from process import Forked
from safetensors.torch import load_file, save_file

SECONDS = 60.0
"""The longest that an attack may take, on a machine that does other things too."""
MEGABYTES = 400.0
"""The most memory that an attack may take beyond that of the process it is forked from."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys."""
REFUSED = (1, 2, 3)
"""Exit codes of a failure, a mistake of the user and a damaged file."""


class Hung(AssertionError):
    """A command was not over within its time, or took too much memory."""


@dataclass
class Record:
    """The results of the attacks."""

    attacks: dict[str, str] = field(default_factory=dict)
    """Name -> what came of it."""
    let_in: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    slowest: float = 0.0
    grown: float = 0.0
    """Megabytes of the attack that took most."""

    def line(self) -> str:
        """Return the results as one line of text."""
        return (
            f"attacks: {len(self.attacks)}, slowest {self.slowest:.1f} s, at most {self.grown:.0f} MB; "
            f"let in: {len(self.let_in)}, hung: {len(self.hung)}"
        )

    def summary(self) -> dict[str, object]:
        """Return the results as JSON values."""
        limits = {"slowest (s)": round(self.slowest, 1), "most memory (MB)": round(self.grown, 1)}
        return {"outcomes": self.attacks, **limits}


class Scene:
    """A folder with a run, a model published from it and a cache, copied for each attack."""

    def __init__(self, place: Path, seeds: Path, record: Record) -> None:
        self.place, self.record, self.said = place, record, ""
        shutil.copytree(seeds, place)
        self.run, self.published, self.cache = place / "characters", place / "published", place / "cache"
        self.book = place / "book.txt"

    def rdlm(self, *words: object, prepare: Callable[[], object] = lambda: None, **environment: object) -> int:
        """Run a command in a process without privileges and return its exit code; its messages are in `said`."""
        given = {"RDLM_CACHE": self.cache, "HOME": self.place / "home", **environment}

        def enter() -> None:
            os.environ.update({name: str(value) for name, value in given.items()})
            prepare()

        begin, before = time.monotonic(), resident()
        messages = self.place / "messages.txt"
        process = Forked([str(word) for word in words], self.place, messages, enter)
        try:
            code = process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise Hung(f"still running after {SECONDS:g} s: {messages.read_text()[-500:]}") from None
        finally:
            end(process)
        self.said, grown = messages.read_text(errors="replace"), (process.kilobytes - before) / 1024
        self.record.slowest = max(self.record.slowest, time.monotonic() - begin)
        self.record.grown = max(self.record.grown, grown)
        if grown > MEGABYTES:
            raise Hung(f"it took {grown:.0f} MB")
        return code

    def on_terminal(self, *words: object) -> str:
        """Run a command whose standard output is a terminal, and return what it has printed there."""
        master, slave = os.openpty()

        def attach() -> None:
            os.dup2(slave, 1)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115

        try:
            self.accepted(*words, prepare=attach)
            os.set_blocking(master, False)
            return os.read(master, 1 << 16).decode(errors="replace").replace("\r\n", "\n")
        finally:
            os.close(master)
            os.close(slave)

    def refused(self, says: str, *words: object, **options: Any) -> None:
        """Run a command, which must fail with an error that contains `says`."""
        self.harmless(*words, codes=REFUSED, says=says, **options)

    def accepted(self, *words: object, **options: Any) -> None:
        """Run a command, which must succeed."""
        self.harmless(*words, codes=(0,), **options)

    def harmless(self, *words: object, codes: tuple[int, ...] = (0, *REFUSED), says: str = "", **options: Any) -> None:
        """Run a command, which may succeed or fail with an error that names what is wrong."""
        code = self.rdlm(*words, **options)
        plain = "Traceback" not in self.said and not CONTROL.search(self.said)
        assert code in codes and plain and says in self.said, f"code {code}: {self.said[-1500:]!r}"

    def train(self, out: Path, **options: object) -> list[str]:
        """Return the words of a training command."""
        chosen = OPTIONS | {"training.steps": 4, "data.file": self.book, "out": out} | options
        return ["train", "textfile", *(f"{w}" for key, value in chosen.items() for w in (f"--{key}", value))]


Attack = Callable[[Scene], None]
GENERATE = ("--steps", 2, "--json")


def resident() -> int:
    """Return the kilobytes that a process has when it is forked from this one.

    These are this one's own pages: not its peak, and not those of libraries, which a fork maps when it uses them. So
    the code that a command runs counts as what it takes.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+)", status)[0])


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file that holds a checksum of itself, and correct the checksum."""
    found = json.loads(path.read_text())
    change(found)
    seal(path, found) if "sha256" in found else path.write_text(json.dumps(found))


def respoil(folder: Path, shelf: Shelf, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Change the tensors of a model, and correct all checksums."""
    for name in ("model.safetensors",) if shelf is PUBLISHED else ("network.safetensors", "ema.safetensors"):
        path = shelf.at(folder) / name
        tensors = change(load_file(path))
        save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    sign(folder, shelf)


def sha256(path: Path) -> str:
    """Return the checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
