"""Checkpoints: folders of safetensors and JSON that are written atomically and validated before use.

checkpoint-00000500/
    state.json        format, step, counters, configuration, corpus; manifest of the other files; its own checksum
    tokenizer.json    see `rdlm.data.tokenizer.from_json`
    network.safetensors  ema.safetensors  optimizer.safetensors  method.safetensors

Tensors are stored unsharded. A checkpoint cannot run code: the file names are fixed here, only regular files are
opened, names, shapes and types of tensors are compared with those of the run before a tensor is read, and numbers that
are not finite are refused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rdlm.errors import DivergedError, InputError
from rdlm.storage.files import damaged, open_plain, parse_json, read_json, sync
from rdlm.storage.manifest import Manifest, with_checksum, without_checksum

FORMAT = 1
STATE, TOKENIZER = "state.json", "tokenizer.json"
PARTS = ("network", "ema", "optimizer", "method")
NAME = re.compile(r"checkpoint-(\d{8})")

LARGEST_STATE = 1 << 20
"""Bytes of the largest state.json that is read."""

LARGEST_HEADER = 1 << 24
"""Bytes of the largest safetensors header that is read: enough for some hundred thousand tensors."""

Tensors = Mapping[str, Tensor]


def name_of(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"checkpoint-{step:08d}"


def save(
    run: Path, step: int, parts: Mapping[str, Tensors], about: Mapping[str, Any], tokenizer: Mapping[str, Any]
) -> Path:
    """Write a checkpoint into the run folder and return its path; after a failure nothing is left of it."""
    path = run / name_of(step)
    temporary = run / f".{path.name}.part"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        _write_files(temporary, parts, {"format": FORMAT, "step": step, **about}, tokenizer)
        os.rename(temporary, path)
        sync(run)
    except OSError as error:
        raise InputError(f"cannot write the checkpoint {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def _write_files(
    folder: Path, parts: Mapping[str, Tensors], about: Mapping[str, Any], tokenizer: Mapping[str, Any]
) -> None:
    (folder / TOKENIZER).write_text(json.dumps(tokenizer), "utf-8")
    for part in PARTS:
        for name, tensor in parts[part].items():
            if not tensor.isfinite().all():
                raise DivergedError(f"{part}: {name} is not finite; no checkpoint is written, the previous one is kept")
        try:
            save_file({name: t.contiguous() for name, t in parts[part].items()}, folder / f"{part}.safetensors")
        except SafetensorError as error:
            raise OSError(f"{part}.safetensors: {error}") from error
        # safetensors creates files that only their owner can read; all files get the permissions of the umask.
        shutil.copymode(folder / TOKENIZER, folder / f"{part}.safetensors")
    state = with_checksum({**about, "files": Manifest.of(folder).files})
    (folder / STATE).write_text(json.dumps(state, indent=1), "utf-8")
    for path in (*folder.iterdir(), folder):
        sync(path)


def describe(path: Path) -> dict[str, Any]:
    """Return state.json after checking its checksum, its format and the sizes of all files."""
    return _read_state(path)[0]


def verify(path: Path) -> dict[str, Any]:
    """Return state.json after checking everything that does not depend on the run, contents of files included."""
    state, manifest = _read_state(path)
    manifest.verify()
    return state


def _read_state(path: Path) -> tuple[dict[str, Any], Manifest]:
    file = path / STATE
    state = without_checksum(file, read_json(file, LARGEST_STATE))
    if state.get("format") != FORMAT:
        raise InputError(
            f"{path} has checkpoint format {state.get('format')!r}, this version reads {FORMAT}: "
            "open it with the version of rdlm that wrote it"
        )
    if type(state.get("step")) is not int or path.name != name_of(state["step"]):
        raise damaged(path, f"its state is of step {state.get('step')!r}, which its name contradicts")
    required = {TOKENIZER, *(f"{part}.safetensors" for part in PARTS)}
    manifest = Manifest.parse(file, state.get("files"), required=required)
    manifest.check_sizes()
    manifest.check_memory()
    return state, manifest


def read_part(path: Path, part: str, template: Tensors) -> dict[str, Tensor]:
    """Return the tensors of one part; names, shapes and types must equal the template's, numbers must be finite."""
    file = path / f"{part}.safetensors"
    try:
        _check_names(file, template)
        with safe_open(file, framework="pt") as stored:
            tensors = {}
            for name, expected in template.items():
                shape = tuple(stored.get_slice(name).get_shape())
                if shape != tuple(expected.shape):
                    raise _mismatch(file, f"{name} has shape {list(shape)}, not {list(expected.shape)}")
                tensors[name] = _checked(file, name, stored.get_tensor(name), expected)
            return tensors
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise damaged(file, str(error)) from error


def _check_names(file: Path, template: Tensors) -> None:
    # safetensors itself accepts headers of 100 MB and duplicate names.
    with open_plain(file) as stored:
        size = int.from_bytes(stored.read(8), "little")
        if size > LARGEST_HEADER:
            raise damaged(file, f"its list of tensors has {size:,} bytes")
        header = parse_json(stored.read(size))
    names = set(header if isinstance(header, dict) else ()) - {"__metadata__"}
    if names != set(template):
        differing = sorted(names ^ set(template))
        raise _mismatch(file, f"it is of another network or method: {', '.join(map(repr, differing[:5]))}")


def _checked(file: Path, name: str, tensor: Tensor, expected: Tensor) -> Tensor:
    if tensor.dtype != expected.dtype:
        raise _mismatch(file, f"{name} has type {tensor.dtype}, not {expected.dtype}")
    if not tensor.isfinite().all():
        raise damaged(file, f"{name} has entries that are not finite")
    return tensor


def _mismatch(path: Path, reason: str) -> InputError:
    return InputError(f"{path} does not fit this run: {reason}")
