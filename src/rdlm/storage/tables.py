"""An on-disk cache of tensors that are expensive to compute and fully determined by their parameters.

A table's file is named by the SHA-256 of its parameters and contains those parameters and a checksum of its tensors.
A file that does not match either of them is ignored and computed again. Writes are atomic, so processes that compute
the same table at the same time do not interfere.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rdlm.errors import DamagedFileError, InputError
from rdlm.storage.files import cache_dir, make_cache_dir, open_plain, write_atomic

_log = logging.getLogger(__name__)

FOLDER = "tables"
"""The folder of the cache that holds the tables."""

Parameters = Mapping[str, object]
Tables = dict[str, Tensor]


def cached(parameters: Parameters, make: Callable[[], Tables]) -> Tables:
    """Return the tables with these parameters: read from the cache if the file is intact, else computed by `make`.

    A damaged file or an unusable cache only logs a warning.
    """
    try:
        path = table_path(parameters)
    except InputError as error:
        _log.warning("%s; a table is built without it", error)
        return make()
    if path.exists():
        try:
            return read(path, parameters)
        except DamagedFileError as error:
            _log.warning("%s; building it again", error)
    tables = make()
    try:
        make_cache_dir(FOLDER)
        write(path, parameters, tables)
    except OSError as error:
        _log.warning("cannot keep a table in %s (%s); it will be built again next time", path.parent, error)
    return tables


def table_path(parameters: Parameters) -> Path:
    """Return the file of the tables with these parameters, named by the SHA-256 of their canonical JSON."""
    return cache_dir(FOLDER) / f"{hashlib.sha256(_canonical(parameters).encode()).hexdigest()}.safetensors"


def write(path: Path, parameters: Parameters, tables: Tables) -> None:
    """Write tables with their parameters and checksum atomically."""
    contiguous = {name: table.contiguous() for name, table in tables.items()}
    metadata = {"parameters": _canonical(parameters), "checksum": _checksum(contiguous)}
    write_atomic(path, save(contiguous, metadata))


def read(path: Path, parameters: Parameters) -> Tables:
    """Return the tables in a file; raise DamagedFileError if it is damaged or has other parameters."""
    try:
        with open_plain(path), safe_open(path, framework="pt") as file:  # a pipe would not end
            metadata = file.metadata() or {}
            # Cloned, because tensors mapped from a file may start at an unaligned address.
            tables = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  (no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedFileError(f"the cached table {path} cannot be read ({error})") from error
    if metadata.get("parameters") != _canonical(parameters):
        raise DamagedFileError(f"the parameters in the cached table {path} do not match its name")
    if metadata.get("checksum") != _checksum(tables):
        raise DamagedFileError(f"the cached table {path} does not match its checksum")
    return tables


def check(path: Path) -> None:
    """Raise DamagedFileError if a cached table is damaged or its name does not match its parameters."""
    try:
        with open_plain(path), safe_open(path, framework="pt") as file:
            stated = (file.metadata() or {}).get("parameters", "")
        parameters = json.loads(stated)
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"the cached table {path} cannot be read ({error})") from error
    if table_path(parameters).name != path.name:
        raise DamagedFileError(f"the parameters in the cached table {path} do not match its name")
    read(path, parameters)


def _canonical(parameters: Parameters) -> str:
    """Return the canonical JSON of the parameters; floats round-trip exactly."""
    return json.dumps(parameters, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _checksum(tables: Tables) -> str:
    """Return the SHA-256 over names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tables):
        table = tables[name]
        digest.update(f"{name} {table.dtype} {tuple(table.shape)}\n".encode())
        digest.update(table.contiguous().numpy().tobytes())
    return digest.hexdigest()
