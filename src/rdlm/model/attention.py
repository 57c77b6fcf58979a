"""Self-attention with rotary positions, and the cache of keys and values of what will not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.model.linear import scaled


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


def sight(length: int, chunk: int | Int[Tensor, " batch"], doubled: bool, device: torch.device) -> Bool[Tensor, "..."]:
    """Return which positions see which [1 or batch, 1, L, L]: those of their own chunk and of the ones before it.

    A doubled sequence is a finished one followed by the one in question. Then the chunks before one's own are seen as
    they will be when they are finished, so that all chunks are asked at once, each as if it were the next.
    """
    size = torch.as_tensor(chunk, device=device).reshape(-1, 1)
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
        self, x: Float[Tensor, "batch length width"], angle: Tensor, cache: Cache | None, layer: int,
        seen: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch length width"]:  # fmt: skip
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
