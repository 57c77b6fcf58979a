"""Laws by name: exact, normal (the paper's) and simulated, built directly or with their tables cached on disk.

The simulated law is the reference: the bridge's geodesic random walk in all `d` dimensions, Eq. (19).

| variable | symbol |
|---|---|
| `before`, `after` | `B_m` and `B_{m+1}`, the remaining noise before and after a step |
| `gain` | `g_m`, Eq. (18) |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from torch import Tensor

from rdlm.errors import InputError, unknown
from rdlm.process.bridge import Bridge
from rdlm.process.channel import Channel
from rdlm.process.exact import ExactLaw, exact_law, tabulate
from rdlm.process.kernel import draw_token_step
from rdlm.process.normal import NormalLaw, precompute, refined
from rdlm.process.path import Law, Path, PathLaw
from rdlm.process.schedule import Grid, StepCoefficients, check_total
from rdlm.random import Rng
from rdlm.storage.tables import Parameters, Tables, cached


@dataclass(frozen=True)
class SimulatedLaw(Law):
    """Draws of the chain of `bridge` on `grid`, simulated step by step, Eq. (19)."""

    bridge: Channel
    grid: Grid

    def __post_init__(self) -> None:
        check_total(self.grid, self.bridge.total)

    def draw(self, token: Tensor, remaining: Tensor | float, generator: Rng = None) -> Tensor:
        """Return states at any remaining noise, Eq. (19): the last step ends at that noise level.

        With no remaining noise the state is the token's vertex, as after the chain's decode step.
        """
        levels = self.grid.remaining.to(token.device)
        target = torch.as_tensor(remaining, dtype=levels.dtype, device=token.device).expand(token.shape)
        state = self.bridge.start.point(device=token.device).repeat(*token.shape, 1)
        for step in range(int((levels > target.min()).sum()) if token.numel() else 0):
            before, after = levels[step].maximum(target), levels[step + 1].maximum(target)
            state = self._step(state, token, before, after, generator)
        vertex = self.bridge.tokens.at(token, state)
        return torch.where((target > 0)[..., None], state, vertex)

    def _step(self, state: Tensor, token: Tensor, before: Tensor, after: Tensor, generator: Rng) -> Tensor:
        """Return the state after a step between two noise levels; unchanged where they are equal."""
        gain = torch.where(before > after, 1 - after / before, 0.0)
        coefficients = StepCoefficients(before.to(state.dtype), gain.to(state.dtype), (after * gain).to(state.dtype))
        step = draw_token_step(self.bridge, state, token, coefficients, generator)
        return self.bridge.move(state, step)


def simulated_law(path: Path, grid: Grid) -> PathLaw:
    """Return the law of a path's states by simulation on `grid`, Eq. (19)."""
    return PathLaw.of(path, lambda bridge: SimulatedLaw(bridge, grid))


# -- laws by name ----------------------------------------------------------------------------------

LawName = Literal["exact", "normal", "simulated"]

FORMAT: Final = 3
"""Version of the cached tables, increased whenever the table of the same parameters changes."""


def build(name: LawName, bridge: Channel, grid: Grid, draws: int = 16384, generator: Rng = None) -> Law:
    """Return the law of that name: Eq. (20), Eq. (22) or Eq. (19).

    `draws` is the number of pairs in the exact law's table, or of simulated paths from which the normal law's
    parameters are computed; the simulated law has no table.
    """
    match name:
        case "exact":
            return exact_law(bridge, grid, draws, generator)
        case "normal":
            return precompute(_of_sphere(bridge), refined(grid), draws, generator=generator)
        case "simulated":
            return SimulatedLaw(bridge, grid)
    raise unknown("law", name, get_args(LawName))


def _of_sphere(channel: Channel) -> Bridge:
    if not isinstance(channel, Bridge):
        raise InputError(f"the normal law is that of a bridge of the sphere, not of the {channel.kind} channel")
    return channel


def cached_law(name: LawName, bridge: Channel, grid: Grid, draws: int, seed: int = 0) -> Law:
    """Return the same law as `build` with its table cached on disk, except for bridges of user-defined classes."""
    if isinstance(bridge, Bridge) and type(bridge) is not Bridge:
        return build(name, bridge, grid, draws, torch.Generator().manual_seed(seed))
    if name == "exact":
        return cached_exact(bridge, grid, draws, seed) if isinstance(bridge, Bridge) else exact_law(bridge, grid, draws)
    if name == "normal":
        return cached_normal(_of_sphere(bridge), refined(grid), draws, seed)
    return SimulatedLaw(bridge, grid)


def cached_exact(bridge: Bridge, grid: Grid, pairs: int, seed: int = 0) -> ExactLaw:
    """Return the exact law of Eq. (20) with the table of that seed, read from the cache or computed."""

    def make() -> Tables:
        return {"table": tabulate(bridge, grid, pairs, torch.Generator().manual_seed(seed)).table}

    parameters = _parameters("exact", bridge, grid, pairs=pairs, seed=seed)
    return ExactLaw(bridge, grid, cached(parameters, make)["table"])


def cached_normal(bridge: Bridge, grid: Grid, paths: int, seed: int = 0) -> NormalLaw:
    """Return the paper's normal law of Eq. (22) with the table of that seed, read from the cache or computed."""

    def make() -> Tables:
        law = precompute(bridge, grid, paths, generator=torch.Generator().manual_seed(seed))
        # In files the noise rises.
        return {"remaining": grid.remaining.flip(0), "angle": law.angle.flip(0), "spread": law.scale.flip(0)}

    parameters = _parameters("normal", bridge, grid, paths=paths, seed=seed, kummer="corrected", coupling="joint")
    tables = cached(parameters, make)
    return NormalLaw(bridge, grid, tables["angle"].flip(0), tables["spread"].flip(0))


def _parameters(law: str, bridge: Bridge, grid: Grid, **more: object) -> Parameters:
    """Return everything that determines a table; the keys are those of existing files.

    The tokens' points are not included: with codes, the table is that of one token per coordinate, Eq. (55).
    """
    return {
        "format": FORMAT,
        "torch": torch.__version__.split("+")[0],  # a seed's random numbers depend on it
        "law": law,
        "bridge": {
            "start": {"vocabulary": bridge.dimension - 1, "spread": bridge.start.token_weight},
            "total": bridge.total,
            "kind": bridge.kind,
        },
        "noise": grid.remaining.tolist(),
        **more,
    }
