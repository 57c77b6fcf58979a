"""The record of a run: record.jsonl, trackers such as TensorBoard, and the counters that checkpoints store.

record.jsonl has one JSON object per line. Lines of kind `step` have means since the previous one, lines of kind
`validation` a bound in nats per sequence. Each ends with its CRC-32, and damaged lines are left out when they are read.
When a run resumes, lines after the step of its checkpoint are removed, since they will be written again.
Version 0.1.0 wrote the learning rate as `rate`; `read_lines` returns it as `lr`.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, get_args

from rdlm.errors import InputError, InterruptedRunError, require, unknown
from rdlm.storage.files import damaged, open_plain

NAME = "record.jsonl"
LONGEST_LINE = 1 << 20
"""Bytes of the longest line of a record that is read."""

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """A tracker of the numbers of a run, such as TensorBoard; it is closed however the run ends."""

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a `step` or a `validation`."""

    def close(self, code: int) -> None:
        """End the run; `code` is the exit code: 0 if it is complete, 130 or 143 after a signal, else 1."""


class Record:
    """An open record, whose numbers are also sent to the trackers."""

    def __init__(self, folder: Path, step: int, trackers: Sequence[Tracker] = ()) -> None:
        truncate(folder / NAME, step)
        self._file = (folder / NAME).open("a", encoding="utf-8")
        self._trackers = trackers

    def write(self, kind: str, step: int, **values: float | int | str | None) -> None:
        """Append a line and flush it."""
        self._file.write(_with_checksum(json.dumps({"kind": kind, "step": step, **values})))
        self._file.flush()
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        for tracker in self._trackers:
            tracker.write(kind, step, numbers)

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> Record:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        code = 0 if error is None else error.code if isinstance(error, InterruptedRunError) else 1
        for tracker in self._trackers:
            tracker.close(code)


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the record of a run, without an incomplete last line; damaged ones are logged."""
    path = folder / NAME
    if not path.exists():
        return []
    lines = [_parsed(raw.decode(errors="replace")) for raw in _raw_lines(path)]
    if None in lines:
        log.warning("%s is damaged: %d of its lines are left out", path, lines.count(None))
    return [_renamed(line) for line in lines if line is not None]


def _raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a record up to the first that is incomplete or too long; DamagedFileError for no file."""
    try:
        file = open_plain(path)
    except OSError as error:
        advice = "remove it: the run goes on without its earlier lines"
        raise damaged(path, error.strerror or str(error), advice) from None
    with file:
        while (raw := file.readline(LONGEST_LINE)).endswith(b"\n"):
            yield raw


