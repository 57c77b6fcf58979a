"""Paths: the bridge that a position follows at each noise level; mixtures of paths; laws of their states.

A `Path` is one bridge, or two bridges with a switch between them: at the switch a token is sampled from the model and
the state is drawn again from the second bridge's law given that token. A `Mixture` samples one of several paths per
sequence. A `Law` draws the state of a position given its token and the remaining noise; `PathLaw` combines
the laws of the two bridges of a switching path.

| variable | symbol |
|---|---|
| `remaining` | `B`, the remaining noise |
| `switch_remaining` | `B` at the switch of a path, Eq. (32) |
| `level` | `m`, index of a grid's noise level `B_m` |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.process.bridge import Bridge, BridgeKind, masked_start, uniform_start
from rdlm.process.channel import Channel, Gaussian
from rdlm.process.schedule import Grid
from rdlm.process.tokens import Tokens, Vertices
from rdlm.random import Rng


@dataclass(frozen=True)
class Path:
    """One bridge, or `bridge` above the noise level `switch_remaining` and `second` below it, Eq. (32)."""

    bridge: Channel
    second: Channel | None = None
    switch_remaining: float = 0.0

    def __post_init__(self) -> None:
        if self.second is None:
            return
        first, second = ((b.vocabulary, b.total, b.kind) for b in (self.bridge, self.second))
        if first != second:
            raise InputError(
                "the two bridges of a switching path must have the same vocabulary, total noise and kind, "
                f"got {first} and {second}"
            )
        if not 0 < self.switch_remaining < self.bridge.total:
            raise InputError(
                f"the noise at the switch must lie in (0, {self.bridge.total:g}), got {self.switch_remaining:g}"
            )

    @cached_property
    def bridges(self) -> tuple[Channel, ...]:
        """The bridges in the order in which a position follows them."""
        return (self.bridge,) if self.second is None else (self.bridge, self.second)

    def on_second(self, remaining: Float[Tensor, ...]) -> Bool[Tensor, ...]:
        """Return where positions with this remaining noise follow the second bridge: `B <= B_switch`, Eq. (32)."""
        if self.second is None:
            return torch.zeros_like(remaining, dtype=torch.bool)
        return remaining <= self.switch_remaining

    def select(self, remaining: Float[Tensor, ...], values: Sequence[Float[Tensor, "... d"]]) -> Float[Tensor, "... d"]:
        """Return the value of the bridge that each position follows; `values` has one tensor per bridge."""
        if self.second is None:
            return values[0]
        first, second = values
        return torch.where(self.on_second(remaining)[..., None], second, first)

    def start(self, remaining: Float[Tensor, ...], dtype: torch.dtype) -> Float[Tensor, "... d"]:
        """Return the start of the bridge that each position follows."""
        points = [bridge.start.point(dtype, remaining.device) for bridge in self.bridges]
        return self.select(remaining, points).expand(*remaining.shape, self.bridge.dimension)

    def switch_step(self, grid: Grid) -> int | None:
        """Return the step of the grid that crosses `switch_remaining`; None without a second bridge."""
        if self.second is None:
            return None
        return int((~self.on_second(grid.remaining)).sum()) - 1


@dataclass(frozen=True)
class Mixture:
    """Paths with weights, one of them drawn once per sequence as part of the model, Eq. (31)."""

    paths: tuple[Path, ...]
    weights: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.weights) or not self.paths:
            raise InputError("a mixture needs at least one path and one weight per path")
        if min(self.weights) < 0 or not math.isclose(sum(self.weights), 1, abs_tol=1e-9):
            raise InputError(f"the weights of a mixture must be non-negative and sum to 1, got {self.weights}")


ChannelKind = BridgeKind | Literal["gaussian"]


def masked_path(
    vocabulary: int,
    total: float,
    kind: ChannelKind = "brownian",
    tokens: Tokens | None = None,
    family: type[Bridge] = Bridge,
) -> Path:
    """Return the path that starts at the vertex of the mask, or the Gaussian channel, which has no start.

    The tokens are vertices unless their points are given, Eq. (55). `family` may be a class derived from `Bridge`.
    """
    points = tokens or Vertices(vocabulary)
    if kind == "gaussian":
        return Path(Gaussian.of(points, total))
    coordinates = None if points.coordinates == vocabulary else points.coordinates
    return Path(_checked(family(masked_start(vocabulary, coordinates), total, kind, points)))


def uniform_path(vocabulary: int, total: float, kind: BridgeKind = "brownian", family: type[Bridge] = Bridge) -> Path:
    """Return the path that starts at the point with equal coordinates."""
    return Path(_checked(family(uniform_start(vocabulary), total, kind)))


def _checked(bridge: Bridge) -> Bridge:
    """Return a bridge; one of another class must have a slope that is its pull over the sine, Eq. (10).

    The law of the states is computed from `pull` and the steps of the sampler from `slope`: if they differed, the bound
    would be that of another sampler.
    """
    if type(bridge) is not Bridge:
        angle = torch.linspace(0.1, 3.0, 30, dtype=torch.float64)[:, None]
        level = bridge.total * torch.linspace(0.05, 1, 5, dtype=torch.float64)
        pull, slope = bridge.pull(angle, level), bridge.slope(angle.cos().expand(30, 5), level)
        if not torch.allclose(slope * angle.sin(), pull, rtol=1e-3, atol=1e-6):
            raise InputError(f"{type(bridge).__name__}.slope(cos r, B) must be its pull(r, B) / sin r: define both")
    return bridge


def switching_path(
    vocabulary: int, total: float, switch_remaining: float, kind: BridgeKind = "brownian", family: type[Bridge] = Bridge
) -> Path:
    """Return the uniform path that switches to the masked one at `switch_remaining`, Eq. (32)."""
    first = uniform_path(vocabulary, total, kind, family)
    second = masked_path(vocabulary, total, kind, family=family)
    return Path(first.bridge, second.bridge, switch_remaining)


def constant_mixture(
    vocabulary: int, total: float, weight: float, kind: BridgeKind = "brownian", family: type[Bridge] = Bridge
) -> Mixture:
    """Return the masked path with probability `weight` and the uniform one otherwise, Eq. (31)."""
    paths = masked_path(vocabulary, total, kind, family=family), uniform_path(vocabulary, total, kind, family)
    return Mixture(paths, (weight, 1 - weight))


class Law(ABC):
    """The distribution of a state given its token and the remaining noise; laws are dataclasses."""

    grid: Grid
    """The chain whose states are drawn."""

    @abstractmethod
    def draw(
        self, token: Int[Tensor, ...], remaining: Float[Tensor, ...] | float, generator: Rng = None
    ) -> Float[Tensor, "... d"]:
        """Return one state per token; `remaining` broadcasts to the shape of `token`."""

    def draw_at_level(
        self, token: Int[Tensor, ...], level: Int[Tensor, ...], generator: Rng = None
    ) -> Float[Tensor, "... d"]:
        """Return one state per token at levels of the grid: 0 is the start and M the vertex."""
        return self.draw(token, self.grid.remaining.to(token.device)[level], generator)

    def to(self, device: torch.device | str) -> Self:
        """Return the law with its grid and its tables on `device`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        moved = {name: value.to(device) for name, value in values.items() if hasattr(value, "to")}
        return replace(self, **moved)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class PathLaw(Law):
    """The law of a path's states: that of its first bridge above the switch and of its second below, Eq. (32)."""

    path: Path
    grid: Grid
    laws: tuple[Law, ...]
    """One law per bridge, all on `grid`."""

    @staticmethod
    def of(path: Path, law: Callable[[Channel], Law]) -> PathLaw:
        """Return the law of a path from a function that returns the law of each bridge."""
        laws = tuple(law(bridge) for bridge in path.bridges)
        return PathLaw(path, laws[0].grid, laws)

    def draw(self, token: Tensor, remaining: Tensor | float, generator: Rng = None) -> Tensor:
        """Return one state per token; `remaining` broadcasts to the shape of `token`."""
        states = [law.draw(token, remaining, generator) for law in self.laws]
        return self.path.select(torch.as_tensor(remaining, device=token.device), states)

    def draw_at_level(self, token: Tensor, level: Tensor, generator: Rng = None) -> Tensor:
        """Return one state per token at levels of the grid: 0 is the start and M the vertex."""
        remaining = self.grid.remaining.to(token.device)[level]
        return self.path.select(remaining, [law.draw_at_level(token, level, generator) for law in self.laws])

    def to(self, device: torch.device | str) -> PathLaw:
        """Return the law with its tables on `device`."""
        return PathLaw(self.path, self.grid.to(device), tuple(law.to(device) for law in self.laws))


