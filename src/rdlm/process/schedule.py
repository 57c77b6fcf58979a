"""Schedules: maps from time `t` in [0, 1] to remaining noise; grids: the noise levels of a chain's steps.

The law of a bridge depends on its total noise `S` alone; a schedule determines at what time it is added.

| variable | symbol |
|---|---|
| `rate(t)` | `beta_t = sigma_t^2` |
| `remaining(t)` | `B(t)`, the integral of `beta` from `t` to 1 |
| `total` | `S = B(0)` |
| `Grid.remaining[m]` | `B_m` |
| `Grid.gain[m]`, `Grid.variance[m]` | `g_m` and `s2_m`, Eq. (18) |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from rdlm.errors import InputError, unknown

PAPER_FIRST_RATE: Final = 1e-3
PAPER_LAST_RATE: Final = 0.2


class Schedule(ABC):
    """A noise schedule, Eq. (8): remaining noise that decreases strictly from `total` at time 0 to 0 at time 1."""

    @property
    @abstractmethod
    def total(self) -> float:
        """The total noise `S = B(0)`, Eq. (8)."""

    @abstractmethod
    def _rate(self, time: Tensor) -> Tensor: ...

    @abstractmethod
    def _remaining(self, time: Tensor) -> Tensor: ...

    @abstractmethod
    def _time(self, remaining: Tensor) -> Tensor: ...

    def rate(self, time: Tensor | float) -> Tensor:
        """Return `beta_t`, Eq. (8)."""
        return self._rate(_checked(time, "time", 1.0))

    def remaining(self, time: Tensor | float) -> Tensor:
        """Return the remaining noise `B(t)`, Eq. (8); `S` at 0 and exactly 0 at 1."""
        return self._remaining(_checked(time, "time", 1.0))

    def time(self, remaining: Tensor | float) -> Tensor:
        """Return the time at which `B(t)` is `remaining`, the inverse of Eq. (8)."""
        return self._time(_checked(remaining, "remaining noise", self.total))


def _checked(value: Tensor | float, name: str, largest: float) -> Tensor:
    """Return `value` as a tensor (numbers in float64) after a check of its range on the CPU."""
    tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    # Only on the CPU: on another device the check would force a synchronisation.
    if tensor.device.type == "cpu" and tensor.numel():
        low, high = tensor.min().item(), tensor.max().item()
        slack = 1e-6 * largest  # float32 rounding of an end point
        if not (-slack <= low and high <= largest + slack):
            raise InputError(f"{name} must lie in [0, {largest:g}], got values from {low:g} to {high:g}")
    return tensor


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be a positive number, got {value}")


def check_inverse(found: Schedule) -> None:
    """Raise InputError unless a schedule's remaining noise decreases from its total to 0, and `time` is the inverse."""
    time = torch.linspace(0, 1, 17, dtype=torch.float64)
    remaining = found.remaining(time)
    slack = 1e-4 * found.total
    ends = abs(float(remaining[0]) - found.total) <= slack and abs(float(remaining[-1])) <= slack
    if not ends or not bool((remaining.diff() < 0).all()):
        raise InputError(f"{found!r} must decrease strictly from its total noise {found.total:g} to 0 at time 1")
    if not torch.allclose(found.remaining(found.time(remaining.clamp(0, found.total))), remaining, rtol=0, atol=slack):
        raise InputError(f"the times of {found!r} are not the inverse of its remaining noise")


@dataclass(frozen=True)
class Geometric(Schedule):
    """The paper's schedule, Eq. (9): `beta_t = first^(1-t) last^t`."""

    first: float = PAPER_FIRST_RATE
    last: float = PAPER_LAST_RATE

    def __post_init__(self) -> None:
        _positive(first_rate=self.first, last_rate=self.last)

    @cached_property
    def _slope(self) -> float:
        return math.log(self.last / self.first)

    @property
    def total(self) -> float:
        """`S`, Eq. (8)."""
        slope = self._slope
        return self.first if slope == 0 else (self.last - self.first) / slope

    def _rate(self, time: Tensor) -> Tensor:
        return self.first * torch.exp(self._slope * time)

    def _remaining(self, time: Tensor) -> Tensor:
        if self._slope == 0:
            return self.first * (1 - time)
        return -self.last * torch.expm1(self._slope * (time - 1)) / self._slope

    def _time(self, remaining: Tensor) -> Tensor:
        if self._slope == 0:
            return 1 - remaining / self.first
        return 1 + torch.log1p(-remaining * self._slope / self.last) / self._slope


@dataclass(frozen=True)
class Linear(Schedule):
    """A rate that is linear in time, `beta_t = first + (last - first) t`; `first == last` is the constant schedule."""

    first: float
    last: float

    def __post_init__(self) -> None:
        _positive(first_rate=self.first, last_rate=self.last)

    @property
    def total(self) -> float:
        """`S`, Eq. (8)."""
        return (self.first + self.last) / 2

    def _rate(self, time: Tensor) -> Tensor:
        return self.first + (self.last - self.first) * time

    def _remaining(self, time: Tensor) -> Tensor:
        left = 1 - time
        return left * (self.last - (self.last - self.first) * left / 2)

    def _time(self, remaining: Tensor) -> Tensor:
        root = torch.sqrt((self.last**2 - 2 * (self.last - self.first) * remaining).clamp_min(0))
        return 1 - 2 * remaining / (self.last + root)


