"""Grids: the decreasing levels of remaining noise at which a chain evaluates the network.

| variable | symbol |
|---|---|
| `remaining[m]` | `B_m`, the remaining noise before step `m` |
| `gain[m]` | `g_m`, the share of the pull that step `m` takes, Eq. (18) |
| `variance[m]` | `s2_m`, the variance of its noise, Eq. (18); 0 in the decode step |
| `total` | `S = B_0` |
| `steps` | `M` |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from rdlm.errors import InputError
from rdlm.process.schedule import Schedule


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
