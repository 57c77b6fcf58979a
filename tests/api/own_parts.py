"""A network, a schedule and a bridge as a user may write them, importable by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rdlm.config import Interface
from rdlm.geometry import special
from rdlm.process.bridge import Bridge
from rdlm.process.schedule import Schedule


class Mixer(nn.Module):
    """A network that mixes neighbouring positions."""

    def __init__(self, config: Any, interface: Interface) -> None:
        super().__init__()
        self.input = nn.Linear(interface.features, config.width)
        self.mix = nn.Conv1d(config.width, config.width, 3, padding=1)
        self.output = nn.Linear(config.width, interface.outputs)

    def forward(
        self, inputs: Tensor, time: Tensor, condition: Tensor | None = None, previous: Tensor | None = None
    ) -> Tensor:
        hidden = torch.tanh(self.input(inputs))
        return self.output(hidden + self.mix(hidden.transpose(1, 2)).transpose(1, 2))


class Quadratic(Schedule):
    """`B(t) = S (1 - t)^2`."""

    def __init__(self, total: float) -> None:
        self._total = total

    @property
    def total(self) -> float:
        return self._total

    def _rate(self, time: Tensor) -> Tensor:
        return 2 * self.total * (1 - time)

    def _remaining(self, time: Tensor) -> Tensor:
        return self.total * (1 - time).square()

    def _time(self, remaining: Tensor) -> Tensor:
        return 1 - (remaining / self.total).clamp_min(0).sqrt()


class Halved(Quadratic):
    """Not the schedule of the total noise that it is given."""

    def __init__(self, total: float) -> None:
        super().__init__(total / 2)


class Wrong(Quadratic):
    """Its time is not the inverse of its remaining noise."""

    def _time(self, remaining: Tensor) -> Tensor:
        return 1 - remaining / self.total


class Softer(Bridge):
    """The paper's bridge with a pull of 90%."""

    def pull(self, angle: Tensor, remaining: Tensor | float) -> Tensor:
        return 0.9 * angle + 0 * remaining

    def slope(self, cosine: Tensor, remaining: Tensor | float) -> Tensor:
        return 0.9 * special.angle_over_sine(cosine)


class Inconsistent(Softer):
    """Its steps do not follow its law."""

    def slope(self, cosine: Tensor, remaining: Tensor | float) -> Tensor:
        return special.angle_over_sine(cosine)
