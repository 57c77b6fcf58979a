"""Layers of all networks: initialised linear maps, input features, time embedding and conditioning.

The input of a position is the sum of its features or id, the previous prediction (self-conditioning), the signal and
the digit index. Times and class labels modulate the layers. A label of -1 and a signal of NaN mean 'no condition'. They
may differ between sequences, so that classifier-free guidance can evaluate both halves in one batch.
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
from rdlm.random import Rng

# -- linear layers --------------------------------------------------------------------------------


def scaled_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear layer that preserves variance at initialisation, with a bias of zero."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    nn.init.zeros_(layer.bias)
    return layer


def zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear layer initialised to zero."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


# -- conditions -----------------------------------------------------------------------------------


def label_or_signal(condition: Tensor | None, interface: Interface) -> tuple[Tensor | None, Tensor | None]:
    """Return the condition as (labels, None) or (None, signal), as the network was built."""
    if condition is None:
        return None, None
    if condition.is_floating_point() and interface.signal:
        return None, condition
    if not condition.is_floating_point() and interface.classes:
        return condition, None
    given = "a signal" if condition.is_floating_point() else "labels"
    built = f"{interface.classes} classes and a signal of width {interface.signal}"
    raise InputError(f"the condition is {given}, but the network was built for {built}")


def drop_condition(condition: Tensor, probability: float, generator: Rng = None) -> Tensor:
    """Return the condition [B, ...], set to 'none' (-1 or NaN) for each sequence with the given probability."""
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
        """Return the embedding of each label; -1 or None gives the null embedding."""
        embedding: Tensor = self.table(self.row(labels))
        return embedding[:, None]

    def row(self, labels: Int[Tensor, " batch"] | None) -> Int[Tensor, " batch"]:
        """Return the row of each label in the table; -1 or None is the last one."""
        if labels is None:
            labels = torch.full((1,), -1, device=self.table.weight.device)
        return labels.masked_fill(labels == -1, self.classes)


class SignalCondition(nn.Module):
    """A linear map of the signal at each position and a learned vector for 'no signal'."""

    def __init__(self, signal: int, width: int) -> None:
        super().__init__()
        self.linear = scaled_linear(signal, width)
        self.null = nn.Parameter(torch.zeros(width))

    def forward(self, signal: Float[Tensor, "batch length s"] | None) -> Float[Tensor, "batch length width"]:
        """Return the projected signal of each position; NaN or None gives the null vector."""
        if signal is None:
            # All parameters take part in every step, as DDP requires.
            signal = self.null.new_full((1, 1, self.linear.in_features), float("nan"))
        absent = signal.isnan().any(-1, keepdim=True)
        present: Tensor = self.linear(signal.masked_fill(absent, 0.0))
        return torch.where(absent, self.null.to(present.dtype), present)


# -- time -----------------------------------------------------------------------------------------


def sinusoids(time: Float[Tensor, ...], scale: float, count: int) -> Float[Tensor, "... count"]:
    """Return `count` cosines and sines of `time` at frequencies from `scale` down to `scale / 10^4`, Eq. (44).

    With scale 1 no angle exceeds one radian for times in [0, 1], and the features are almost constant.
    """
    half = count // 2
    time = time.to(torch.promote_types(time.dtype, torch.float32))
    exponent = torch.arange(half, dtype=time.dtype, device=time.device) / half
    angle = time[..., None] * (scale * 1e4**-exponent)
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class EmbeddedTimes(NamedTuple):
    """Embeddings of the times of all positions, or of the distinct times and the index of each position's time."""

    embedding: Float[Tensor, "*rows width"]
    """[batch, length or 1, width]; with `row`, [distinct, width]."""
    row: Int[Tensor, "batch length"] | None = None
    """Index of each position's time among the distinct ones; [batch, 1] where a sequence has one."""

    def last(self, length: int) -> EmbeddedTimes:
        """Return the times of the last `length` positions."""
        if self.row is None:
            return EmbeddedTimes(self.embedding if self.embedding.shape[1] == 1 else self.embedding[:, -length:])
        return EmbeddedTimes(self.embedding, self.row if self.row.shape[1] == 1 else self.row[:, -length:])

    def modulation(self, layer: nn.Linear, offsets: Sequence[float]) -> list[Float[Tensor, "batch length part"]]:
        """Return a linear layer's output at every position in `len(offsets)` equal parts, each plus its offset."""
        parts = len(offsets)
        if self.row is None:
            outputs: Tensor = layer(self.embedding)  # [B, L or 1, parts * width]
            pairs = zip(outputs.chunk(parts, dim=-1), offsets, strict=True)
            return [part + offset if offset else part for part, offset in pairs]
        # One product per part: the gradients of the parts need no concatenation.
        weights = zip(layer.weight.chunk(parts), layer.bias.chunk(parts), offsets, strict=True)
        tables = [functional.linear(self.embedding, weight, bias + offset) for weight, bias, offset in weights]
        return [functional.embedding(self.row, table) for table in tables]