def _renamed(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line with the keys of this version."""
    return {"lr" if key == "rate" else key: value for key, value in line.items()}


def truncate(path: Path, step: int) -> None:
    """Truncate a record before its first line that is incomplete or after `step`, in place: the disk may be full.

    Damaged lines stay, since those after them would be lost.
    """
    if not path.exists():
        return
    keep = 0
    for raw in _raw_lines(path):
        line = _parsed(raw.decode(errors="replace"))
        if line is not None and line["step"] > step:
            break
        keep += len(raw)
    os.truncate(path, keep)


CHECKSUM = ', "crc32": "'


def _with_checksum(line: str) -> str:
    """Return a JSON object as a line that ends with its CRC-32."""
    return f'{line[:-1]}{CHECKSUM}{zlib.crc32(line.encode()):08x}"}}\n'


def _parsed(line: str) -> dict[str, Any] | None:
    """Return the object of a line, None for a damaged one; lines of version 0.1.0 have no checksum."""
    text, found_checksum, _ = line.rpartition(CHECKSUM)
    if found_checksum:
        if line != _with_checksum(text + "}"):
            return None
        line = text + "}"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else None


# -- counters ---------------------------------------------------------------------------------------


@dataclass
class Counters:
    """The state of a run that is not a tensor; stored in its checkpoints."""

    step: int = 0
    """Steps taken, the skipped ones included."""
    updates: int = 0
    """Steps that updated the weights."""
    skipped_in_row: int = 0
    seconds: float = 0.0
    """Training time, including that before the run was resumed."""
    window: int = 0
    """Updates since the last line of the record; `window_loss` and `window_norm` are sums over them."""
    window_loss: float = 0.0
    window_norm: float = 0.0
    loss: float | None = None
    """Mean loss of the last line of the record."""
    validation: dict[str, Any] | None = None
    """Step, bound and standard error of the last validation, in nats per sequence."""
    best: dict[str, Any] | None = None
    """The same for the best validation."""

    @property
    def skipped(self) -> int:
        """The number of steps without an update, because the loss or the gradient was not finite."""
        return self.step - self.updates


INTEGERS = ("step", "updates", "skipped_in_row", "window")


def read_counters(path: Path, state: Mapping[str, Any]) -> Counters:
    """Return the counters in the state of the checkpoint `path` after checking types and consistency."""
    file, found = path / "state.json", state.get("counters")
    if not isinstance(found, dict) or set(found) != {field.name for field in fields(Counters)}:
        raise damaged(file, "its counters are not those of a run")
    for name, value in found.items():
        if not _has_type(name, value):
            raise damaged(file, f"its counter {name} is {value!r:.80}")
    counters = Counters(**found)
    validated = [bound["step"] for bound in (counters.validation, counters.best) if bound is not None]
    parts = [counters.updates, counters.skipped, counters.skipped_in_row, counters.window, *validated]
    if counters.step != state["step"] or not all(0 <= part <= counters.step for part in parts):
        raise damaged(file, "its counters contradict its step")
    return counters


def _has_type(name: str, value: object) -> bool:
    if name in ("validation", "best"):
        return value is None or (
            isinstance(value, dict)
            and set(value) == {"step", "bound", "stderr"}
            and type(value["step"]) is int
            and all(type(value[key]) in (int, float) for key in ("bound", "stderr"))
        )
    if name == "loss" and value is None:
        return True
    return type(value) is int if name in INTEGERS else type(value) in (int, float)


# -- trackers ---------------------------------------------------------------------------------------

TrackerName = Literal["wandb"]


def check_trackers(chosen: Sequence[TrackerName | Tracker]) -> None:
    """Raise InputError for an unknown tracker, or one whose package is missing; called before any work is done."""
    for one in chosen:
        if isinstance(one, str):
            if one not in get_args(TrackerName):
                raise unknown("tracker", one, get_args(TrackerName))
            require(one, one, f"--track {one}")


def open_trackers(
    chosen: Sequence[TrackerName | Tracker], folder: Path, step: int, config: Mapping[str, Any]
) -> list[Tracker]:
    """Return the chosen trackers, and TensorBoard if it is installed, for the run in a folder from a step on."""
    found: list[Tracker] = [WandB(folder, config) if isinstance(one, str) else one for one in chosen]
    if importlib.util.find_spec("tensorboard") is not None:
        found.append(TensorBoard(folder / "tensorboard", step))
    return found


class TensorBoard:
    """An open event file, which makes TensorBoard discard events of earlier files after `step`.

    torch's SummaryWriter writes from a thread: errors of a full disk do not reach the run, and events may be lost.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a folder in alphabetical order.
        seconds, rest = divmod(time.time_ns(), 10**9)
        self._file = (folder / f"events.out.tfevents.{seconds:010d}.{rest:09d}.{os.getpid()}").open("xb")
        self._record = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))
        self._add(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Append the numbers of a step and flush them."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        shown = [Summary.Value(tag=f"{kind}/{name}", simple_value=value) for name, value in values.items()]
        self._add(Event(step=step, summary=Summary(value=shown)))

    def close(self, code: int = 0) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._record.write(event.SerializeToString())
        self._file.flush()


class WandB:
    """A run of Weights & Biases with the name of the folder, in the project WANDB_PROJECT or `rdlm`.

    Its id is stored in the folder, so that a resumed run continues it. Failures of the tracker do not stop training.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore]

        file = folder / "wandb_id"
        if not file.exists():
            file.write_text(secrets.token_hex(8), "utf-8")
        name, project = folder.resolve().name, os.environ.get("WANDB_PROJECT", "rdlm")
        identity = file.read_text("utf-8").strip()
        try:
            self._run = wandb.init(
                project=project, name=name, id=identity, resume="allow", dir=str(folder), config=dict(config)
            )
            # Not its own step, which cannot return to that of a checkpoint.
            self._run.define_metric("*", step_metric="training_step")
        except Exception as error:  # of the library, its service and the network, of many kinds
            advice = "`wandb login`, or WANDB_MODE=offline to record without a connection"
            raise InputError(f"wandb did not start: {error}; {advice}") from error
        self._failed = False

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        named = {f"{kind}/{name}": value for name, value in values.items()}
        self._attempt(lambda: self._run.log({**named, "training_step": step}))

    def close(self, code: int) -> None:
        """Finish the run, which waits until its numbers are sent."""
        self._attempt(lambda: self._run.finish(exit_code=code))

    def _attempt(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # as above
            if not self._failed:
                log.warning("wandb: %s; the training goes on", error)
            self._failed = True