@dataclass(frozen=True)
class Cosine(Schedule):
    """The schedule `B(t) = S cos^2(pi t / 2)`, whose rate is 0 at both ends."""

    noise: float

    def __post_init__(self) -> None:
        _positive(total=self.noise)

    @property
    def total(self) -> float:
        """`S`, Eq. (8)."""
        return self.noise

    def _rate(self, time: Tensor) -> Tensor:
        return self.total * math.pi / 2 * torch.sin(math.pi * time)

    def _remaining(self, time: Tensor) -> Tensor:
        return self.total * torch.sin(math.pi / 2 * (1 - time)).square()

    def _time(self, remaining: Tensor) -> Tensor:
        return 1 - 2 / math.pi * torch.asin((remaining / self.total).clamp(0, 1).sqrt())


def interpolate(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Return the piecewise linear function through (knots, values) at `x`; `knots` increase."""
    index = torch.searchsorted(knots, x.contiguous(), right=True).clamp(1, len(knots) - 1)
    weight = (x - knots[index - 1]) / (knots[index] - knots[index - 1])
    return torch.lerp(values[index - 1], values[index], weight)


ScheduleName = Literal["geometric", "constant", "linear", "cosine"]


def schedule(name: str, total: float) -> Schedule:
    """Return the schedule of that name scaled to the total noise `S`, Eq. (8)."""
    _positive(total=total)
    match name:
        case "geometric":
            scale = total / Geometric().total
            return Geometric(PAPER_FIRST_RATE * scale, PAPER_LAST_RATE * scale)
        case "constant":
            return Linear(total, total)
        case "linear":
            return Linear(2 * total / 201, 400 * total / 201)  # as in the paper, the last rate is 200 times the first
        case "cosine":
            return Cosine(total)
    raise unknown("schedule", name, get_args(ScheduleName))


class StepCoefficients(NamedTuple):
    """Remaining noise before a step of a chain, its gain and its variance, Eq. (18)."""

    remaining: Tensor
    gain: Tensor
    variance: Tensor


@dataclass(frozen=True, eq=False)
class Grid:
    """Noise levels `B_0 = S > ... > B_M = 0` of a chain with `M` network evaluations; the last step decodes."""

    remaining: Tensor

    def __post_init__(self) -> None:
        levels = self.remaining
        if levels.ndim != 1 or len(levels) < 2:
            raise InputError("a grid needs at least two noise levels")
        if levels.device.type != "cpu":
            return  # checked before it was moved there; reading it would wait for the device
        if not bool((levels[1:] < levels[:-1]).all()) or levels[-1].item() != 0:
            raise InputError("the noise levels of a grid must decrease strictly to 0: the schedule is not monotone")

    @property
    def steps(self) -> int:
        """The number of steps `M`, which is the number of network evaluations."""
        return len(self.remaining) - 1

    @property
    def total(self) -> float:
        """The total noise `S`."""
        return float(self.remaining[0])

    @cached_property
    def gain(self) -> Tensor:
        """`g_m = 1 - B_{m+1}/B_m`, Eq. (18); 1 in the decode step."""
        return 1 - self.remaining[1:] / self.remaining[:-1]

    @cached_property
    def variance(self) -> Tensor:
        """`s2_m = B_{m+1} (B_m - B_{m+1}) / B_m`, Eq. (18)."""
        return self.remaining[1:] * self.gain

    @cached_property
    def coefficient_table(self) -> Tensor:
        """Remaining noise, gain and variance of every step, Eq. (18): [M, 3]."""
        return torch.stack([self.remaining[:-1], self.gain, self.variance], -1)

    def to(self, device: torch.device | str) -> Grid:
        """Return the grid with its levels on `device`."""
        return Grid(self.remaining.to(device))


def check_total(grid: Grid, total: float) -> None:
    """Raise InputError if the grid's total noise differs from that of a bridge."""
    if abs(grid.total - total) > 1e-6 * total:
        raise InputError(f"the grid's total noise {grid.total:g} is not the bridge's, {total:g}")


def uniform_in_time(schedule: Schedule, steps: int) -> Grid:
    """Return the paper's grid, `B_m = B(m / M)` under the schedule, Eq. (8)."""
    _check(steps)
    return Grid(schedule.remaining(torch.linspace(0, 1, steps + 1, dtype=torch.float64)))


def uniform_in_log_remaining(total: float, steps: int, last: float = 1e-3) -> Grid:
    """Return a grid with equal ratios from `S` to `last * S`, then 0; a single step only decodes."""
    _check(steps)
    levels = total * last ** torch.linspace(0, 1, steps, dtype=torch.float64)
    return Grid(torch.cat([levels, levels.new_zeros(1)]))


def equal_information(remaining: Tensor, nats: Tensor, steps: int) -> Grid:
    """Return a grid whose steps, the decode step included, each gain the same information by a measured curve.

    `remaining` decreases from `S` to 0; `nats[i]` is the information gained down to `remaining[i]`.
    """
    _check(steps)
    level, gained = remaining.double(), nats.double()
    if level.shape != gained.shape or level.ndim != 1 or len(level) < 2 or not bool(torch.isfinite(gained).all()):
        raise InputError("an information curve needs at least two noise levels and one finite value in nats per level")
    Grid(level)  # raises InputError unless the levels decrease to 0
    # A measured curve can decrease by chance: take the running maximum, plus a small slope.
    gained = torch.cummax(gained - gained[0], 0).values
    gained = gained + 1e-6 * (gained[-1] + 1e-300) * torch.linspace(0, 1, len(gained), dtype=gained.dtype)
    target = torch.linspace(0, 1, steps + 1, dtype=gained.dtype) * gained[-1]
    index = torch.searchsorted(gained, target).clamp(1, len(gained) - 1)
    share = ((target - gained[index - 1]) / (gained[index] - gained[index - 1])).clamp(0, 1)
    levels = torch.lerp(level[index - 1], level[index], share)
    levels[0], levels[-1] = level[0], 0.0
    return Grid(levels)


def _check(steps: int) -> None:
    if steps < 1:
        raise InputError(f"a grid needs at least one step, got {steps}")
