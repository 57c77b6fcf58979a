"""The reference law: the bridge's geodesic random walk in all `d` dimensions, Eq. (19), for tests and comparisons.

| variable | symbol |
|---|---|
| `before`, `after` | `B_m` and `B_{m+1}`, the remaining noise before and after a step |
| `gain` | `g_m`, Eq. (18) |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.process.channel import Channel
from rdlm.process.kernel import draw_token_step
from rdlm.process.path import Law, Path, PathLaw
from rdlm.process.schedule import Grid, StepCoefficients, check_total
from rdlm.random import Rng


@dataclass(frozen=True)
class SimulatedLaw(Law):
    """Draws of the chain of `bridge` on `grid`, simulated step by step, Eq. (19)."""

    bridge: Channel
    grid: Grid

    def __post_init__(self) -> None:
        check_total(self.grid, self.bridge.total)

    def to(self, device: torch.device | str) -> SimulatedLaw:
        """Return the law with its grid on `device`."""
        return SimulatedLaw(self.bridge, self.grid.to(device))

    def draw(
        self, token: Int[Tensor, ...], remaining: Float[Tensor, ...] | float, generator: Rng = None
    ) -> Float[Tensor, "... d"]:
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
