"""Noise schedules: maps from time `t` in [0, 1] to the remaining noise `B(t)`, Eq. (8).

The distribution of a bridge's path depends on its total noise `S` alone; a schedule only reparametrises time.

| variable | symbol |
|---|---|
| `rate(t)` | `beta_t = sigma_t^2` |
| `remaining(t)` | `B(t)`, the integral of `beta` from `t` to 1 |
| `total` | `S = B(0)` |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Literal

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


@dataclass(frozen=True)
class Geometric(Schedule):
    """The paper's schedule, Eq. (9): `beta_t = first^(1-t) last^t`."""

    first: float = PAPER_FIRST_RATE
    last: float = PAPER_LAST_RATE

    def __post_init__(self) -> None:
        _positive(first_rate=self.first, last_rate=self.last)

    @property
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
    paper = Geometric()
    scale = total / paper.total
    named: dict[str, Schedule] = {
        "geometric": Geometric(paper.first * scale, paper.last * scale),
        "constant": Linear(total, total),
        "linear": Linear(2 * total / 201, 400 * total / 201),  # as in the paper, the last rate is 200 times the first
        "cosine": Cosine(total),
    }
    if name not in named:
        raise unknown("schedule", name, named)
    return named[name]
