"""Normal numbers as a function of a key and a place alone: the same bits on every device, and in little time.

torch's own on a CPU wait for a Mersenne twister, one number after the other. These are made in parallel, of operations
that every device rounds alike: whole numbers, sums, products, roots.

| variable | what it is |
|---|---|
| `word` | 64 random bits: the output of SplitMix64 (Steele, Lea and Flood, 2014) at a place of its sequence |
| `high`, `low` | 31 bits of it for a radius, 32 for an angle: two numbers by Box and Muller's transform |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

STRIDE: Final = 0x9E3779B97F4A7C15 - (1 << 64)
MIXERS: Final = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
"""SplitMix64's numbers, as signed ones."""

ROOT_HALF: Final = 0x3F3504F3
"""Bits of the square root of 1/2 in float32: logarithms are taken of numbers between it and twice it."""

LOGARITHM: Final = (
    -0.1744469851255417, 0.2873367965221405, -0.2990453541278839, 0.33124786615371704, -0.39913666248321533,
    0.5000414848327637, -0.6666837334632874, 0.9999997615814209, -2.0,
)  # fmt: skip
"""Of `-2 log(1 + f) / f`, highest power first; off by 3e-8 of it at most, as are the next two."""
SINE: Final = (-0.00460165785625577, 0.07968003302812576, -0.6459634900093079, 1.5707963705062866)
"""Of `sin(pi t / 2) / t` in `t^2`."""
COSINE: Final = (-0.02039858140051365, 0.25359493494033813, -1.233696699142456, 0.9999999403953552)
"""Of `cos(pi t / 2)` in `t^2`."""
TWICE_LOG_TWO: Final = 1.3862943649291992

PIECE: Final = 2**17
"""Words that a CPU works on at once: what is made of them stays in its cache."""


def normal(
    shape: Sequence[int],
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return what `torch.randn` of these arguments would, if not the same numbers; a key is drawn from the generator.

    Other devices than a CPU, and other types than float32, have torch's own.
    """
    place = torch.get_default_device() if device is None else torch.device(device)
    if (dtype or torch.get_default_dtype()) != torch.float32 or place.type != "cpu":
        return torch.randn(*shape, generator=generator, dtype=dtype, device=place)
    key = torch.empty(1, dtype=torch.int64).random_(generator=generator)
    return normals(key, math.prod(shape)).view(*shape)


def normals(
    keys: Int[Tensor, " rows"], count: int, device: torch.device | str = "cpu"
) -> Float[Tensor, "rows count"]:
    """Return `count` normal numbers of each key, which are on the CPU, on any device."""
    keys = keys.to(device, non_blocking=True)
    half = (count + 1) // 2
    drawn = torch.empty(len(keys), 2 * half, device=keys.device)
    size = max(1, PIECE // max(1, len(keys))) if keys.device.type == "cpu" else half
    for begin in range(0, half, size):
        end = min(begin + size, half)
        drawn[:, begin:end], drawn[:, half + begin : half + end] = _pair(words(keys, begin, end))
    return drawn[:, :count].contiguous()


def _pair(word: Int[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    """Return the two numbers of each word."""
    low = word.to(torch.int32)
    radius = _root(squared_radius(_shifted(word, 33).to(torch.int32)))
    radius.view(torch.int32).bitwise_xor_(low & -(1 << 31))  # with the sign of `low`
    t = (low << 2).to(torch.float32).mul_(2.0**-32)
    square = t * t
    sine, cosine = _polynomial(SINE, square).mul_(t), _polynomial(COSINE, square)
    change = sine.view(torch.int32).bitwise_xor(cosine.view(torch.int32)).bitwise_and_((low << 1) >> 31)
    for one in (sine, cosine):  # where the next bit is 1 they change places
        one.view(torch.int32).bitwise_xor_(change)
    return cosine.mul_(radius), sine.mul_(radius)


def words(keys: Int[Tensor, " rows"], begin: int, end: int) -> Int[Tensor, "rows places"]:
    """Return the words of each key at some places."""
    word = keys[:, None] + torch.arange(begin + 1, end + 1, device=keys.device) * STRIDE
    for shift, mixer in zip((30, 27), MIXERS, strict=True):
        word.bitwise_xor_(_shifted(word, shift)).mul_(mixer)
    return word.bitwise_xor_(_shifted(word, 31))


def squared_radius(high: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return `-2 log u` for the `u` in the middle of each of 2^31 equal parts of [0, 1]."""
    bits = high.to(torch.float32).add_(0.5).mul_(2.0**-31).view(torch.int32)
    exponent = (bits - ROOT_HALF).bitwise_right_shift_(23)
    f = bits.sub_(exponent << 23).view(torch.float32).sub_(1.0)
    return _polynomial(LOGARITHM, f).mul_(f).add_(exponent.to(torch.float32).mul_(-TWICE_LOG_TWO))


def _root(square: Tensor) -> Tensor:
    """Return square roots, rounded correctly: by way of float64 on a CPU, where torch's own are off by a bit."""
    return square.double().sqrt_().float() if square.device.type == "cpu" else square.sqrt_()


def _polynomial(coefficients: tuple[float, ...], at: Tensor) -> Tensor:
    """Return a polynomial by Horner's rule, each product and each sum rounded by itself."""
    value = torch.full_like(at, coefficients[0])
    for coefficient in coefficients[1:]:
        value.mul_(at).add_(coefficient)
    return value


def _shifted(word: Tensor, by: int) -> Tensor:
    """Return words shifted to the right with zeros coming in."""
    return (word >> by).bitwise_and_((1 << (64 - by)) - 1)
