"""Self-attention with rotary positions, and the cache of keys and values of what will not change.

The diffusion transformer: layer norms modulated by per-position times, and rotary attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from rdlm.config import Interface, TransformerConfig
from rdlm.errors import InputError
from rdlm.model.layers import Input, Moments, TimeEmbedding, label_or_signal, scaled, zero


class Cache:
    """The keys and values of the positions that a network has already seen and will not see otherwise, per layer."""

    def __init__(self, layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers

    @property
    def length(self) -> int:
        """Return the number of positions seen."""
        first = self.keys[0]
        return 0 if first is None else first.shape[2]

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new keys and values [B, H, L, D] of a layer, and return all of them."""
        old_key, old_value = self.keys[layer], self.values[layer]
        if old_key is not None and old_value is not None:
            key, value = torch.cat((old_key, key), dim=2), torch.cat((old_value, value), dim=2)
        self.keys[layer], self.values[layer] = key, value
        return key, value

    def keep(self, length: int) -> None:
        """Forget all but the first positions."""
        self._each(lambda tensor: tensor[:, :, :length])

    def rows(self, chosen: slice | Int[Tensor, " rows"]) -> Cache:
        """Return what is kept of some of the sequences, as a cache of its own."""
        found = Cache(len(self.keys))
        found.keys, found.values = list(self.keys), list(self.values)
        found._each(lambda tensor: tensor[chosen])
        return found

    def take(self, parts: Sequence[Cache]) -> Cache:
        """Have what several caches of equal length keep, one after the other, and return this one."""
        for mine, theirs in ((self.keys, [one.keys for one in parts]), (self.values, [one.values for one in parts])):
            for layer, tensors in enumerate(zip(*theirs, strict=True)):
                found = [tensor for tensor in tensors if tensor is not None]
                mine[layer] = (found[0] if len(found) == 1 else torch.cat(found)) if found else None
        return self

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        for tensors in (self.keys, self.values):
            tensors[:] = [None if tensor is None else change(tensor) for tensor in tensors]


def angles(start: int, length: int, head: int, like: Tensor) -> Float[Tensor, "length half"]:
    """Return the rotary angle of each position and pair of coordinates, in float32 or wider.

    Computed, not stored: a buffer would be lost when a network is built on the meta device.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    exponent = torch.arange(0, head, 2, dtype=dtype, device=like.device) / head
    position = torch.arange(start, start + length, dtype=dtype, device=like.device)
    return position[:, None] * 1e4**-exponent


def rotate(x: Float[Tensor, "batch length *n head"], angle: Float[Tensor, "length half"]) -> Tensor:
    """Return `x` with each pair of neighbouring coordinates turned by its angle."""
    # [L, D/2] -> [L, 1, ..., 1, D/2]
    angle = angle.view(angle.shape[0], *[1] * (x.ndim - 3), angle.shape[1])
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    if x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling():
        # Five times faster than the real form in eager mode on a CPU; compilers and half precision lack it.
        turned = torch.view_as_complex(pairs) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(turned).flatten(-2)
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    real, imaginary = pairs.unbind(-1)
    rows = (real * cosine - imaginary * sine, real * sine + imaginary * cosine)
    return torch.stack(rows, dim=-1).flatten(-2)


def block_mask(
    length: int, block: int | Int[Tensor, " batch"], doubled: bool, device: torch.device
) -> Bool[Tensor, ...]:
    """Return which positions see which [1 or batch, 1, L, L]: those of their own chunk and of the ones before it.

    A doubled sequence is a finished one followed by the one in question. Then the chunks before one's own are seen as
    they will be when they are finished, so that all chunks are asked at once, each as if it were the next.
    """
    size = torch.as_tensor(block, device=device).reshape(-1, 1)
    place = torch.arange(length // 2 if doubled else length, device=device) // size  # [B, L]
    own = place[:, :, None] == place[:, None, :]
    earlier = place[:, :, None] > place[:, None, :]
    if not doubled:
        return (own | earlier)[:, None]
    finished = torch.cat((own | earlier, torch.zeros_like(own)), dim=-1)
    return torch.cat((finished, torch.cat((earlier, own), dim=-1)), dim=-2)[:, None]


class Attention(nn.Module):
    """Multi-head self-attention over one sequence."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = scaled(width, 3 * width)
        self.out = scaled(width, width)

    def forward(
        self,
        x: Float[Tensor, "batch length width"],
        angle: Tensor,
        cache: Cache | None,
        layer: int,
        seen: Bool[Tensor, ...] | None = None,
    ) -> Float[Tensor, "batch length width"]:
        """Return the attended values; with a cache, `x` holds the positions that follow it."""
        batch, length, width = x.shape
        # [B, L, 3W] -> [B, L, 3, H, D]
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key = rotate(qkv[:, :, :2], angle).transpose(1, 3).unbind(2)  # each [B, H, L, D]
        value = qkv[:, :, 2].transpose(1, 2).contiguous()  # a view would keep all three for `backward`
        if cache is not None:
            key, value = cache.extend(layer, key, value)
        past = key.shape[2] - length
        # SDPA's own causal mask counts both sides from 0, so it does not fit queries that follow a cache.
        mask = x.new_ones(length, key.shape[2], dtype=torch.bool).tril(past) if self.causal and past else seen
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=self.causal and not past
        )
        # [B, H, L, D] -> [B, L, W]
        projected: Tensor = self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return projected


