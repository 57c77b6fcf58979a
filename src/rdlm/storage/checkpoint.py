"""Checkpoints: folders of safetensors and JSON that are written atomically and validated before use.

checkpoint-00000500/
    state.json        format, step, counters, configuration, corpus; manifest of the other files; its own checksum
    tokenizer.json    see `rdlm.data.tokenizer.from_json`
    network.safetensors  ema.safetensors  optimizer.safetensors  method.safetensors

Runs with FSDP write one file per part and process, network-00000-of-00002.safetensors, with the rows that the process
has; what is not sharded is in the first. Any number of processes can read them.

A checkpoint cannot run code: the file names are fixed here, only regular files are opened, names, shapes and types of
tensors are compared with those of the run before a tensor is read, and non-finite numbers are rejected.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rdlm.errors import DamagedFileError, DivergedError, InputError
from rdlm.storage.files import damaged, open_plain, parse_json, read_json, sync
from rdlm.storage.manifest import Manifest, with_checksum, without_checksum

FORMAT, SHARDED = 1, 2
MOST_SHARDS = 99_999
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
    """Write a checkpoint into the run folder and return its path; after a failure its files are removed."""
    try:
        begin(run, step, tokenizer)
        write_parts(run, step, parts)
        return finish(run, step, about)
    finally:
        discard(run, step)


def begin(run: Path, step: int, tokenizer: Mapping[str, Any]) -> None:
    """Create the temporary folder in which a checkpoint is written."""
    with _write_errors(run, step):
        discard(run, step)
        _unnamed(run, step).mkdir()
        (_unnamed(run, step) / TOKENIZER).write_text(json.dumps(tokenizer), "utf-8")


def write_parts(run: Path, step: int, parts: Mapping[str, Tensors], shard: tuple[int, int] | None = None) -> None:
    """Write the tensors of all parts, or of one shard (rank, count) of them."""
    folder = _unnamed(run, step)
    for part in PARTS:
        for name, tensor in parts[part].items():
            if not tensor.isfinite().all():
                raise DivergedError(f"{part}: {name} is not finite; no checkpoint is written, the previous one is kept")
        file = folder / (f"{part}.safetensors" if shard is None else shard_name(part, *shard))
        with _write_errors(run, step):
            try:
                save_file({name: t.contiguous() for name, t in parts[part].items()}, file)
            except SafetensorError as error:
                raise OSError(f"{file.name}: {error}") from error
            # safetensors creates files that only their owner can read; all files get the permissions of the umask.
            shutil.copymode(folder / TOKENIZER, file)
            sync(file)


def finish(run: Path, step: int, about: Mapping[str, Any], shards: int | None = None) -> Path:
    """Write state.json, which lists all files, and rename the folder, which completes the checkpoint."""
    folder, path = _unnamed(run, step), run / name_of(step)
    with _write_errors(run, step):
        form = {"format": FORMAT} if shards is None else {"format": SHARDED, "shards": shards}
        manifest = Manifest.of(folder)
        if missing := _required(shards) - set(manifest.files):
            raise OSError(f"{min(missing)} is missing: all processes must write to the same folder")
        state = with_checksum({**form, "step": step, **about, "files": manifest.files})
        (folder / STATE).write_text(json.dumps(state, indent=1), "utf-8")
        for file in (folder / TOKENIZER, folder / STATE, folder):
            sync(file)
        os.rename(folder, path)
        sync(run)
    return path


def discard(run: Path, step: int) -> None:
    """Remove the files of an unfinished checkpoint."""
    shutil.rmtree(_unnamed(run, step), ignore_errors=True)


def _unnamed(run: Path, step: int) -> Path:
    return run / f".{name_of(step)}.part"


def shard_name(part: str, rank: int, count: int) -> str:
    """Return the file name of a shard of a part."""
    return f"{part}-{rank:05d}-of-{count:05d}.safetensors"


def _required(shards: int | None) -> set[str]:
    """Return the names of all files but state.json."""
    if shards is None:
        return {TOKENIZER, *(f"{part}.safetensors" for part in PARTS)}
    return {TOKENIZER, *(shard_name(part, rank, shards) for part in PARTS for rank in range(shards))}


@contextmanager
def _write_errors(run: Path, step: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write the checkpoint {run / name_of(step)}: {error.strerror or error}") from error


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
    if state.get("format") not in (FORMAT, SHARDED):
        raise InputError(
            f"{path} has checkpoint format {state.get('format')!r}, this version reads {FORMAT} and {SHARDED}: "
            "open it with the version of rdlm that wrote it"
        )
    if type(state.get("step")) is not int or path.name != name_of(state["step"]):
        raise damaged(path, f"its state is of step {state.get('step')!r}, which its name contradicts")
    shards = state.get("shards") if state["format"] == SHARDED else None
    if state["format"] == SHARDED and not (type(shards) is int and 1 <= shards <= MOST_SHARDS):
        raise damaged(file, f"its number of shards is {shards!r:.80}")
    manifest = Manifest.parse(file, state.get("files"), required=_required(shards))
    manifest.check_sizes()
    manifest.check_memory()
    return state, manifest


def read_part(
    path: Path, part: str, template: Tensors, rows: Mapping[str, tuple[int, int]] = MappingProxyType({})
) -> dict[str, Tensor]:
    """Return the tensors of one part; names, shapes and types must equal the template's, numbers must be finite.

    Shards are put together. Of a tensor in `rows`, only the rows from the first to before the second number are read.
    """
    files = _files_of(path, part)
    try:
        with ExitStack() as stack:
            names = [_names(file, template, whole=file is files[0]) for file in files]
            stored = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
            tensors = {}
            for name, expected in template.items():
                pieces = [one.get_slice(name) for one, found in zip(stored, names, strict=True) if name in found]
                tensor = _assembled(files[0], name, pieces, expected, rows.get(name))
                tensors[name] = _checked(files[0], name, tensor, expected)
            return tensors
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise damaged(files[0], str(error)) from error


def _files_of(path: Path, part: str) -> list[Path]:
    """Return the file of a part, or those of its shards in order."""
    first = sorted(path.glob(shard_name(part, 0, 0).replace("of-00000", "of-" + "[0-9]" * 5)))
    if not first:
        return [path / f"{part}.safetensors"]
    count = int(first[0].stem[-5:])
    return [path / shard_name(part, rank, count) for rank in range(max(count, 1))]


def _assembled(file: Path, name: str, pieces: list[Any], expected: Tensor, rows: tuple[int, int] | None) -> Tensor:
    """Return a tensor, or some of its rows, from its pieces, which are consecutive rows."""
    shapes = [tuple(piece.get_shape()) for piece in pieces]
    shape = shapes[0]
    if len(pieces) > 1 and all(one and one[1:] == shape[1:] for one in shapes):
        shape = (sum(one[0] for one in shapes), *shape[1:])
    if shape != tuple(expected.shape):
        raise _mismatch(file, f"{name} has shape {list(shape)}, not {list(expected.shape)}")
    if len(pieces) == 1 and rows is None:
        whole: Tensor = pieces[0][...]
        return whole
    first, last = rows or (0, shape[0])
    parts, start = [], 0
    for piece, (count, *_) in zip(pieces, shapes, strict=True):
        low, high = max(first, start), min(last, start + count)
        if low < high:
            parts.append(piece[low - start : high - start])
        start += count
    return torch.cat(parts) if parts else torch.empty((0, *shape[1:]), dtype=expected.dtype)


def _names(file: Path, template: Tensors, whole: bool) -> set[str]:
    """Return the names of the tensors in a file: those of the template, or some of them if it is not the `whole`."""
    # safetensors itself accepts headers of 100 MB and duplicate names.
    with open_plain(file) as stored:
        size = int.from_bytes(stored.read(8), "little")
        if size > LARGEST_HEADER:
            raise damaged(file, f"its list of tensors has {size:,} bytes")
        header = parse_json(stored.read(size))
    names = set(header if isinstance(header, dict) else ()) - {"__metadata__"}
    if names != set(template) if whole else not names <= set(template):
        differing = sorted(names ^ set(template))
        raise _mismatch(file, f"it is of another network or method: {', '.join(map(repr, differing[:5]))}")
    return names


def _checked(file: Path, name: str, tensor: Tensor, expected: Tensor) -> Tensor:
    if tensor.dtype != expected.dtype:
        raise _mismatch(file, f"{name} has type {tensor.dtype}, not {expected.dtype}")
    if not tensor.isfinite().all():
        raise damaged(file, f"{name} has entries that are not finite")
    return tensor


def _mismatch(path: Path, reason: str) -> InputError:
    return InputError(f"{path} does not fit this run: {reason}")


# -- memory of models that untrusted files describe ----------------------------------------------------

FACTORIES = {
    torch.empty,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.eye,
    torch.arange,
    torch.linspace,
    torch.rand,
    torch.randn,
}
"""Functions that allocate a tensor whose size depends on their arguments alone."""


class AllocationLimit(TorchFunctionMode):
    """Context manager: raise DamagedFileError before more than `bytes` bytes or `tensors` tensors are allocated.

    A checkpoint of a few kilobytes can claim a network of terabytes. The size of each tensor is computed on the meta
    device, which allocates nothing, before the tensor itself is created.
    """

    def __init__(self, bytes: int, tensors: int) -> None:
        super().__init__()
        self.bytes_left, self.tensors_left = bytes, tensors

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`; if it allocates a tensor, subtract its size from the limit first."""
        given = dict(kwargs or {})
        if func in FACTORIES:
            sized = {key: value for key, value in given.items() if key != "generator"}
            self.bytes_left -= int(func(*args, **{**sized, "device": "meta"}).nbytes)
            self.tensors_left -= 1
            if self.bytes_left < 0 or self.tensors_left < 0:
                raise DamagedFileError("it describes a model that is larger than its files")
        return func(*args, **given)
