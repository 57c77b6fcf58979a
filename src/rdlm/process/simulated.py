"""The ground truth: the bridge's geodesic random walk in all `d` dimensions, for tests and comparisons."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process import kernel as chain
from rdlm.process.bridge import Bridge
from rdlm.process.grid import Grid, StepCoefficients

# As a module: the chain imports the exact law from this package and may still be loading.


@dataclass(frozen=True)
class SimulatedLaw:
    """Draws of the chain of `bridge` on `grid`, step by step, Eq. (19)."""

    bridge: Bridge
    grid: Grid

    def __post_init__(self) -> None:
        if abs(self.grid.total - self.bridge.total) > 1e-6 * self.bridge.total:
            raise InputError(f"the grid's total noise {self.grid.total:g} is not the bridge's, {self.bridge.total:g}")

    def to(self, device: torch.device | str) -> SimulatedLaw:
        """Return the law with its grid on `device`."""
        return SimulatedLaw(self.bridge, self.grid.to(device))

    def draw(
        self, token: Int[Tensor, ...], remaining: Float[Tensor, ...] | float, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return states with so much noise still to come, Eq. (19): the last step ends on that very level.

        Without any noise to come the state is the token's vertex, as after the chain's decode step.
        """
        levels = self.grid.remaining.to(token.device)
        wanted = torch.as_tensor(remaining, dtype=levels.dtype, device=token.device).expand(token.shape)
        state = self.bridge.start.point(device=token.device).repeat(*token.shape, 1)
        for step in range(int((levels > wanted.min()).sum()) if token.numel() else 0):
            before, after = levels[step].maximum(wanted), levels[step + 1].maximum(wanted)
            state = self._step(state, token, before, after, generator)
        vertex = torch.zeros_like(state).scatter_(-1, token[..., None], 1.0)
        return torch.where((wanted > 0)[..., None], state, vertex)

    def _step(
        self, state: Tensor, token: Tensor, before: Tensor, after: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Return the state after a step from one level of noise to another; unmoved where they are equal."""
        gain = torch.where(before > after, 1 - after / before, 0.0)  # Eq. (18), as is the variance
        coefficients = StepCoefficients(before.to(state.dtype), gain.to(state.dtype), (after * gain).to(state.dtype))
        move = chain.draw_token_step(self.bridge, state, token, coefficients, generator)
        return sphere.project(sphere.exponential(state, move))
