"""The diffusion transformer (DiT): layer norms modulated by per-position times, rotary self-attention, a KV cache.

Attention is full, causal, or masked by blocks as in BD3-LM, Eq. (49): `block_mask`. B is the batch, L the length, W the
width, H the number of heads, D = W / H.
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
from rdlm.model.layers import EmbeddedTimes, Input, TimeEmbedding, label_or_signal, scaled_linear, zero_linear


class Cache:
    """The KV cache: keys and values [B, H, L, D] of the positions already evaluated, for each layer."""

    def __init__(self, layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self.symbols: list[Tensor | None] = [None]
        """The symbols of these positions, [B, 1, L, 1], for an inference layer below the network."""

    @property
    def length(self) -> int:
        """The number of cached positions."""
        first = self.keys[0]
        return 0 if first is None else first.shape[2]

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys and values [B, H, L, D] to a layer, and return all of its keys and values."""
        old_key, old_value = self.keys[layer], self.values[layer]
        if old_key is not None and old_value is not None:
            key, value = torch.cat((old_key, key), dim=2), torch.cat((old_value, value), dim=2)
        self.keys[layer], self.values[layer] = key, value
        return key, value

    def keep(self, length: int) -> None:
        """Discard all but the first `length` positions."""
        self._each(lambda tensor: tensor[:, :, :length])

    def rows(self, chosen: slice | Int[Tensor, " rows"]) -> Cache:
        """Return the cache of some of the sequences."""
        cache = Cache(len(self.keys))
        cache.keys, cache.values, cache.symbols = list(self.keys), list(self.values), list(self.symbols)
        cache._each(lambda tensor: tensor[chosen])
        return cache

    def take(self, parts: Sequence[Cache]) -> Cache:
        """Replace the contents by those of caches of equal length, concatenated over sequences; return this cache."""
        names = ("keys", "values", "symbols")
        pairs = [(getattr(self, name), [getattr(part, name) for part in parts]) for name in names]
        for target, sources in pairs:
            for layer, tensors in enumerate(zip(*sources, strict=True)):
                present = [tensor for tensor in tensors if tensor is not None]
                target[layer] = (present[0] if len(present) == 1 else torch.cat(present)) if present else None
        return self

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        for tensors in (self.keys, self.values, self.symbols):
            tensors[:] = [None if tensor is None else change(tensor) for tensor in tensors]


def angles(start: int, length: int, head: int, like: Tensor) -> Float[Tensor, "length half"]:
    """Return the rotary angle of each position and pair of coordinates, in float32 or wider.

    They are computed in each call: a buffer would be lost when a network is built on the meta device.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    exponent = torch.arange(0, head, 2, dtype=dtype, device=like.device) / head
    position = torch.arange(start, start + length, dtype=dtype, device=like.device)
    return position[:, None] * 1e4**-exponent


def rotate(x: Float[Tensor, "batch length *n head"], angle: Float[Tensor, "length half"]) -> Tensor:
    """Return `x` with each pair of adjacent coordinates rotated by its angle."""
    angle = angle.view(angle.shape[0], *[1] * (x.ndim - 3), angle.shape[1])  # [L, D/2] -> [L, 1, ..., 1, D/2]
    if torch.compiler.is_compiling():  # compilers do not support complex numbers
        real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
        cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        parts = (real * cosine - imaginary * sine, real * sine + imaginary * cosine)
        return torch.stack(parts, dim=-1).flatten(-2)
    # Five times faster than the real form on a CPU, eight times for half precision, which has no complex numbers.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    pairs = torch.view_as_complex(wide.reshape(*x.shape[:-1], -1, 2))  # [..., D] -> [..., D/2]
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)


def block_mask(
    length: int, block: int | Int[Tensor, " batch"], doubled: bool, device: torch.device
) -> Bool[Tensor, ...]:
    """Return the attention mask [1 or B, 1, L, L] of blocks: each attends to itself and to the blocks before it.

    A doubled sequence is a clean sequence followed by a noisy one, as in BD3-LM. A noisy block attends to itself and to
    the *clean* blocks before it, so that one forward pass evaluates every block as the next one to be sampled:

                   keys: clean    noisy
        clean queries    j <= i       -
        noisy queries    j <  i   j = i
    """
    size = torch.as_tensor(block, device=device).reshape(-1, 1)
    index = torch.arange(length // 2 if doubled else length, device=device) // size  # [B, L]: block of each position
    same = index[:, :, None] == index[:, None, :]  # [B, L, L]
    earlier = index[:, :, None] > index[:, None, :]
    if not doubled:
        return (same | earlier)[:, None]
    clean = torch.cat((same | earlier, torch.zeros_like(same)), dim=-1)
    noisy = torch.cat((earlier, same), dim=-1)
    return torch.cat((clean, noisy), dim=-2)[:, None]


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Return the attended values [B, H, L, D]; `mask` is True where a query may attend, `causal` masks what follows."""
    slow = query.dtype == torch.bfloat16 and query.device.type == "cpu" and torch.is_grad_enabled()
    if not slow or torch.compiler.is_compiling():
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
    # The fused kernel for bfloat16 on a CPU takes three to seven times as long as these products in `backward`.
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if causal:
        mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    attended: Tensor = scores.softmax(-1, dtype=torch.bfloat16) @ value
    return attended


