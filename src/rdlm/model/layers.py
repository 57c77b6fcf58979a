"""Linear layers with the two initialisations of the networks.

Conditioning by class or by a per-position signal, and the learned null condition that guidance needs.

A label of -1 and a signal of NaN mean 'no condition'. They may differ from sequence to sequence, so a guided
sampler can put the conditional and the unconditional half into one batch.

What enters a network: features or ids, the previous prediction, the signal, the digit index; and time.

What of a state enters the network; states are vectors in the last dimension, the mask coordinate last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import Interface
from rdlm.errors import InputError


def scaled(inputs: int, outputs: int) -> nn.Linear:
    """Return a layer whose outputs start with the variance of its inputs, and with a bias of zero."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    nn.init.zeros_(layer.bias)
    return layer


def zero(inputs: int, outputs: int) -> nn.Linear:
    """Return a layer whose outputs start at zero."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def label_or_signal(condition: Tensor | None, interface: Interface) -> tuple[Tensor | None, Tensor | None]:
    """Return the condition as (labels, None) or (None, signal), whichever the network was built for."""
    if condition is None:
        return None, None
    if condition.is_floating_point() and interface.signal:
        return None, condition
    if not condition.is_floating_point() and interface.classes:
        return condition, None
    given = "a signal" if condition.is_floating_point() else "labels"
    built = f"{interface.classes} classes and a signal of width {interface.signal}"
    raise InputError(f"the condition is {given}, but the network was built for {built}")


def drop(condition: Tensor, probability: float, generator: torch.Generator | None = None) -> Tensor:
    """Return the condition with whole sequences replaced by 'none' (-1 or NaN) with the given probability."""
    if not 0 <= probability <= 1:
        raise InputError(f"probability {probability} of dropping a condition must lie in [0, 1]")
    shape = (condition.shape[0],) + (1,) * (condition.ndim - 1)
    dropped = torch.rand(shape, generator=generator, device=condition.device) < probability
    return condition.masked_fill(dropped, float("nan") if condition.is_floating_point() else -1)


class ClassCondition(nn.Module):
    """An embedding of each class label and one of 'no label'."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.table = nn.Embedding(classes + 1, width)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, labels: Int[Tensor, " batch"] | None) -> Float[Tensor, "batch 1 width"]:
        """Return the embedding of each label; -1, or no labels at all, gives the null embedding."""
        if labels is None:
            labels = torch.full((1,), -1, device=self.table.weight.device)
        embedding: Tensor = self.table(labels.masked_fill(labels == -1, self.classes))
        return embedding[:, None]


class SignalCondition(nn.Module):
    """A linear map of the signal at each position and a learned vector for 'no signal'."""

    def __init__(self, signal: int, width: int) -> None:
        super().__init__()
        self.linear = scaled(signal, width)
        self.null = nn.Parameter(torch.zeros(width))

    def forward(self, signal: Float[Tensor, "batch length s"] | None) -> Float[Tensor, "batch length width"]:
        """Return the image of each position's signal; NaN, or no signal at all, gives the null vector."""
        if signal is None:
            # The map takes part all the same: distributed training wants every parameter in every step.
            signal = self.null.new_full((1, 1, self.linear.in_features), float("nan"))
        absent = signal.isnan().any(-1, keepdim=True)
        present: Tensor = self.linear(signal.masked_fill(absent, 0.0))
        return torch.where(absent, self.null.to(present.dtype), present)


def sinusoids(time: Float[Tensor, ...], scale: float, count: int) -> Float[Tensor, "... count"]:
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


def without_mask(x: Float[Tensor, "... d"]) -> Float[Tensor, "... v"]:
    """Return the coordinates of the tokens, the last coordinate (the mask's) left out."""
    return x[..., :-1]


def with_top(x: Float[Tensor, "... d"], k: int) -> Float[Tensor, "... f"]:
    """Return the coordinates, the k largest in falling order, and the k-hot vector of where they are: 2d + k.

    The k-hot vector is what a linear input layer turns into a sum of embeddings of the leading states.
    """
    if not 1 <= k <= x.shape[-1]:
        raise InputError(f"the number {k} of top features must lie between 1 and {x.shape[-1]}")
    values, indices = x.topk(k, dim=-1)
    return torch.cat((x, values, torch.zeros_like(x).scatter(-1, indices, 1.0)), dim=-1)


def from_evidence(log_evidence: Float[Tensor, "... v"]) -> Float[Tensor, "... v"]:
    """Return `(softmax(log h) - 1/V) sqrt(V)`: zero where nothing is known, of order one throughout."""
    states = log_evidence.shape[-1]
    return (log_evidence.softmax(-1) - 1 / states) * math.sqrt(states)
