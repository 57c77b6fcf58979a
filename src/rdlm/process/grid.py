"""Grids: the falling levels of noise still to come at which a chain stops to call the network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from rdlm.errors import InputError
from rdlm.process.schedule import Schedule


class StepCoefficients(NamedTuple):
    """What a step of a chain needs to know: the noise before it, its gain and its variance, Eq. (18)."""

    remaining: Tensor
    gain: Tensor
    variance: Tensor


@dataclass(frozen=True, eq=False)
class Grid:
    """Noise levels `B_0 = S > ... > B_M = 0` of a chain with `M` network calls; the last step decodes.

    | variable | symbol |
    |---|---|
    | `noise[m]` | `B_m` |
    | `gain[m]` | `g_m`, the part of the pull that step `m` takes, Eq. (18) |
    | `variance[m]` | `s2_m`, the variance of its noise, Eq. (18); 0 in the decode step |
    """

    remaining: Tensor

    def __post_init__(self) -> None:
        levels = self.remaining
        if levels.ndim != 1 or len(levels) < 2:
            raise InputError("a grid needs at least two noise levels")
        if not bool((levels[1:] < levels[:-1]).all()) or levels[-1].item() != 0:
            raise InputError("the noise levels of a grid must fall strictly and end in 0: the clock is not monotone")

    @property
    def steps(self) -> int:
        """Return the number of steps `M`, which is the number of network calls."""
        return len(self.remaining) - 1

    @property
    def total(self) -> float:
        """Return the total noise `S`."""
        return float(self.remaining[0])

    @cached_property
    def gain(self) -> Tensor:
        """Return `g_m = 1 - B_{m+1}/B_m`, Eq. (18); 1 in the decode step."""
        return 1 - self.remaining[1:] / self.remaining[:-1]

    @cached_property
    def variance(self) -> Tensor:
        """Return `s2_m = B_{m+1} (B_m - B_{m+1}) / B_m`, Eq. (18)."""
        return self.remaining[1:] * self.gain

    @cached_property
    def coefficient_table(self) -> Tensor:
        """Return noise, gain and variance of every step beside each other, [M, 3]."""
        return torch.stack([self.remaining[:-1], self.gain, self.variance], -1)

    def to(self, device: torch.device | str) -> Grid:
        """Return the grid with its levels on `device`."""
        return Grid(self.remaining.to(device))


def uniform_in_time(schedule: Schedule, steps: int) -> Grid:
    """Return the paper's grid: times `m / M` under the schedule."""
    _check(steps)
    return Grid(schedule.remaining(torch.linspace(0, 1, steps + 1, dtype=torch.float64)))


def uniform_in_log_remaining(total: float, steps: int, last: float = 1e-3) -> Grid:
    """Return a grid of equal ratios from `S` to `last * S`, then 0; one step decodes at once."""
    _check(steps)
    levels = total * last ** torch.linspace(0, 1, steps, dtype=torch.float64)
    return Grid(torch.cat([levels, levels.new_zeros(1)]))


def equal_information(remaining: Tensor, nats: Tensor, steps: int) -> Grid:
    """Return a grid whose steps gain equally many nats each, from a measured curve, the decode step included.

    `remaining` falls from `S` to 0, and `nats[i]` are those gained by the time that `noise[i]` is still to come.
    """
    _check(steps)
    level, gained = remaining.double(), nats.double()
    if level.shape != gained.shape or level.ndim != 1 or len(level) < 2 or not bool(torch.isfinite(gained).all()):
        raise InputError("a curve of information needs as many finite nats as noise levels, and at least two of each")
    Grid(level)  # refuses levels that do not fall to 0
    # Noise of the measurement can make the curve fall: its running maximum does not, and a small slope makes it rise.
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
