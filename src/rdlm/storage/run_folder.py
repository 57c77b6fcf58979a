"""The folder of a run: one run at a time, one configuration, its checkpoints, and which is the best.

runs/NAME/
    config.yaml  record.jsonl  report.html  tensorboard/
    checkpoint-00000500/ ...      the last two, and the best by validation
    latest.json  best.json        which is which
    lock                          held by the running process; the system frees it when the process dies
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rdlm.config import RunConfig
from rdlm.errors import DamagedFileError, InputError
from rdlm.storage import checkpoint
from rdlm.storage import config_file as configfile
from rdlm.storage.files import read_json, write_atomic

KEPT = 2
"""Checkpoints that are kept besides the best."""

WORK_ONLY = {"training.accumulate", "training.parallel", "training.device", "training.compile", "data.accept_licence"}
"""Settings that say how the work is divided, not what is computed: a run may continue with others."""

log = logging.getLogger(__name__)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the folder for this process alone; a second run is refused, a dead one's claim is free."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write to the run folder {folder}: {error.strerror}; choose another --out") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            raise InputError(f"{folder} is in use by {holder}; wait for it, stop it, or choose another --out") from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()}\n")
        lock.flush()
        yield


def check_same(folder: Path, config: RunConfig, accept_changes: bool) -> None:
    """Refuse to continue the run in a folder with another configuration, unless somebody accepts the changes."""
    path = folder / "config.yaml"
    if not accept_changes and path.exists():
        _refuse_changes(folder, configfile.read(path), config)


def check_origin(path: Path, state: Mapping[str, Any], config: RunConfig, digest: str, accept_changes: bool) -> None:
    """Refuse a checkpoint that was made with another configuration or other data, unless somebody accepts them."""
    if accept_changes:
        return
    _refuse_changes(path, configfile.from_dict(state.get("config", {})), config)
    corpus = state.get("corpus")
    before = corpus.get("digest", digest) if isinstance(corpus, dict) else None  # older checkpoints have none
    if before != digest:
        raise InputError(
            f"{path} was trained on other data than the corpus {config.data.name!r} holds now. "
            "Bring the old data back, choose another --out, or continue with the new data by --accept-changes"
        )


def _refuse_changes(place: Path, old: RunConfig, new: RunConfig) -> None:
    changed = {key: pair for key, pair in configfile.difference(old, new).items() if key not in WORK_ONLY}
    if changed:
        listed = "; ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())
        raise InputError(
            f"{place} holds a run with another configuration: {listed}. "
            "Choose another --out, or continue it with the new values by --accept-changes"
        )


def tidy(folder: Path) -> None:
    """Remove what a killed run left half-written."""
    for left in folder.glob(".*.part"):
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def newest(folder: Path) -> int:
    """Return the step of the newest whole checkpoint, 0 if there is none; newer damaged ones are set aside."""
    for path in reversed(_checkpoints(folder)):
        try:
            checkpoint.verify(path)
        except DamagedFileError as error:
            aside = _free(folder / f"damaged-{path.name}")
            os.rename(path, aside)
            log.warning("%s; it is now %s, and the run continues from the one before", error, aside.name)
        else:
            return _step(path)
    return 0


def point(folder: Path, step: int, best: dict[str, Any] | None) -> None:
    """Say which checkpoint is the latest and which the best, and drop those that are neither nor recent."""
    write_atomic(folder / "latest.json", json.dumps({"checkpoint": checkpoint.name_of(step), "step": step}) + "\n")
    keep = {checkpoint.name_of(step)}
    if best is not None:
        name = checkpoint.name_of(best["step"])
        write_atomic(folder / "best.json", json.dumps({"checkpoint": name, **best}) + "\n")
        keep.add(name)
    recent = [path for path in _checkpoints(folder) if _step(path) <= step][-KEPT:]
    for path in _checkpoints(folder):
        if path not in recent and path.name not in keep:
            _remove(path)


def pointed(folder: Path, which: str = "best") -> Path:
    """Return the `best` (or `latest`) checkpoint of a run; the latest where no validation chose a best one yet."""
    for name in dict.fromkeys((which, "latest")):
        if (path := folder / f"{name}.json").is_file():
            target = str(read_json(path, checkpoint.LARGEST_STATE).get("checkpoint"))
            if checkpoint.NAME.fullmatch(target) is None:
                raise DamagedFileError(f"{path} is damaged: {target!r} is no checkpoint's name")
            return folder / target
    raise InputError(f"{folder} holds no checkpoint: it is not the folder of a run that has saved one")


def _remove(path: Path) -> None:
    # Renamed first: a checkpoint is never seen half-deleted.
    gone = path.with_name(f".{path.name}.gone.part")
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _checkpoints(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if checkpoint.NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-"))


def _free(path: Path) -> Path:
    taken = 1
    found = path
    while found.exists():
        taken += 1
        found = path.with_name(f"{path.name}-{taken}")
    return found