def log_evidence(path: Path, state: Float[Tensor, "... d"], remaining: Float[Tensor, ...]) -> Float[Tensor, "... v"]:
    """Return the log-likelihood of every token given each position's own state alone, Eq. (27).

    It is the same for both bridges of a switching path, because it depends on the angles to the tokens only. Raises
    InputError outside the range of the heat kernel's expansion, also for the logarithm bridge.
    """
    path.bridge.check_evidence()
    return path.bridge.log_likelihood(state, remaining)


def joint_posterior(
    path: Path, log_joint: Tensor, state: Float[Tensor, "batch length d"], remaining: Float[Tensor, "batch length"]
) -> Float[Tensor, "batch length v"]:
    """Return `log p(token | all states)` by Bayes' rule for tokens with a known joint distribution, Eq. (27).

    `log_joint` has one axis of `v` entries per position. Exact for the Brownian bridge, approximate for the
    logarithm bridge.
    """
    evidence = log_evidence(path, state, remaining)
    batch, length, tokens = evidence.shape
    joint = log_joint.to(evidence)  # [v, ..., v]
    for position in range(length):
        shape = [batch] + [tokens if axis == position else 1 for axis in range(length)]
        joint = joint + evidence[:, position].view(shape)  # [batch, v, ..., v]
    marginals = [joint.movedim(position + 1, 1).reshape(batch, tokens, -1).logsumexp(-1) for position in range(length)]
    return torch.log_softmax(torch.stack(marginals, dim=1), dim=-1)
