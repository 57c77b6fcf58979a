"""Convolutional networks: residual dilated layers over a sequence (the promoter task), and blocks over an image.

In an image the tokens are ordered levels. The input of a token is its level and whether it is known, and the output is
a distribution around a location, so that the order of the levels need not be learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import Convolution2DConfig, ConvolutionConfig, Interface
from rdlm.errors import InputError
from rdlm.model.layers import Input, TimeEmbedding, label_or_signal, scaled_linear, zero_linear

SINUSOIDS = 256
"""Sinusoidal features of a time, before its embedding."""


class Layer(nn.Module):
    """A residual dilated convolution of the normed sum of the state and the projected time."""

    def __init__(self, config: ConvolutionConfig, dilation: int) -> None:
        super().__init__()
        width, padding = config.width, dilation * (config.kernel // 2)
        self.time = scaled_linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.convolution = nn.Conv1d(width, width, config.kernel, padding=padding, dilation=dilation)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "b l w"], time: Float[Tensor, "b l w"]) -> Float[Tensor, "b l w"]:
        """Return the residual stream after this layer."""
        normed = self.norm(self.dropout(x) + self.time(time))
        convolved = self.convolution(normed.transpose(1, 2)).transpose(1, 2)  # Conv1d takes [B, W, L]
        return x + functional.relu(convolved)


class Convolution(nn.Module):
    """The promoter network: logits from features or ids and times, with the transformer's interface."""

    def __init__(self, config: ConvolutionConfig, interface: Interface) -> None:
        super().__init__()
        self.interface = interface
        self.input = Input(interface, config.width, config.self_condition)
        self.time = TimeEmbedding(config.width, config.time_scale, SINUSOIDS, interface.classes, interface.timed)
        self.layers = nn.ModuleList(Layer(config, d) for _ in range(config.stacks) for d in config.dilations)
        self.inner = scaled_linear(config.width, config.width)
        self.outer = zero_linear(config.width, interface.outputs)

    def forward(
        self,
        inputs: Shaped[Tensor, "batch length *features"],
        time: Tensor | float,
        condition: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Float[Tensor, "batch length outputs"]:
        """Return the logits at each position, in float32 or wider; for the arguments see `Transformer.forward`."""
        labels, signal = label_or_signal(condition, self.interface)
        x = self.input(inputs, signal, previous, start=0)
        embedding = self.time(time, labels)
        for layer in self.layers:
            x = layer(x, embedding)
        logits: Tensor = self.outer(functional.relu(self.inner(x)))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


# -- images ---------------------------------------------------------------------------------------

LEVEL_FEATURES = 2
"""Input features of a token: its level, from -1 to 1, and 1 where it is known; 0 and 0 where it is not."""

TIME_WIDTH = 32
"""Width of the time and class embedding from which the modulation of every block is computed."""


class Block(nn.Module):
    """A residual block: a depthwise convolution, a modulated norm, and a hidden layer at every position."""

    past: Tensor | None

    def __init__(self, config: Convolution2DConfig) -> None:
        super().__init__()
        width, side = config.width, config.kernel // 2
        # Causal: the rows above and the own row, where the later tokens have no weight.
        rows, columns = (side + 1, 2 * max(side, config.image[2]) + 1) if config.causal else (2 * side + 1,) * 2
        self.margin = (columns // 2, columns // 2, side, 0 if config.causal else side)
        self.depthwise = nn.Conv2d(width, width, (rows, columns), groups=width)
        self.modulation = zero_linear(TIME_WIDTH, 2 * width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.inner = scaled_linear(width, config.expansion * width)
        self.outer = zero_linear(config.expansion * width, width)
        self.dropout = nn.Dropout(config.dropout)
        past = torch.ones(rows, columns)
        past[-1, columns // 2 + 1 :] = 0
        self.register_buffer("past", past if config.causal else None, persistent=False)

    def forward(self, x: Float[Tensor, "b h w c"], time: Float[Tensor, "b h w t"]) -> Float[Tensor, "b h w c"]:
        """Return the residual stream after this block."""
        kernel = self.depthwise.weight if self.past is None else self.depthwise.weight * self.past
        images = functional.pad(x.permute(0, 3, 1, 2), self.margin)  # [B, C, H, W] in the memory format channels_last
        near = functional.conv2d(images, kernel, self.depthwise.bias, groups=x.shape[-1])
        scale, shift = self.modulation(time).chunk(2, dim=-1)
        normed = self.norm(near.permute(0, 2, 3, 1)) * (1 + scale) + shift
        change: Tensor = self.dropout(self.outer(functional.gelu(self.inner(normed))))
        return x + change


class LevelHead(nn.Module):
    """Logits of ordered levels: a Student distribution with location, scale and tail, and a correction of low rank.

    `logit_k = -a log(1 + ((k - m) / s)^2) + sum_j h_j w_jk + b_k`, with `m`, `s`, `a` and `h` given at each token.
    """

    def __init__(self, levels: int, rank: int) -> None:
        super().__init__()
        self.levels, self.inputs = levels, 3 + rank
        at = (torch.arange(levels) + 0.5) / levels
        self.weight = nn.Parameter(torch.cos(math.pi * torch.arange(1, rank + 1)[:, None] * at))  # smooth: [r, V]
        self.bias = nn.Parameter(torch.zeros(levels))

    def forward(self, numbers: Float[Tensor, "b l n"], location: Float[Tensor, "b l"]) -> Float[Tensor, "b l v"]:
        """Return logits from changes of a location in [-1, 1], of scale and tail, and from `h`."""
        half = (self.levels - 1) / 2
        centre = half * (1 + location + numbers[..., 0])
        inverse = torch.exp(-numbers[..., 1]) * (10 / self.levels)
        tail = functional.softplus(numbers[..., 2] + 1)
        logits: Tensor = _Student.apply(centre, inverse, tail, numbers[..., 3:], self.weight, self.bias)  # type: ignore[no-untyped-call]
        return logits


TILE = 512
"""Tokens per tile of logits, such that intermediate results fit into the cache of a CPU."""


class _Student(torch.autograd.Function):
    """The logits of `LevelHead`, one tile at a time; `backward` recomputes the distances."""

    @staticmethod
    def forward(
        ctx: Any, centre: Tensor, inverse: Tensor, tail: Tensor, numbers: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        ctx.save_for_backward(centre, inverse, tail, numbers, weight)
        out = centre.new_empty(centre.numel(), len(bias))
        rows = [x.reshape(-1, 1) for x in (centre, inverse, tail)]
        flat = numbers.reshape(-1, numbers.shape[-1])
        for at in _tiles(out):
            m, r, a = (x[at] for x in rows)
            student = _distance(m, r, len(bias)).square_().log1p_().mul_(a)
            torch.sub(torch.addmm(bias, flat[at], weight), student, out=out[at])
        return out.view(*centre.shape, len(bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        centre, inverse, tail, numbers, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, weight.shape[1])
        m, r, a = (x.reshape(-1, 1) for x in (centre, inverse, tail))
        flat = numbers.reshape(-1, numbers.shape[-1])
        found = [torch.empty_like(x) for x in (m, r, a)]
        inner, outer, bias = torch.empty_like(flat), torch.zeros_like(weight), gradient.new_zeros(weight.shape[1])
        for at in _tiles(gradient):
            g, distance = gradient[at], _distance(m[at], r[at], weight.shape[1])
            square = distance.square()
            # d logit / d distance = -2 a distance / (1 + distance^2)
            slope = (distance * g).div_(1 + square)
            found[0][at] = 2 * a[at] * r[at] * slope.sum(1, keepdim=True)
            found[1][at] = -2 * a[at] / r[at] * slope.mul_(distance).sum(1, keepdim=True)
            found[2][at] = -square.log1p_().mul_(g).sum(1, keepdim=True)
            torch.mm(g, weight.t(), out=inner[at])
            outer.addmm_(flat[at].t(), g)
            bias += g.sum(0)
        each = [x.view_as(like) for x, like in zip((*found, inner), (centre, inverse, tail, numbers), strict=True)]
        return (*each, outer, bias)


def _tiles(rows: Tensor) -> Iterator[slice]:
    size = TILE if rows.device.type == "cpu" else max(1, len(rows))
    return (slice(first, first + size) for first in range(0, len(rows), size))


def _distance(centre: Tensor, inverse: Tensor, levels: int) -> Float[Tensor, "rows v"]:
    """Return `(k - m) / s` for every level."""
    return (torch.arange(levels, dtype=centre.dtype, device=centre.device) - centre).mul_(inverse)


Levels = Float[Tensor, "b h w c"]
"""Levels from -1 to 1, their certainties from 0 to 1, or another number of each token of an image."""


class Interpolation(nn.Module):
    """The mean of the levels near each token in its channel, weighted by position and certainty, without its own level.

    The weights of the positions are learned, and the network can change them at each token. A second mean corrects the
    first one by its errors in the other channels of the pixel, as differences between channels vary slowly.
    """

    open_far: Tensor
    open_near: Tensor
    others: Tensor

    def __init__(self, config: Convolution2DConfig) -> None:
        super().__init__()
        channels = config.image[2]
        self.inputs = (2 * NEAR + 1) ** 2 + channels
        far, near = (_squared_distances(reach) for reach in (FAR, NEAR))
        self.far, self.near = (nn.Parameter(-1.5 * squared.clamp_min(1).log()) for squared in (far, near))
        for name, squared in (("open_far", far), ("open_near", near)):
            self.register_buffer(name, _before_centre(squared) if config.causal else squared > 0, persistent=False)
        self.gain = nn.Parameter(torch.full((channels, channels), 0.95))
        before = torch.ones(channels, channels).tril(-1)
        self.register_buffer("others", before if config.causal else before + before.T, persistent=False)

    def forward(self, level: Levels, certainty: Levels) -> tuple[Levels, Levels]:
        """Return the mean, 0 where no near level is known, and the logarithm of its weight."""
        kernel = (self.far.exp() * self.open_far)[None, None]
        both = torch.stack([level * certainty, certainty]).movedim(-1, 2)  # [2, B, C, H, W]
        total = functional.conv2d(both.flatten(0, 2)[:, None], kernel, padding=FAR).view(both.shape)
        mean, weight = total.movedim(2, -1)
        return mean / (weight + LEAST), torch.log(weight + LEAST)

    def corrected(
        self, level: Levels, certainty: Levels, mean: Levels, numbers: Float[Tensor, "b h w c n"] | None = None
    ) -> Levels:
        """Return the mean with weights and gains that are changed by `numbers`; `mean` counts where little is known."""
        weights, gains, centre = self.near.flatten(), self.gain, self.near.numel() // 2
        if numbers is not None:
            change, gain = numbers.split((len(weights), len(gains)), dim=-1)
            weights, gains = weights + change, gains + gain
        weight = weights.exp() * torch.where(self.open_near.flatten(), _windows(certainty), 0.0)
        given = LEAST * weights[..., centre].exp()  # the weight of the given mean, in place of the token's own
        near = (given * mean + (weight * _windows(level)).sum(-1)) / (given + weight.sum(-1))
        error = (certainty * (level - near))[..., None, :]  # 0 where the level is not known
        known = (certainty[..., None, :] * self.others).sum(-1)  # other channels of which the error is known
        return near + (gains * self.others * error).sum(-1) / (known + 0.1)


def _squared_distances(reach: int) -> Float[Tensor, "n n"]:
    """Return the squared distance of every pixel of a window from its centre."""
    along = torch.arange(-reach, reach + 1).float()
    return along[:, None].square() + along.square()


def _before_centre(window: Float[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """Return the pixels of a window before its centre, row by row."""
    return (torch.arange(window.numel()) < window.numel() // 2).view(window.shape)


def _windows(x: Levels) -> Float[Tensor, "b h w c n"]:
    """Return the numbers around each token in its channel, row by row, 0 outside of the image."""
    batch, height, width, channels = x.shape
    found = functional.unfold(x.movedim(-1, 1).reshape(-1, 1, height, width), 2 * NEAR + 1, padding=NEAR)
    return found.view(batch, channels, -1, height, width).permute(0, 3, 4, 1, 2)


FAR, NEAR = 3, 2
"""Pixels to each side from which levels are interpolated, with common weights and with those of each token."""

LEAST = 0.03
"""Weight of the middle level, or of the mean over a larger window, relative to those of known levels."""


class Convolution2D(nn.Module):
    """The image network: logits of every level at every token from features or ids and times."""

    def __init__(self, config: Convolution2DConfig, interface: Interface) -> None:
        super().__init__()
        _check_levels(interface)
        self.interface, self.config = interface, config
        height, width, channels = config.image
        # Causal convolutions are over single tokens, in rows of `width * channels`.
        self.grid = (height, width * channels) if config.causal else (height // config.patch, width // config.patch)
        self.tokens = 1 if config.causal else config.patch**2 * channels
        self.interpolation = Interpolation(config)
        self.input = scaled_linear(self.tokens * (LEVEL_FEATURES + 3), config.width)
        self.place = nn.Parameter(torch.randn(*self.grid, config.width) * 0.02)
        self.time = TimeEmbedding(TIME_WIDTH, config.time_scale, 64, interface.classes, interface.timed)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = LevelHead(interface.outputs, config.rank)
        self.outer = zero_linear(config.width, self.tokens * (self.head.inputs + self.interpolation.inputs))

    def forward(
        self,
        inputs: Shaped[Tensor, "batch length *features"],
        time: Tensor | float,
        condition: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Float[Tensor, "batch length outputs"]:
        """Return the logits at each token, in float32 or wider; for the arguments see `Transformer.forward`."""
        labels, _ = label_or_signal(condition, self.interface)
        if not inputs.is_floating_point():
            inputs = levels_of_ids(inputs, self.interface.outputs).to(self.place.dtype)
        length = math.prod(self.config.image)
        if inputs.shape[1] != length:
            raise InputError(f"images of {self.config.image} have {length} tokens, got {inputs.shape[1]}")
        level, certainty = self._tokens(inputs).unbind(-1)  # [B, H, W, C] each
        mean, weight = self.interpolation(level, certainty)
        grouped = self._grouped(self._features(inputs, level, certainty, mean, weight))
        x = self.input(grouped) + self.place  # [B, h, w, width]
        embedding = self._embedding(time, labels)
        for block in self.blocks:
            x = block(x, embedding)
        numbers = self._split(self.outer(self.norm(x))).split((self.head.inputs, self.interpolation.inputs), -1)
        location = self.interpolation.corrected(level, certainty, mean, numbers[1].unflatten(1, self.config.image))
        logits: Tensor = self.head(numbers[0], location.flatten(1))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _embedding(self, time: Tensor | float, labels: Tensor | None) -> Float[Tensor, "b h w t"]:
        """Return the embedding of times and labels; with a time per token, its mean over the tokens of a position."""
        embedding: Tensor = self.time(time, labels)
        if embedding.shape[1] == 1:
            return embedding[:, :, None]
        each: Tensor = self._grouped(embedding).unflatten(-1, (self.tokens, -1))  # [B, h, w, tokens, t]
        return each.mean(-2)

    def _features(
        self, inputs: Float[Tensor, "b l 2"], level: Levels, certainty: Levels, mean: Levels, weight: Levels
    ) -> Float[Tensor, "b l 5"]:
        """Return level and certainty, the interpolated level with its weight, and its error where the level is known.

        The error is logarithmic, because differences of a few levels determine the precision of a prediction.
        """
        guess = self.interpolation.corrected(level, certainty, mean)
        error = (level - guess) * (self.interface.outputs / 2)
        error = certainty * error.sign() * error.abs().log1p() / 3
        found = torch.stack([guess, weight, error], -1).flatten(1, 3)  # [B, L, 3]
        if self.config.causal:  # the error of a token is known after it
            found = torch.cat([found[..., :2], functional.pad(found[:, :-1, 2:], (0, 0, 1, 0))], -1)
        return torch.cat([inputs, found], -1)

    def _tokens(self, inputs: Float[Tensor, "b l 2"]) -> Float[Tensor, "b h w c 2"]:
        """Return the features of every token at its pixel; causal inputs are those of the token before."""
        if self.config.causal:
            inputs = functional.pad(inputs[:, 1:], (0, 0, 0, 1))
        return inputs.view(len(inputs), *self.config.image, -1)

    def _grouped(self, x: Float[Tensor, "b l f"]) -> Float[Tensor, "b h w n"]:
        """Return the features of all tokens that share a position of the grid, one after the other."""
        batch, (rows, columns), size = len(x), self.grid, self.config.patch
        if self.config.causal:
            return x.reshape(batch, rows, columns, -1)
        x = x.reshape(batch, rows, size, columns, size, -1)  # the last axis: channels and features
        return x.transpose(2, 3).reshape(batch, rows, columns, -1)

    def _split(self, x: Float[Tensor, "b h w n"]) -> Float[Tensor, "b l f"]:
        """Return the numbers of every token, the inverse of `_grouped`."""
        batch, (rows, columns), size = len(x), self.grid, self.config.patch
        if not self.config.causal:
            x = x.reshape(batch, rows, columns, size, size, -1).transpose(2, 3)
        return x.reshape(batch, math.prod(self.config.image), -1)


def _check_levels(interface: Interface) -> None:
    """Raise InputError unless inputs are levels or their ids, and outputs are one logit per level."""
    if interface.features not in (LEVEL_FEATURES, interface.outputs + 1) or interface.digits > 1:
        raise InputError(
            "convolution2d needs one token per level: denoiser.features level with process.codes arc or onehot, "
            f"and d3pm.head logits; got {interface.features} features and {interface.outputs} outputs"
        )
    if interface.signal:
        raise InputError("convolution2d is conditioned on classes, not on a signal")


def levels_of_ids(ids: Int[Tensor, "b l"], levels: int) -> Float[Tensor, "b l 2"]:
    """Return the input features of ids; `levels` is the id of the mask, or of the start of a sequence."""
    known = (ids < levels).float()
    return torch.stack([known * (ids * (2 / (levels - 1)) - 1), known], -1)
