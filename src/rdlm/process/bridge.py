"""Bridges from a start to the vertices of the tokens: the paper's logarithm bridge and the Brownian one.

One function makes the difference: `pull`, the length of the drift towards a token before it is
scaled by the clock. The same heat kernel gives the Brownian pull and the evidence for a token.

| variable | symbol |
|---|---|
| `cosine` | `<x, e_k>`, the state's coordinate on the token |
| `angle` | `theta_k` |
| `noise` | `B`, the noise still to come |
| `_half`, `_second` | `h = (n - 1) / 2` with `n = d - 1` the sphere's dimension, and `h (h - 1) / 2` |
| `slope` (per token) | `pull / sin theta`: the drift is `slope (e_k - x_k x)` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError, unknown
from rdlm.geometry import special
from rdlm.process.start import Start

BridgeKind = Literal["brownian", "logarithm"]

EXPANSION_RANGE: Final = 2.0
"""Largest `S (d - 2)` at which two terms of the heat kernel hold log-ratios to 1% (see docs/theory.md)."""


@dataclass(frozen=True)
class Bridge:
    """All bridges of one family: from `start` to each token's vertex with total noise `total`, Eq. (10)."""

    start: Start
    total: float
    kind: BridgeKind = "brownian"

    def __post_init__(self) -> None:
        if not 0 < self.total < float("inf"):
            raise InputError(f"the total noise S of a bridge must be positive, got {self.total}")
        if self.kind not in get_args(BridgeKind):
            raise unknown("bridge", self.kind, get_args(BridgeKind))
        if self.kind == "brownian":
            self.check_evidence()

    @property
    def dimension(self) -> int:
        """Return `d`, the number of coordinates."""
        return self.start.dimension

    @property
    def vocabulary(self) -> int:
        """Return `V`, the number of tokens."""
        return self.start.vocabulary

    @property
    def _half(self) -> float:
        return (self.dimension - 2) / 2

    @property
    def _second(self) -> float:
        return self._half * (self._half - 1) / 2

    def check_evidence(self) -> None:
        """Raise an error where the heat-kernel expansion, hence the evidence, is not accurate."""
        largest = 0.99 * EXPANSION_RANGE / (self.dimension - 2)  # rounded in print
        if self.total * (self.dimension - 2) > EXPANSION_RANGE:
            raise InputError(
                f"the Brownian bridge and the evidence need S (d - 2) <= {EXPANSION_RANGE}, got S = {self.total:g} "
                f"with d = {self.dimension}: lower the total noise to {largest:.2g}, "
                "split tokens into digits, or take the logarithm bridge without evidence"
            )

    def _shortening(self, curve: Tensor, bend: Tensor, noise: Tensor | float) -> Tensor:
        """Return `pull / angle` of the Brownian bridge, Eq. (26), from the cotangent's curve and bend at the angle."""
        return 1 + noise * (self._half * curve - noise * self._second * bend)

    def pull(self, angle: Tensor, noise: Tensor | float) -> Tensor:
        """Return the length of the pull at an angle: the angle itself, or Eq. (26) for the Brownian bridge."""
        if self.kind == "logarithm":
            return angle
        return angle * self._shortening(special.cotangent_curve(angle), special.cotangent_bend(angle), noise)

    def slope(self, cosine: Tensor, noise: Tensor | float) -> Tensor:
        """Return `pull / sin(angle)` as a smooth function of the cosine, with a finite limit at 1."""
        if self.kind == "logarithm":
            return special.angle_over_sine(cosine)
        inverse, ratio, curve, bend = special.angle_over_sine_and_curves(cosine)
        level = inverse * noise  # Eq. (26) as `_shortening` has it, in few operations
        shortening = torch.addcmul(self._half * curve, level, bend, value=-self._second).mul_(level).add_(1)
        return ratio.mul_(inverse).mul_(shortening)

    def log_likelihood(
        self, state: Float[Tensor, "... d"], noise: Float[Tensor, "..."] | float
    ) -> Float[Tensor, "... v"]:
        """Return the evidence `log h(x, e_k)` for every token up to a common constant, Eq. (25).

        A finished position (noise 0) is evaluated at the smallest noise, which decides for its token.
        """
        cosine = state[..., : self.vocabulary]
        level = torch.as_tensor(noise, dtype=state.dtype, device=state.device)
        level = level.clamp_min(special.SMALLEST_NOISE)[..., None]
        return (
            -special.squared_angle(cosine) / (2 * level)
            + self._half * special.log_angle_over_sine(cosine)
            + level * self._second * special.cotangent_curve(special.angle(cosine))
        )


def token_direction(
    state: Float[Tensor, "... d"], token: Int[Tensor, "..."], slope: Float[Tensor, "..."]
) -> Float[Tensor, "... d"]:
    """Return the tangent vector `slope (e_k - x_k x)`, the pull towards one token per position, Eq. (10)."""
    index = token[..., None]
    weight = slope[..., None]
    cosine = state.gather(-1, index)
    return (-weight * cosine * state).scatter_add(-1, index, weight)


def mixture_direction(
    state: Float[Tensor, "... d"], weight: Float[Tensor, "... v"]
) -> Float[Tensor, "... d"]:
    """Return `sum_k w_k (e_k - x_k x)` in one pass over the coordinates, Eq. (11).

    With `w_k = p_k slope_k` this is the mixture's drift over the clock's rate; no [d, d] tensor arises.
    """
    tokens = weight.shape[-1]
    along = (weight * state[..., :tokens]).sum(-1, keepdim=True)
    direction = -along * state
    direction[..., :tokens] += weight
    return direction


def squared_length(state: Float[Tensor, "... d"], weight: Float[Tensor, "... v"]) -> Float[Tensor, "..."]:
    """Return the squared length of `mixture_direction` without building it: `|w|^2 - <w, x>^2`."""
    along = (weight * state[..., : weight.shape[-1]]).sum(-1)
    return (weight.square().sum(-1) - along.square()).clamp_min(0)
