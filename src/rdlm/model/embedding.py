"""What enters a network: features or ids, the previous prediction, the signal, the digit index; and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from rdlm.errors import InputError
from rdlm.model.condition import ClassCondition, SignalCondition
from rdlm.model.config import Interface
from rdlm.model.linear import scaled


def sinusoids(time: Float[Tensor, "..."], scale: float, count: int) -> Float[Tensor, "... count"]:
    """Return `count` cosines and sines of `time` at angles from `scale` down to `scale / 10^4` per unit, Eq. (44).

    With scale 1 a time in [0, 1] turns no angle by more than a radian, and the features are almost constant.
    """
    half = count // 2
    time = time.to(torch.promote_types(time.dtype, torch.float32))
    exponent = torch.arange(half, dtype=time.dtype, device=time.device) / half
    angle = time[..., None] * (scale * 1e4**-exponent)
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class Moments(NamedTuple):
    """Embedded times: those of all positions, or the distinct ones and which of them each position has."""

    embedding: Float[Tensor, "*rows width"]
    """[batch, length or 1, width], or one row for each distinct time."""
    row: Int[Tensor, "batch length"] | None = None
    """Each position's row, where they are not in place."""

    def last(self, length: int) -> Moments:
        """Return those of the last so many positions."""
        if self.row is None:
            return Moments(self.embedding if self.embedding.shape[1] == 1 else self.embedding[:, -length:])
        return Moments(self.embedding, self.row[:, -length:])

    def through(self, layer: nn.Linear, offsets: Sequence[float]) -> list[Float[Tensor, "batch length part"]]:
        """Return the equal parts of a linear layer's output at every position, each with its offset added."""
        parts = len(offsets)
        if self.row is None:
            outputs: Tensor = layer(self.embedding)
            chunks = zip(outputs.chunk(parts, dim=-1), offsets, strict=True)
            return [part + offset if offset else part for part, offset in chunks]
        # Part by part: their gradients then need not be put together in fresh memory.
        weights = zip(layer.weight.chunk(parts), layer.bias.chunk(parts), offsets, strict=True)
        tables = [functional.linear(self.embedding, weight, bias + offset) for weight, bias, offset in weights]
        return [functional.embedding(self.row, table) for table in tables]


class TimeEmbedding(nn.Module):
    """The embedding of time, or of any real number per position, and of the class, added."""

    def __init__(self, width: int, scale: float, features: int, classes: int = 0) -> None:
        super().__init__()
        self.scale = scale
        self.inner = scaled(features, features)
        self.outer = scaled(features, width)
        self.condition = ClassCondition(classes, width) if classes else None

    def forward(self, time: Tensor | float, labels: Tensor | None) -> Float[Tensor, "batch length width"]:
        """Return the embedding of `time`, a number, [B] or [B, L]; a shared axis keeps the length 1."""
        weight = self.inner.weight
        if not isinstance(time, Tensor):
            time = torch.tensor(time, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
        if time.ndim < 2:
            time = time.reshape(-1, 1)
        features = sinusoids(time, self.scale, self.inner.in_features).to(weight.dtype)
        embedding: Tensor = self.outer(functional.silu(self.inner(features)))
        if self.condition is not None:
            embedding = embedding + self.condition(labels)
        return functional.silu(embedding)

    def moments(self, time: Tensor | float, labels: Tensor | None) -> Moments:
        """Return the embedding of `time`; in training on a CPU, that of its distinct values alone.

        In windows most positions wait or are finished, and a quarter of their times differ. The products of a narrow
        embedding with every layer's modulation are most of what per-position times cost there. A sample, though, must
        not depend on its neighbours' times, not even by rounding; and other devices would wait for the count.
        """
        if self.training and self.condition is None and isinstance(time, Tensor) and _repeats(time):
            distinct, row = torch.unique(time, return_inverse=True)
            return Moments(self(distinct, labels)[:, 0], row)  # [distinct, 1, width] -> [distinct, width]
        return Moments(self(time, labels))


def _repeats(time: Tensor) -> bool:
    """Return whether it pays to look for equal times; a gradient by them, or a compiler, wants all of them."""
    per_position = time.ndim == 2 and time.shape[1] > 1 and time.device.type == "cpu"
    return per_position and not time.requires_grad and not torch.compiler.is_compiling()


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
