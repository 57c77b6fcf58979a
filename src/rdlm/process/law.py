"""Laws of the bridge's state given its token, one interface for all: exact, normal (the paper's), simulated.

Tables of laws kept on disk, so that they are simulated once.

A table's file is named by the SHA-256 of everything that determines it. It holds those parameters and a
checksum of its numbers; where either disagrees, the table is built again. Files are written beside their
place and moved there, so that processes that build the same table at once do each other no harm.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, Literal, Protocol

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rdlm.errors import DamagedFileError, unknown
from rdlm.process import exact, normal, simulated
from rdlm.process.bridge import Bridge
from rdlm.process.exact import ExactLaw, tabulate
from rdlm.process.grid import Grid
from rdlm.process.normal import Coupling, KummerName, NormalLaw, precompute, refined
from rdlm.process.simulated import SimulatedLaw
from rdlm.storage.files import cache_dir, write_atomic

LawName = Literal["exact", "normal", "simulated"]


class Law(Protocol):
    """Draws of a bridge's state given its token and the noise still to come."""

    @property
    def bridge(self) -> Bridge:
        """Return the bridge whose states are drawn."""

    def draw(
        self, token: Int[Tensor, ...], remaining: Float[Tensor, ...] | float, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return one state per token; `remaining` broadcasts to the tokens' shape."""

    def to(self, device: torch.device | str) -> Law:
        """Return the law with its tables on `device`."""


def _normal(bridge: Bridge, grid: Grid, draws: int, generator: torch.Generator | None) -> Law:
    return normal.precompute(bridge, normal.refined(grid), draws, generator=generator)


def _simulated(bridge: Bridge, grid: Grid, draws: int, generator: torch.Generator | None) -> Law:
    return simulated.SimulatedLaw(bridge, grid)


_BUILDERS: Final[dict[str, Callable[[Bridge, Grid, int, torch.Generator | None], Law]]] = {
    "exact": exact.tabulate,
    "normal": _normal,
    "simulated": _simulated,
}


def build(
    name: LawName, bridge: Bridge, grid: Grid, draws: int = 16384, generator: torch.Generator | None = None
) -> Law:
    """Return the law of that name: Eq. (20), Eq. (22) or Eq. (19).

    `draws` are the pairs of the exact law's table or the paths of the normal law's precomputation; the
    simulated law has no table.
    """
    if name not in _BUILDERS:
        raise unknown("law", name, _BUILDERS)
    return _BUILDERS[name](bridge, grid, draws, generator)


FORMAT: Final = 3
"""Raised whenever the same parameters would give another table: files of another format are never read."""

_log = logging.getLogger(__name__)

Parameters = Mapping[str, object]
Tables = dict[str, Tensor]


def cached_exact(bridge: Bridge, grid: Grid, pairs: int, seed: int = 0) -> ExactLaw:
    """Return the exact law of Eq. (20) with the table of that seed, from disk or built now."""

    def make() -> Tables:
        return {"table": tabulate(bridge, grid, pairs, torch.Generator().manual_seed(seed)).table}

    parameters = _parameters("exact", bridge, grid, pairs=pairs, seed=seed)
    return ExactLaw(bridge, grid, **cached(parameters, make))


def cached_normal(
    bridge: Bridge,
    grid: Grid,
    paths: int,
    seed: int = 0,
    kummer: KummerName = "corrected",
    coupling: Coupling = "joint",
) -> NormalLaw:
    """Return the paper's normal law of Eq. (22) with the table of that seed, from disk or built now."""

    def make() -> Tables:
        law = precompute(bridge, grid, paths, kummer, coupling, torch.Generator().manual_seed(seed))
        return {"remaining": law.remaining, "angle": law.angle, "spread": law.spread}

    parameters = _parameters("normal", bridge, grid, paths=paths, seed=seed, kummer=kummer, coupling=coupling)
    return NormalLaw(bridge, **cached(parameters, make))


def cached_law(name: LawName, bridge: Bridge, grid: Grid, draws: int, seed: int = 0) -> Law:
    """Return the law of that name as `law.build` does, with its table kept on disk; the simulated law has none."""
    if name == "exact":
        return cached_exact(bridge, grid, draws, seed)
    return cached_normal(bridge, refined(grid), draws, seed) if name == "normal" else SimulatedLaw(bridge, grid)


def cached(parameters: Parameters, make: Callable[[], Tables]) -> Tables:
    """Return the tables of `parameters`: from their file where it is whole, else from `make`, then kept.

    A damaged file, or a disk that cannot be written, costs one line on standard error and nothing more.
    """
    path = table_path(parameters)
    if path.exists():
        try:
            return read(path, parameters)
        except DamagedFileError as error:
            _log.warning("%s; building it again", error)
    tables = make()
    try:
        write(path, parameters, tables)
    except OSError as error:
        _log.warning("cannot keep a table in %s (%s); it will be built again next time", path.parent, error)
    return tables


def table_path(parameters: Parameters) -> Path:
    """Return the file of the tables with these parameters: the name is the SHA-256 of their canonical JSON."""
    return cache_dir() / "tables" / f"{hashlib.sha256(_canonical(parameters).encode()).hexdigest()}.safetensors"


def write(path: Path, parameters: Parameters, tables: Tables) -> None:
    """Write tables with their parameters and checksum, whole or not at all."""
    whole = {name: table.contiguous() for name, table in tables.items()}
    metadata = {"parameters": _canonical(parameters), "checksum": _checksum(whole)}
    write_atomic(path, save(whole, metadata))


def read(path: Path, parameters: Parameters) -> Tables:
    """Return the tables in a file; an error where it is not whole, or holds those of other parameters."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copied, since a file's numbers may begin at any address, and then some operations want another one.
            tables = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  (no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedFileError(f"the cached table {path} cannot be read ({error})") from error
    if metadata.get("parameters") != _canonical(parameters):
        raise DamagedFileError(f"the cached table {path} belongs to other parameters than its name says")
    if metadata.get("checksum") != _checksum(tables):
        raise DamagedFileError(f"the cached table {path} does not match its checksum")
    return tables


def check(path: Path) -> None:
    """Raise DamagedFileError where a kept table would not be used again: it is not whole, or not what its name says."""
    try:
        with safe_open(path, framework="pt") as file:
            stated = (file.metadata() or {}).get("parameters", "")
        parameters = json.loads(stated)
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"the cached table {path} cannot be read ({error})") from error
    if table_path(parameters).name != path.name:
        raise DamagedFileError(f"the cached table {path} belongs to other parameters than its name says")
    read(path, parameters)


def _parameters(law: str, bridge: Bridge, grid: Grid, **more: object) -> Parameters:
    return {
        "format": FORMAT,
        "torch": torch.__version__.split("+")[0],  # its random streams are part of what a seed means
        "law": law,
        "bridge": asdict(bridge),
        "noise": grid.remaining.tolist(),
        **more,
    }


def _canonical(parameters: Parameters) -> str:
    """Return the one JSON text of these parameters; floats are written so that they read back exactly."""
    return json.dumps(parameters, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _checksum(tables: Tables) -> str:
    """Return the SHA-256 over names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tables):
        table = tables[name]
        digest.update(f"{name} {table.dtype} {tuple(table.shape)}\n".encode())
        digest.update(table.contiguous().numpy().tobytes())
    return digest.hexdigest()
