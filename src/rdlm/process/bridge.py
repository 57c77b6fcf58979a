"""Bridges of the sphere from a start to the points of the tokens: the paper's logarithm bridge, the Brownian bridge.

A start is a point of the sphere with the same angle to every token. The two kinds of bridge differ in one function:
`pull`, the length of the drift towards a token before the schedule scales it. The same heat kernel gives the Brownian
pull and the evidence for a token.

| variable | symbol |
|---|---|
| `cosine` | `<x, c_k>`, the product with the token's vector: for one-hot `c_k` a coordinate of the state |
| `angle` | `theta_k` |
| `remaining` | `B`, the remaining noise |
| `token_weight` | `zeta`, the squared length of the start's part on the tokens, Eq. (34) |
| `_half`, `_second` | `h = (n - 1) / 2` with `n = d - 1` the sphere's dimension, and `h (h - 1) / 2` |
| `slope` (per token) | `f_k = pull / sin theta_k`: the drift is `f_k (c_k - <x, c_k> x)` |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, get_args

import torch
from torch import Tensor

from rdlm.config import PAPER_TOTAL_NOISE
from rdlm.errors import InputError, unknown
from rdlm.geometry import special, sphere
from rdlm.process.channel import Channel
from rdlm.process.tokens import MANY_TOKENS, Codes, Tokens
from rdlm.random import Rng


@dataclass(frozen=True)
class Start:
    """The point `sqrt(1-zeta) e_mask + sqrt(zeta/V) sum_k e_k`, Eq. (34), on the sphere of `V + 1` coordinates.

    The tokens are the first `vocabulary` coordinates, the mask is the last one. `token_weight` is `zeta`. Tokens with
    codes lie in `coordinates` coordinates; their angles to the start are equal for `zeta = 0` only.
    """

    vocabulary: int
    token_weight: float = 0.0
    coordinates: int | None = None
    """Coordinates without the mask's; None: one per token."""

    def __post_init__(self) -> None:
        if self.vocabulary < 2:
            raise InputError(f"a vocabulary needs at least 2 tokens, got {self.vocabulary}")
        if not 0 <= self.token_weight <= 1:
            raise InputError(f"the token weight of a start must lie in [0, 1], got {self.token_weight}")
        if self.coordinates is not None and self.token_weight > 0:
            raise InputError("codes need the masked start: any other start has unequal angles to the tokens")

    @cached_property
    def dimension(self) -> int:
        """`d`, the number of coordinates, the mask's included."""
        return (self.coordinates or self.vocabulary) + 1

    @cached_property
    def token_coordinate(self) -> float:
        """The start's coordinate on each token, the cosine of its angle to the token."""
        return math.sqrt(self.token_weight / self.vocabulary)

    @cached_property
    def mask_coordinate(self) -> float:
        """The start's coordinate on the mask."""
        return math.sqrt(1 - self.token_weight)

    @cached_property
    def angle(self) -> float:
        """`r_0`, the start's angle to every token."""
        return math.acos(self.token_coordinate)

    def point(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """Return the start as a vector [d], Eq. (34)."""
        point = torch.full((self.dimension,), self.token_coordinate, dtype=dtype, device=device)
        point[-1] = self.mask_coordinate
        return point


def masked_start(vocabulary: int, coordinates: int | None = None) -> Start:
    """Return the mask's vertex, Eq. (34) with `zeta = 0`: the start that generalises masked diffusion."""
    return Start(vocabulary, 0.0, coordinates)


def uniform_start(vocabulary: int) -> Start:
    """Return the normalised vector of ones, Eq. (34) with `zeta = V / (V + 1)`, as in the paper."""
    return Start(vocabulary, vocabulary / (vocabulary + 1))


BridgeKind = Literal["brownian", "logarithm"]

EXPANSION_RANGE: Final = 2.0
"""Largest `S (d - 2)` at which two terms of the heat kernel give log-ratios within 1% (see docs/theory.md)."""


def largest_total(dimension: int, share: float = 1.0) -> float:
    """Return the largest total noise S at which the evidence is accurate, or a share of it, rounded down to 2 digits.

    A sphere of 2 coordinates, a vocabulary of one token, has no limit.
    """
    limit = share * EXPANSION_RANGE / max(dimension - 2, 1)
    digit = 10.0 ** (math.floor(math.log10(limit)) - 1)
    return math.floor(limit / digit * (1 + 1e-12)) * digit


def default_total(dimension: int) -> float:
    """Return the paper's total noise, or 90% of the limit of the expansion of Eq. (25) where that is less."""
    return min(PAPER_TOTAL_NOISE, largest_total(dimension, 0.9))


IRRELEVANT: Final = 25.0
"""Difference in nats to the best token beyond which the evidence of a token is negligible."""

FARTHEST: Final = 2.8
"""Largest angle at which evidence is interpolated; the antipode is singular."""


@dataclass(frozen=True)
class Bridge(Channel):
    """The family of bridges from `start` to each token's point with total noise `total`, Eq. (10).

    The law of a bridge does not depend on the vectors of the tokens, Eq. (55), so comparisons ignore them.
    """

    start: Start
    total: float
    kind: BridgeKind = "brownian"
    points: Tokens | None = field(default=None, compare=False)
    """The points of the tokens; None: the vertices of the first coordinates."""

    def __post_init__(self) -> None:
        if not 0 < self.total < float("inf"):
            raise InputError(f"the total noise S of a bridge must be positive, got {self.total}")
        if self.kind not in get_args(BridgeKind):
            raise unknown("bridge", self.kind, get_args(BridgeKind))
        if self.tokens.coordinates + 1 != self.start.dimension:
            raise InputError(
                f"tokens in {self.tokens.coordinates} coordinates need a sphere of one more, got {self.start.dimension}"
            )
        if self.kind == "brownian":
            self.check_evidence()

    @cached_property
    def dimension(self) -> int:
        """`d`, the number of coordinates."""
        return self.start.dimension

    @cached_property
    def _half(self) -> float:
        return (self.dimension - 2) / 2

    @cached_property
    def _second(self) -> float:
        return self._half * (self._half - 1) / 2

    def with_points(self, points: Tokens) -> Bridge:
        """Return the same bridges to tokens at other points."""
        return replace(self, points=points)

    def check_evidence(self) -> None:
        """Raise InputError if the heat-kernel expansion, hence the evidence, is not accurate at the total noise."""
        if self.total * (self.dimension - 2) > EXPANSION_RANGE:
            raise InputError(
                f"the Brownian bridge and the evidence need S (d - 2) <= {EXPANSION_RANGE}, got S = {self.total:g} "
                f"with d = {self.dimension}: lower the total noise to {largest_total(self.dimension):.2g}, "
                "or leave it out (process.total null: chosen by the number of tokens); split tokens into digits "
                "(process.base); or use the logarithm bridge without evidence"
            )

    def _shortening(self, curve: Tensor, bend: Tensor, remaining: Tensor | float) -> Tensor:
        """Return `pull / theta` of the Brownian bridge, Eq. (26), from `cotangent_curve` and `cotangent_bend`."""
        return 1 + remaining * (self._half * curve - remaining * self._second * bend)

    def pull(self, angle: Tensor, remaining: Tensor | float) -> Tensor:
        """Return the length of the pull at an angle: `theta` for the logarithm bridge, Eq. (26) for the Brownian."""
        if self.kind == "logarithm":
            return angle
        return angle * self._shortening(special.cotangent_curve(angle), special.cotangent_bend(angle), remaining)

    def slope(self, cosine: Tensor, remaining: Tensor | float) -> Tensor:
        """Return `f = pull / sin(theta)`, Eq. (10), as a smooth function of the cosine with a finite limit at 1."""
        if cosine.requires_grad and self._interpolates(cosine):
            level = torch.as_tensor(remaining).to(cosine)
            return self._of_many(lambda some: self.slope(some, level), cosine, level)
        if self.kind == "logarithm":
            return special.angle_over_sine(cosine)
        inverse, ratio, curve, bend = special.angle_over_sine_and_curves(cosine)
        level = inverse * remaining  # Eq. (26) as in `_shortening`, in fewer operations
        shortening = torch.addcmul(self._half * curve, level, bend, value=-self._second).mul_(level).add_(1)
        if cosine.requires_grad:  # the three functions share their memory
            return ratio * inverse * shortening
        return ratio.mul_(inverse).mul_(shortening)

    def log_likelihood(self, state: Tensor, remaining: Tensor | float) -> Tensor:
        """Return the evidence `log h(x, e_k)` for every token up to a common constant, Eq. (25).

        A finished position (`B = 0`) is evaluated at the smallest noise: its evidence is one-hot but finite.
        """
        cosine = self.tokens.cosines(state)
        level = torch.as_tensor(remaining, dtype=state.dtype, device=state.device)
        level = level.clamp_min(special.SMALLEST_NOISE)[..., None]
        if self._interpolates(cosine):
            return self._of_many(lambda some: self._log_likelihood(some, level), cosine, level)
        return self._log_likelihood(cosine, level)

    def _interpolates(self, cosine: Tensor) -> bool:
        return isinstance(self.tokens, Codes) and cosine.shape[-1] >= MANY_TOKENS and cosine.dtype == torch.float32

    def _of_many(self, function: Callable[[Tensor], Tensor], cosine: Tensor, level: Tensor) -> Tensor:
        """Return a function of the cosines of very many tokens by interpolation where their evidence matters."""
        high = cosine.detach().amax(-1, keepdim=True)
        farthest = special.squared_angle(high) + 2 * IRRELEVANT * level
        low = torch.cos(farthest.sqrt().clamp_max(FARTHEST))
        return special.interpolated_(function, cosine, low, high.maximum(low + special.SMALLEST_NOISE))

    def _log_likelihood(self, cosine: Tensor, level: Tensor) -> Tensor:
        """Return Eq. (25) as a function of the cosine."""
        return (
            -special.squared_angle(cosine) / (2 * level)
            + self._half * special.log_angle_over_sine(cosine)
            + level * self._second * special.cotangent_curve(special.angle(cosine))
        )

    def token_direction(self, state: Tensor, token: Tensor, weight: Tensor) -> Tensor:
        """Return the tangent vector `w (c_k - <x, c_k> x)`; with `w = f_k` the pull towards the token, Eq. (10)."""
        cosine = self.tokens.cosine(state, token)
        return self.tokens.add_((-weight * cosine)[..., None] * state, token, weight)

    def mixture_direction(self, state: Tensor, weight: Tensor) -> Tensor:
        """Return `sum_k w_k (c_k - <x, c_k> x)` in one pass over the coordinates, Eq. (11).

        With `w_k = p_k f_k` this is the mixture's drift divided by `gamma_t` of the schedule.
        """
        along = self.tokens.mean_product(state, weight)
        return self.tokens.add_mean_(-along[..., None] * state, weight)

    def squared_length(self, state: Tensor, weight: Tensor) -> Tensor:
        """Return the squared length of `mixture_direction`, Eq. (11): `|sum_k w_k c_k|^2 - <sum_k w_k c_k, x>^2`."""
        whole, along = self.tokens.mean_squares(state, weight)
        return (whole - along).clamp_min(0)

    def squared_distance(self, state: Tensor, cosine: Tensor) -> Tensor:
        """Return `|c_k - <x, c_k> x|^2 = 1 - <x, c_k>^2`."""
        return 1 - cosine.square()

    def products(self, state: Tensor, step: Tensor) -> Tensor:
        """Return `<c_k - <x, c_k> x, u> = <c_k, u>` for a tangent step."""
        return self.tokens.cosines(step)

    def noise(self, state: Tensor, generator: Rng = None) -> Tensor:
        """Return a standard normal vector of the tangent space at each state, Eq. (41)."""
        return sphere.tangent_normal(state, generator)

    def move(self, state: Tensor, step: Tensor) -> Tensor:
        """Return the states after a tangent step, Eq. (4) and (19)."""
        return sphere.project(sphere.exponential(state, step))

    def move_(self, state: Tensor, ambient: Tensor, scale: Tensor | None, weight: Tensor) -> Tensor:
        """Return the states after the tangent part of the step `s a`, Eq. (4); `weight` is not used."""
        return sphere.exponential_(state, ambient, scale)
