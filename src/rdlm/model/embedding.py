"""What enters a network: features or ids, the previous prediction, the signal, the digit index; and time."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from rdlm.errors import InputError
from rdlm.model.condition import ClassCondition, SignalCondition
from rdlm.model.config import Interface
from rdlm.model.linear import scaled

SINUSOIDS = 256


def sinusoids(time: Float[Tensor, "..."], scale: float) -> Float[Tensor, "... f"]:
    """Return cosines and sines of `time` at angles from `scale` down to `scale / 10^4` per unit, Eq. (44).

    With scale 1 a time in [0, 1] turns no angle by more than a radian, and the features are almost constant.
    """
    half = SINUSOIDS // 2
    time = time.to(torch.promote_types(time.dtype, torch.float32))
    exponent = torch.arange(half, dtype=time.dtype, device=time.device) / half
    angle = time[..., None] * (scale * 1e4**-exponent)
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class TimeEmbedding(nn.Module):
    """The embedding of time, or of any real number per position, and of the class, added."""

    def __init__(self, width: int, scale: float, classes: int = 0) -> None:
        super().__init__()
        self.scale = scale
        self.inner = scaled(SINUSOIDS, SINUSOIDS)
        self.outer = scaled(SINUSOIDS, width)
        self.condition = ClassCondition(classes, width) if classes else None

    def forward(self, time: Tensor | float, labels: Tensor | None) -> Float[Tensor, "batch length width"]:
        """Return the embedding of `time`, a number, [B] or [B, L]; a shared axis keeps the length 1."""
        weight = self.inner.weight
        if not isinstance(time, Tensor):
            time = torch.tensor(time, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
        if time.ndim < 2:
            time = time.reshape(-1, 1)
        features = sinusoids(time, self.scale).to(weight.dtype)
        embedding: Tensor = self.outer(functional.silu(self.inner(features)))
        if self.condition is not None:
            embedding = embedding + self.condition(labels)
        return functional.silu(embedding)


class Input(nn.Module):
    """The map of everything that a position brings with it to one vector of the trunk's width."""

    def __init__(self, interface: Interface, width: int, self_condition: bool) -> None:
        super().__init__()
        self.interface = interface
        # One matrix [F, width] serves both inputs: an id is a one-hot feature, looked up.
        self.weight = nn.Parameter(torch.empty(interface.features, width))
        self.bias = nn.Parameter(torch.empty(width))
        self.previous = nn.Parameter(torch.zeros(interface.features, width)) if self_condition else None
        self.digit = nn.Parameter(torch.empty(interface.digits, width)) if interface.digits > 1 else None
        self.signal = SignalCondition(interface.signal, width) if interface.signal else None
        # The floor is for large vocabularies, whose ids would start too close to zero to learn quickly.
        size = max(interface.features**-0.5, 0.02)
        nn.init.normal_(self.weight, std=size)
        # Where nothing is known the features vanish. The norms behind would blow up what little there is, and a
        # position without a direction could ask for nothing: a bias of the size of a known token prevents both.
        nn.init.normal_(self.bias, std=size * interface.scale)
        if self.digit is not None:
            nn.init.normal_(self.digit, std=0.02)

    def forward(
        self,
        inputs: Shaped[Tensor, "batch length *f"],
        signal: Tensor | None,
        previous: Tensor | None,
        start: int,
    ) -> Float[Tensor, "batch length width"]:
        """Return the trunk's input from features [B, L, F] or ids [B, L] at positions from `start` on."""
        trunk = self._look_up(inputs)
        if self.previous is not None:
            if previous is None:  # the matrix takes part all the same, for distributed training's sake
                previous = self.previous.new_zeros(1, 1, self.interface.features)
            trunk = trunk + previous @ self.previous
        elif previous is not None:
            raise InputError("a previous prediction was given to a network built without self_condition")
        if self.signal is not None:
            trunk = trunk + self.signal(signal)
        if self.digit is not None:
            index = torch.arange(start, start + inputs.shape[1], device=inputs.device) % self.interface.digits
            trunk = trunk + self.digit[index]
        return trunk

    def _look_up(self, inputs: Tensor) -> Float[Tensor, "batch length width"]:
        if not inputs.is_floating_point():
            return functional.embedding(inputs, self.weight) + self.bias
        if inputs.shape[-1] != self.interface.features:
            raise InputError(f"the network takes {self.interface.features} features, got {inputs.shape[-1]}")
        return functional.linear(inputs, self.weight.t(), self.bias)