class TimeEmbedding(nn.Module):
    """The embedding of times, [B] or one per position, or a learned constant, plus that of the class label."""

    def __init__(self, width: int, scale: float, features: int, classes: int = 0, timed: bool = True) -> None:
        super().__init__()
        self.scale = scale
        self.constant = None if timed else nn.Parameter(torch.randn(width))  # of the size of a time's embedding
        if timed:
            self.inner = scaled_linear(features, features)
            self.outer = scaled_linear(features, width)
        self.condition = ClassCondition(classes, width) if classes else None

    def forward(self, time: Tensor | float, labels: Tensor | None) -> Float[Tensor, "batch length width"]:
        """Return the embedding of `time`, a number, [B] or [B, L]; an axis over which it is constant has length 1."""
        if self.constant is not None:
            embedded, row = self._constants(labels)
            return embedded if row is None else functional.embedding(row, embedded)
        embedding = self._of(time)
        if self.condition is not None:
            embedding = embedding + self.condition(labels)
        return functional.silu(embedding)

    def _of(self, time: Tensor | float) -> Float[Tensor, "batch length width"]:
        """Return the embedding of `time` before the class label and the last activation, Eq. (44)."""
        weight = self.inner.weight
        if not isinstance(time, Tensor):
            time = torch.tensor(time, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
        if time.ndim < 2:
            time = time.reshape(-1, 1)
        features = sinusoids(time, self.scale, self.inner.in_features).to(weight.dtype)
        embedding: Tensor = self.outer(functional.silu(self.inner(features)))
        return embedding

    def _constants(self, labels: Tensor | None) -> EmbeddedTimes:
        """Return the learned constant; with classes, that of each class and the row of each sequence's label.

        One table for all classes, so that not even the rounding of a modulation depends on the batch.
        """
        assert self.constant is not None
        if self.condition is None:
            return EmbeddedTimes(functional.silu(self.constant)[None, None])  # [1, 1, width]
        table = functional.silu(self.constant + self.condition.table.weight)  # [classes + 1, width]
        return EmbeddedTimes(table, self.condition.row(labels)[:, None])

    def embed(self, time: Tensor | float, labels: Tensor | None) -> EmbeddedTimes:
        """Return the embedding of `time`; in training on a CPU, of its distinct values only.

        With an asynchronous token schedule most positions are at time 0 or 1, and about a quarter of the times are
        distinct; embedding every position's time would dominate the cost of the modulation. Not in sampling, where
        rounding must not depend on the batch, nor on other devices, where `unique` synchronises.
        """
        if self.constant is not None:
            return self._constants(labels)
        if self.training and self.condition is None and isinstance(time, Tensor) and _worth_deduplicating(time):
            distinct, row = torch.unique(time, return_inverse=True)
            return EmbeddedTimes(self(distinct, labels)[:, 0], row)  # [distinct, 1, width] -> [distinct, width]
        return EmbeddedTimes(self(time, labels))


def _worth_deduplicating(time: Tensor) -> bool:
    """Return whether times are per position, on a CPU, without gradient and outside of a compiler."""
    per_position = time.ndim == 2 and time.shape[1] > 1 and time.device.type == "cpu"
    return per_position and not time.requires_grad and not torch.compiler.is_compiling()


# -- input ----------------------------------------------------------------------------------------


class Input(nn.Module):
    """The input layer: the sum of the embeddings of all inputs of a position, of the network's width."""

    def __init__(self, interface: Interface, width: int, self_condition: bool) -> None:
        super().__init__()
        self.interface = interface
        # One matrix [F, width] for features and ids: an id is a one-hot feature vector.
        self.weight = nn.Parameter(torch.empty(interface.features, width))
        self.bias = nn.Parameter(torch.empty(width))
        self.previous = nn.Parameter(torch.zeros(interface.features, width)) if self_condition else None
        self.digit = nn.Parameter(torch.empty(interface.digits, width)) if interface.digits > 1 else None
        self.signal = SignalCondition(interface.signal, width) if interface.signal else None
        # The lower limit is for large vocabularies, whose embeddings would be too small to learn quickly.
        std = max(interface.features**-0.5, 0.02)
        nn.init.normal_(self.weight, std=std)
        # At time 0 the features vanish: without a bias the layer norms would amplify rounding errors, and attention
        # would have zero queries. The bias has the size of a clean token's embedding.
        nn.init.normal_(self.bias, std=std * interface.scale)
        if self.digit is not None:
            nn.init.normal_(self.digit, std=0.02)

    def forward(
        self, inputs: Shaped[Tensor, "batch length *f"], signal: Tensor | None, previous: Tensor | None, start: int
    ) -> Float[Tensor, "batch length width"]:
        """Return the embedded input from features [B, L, F] or ids [B, L] at positions `start`, `start + 1`, ..."""
        x = self._embed(inputs)
        if self.previous is not None:
            if previous is None:  # all parameters take part in every step, as DDP requires
                previous = self.previous.new_zeros(1, 1, self.interface.features)
            x = x + previous @ self.previous
        elif previous is not None:
            raise InputError("a previous prediction was given to a network built without self_condition")
        if self.signal is not None:
            x = x + self.signal(signal)
        if self.digit is not None:
            index = torch.arange(start, start + inputs.shape[1], device=inputs.device) % self.interface.digits
            x = x + self.digit[index]
        return x

    def _embed(self, inputs: Tensor) -> Float[Tensor, "batch length width"]:
        if not inputs.is_floating_point():
            return functional.embedding(inputs, self.weight) + self.bias
        if inputs.shape[-1] != self.interface.features:
            raise InputError(f"the network takes {self.interface.features} features, got {inputs.shape[-1]}")
        return functional.linear(inputs, self.weight.t(), self.bias)


# -- features of a state on the sphere, whose last coordinate is the mask ---------------------------


def with_top(x: Float[Tensor, "... d"], k: int) -> Float[Tensor, "... f"]:
    """Return the coordinates, the k largest in descending order, and the k-hot vector of their indices: 2d + k.

    A linear input layer maps the k-hot vector to the sum of the embeddings of the k leading states.
    """
    if not 1 <= k <= x.shape[-1]:
        raise InputError(f"the number {k} of top features must lie between 1 and {x.shape[-1]}")
    values, indices = x.topk(k, dim=-1)
    return torch.cat((x, values, torch.zeros_like(x).scatter(-1, indices, 1.0)), dim=-1)


def from_evidence(log_evidence: Float[Tensor, "... v"]) -> Float[Tensor, "... v"]:
    """Return `(softmax(log h) - 1/V) sqrt(V)`: zero for uniform evidence, and of order one."""
    states = log_evidence.shape[-1]
    return (log_evidence.softmax(-1) - 1 / states) * math.sqrt(states)


def level_features(log_evidence: Float[Tensor, "... v"]) -> Float[Tensor, "... 2"]:
    """Return the mean level under the evidence, from -1 to 1, and its certainty, from 0 (uniform) to 1 (known).

    The certainty is `1 - log(1 + s) / log(1 + s_0)`, with `s` the standard deviation in levels, at most `s_0`.
    """
    levels = log_evidence.shape[-1]
    level = torch.arange(levels, dtype=log_evidence.dtype, device=log_evidence.device) - (levels - 1) / 2
    moments = log_evidence.softmax(-1) @ torch.stack([level, level.square()], -1)  # [..., 2]
    mean, square = moments.unbind(-1)
    deviation = (square - mean.square()).clamp_min(0).sqrt()
    # Evidence for both ends of the range has a larger deviation than none.
    certainty = (1 - deviation.log1p() / math.log1p(math.sqrt((levels**2 - 1) / 12))).clamp_min(0)
    return torch.stack([mean * (2 / (levels - 1)), certainty], -1)
