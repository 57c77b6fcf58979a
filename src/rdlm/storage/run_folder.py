"""Run folders: locking, comparison of configurations, and the choice of checkpoints to keep and to resume from.

runs/NAME/
    config.yaml  record.jsonl  report.html  tensorboard/  wandb_id  wandb/
    checkpoint-00000500/ ...      the last two, and the one with the best validation bound
    latest.json  best.json        the names of the latest and the best checkpoint
    lock                          locked by the running process; the system releases it when the process ends
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rdlm.config import RunConfig
from rdlm.errors import DamagedFileError, InputError
from rdlm.storage import checkpoint, config_file
from rdlm.storage.files import check_no_link, damaged, read_json, write_atomic
from rdlm.storage.manifest import with_checksum, without_checksum

KEPT = 2
"""Number of latest checkpoints that are kept."""

EXECUTION = {"training.accumulate", "training.parallel", "training.device", "training.compile", "data.accept_licence"}
"""Settings of the execution, which may change when a run continues."""

SHAPES = {"method", "process.base", "process.codes", "process.dimension", "process.layout", "denoiser.features"}
SHAPES |= {"denoiser.head", "data.name", "data.tokenizer", "data.vocabulary", "data.alphabet", "data.normalise"}
"""Settings, with those of the network, that determine the shapes of the weights: a run cannot continue with others."""

SHAPELESS = {"model.dropout", "model.time_scale"}

FITTED = {
    f"training.{name}"
    for name in ("steps", "warmup", "save_every", "validate_every", "validation_sequences", "validation_nfe")
}
"""Settings that are chosen by the time of a run: `--minutes` may change them when a run continues."""

WRITTEN = ("lock", "record.jsonl", "tensorboard", "wandb_id", "wandb")
"""What a run writes to in place: links at these names would lead to other files. All else is replaced by a rename."""

log = logging.getLogger(__name__)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process; InputError if another running process holds the lock, or for links in it."""
    for name in WRITTEN:
        check_no_link(folder / name)
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
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield


def progress(folder: Path) -> tuple[RunConfig | None, int]:
    """Return the configuration of the run in a folder and the step of its latest checkpoint; None and 0 for no run."""
    path = folder / "latest.json"
    if not path.is_file() or not (folder / "config.yaml").is_file():
        return None, 0
    step = _read_pointer(path).get("step", 0)
    if type(step) is not int:
        raise damaged(path, f"its step is {step!r:.80}")
    return config_file.read(folder / "config.yaml"), step


def check_same(folder: Path, config: RunConfig, accept_changes: bool, accepted: Collection[str] = ()) -> None:
    """Raise InputError if the run in a folder has another configuration, unless changes are accepted."""
    path = folder / "config.yaml"
    if not accept_changes and path.exists():
        _check_config(folder, config_file.read(path), config, accepted)


def check_origin(
    path: Path,
    state: Mapping[str, Any],
    config: RunConfig,
    digest: str,
    accept_changes: bool,
    accepted: Collection[str] = (),
) -> None:
    """Raise InputError if a checkpoint has another configuration or corpus, unless changes are accepted."""
    if accept_changes:
        return
    _check_config(path, config_file.from_dict(state.get("config", {})), config, accepted)
    corpus = state.get("corpus")
    before = corpus.get("digest", digest) if isinstance(corpus, dict) else None  # the first checkpoints had none
    if before != digest:
        raise InputError(
            f"{path} was trained on other data than the corpus {config.data.name!r} now contains. "
            "Restore the old data, choose another --out, or continue with the new data with --accept-changes"
        )


def _check_config(path: Path, old: RunConfig, new: RunConfig, accepted: Collection[str]) -> None:
    ignored = {*EXECUTION, *accepted}
    changed = {key: pair for key, pair in config_file.difference(old, new).items() if key not in ignored}
    if changed:
        listed = "; ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())
        fixed = [key for key in changed if key in SHAPES or (key.startswith("model.") and key not in SHAPELESS)]
        advice = "or continue with the new values with --accept-changes"
        if fixed:
            folder = path.parent if checkpoint.NAME.fullmatch(path.name) else path
            advice = (
                f"or continue it as it was: rdlm train {folder / 'config.yaml'} --out {folder} "
                f"(its weights have other shapes with the new {' and '.join(fixed)})"
            )
        raise InputError(
            f"{path} belongs to a run with another configuration: {listed}. Choose another --out, {advice}"
        )


def tidy(folder: Path) -> None:
    """Remove the incomplete files of a run that was killed."""
    for left in folder.glob(".*.part"):
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def newest(folder: Path) -> int:
    """Return the step of the newest intact checkpoint, 0 if there is none; newer damaged ones are renamed."""
    for path in reversed(_checkpoints(folder)):
        try:
            checkpoint.verify(path)
        except DamagedFileError as error:
            renamed = _unused(folder / f"damaged-{path.name}")
            os.rename(path, renamed)
            log.warning("%s; it is renamed to %s, and the run continues from the one before", error, renamed.name)
        else:
            return _step(path)
    return 0


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a folder, intact or not."""
    found = _checkpoints(folder) if folder.is_dir() else []
    return found[-1] if found else None


def update_pointers(folder: Path, step: int, best: dict[str, Any] | None) -> None:
    """Write latest.json and best.json, and remove checkpoints that are neither recent nor the best."""
    _write_pointer(folder / "latest.json", {"checkpoint": checkpoint.name_of(step), "step": step})
    keep = {checkpoint.name_of(step)}
    if best is not None:
        name = checkpoint.name_of(best["step"])
        _write_pointer(folder / "best.json", {"checkpoint": name, **best})
        keep.add(name)
    recent = [path for path in _checkpoints(folder) if _step(path) <= step][-KEPT:]
    for path in _checkpoints(folder):
        if path not in recent and path.name not in keep:
            _remove(path)


def find_checkpoint(folder: Path, which: str = "best") -> Path:
    """Return the `best` (or `latest`) checkpoint of a run; the latest if there was no validation yet."""
    for name in dict.fromkeys((which, "latest")):
        if (path := folder / f"{name}.json").is_file():
            target = str(_read_pointer(path).get("checkpoint"))
            if checkpoint.NAME.fullmatch(target) is None:
                raise damaged(path, f"{target!r} is not the name of a checkpoint")
            return folder / target
    raise InputError(f"{folder} has no checkpoint: it is not the folder of a run that has saved one")


def _write_pointer(path: Path, content: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(with_checksum(content)) + "\n")


def _read_pointer(path: Path) -> dict[str, Any]:
    """Return the content of a pointer; that of version 0.1.0 has no checksum."""
    found = read_json(path, checkpoint.LARGEST_STATE)
    advice = "delete it: the next resume writes it again"
    return without_checksum(path, found, advice) if "sha256" in found else found


def _remove(path: Path) -> None:
    # Renamed first, so that no reader sees a checkpoint with some of its files.
    removed = path.with_name(f".{path.name}.gone.part")
    os.rename(path, removed)
    shutil.rmtree(removed, ignore_errors=True)


def _checkpoints(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if checkpoint.NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-"))


def _unused(path: Path) -> Path:
    names = itertools.chain([path.name], (f"{path.name}-{number}" for number in itertools.count(2)))
    return next(found for name in names if not (found := path.with_name(name)).exists())
