"""Checkpoints: folders of safetensors and JSON that are there whole or not at all, and are read with suspicion.

checkpoint-00000500/
    state.json        format, step, counters, configuration, corpus; size and SHA-256 of every other file, and its own
    tokenizer.json    see `rdlm.data.tokenizer.from_json`
    network.safetensors  ema.safetensors  optimizer.safetensors  method.safetensors

Tensors are whole, whatever was sharded when they were saved. Nothing in a checkpoint can run code: file names are
fixed here, only regular files are opened, names, shapes and types of tensors are compared with what the run expects
before a tensor is read, and a number that is not finite is refused. A checksum finds damage; it does not prove who
wrote the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rdlm.errors import DamagedFileError, DivergedError, InputError
from rdlm.storage.files import open_plain, parse_json, read_json, sha256_of, sync_folder

FORMAT = 1
PARTS = ("network", "ema", "optimizer", "method")
NAME = re.compile(r"checkpoint-(\d{8})")
LARGEST_STATE = 1 << 20
"""Bytes of the largest state.json that is read."""

LARGEST_HEADER = 1 << 24
"""Bytes of the largest list of tensors that is read: some hundred thousand of them fit."""

Tensors = Mapping[str, Tensor]


def name_of(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"checkpoint-{step:08d}"


def save(
    run: Path, step: int, parts: Mapping[str, Tensors], about: Mapping[str, Any], tokenizer: Mapping[str, Any]
) -> Path:
    """Write a checkpoint beside its place, then move it there; a failure leaves nothing, a full disk says so."""
    path = run / name_of(step)
    aside = run / f".{path.name}.part"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        _fill(aside, parts, {"format": FORMAT, "step": step, **about}, tokenizer)
        os.rename(aside, path)
        sync_folder(run)
    except OSError as error:
        raise InputError(f"cannot write the checkpoint {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def _fill(folder: Path, parts: Mapping[str, Tensors], about: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    for part in PARTS:
        for name, tensor in parts[part].items():
            if not tensor.isfinite().all():
                raise DivergedError(f"{part}: {name} is not finite; this checkpoint is not written, the last one stays")
        try:
            save_file({name: t.contiguous() for name, t in parts[part].items()}, folder / f"{part}.safetensors")
        except SafetensorError as error:
            raise OSError(f"{part}.safetensors: {error}") from error
        # safetensors writes for its owner alone; a checkpoint is for whoever may read its other files.
        shutil.copymode(folder / "tokenizer.json", folder / f"{part}.safetensors")
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in folder.iterdir()}
    content = {**about, "files": files}
    (folder / "state.json").write_text(json.dumps({**content, "sha256": _digest(content)}, indent=1), "utf-8")
    for path in (*folder.iterdir(), folder):
        sync_folder(path)  # a file is flushed in the same way


def describe(path: Path) -> dict[str, Any]:
    """Return state.json after checking its own checksum, its format, and the sizes of all files."""
    state = read_json(path / "state.json", LARGEST_STATE)
    content = {key: value for key, value in state.items() if key != "sha256"}
    try:
        genuine = state.get("sha256") == _digest(content)
    except RecursionError as error:  # what was just deep enough to be read may be too deep to be written
        _refuse(path / "state.json", str(error))
    if not genuine:
        _refuse(path / "state.json", "its own checksum differs")
    if state.get("format") != FORMAT:
        raise InputError(
            f"{path} has checkpoint format {state.get('format')!r}, this version reads {FORMAT}: "
            "open it with the version of rdlm that wrote it"
        )
    if type(state.get("step")) is not int or path.name != name_of(state["step"]):
        _refuse(path, f"it holds step {state.get('step')!r}, not what its name says")
    _check_sizes(path, state.get("files"))
    return state


def _check_sizes(path: Path, files: object) -> None:
    if not isinstance(files, dict) or set(files) != {"tokenizer.json", *(f"{part}.safetensors" for part in PARTS)}:
        _refuse(path / "state.json", "its list of files is not that of a checkpoint")
    for name, entry in files.items():
        check_size(path / name, entry)


def check_size(file: Path, entry: object) -> None:
    """Refuse a file that is not there, or not of its recorded size, or larger than this machine's memory."""
    size = file.stat().st_size if file.is_file() and not file.is_symlink() else -1
    if not isinstance(entry, dict) or size != entry.get("bytes"):
        _refuse(file, "missing or of another size than recorded")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:  # a file with holes can claim any size, and would be hashed for days
        _mismatch(file, f"it has {size:,} bytes, this machine a memory of {memory:,}")


def verify(path: Path) -> dict[str, Any]:
    """Return state.json after checking everything that can be checked without knowing the run."""
    state = describe(path)
    for name, entry in state["files"].items():
        if sha256_of(path / name) != entry.get("sha256"):
            _refuse(path / name, "its checksum differs")
    return state


def read_part(path: Path, part: str, template: Tensors) -> dict[str, Tensor]:
    """Return one part's tensors, which must have the template's names, shapes and types, and finite numbers."""
    file = path / f"{part}.safetensors"
    try:
        _check_names(file, template)
        with safe_open(file, framework="pt") as stored:
            tensors = {}
            for name, wanted in template.items():
                shape = tuple(stored.get_slice(name).get_shape())
                if shape != tuple(wanted.shape):
                    _mismatch(file, f"{name} has shape {list(shape)}, not {list(wanted.shape)}")
                tensors[name] = _checked(file, name, stored.get_tensor(name), wanted)
            return tensors
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        return _refuse(file, str(error))


def _check_names(file: Path, template: Tensors) -> None:
    """Read a file's list of tensors by ourselves: the library accepts 100 MB of it, and one of two equal names."""
    with open_plain(file) as stored:
        size = int.from_bytes(stored.read(8), "little")
        if size > LARGEST_HEADER:
            _refuse(file, f"its list of tensors has {size:,} bytes")
        header = parse_json(stored.read(size))
    names = set(header if isinstance(header, dict) else ()) - {"__metadata__"}
    if names != set(template):
        differing = sorted(names ^ set(template))
        _mismatch(file, f"it is of another network or method: {', '.join(map(repr, differing[:5]))}")


def _checked(file: Path, name: str, tensor: Tensor, wanted: Tensor) -> Tensor:
    if tensor.dtype != wanted.dtype:
        _mismatch(file, f"{name} has type {tensor.dtype}, not {wanted.dtype}")
    if not tensor.isfinite().all():
        _refuse(file, f"{name} holds numbers that are not finite")
    return tensor


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _refuse(path: Path, reason: str) -> NoReturn:
    raise DamagedFileError(f"{path} is damaged: {reason}")


def _mismatch(path: Path, reason: str) -> NoReturn:
    raise InputError(f"{path} does not fit this run: {reason}")