class Attention(nn.Module):
    """Multi-head self-attention over one sequence."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = scaled_linear(width, 3 * width)
        self.out = scaled_linear(width, width)

    def forward(
        self,
        x: Float[Tensor, "batch length width"],
        angle: Tensor,
        cache: Cache | None,
        layer: int,
        mask: Bool[Tensor, ...] | None = None,
    ) -> Float[Tensor, "batch length width"]:
        """Return the attention output; with a cache, `x` holds the positions after the cached ones."""
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)  # [B, L, 3W] -> [B, L, 3, H, D]
        query, key = rotate(qkv[:, :, :2], angle).transpose(1, 3).unbind(2)  # each [B, H, L, D]
        value = qkv[:, :, 2].transpose(1, 2).contiguous()  # a view would keep all of qkv for `backward`
        if cache is not None:
            key, value = cache.extend(layer, key, value)
        past = key.shape[2] - length
        if self.causal and past:
            # `is_causal` of SDPA aligns the first query with the first key, which is wrong behind a cache.
            mask = x.new_ones(length, key.shape[2], dtype=torch.bool).tril(past)
        attended = attend(query, key, value, mask, self.causal and not past)
        merged = attended.transpose(1, 2).reshape(batch, length, width)  # [B, H, L, D] -> [B, L, W]
        projected: Tensor = self.out(merged)
        return projected


SHIFT_SCALE, GATE = (0.0, 1.0), (0.0,)
"""Initial shift, scale and gate of a modulation: the identity for norms, 0 for gates."""


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return `shift + scale * layer_norm(x)`; shift and scale broadcast."""
    norm = functional.layer_norm(x, x.shape[-1:], eps=1e-6)
    return torch.addcmul(shift, norm, scale)


def recomputed(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `function(x)`; only `x` is kept for `backward`, which computes the function again."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():  # compilers decide on recomputation themselves
        return function(x)
    output: Tensor = checkpoint(function, x, use_reentrant=False, preserve_rng_state=False)
    return output


class DiTBlock(nn.Module):
    """Attention and an MLP, each with a modulated norm and a gate initialised to zero (adaLN-zero)."""

    def __init__(self, config: TransformerConfig, recompute_mlp: bool) -> None:
        super().__init__()
        self.recompute_mlp = recompute_mlp
        width, hidden = config.width, config.mlp_ratio * config.width
        self.modulation = zero_linear(config.time_width, 6 * width)
        self.attention = Attention(width, config.heads, config.causal)
        self.inner = scaled_linear(width, hidden)
        self.outer = scaled_linear(hidden, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "b l w"],
        time: EmbeddedTimes,
        angle: Tensor,
        cache: Cache | None,
        layer: int,
        mask: Tensor | None,
    ) -> Float[Tensor, "b l w"]:
        """Return the residual stream after this block."""
        modulation = time.modulation(self.modulation, 2 * (*SHIFT_SCALE, *GATE))  # six of [B, L or 1, W]
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation
        attended = self.attention(modulated_norm(x, shift_a, scale_a), angle, cache, layer, mask)
        x = torch.addcmul(x, gate_a, self.dropout(attended))
        hidden = self.inner(modulated_norm(x, shift_m, scale_m))  # [B, L, W] -> [B, L, hidden]
        output = recomputed(self._output, hidden) if self.recompute_mlp else self._output(hidden)
        return torch.addcmul(x, gate_m, self.dropout(output))

    def _output(self, hidden: Float[Tensor, "b l h"]) -> Float[Tensor, "b l w"]:
        # The exact GELU takes 12 ms on a CPU where the tanh approximation takes 30.
        output: Tensor = self.outer(functional.gelu(hidden))
        return output


