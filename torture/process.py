"""Processes that run the command line: newly started, or forked from this one, which has already imported torch.

A forked process spends its time in training instead of seconds on imports.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import tensorboard.summary.writer.record_writer
import tyro

import rdlm.cli.train
import rdlm.methods
import rdlm.train.loop
from rdlm.cli import main as cli

PRELOADED = (tensorboard.summary.writer.record_writer, tyro, rdlm.cli.train, rdlm.methods, rdlm.train.loop)
"""Modules that a forked process need not import again."""


class Process(Protocol):
    """The interface of a process that the faults use."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int) -> None: ...


class Forked:
    """A forked child that runs `rdlm ARGUMENTS` in a new session."""

    def __init__(self, arguments: list[str], folder: Path, messages: Path, prepare: Callable[[], None]) -> None:
        self.returncode: int | None = None
        self.kilobytes = 0
        """The largest resident memory of the process, after its end."""
        self.pid = os.fork()
        if self.pid == 0:
            _live(arguments, folder, messages, prepare)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.returncode, self.kilobytes = os.waitstatus_to_exitcode(status), used.ru_maxrss
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if timeout is not None and end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("rdlm", timeout)
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _live(arguments: list[str], folder: Path, messages: Path, prepare: Callable[[], None]) -> None:
    """Run the command line and always exit the process: code of the parent must not continue in it."""
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        for stream, path in ((1, Path(os.devnull)), (2, messages)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        become_ordinary()
        prepare()
        code = cli.main(arguments)
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        sys.stderr.flush()
        os._exit(code)


def become_ordinary() -> None:
    """Give up the privileges of root in this process and its children: file permissions then hold for them, too.

    Its capabilities are dropped, and no program that it starts regains them. The user stays the owner of its files, as
    an ordinary user is; for other users than root nothing changes.
    """
    if os.geteuid() != 0 or sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    # PR_SET_SECUREBITS: root has no privileges after an exec either, and the bits are locked.
    # Version 3 of the capability interface: two 32-bit words each for effective, permitted and inheritable.
    version, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.prctl(28, 0x2F, 0, 0, 0) or libc.capset(version, none):
        raise OSError(ctypes.get_errno(), "cannot give up the privileges of root")


def limit_files(size: int | None) -> None:
    """Limit the size of files that this process writes; Python turns the signal into an OSError."""
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


TOUCHES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree", "tempfile.mkstemp"}
"""What Python does to files, by the names of its audit."""


def die_at_touch(folder: Path, number: int) -> None:
    """Kill this process just before its `number`-th access to a file of the folder."""
    left = number

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in TOUCHES and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