SHIFT_SCALE, GATE = (0.0, 1.0), (0.0,)
"""Where a modulation starts: norms as they are, gates closed."""


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return the layer norm of `x`, times scale, plus shift, which broadcast."""
    norm = functional.layer_norm(x, x.shape[-1:], eps=1e-6)
    return torch.addcmul(shift, norm, scale)


def recomputed(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `function(x)`; for `backward` only `x` is kept, and what of the function it needs is computed again."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():  # a compiler chooses for itself what to keep
        return function(x)
    again: Tensor = checkpoint(function, x, use_reentrant=False, preserve_rng_state=False)
    return again


class Block(nn.Module):
    """Attention and a perceptron, each behind a modulated norm and a gate that starts closed."""

    def __init__(self, config: TransformerConfig, frugal: bool) -> None:
        super().__init__()
        self.frugal = frugal
        width, hidden = config.width, config.mlp_ratio * config.width
        self.modulation = zero(config.time_width, 6 * width)
        self.attention = Attention(width, config.heads, config.causal)
        self.inner = scaled(width, hidden)
        self.outer = scaled(hidden, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "b l w"],
        time: Moments,
        angle: Tensor,
        cache: Cache | None,
        layer: int,
        seen: Tensor | None,
    ) -> Float[Tensor, "b l w"]:
        """Return the next state of the residual stream."""
        modulation = time.through(self.modulation, 2 * (*SHIFT_SCALE, *GATE))
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation
        attended = self.attention(modulated_norm(x, shift_a, scale_a), angle, cache, layer, seen)
        x = torch.addcmul(x, gate_a, self.dropout(attended))
        hidden = self.inner(modulated_norm(x, shift_m, scale_m))
        outward = recomputed(self._outward, hidden) if self.frugal else self._outward(hidden)
        return torch.addcmul(x, gate_m, self.dropout(outward))

    def _outward(self, hidden: Float[Tensor, "b l h"]) -> Float[Tensor, "b l w"]:
        # The exact GELU: on a CPU it takes 12 ms where the tanh form takes 30.
        outward: Tensor = self.outer(functional.gelu(hidden))
        return outward


class Head(nn.Module):
    """The modulated norm and the linear map to logits, which start at zero."""

    def __init__(self, config: TransformerConfig, outputs: int) -> None:
        super().__init__()
        self.modulation = zero(config.time_width, 2 * config.width)
        # A tied matrix cannot start at zero, since it is the input's too; a gain per channel does it instead.
        self.weight = None if config.tie else nn.Parameter(torch.zeros(outputs, config.width))
        self.gain = nn.Parameter(torch.zeros(config.width)) if config.tie else None
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Float[Tensor, "b l w"], time: Moments, tied: Float[Tensor, "f w"]) -> Float[Tensor, "b l v"]:
        """Return the logits, by the first rows of the matrix `tied` where the head has none of its own."""
        shift, scale = time.through(self.modulation, SHIFT_SCALE)
        x = modulated_norm(x, shift, scale)
        if self.gain is not None:
            x = x * self.gain
        weight = tied[: len(self.bias)] if self.weight is None else self.weight
        return functional.linear(x, weight, self.bias)


class Transformer(nn.Module):
    """The denoiser of the paper: features or ids and times in, logits out."""

    def __init__(self, config: TransformerConfig, interface: Interface) -> None:
        super().__init__()
        if config.tie and interface.outputs > interface.features:
            raise InputError(
                f"tie needs a row of the input matrix per output: {interface.outputs} outputs, "
                f"{interface.features} features"
            )
        self.config = config
        self.interface = interface
        self.input = Input(interface, config.width, config.self_condition)
        # Rotary positions are relative: where nothing is known yet, all positions would have one law.
        self.place = nn.Parameter(torch.randn(config.places, config.width)) if config.places else None
        self.time = TimeEmbedding(config.time_width, config.time_scale, 2 * config.time_width, interface.classes)
        # Where logits are wider than all perceptrons together, memory is at its peak with them, and the GELUs are so
        # small a part of the time that they may as well be computed twice.
        frugal = interface.outputs > config.layers * config.mlp_ratio * config.width
        self.blocks = nn.ModuleList(Block(config, frugal) for _ in range(config.layers))
        self.head = Head(config, interface.outputs)

    def forward(
        self,
        inputs: Shaped[Tensor, "batch length *features"],
        time: Tensor | float,
        condition: Tensor | None = None,
        previous: Tensor | None = None,
        cache: Cache | None = None,
        block: int | Tensor = 0,
        doubled: bool = False,
    ) -> Float[Tensor, "batch length outputs"]:
        """Return the logits at each position, in float32 or wider.

        `inputs` are features [B, L, F] or ids [B, L]; `time` is a number, [B] or [B, L]; `condition` is
        labels [B] or a signal [B, L, S], absent means none; `previous` is the last prediction as features
        [B, L, F]. With a `cache`, which grows, they describe only the positions after those it has seen; in chunks it
        must `keep` none that will be seen otherwise.
        With a `block`, a number or [B], positions see their own chunk of so many and the ones before it. Where the
        sequence is `doubled`, inputs [B, 2L, F] and times [B, 2L] are those of the finished sequence and of the one in
        question, which is answered, see `block_mask`.
        """
        blockwise = not isinstance(block, int) or block > 0
        if cache is not None and not (self.config.causal or (blockwise and not doubled)):
            raise InputError("a cache serves causal networks and chunks: others change the past when they see more")
        labels, signal = label_or_signal(condition, self.interface)
        start, length = 0 if cache is None else cache.length, inputs.shape[1] // (2 if doubled else 1)
        halves = [
            self._placed(self.input(half, signal, previous, start), start) for half in inputs.split(length, dim=1)
        ]
        x = torch.cat(halves, dim=1) if doubled else halves[0]
        moments = self.time.moments(time, labels)
        angle = angles(start, length, self.config.width // self.config.heads, x).repeat(len(halves), 1)
        seen = block_mask(start + x.shape[1], block, doubled, x.device)[:, :, start:] if blockwise else None
        for index, layer in enumerate(self.blocks):
            x = layer(x, moments, angle, cache, index, seen)
        logits: Tensor = self.head(x[:, -length:], moments.last(length), self.input.weight)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _placed(self, x: Float[Tensor, "b l w"], start: int) -> Float[Tensor, "b l w"]:
        """Return the trunk's input with the vectors of its positions from `start` on, where positions have any."""
        if self.place is None:
            return x
        if start + x.shape[1] > len(self.place):
            raise InputError(f"the network has {len(self.place)} places, and {start + x.shape[1]} are asked for")
        return x + self.place[start : start + x.shape[1]]

    def cache(self) -> Cache:
        """Return an empty cache for this network."""
        return Cache(self.config.layers)