class Head(nn.Module):
    """The output head: a modulated norm and a linear map to logits, which are zero at initialisation."""

    def __init__(self, config: TransformerConfig, outputs: int, weights: int = 0) -> None:
        super().__init__()
        self.modulation = zero_linear(config.time_width, 2 * config.width)
        self.rows = outputs - weights
        # A tied matrix cannot be initialised to zero, being the input matrix too; a gain per channel can.
        self.weight = None if config.tie else nn.Parameter(torch.zeros(outputs, config.width))
        self.gain = nn.Parameter(torch.zeros(config.width)) if config.tie else None
        self.untied = nn.Parameter(torch.zeros(weights, config.width)) if config.tie and weights else None
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(
        self, x: Float[Tensor, "b l w"], time: EmbeddedTimes, tied: Float[Tensor, "f w"]
    ) -> Float[Tensor, "b l v"]:
        """Return the logits; with tied weights the output matrix is the first rows of the input matrix `tied`."""
        shift, scale = time.modulation(self.modulation, SHIFT_SCALE)
        x = modulated_norm(x, shift, scale)
        if self.gain is not None:
            x = x * self.gain
        weight = tied[: self.rows] if self.weight is None else self.weight
        if self.untied is not None:
            weight = torch.cat((weight, self.untied))
        return functional.linear(x, weight, self.bias)


class Transformer(nn.Module):
    """The network of the paper: logits from features or ids and times."""

    def __init__(self, config: TransformerConfig, interface: Interface) -> None:
        super().__init__()
        tokens = interface.outputs - interface.weights
        if config.tie and tokens > interface.features:
            raise InputError(
                f"tie needs a row of the input matrix per output: {tokens} outputs, {interface.features} features"
            )
        self.config = config
        self.interface = interface
        self.input = Input(interface, config.width, config.self_condition)
        # Learned absolute positions. Rotary ones are relative: at time 0 all positions would have the same output.
        self.place = nn.Parameter(torch.randn(config.places, config.width)) if config.places else None
        self.time = TimeEmbedding(
            config.time_width, config.time_scale, 2 * config.time_width, interface.classes, interface.timed
        )
        # If the logits are wider than all MLPs together, they determine peak memory, and the GELUs take so little
        # time that `backward` can recompute them.
        recompute_mlp = interface.outputs > config.layers * config.mlp_ratio * config.width
        self.blocks = nn.ModuleList(DiTBlock(config, recompute_mlp) for _ in range(config.layers))
        self.head = Head(config, interface.outputs, interface.weights)

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

        `inputs`: features [B, L, F] or ids [B, L]; `time`: a number, [B] or [B, L]; `condition`: labels [B], a signal
        [B, L, S] or None; `previous`: the last prediction as features [B, L, F].
        With a `cache`, which grows, the inputs are those of the positions after the cached ones; with blocks the caller
        must `keep` only positions that will not change.
        With a `block` size, a number or [B], attention is masked by `block_mask`. A `doubled` sequence has inputs
        [B, 2L, F] and times [B, 2L], of the clean and then of the noisy tokens; the logits [B, L] are those of the
        noisy half.
        """
        blockwise = not isinstance(block, int) or block > 0
        if cache is not None and not (self.config.causal or (blockwise and not doubled)):
            raise InputError(
                "a KV cache needs a causal network or blocks: with full attention, new positions change the past"
            )
        labels, signal = label_or_signal(condition, self.interface)
        start, length = 0 if cache is None else cache.length, inputs.shape[1] // (2 if doubled else 1)
        parts = inputs.split(length, dim=1)
        # A previous prediction is that of both halves, or [B, 2L, F].
        both = previous is None or previous.shape[1] == length
        previous_parts = [previous] * len(parts) if both or previous is None else previous.split(length, dim=1)
        halves = [
            self._with_position(self.input(half, signal, before, start), start)
            for half, before in zip(parts, previous_parts, strict=True)
        ]
        x = torch.cat(halves, dim=1) if doubled else halves[0]  # [B, L or 2L, W]
        times = self.time.embed(time, labels)
        angle = angles(start, length, self.config.width // self.config.heads, x).repeat(len(halves), 1)
        mask = block_mask(start + x.shape[1], block, doubled, x.device)[:, :, start:] if blockwise else None
        for index, layer in enumerate(self.blocks):
            x = layer(x, times, angle, cache, index, mask)
        logits: Tensor = self.head(x[:, -length:], times.last(length), self.input.weight)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _with_position(self, x: Float[Tensor, "b l w"], start: int) -> Float[Tensor, "b l w"]:
        """Return the input plus the learned position embeddings from `start`, if the network has any."""
        if self.place is None:
            return x
        if start + x.shape[1] > len(self.place):
            needed = start + x.shape[1]
            raise InputError(f"the network has {len(self.place)} position embeddings, but {needed} are needed")
        return x + self.place[start : start + x.shape[1]]

    @torch.no_grad()
    def start_at_frequencies(self, tokens: Int[Tensor, "n length"]) -> None:
        """Set the bias of the output to the log-frequencies of the tokens, with half an occurrence of every token."""
        rows = self.interface.outputs - self.interface.weights
        count = torch.bincount(tokens.long().flatten(), minlength=rows).double() + 0.5
        self.head.bias[:rows] = (count / count.sum()).log()

    def cache(self) -> Cache:
        """Return an empty cache for this network."""
        return Cache(self.config.layers)
