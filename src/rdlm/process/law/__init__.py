"""Laws of the bridge's state given its token, one interface for all: exact, normal (the paper's), simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import unknown
from rdlm.process.bridge import Bridge
from rdlm.process.grid import Grid
from rdlm.process.law import exact, normal, simulated

LawName = Literal["exact", "normal", "simulated"]


class Law(Protocol):
    """Draws of a bridge's state given its token and the noise still to come."""

    @property
    def bridge(self) -> Bridge:
        """Return the bridge whose states are drawn."""

    def draw(
        self, token: Int[Tensor, "..."], noise: Float[Tensor, "..."] | float, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return one state per token; `noise` broadcasts to the tokens' shape."""

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
