"""Random draws that depend on (seed, step, shard) alone: not on processes, resumes or what ran before.

A step's batch is cut into `shards`, one per process and accumulated part, and each has a generator of
its own. One process that accumulates two shards draws what two processes with one shard each draw.

Normal numbers as a function of a key and a place alone: the same bits on every device, and in little time.

torch's own on a CPU wait for a Mersenne twister, one number after the other. These are made in parallel, of operations
that every device rounds alike: whole numbers, sums, products, roots.

| variable | what it is |
|---|---|
| `word` | 64 random bits: the output of SplitMix64 (Steele, Lea and Flood, 2014) at a place of its sequence |
| `high`, `low` | 31 bits of it for a radius, 32 for an angle: two numbers by Box and Muller's transform |

Random draws of a batch: every sample from a generator of its own, so that its neighbours do not matter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor


def generator_of(*key: int | str) -> torch.Generator:
    """Return a CPU generator seeded by a hash of the key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def on_device(generator: torch.Generator | None, device: torch.device) -> torch.Generator | None:
    """Return a generator for draws on `device`: the given one where it fits, else a new one seeded by it."""
    if generator is None or generator.device.type == device.type:
        return generator
    seed = int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
    return torch.Generator(device).manual_seed(seed)


@dataclass(frozen=True)
class Draw:
    """The randomness of one shard of one step."""

    seed: int
    step: int
    shard: int = 0
    shards: int = 1

    def generator(self) -> torch.Generator:
        """Return this shard's generator, fresh."""
        return generator_of("shard", self.seed, self.step, self.shard, self.shards)

    def quantiles(self, count: int) -> Tensor:
        """Return `count` points of [0, 1) in random order which, over all shards, are one evenly spaced comb."""
        shift = torch.rand((), generator=generator_of("comb", self.seed, self.step))
        order = torch.randperm(count, generator=generator_of("order", self.seed, self.step, self.shard, self.shards))
        return ((order * self.shards + self.shard) / (count * self.shards) + shift) % 1.0


STRIDE: Final = 0x9E3779B97F4A7C15 - (1 << 64)
MIXERS: Final = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
"""SplitMix64's numbers, as signed ones."""

ROOT_HALF: Final = 0x3F3504F3
"""Bits of the square root of 1/2 in float32: logarithms are taken of numbers between it and twice it."""

LOGARITHM: Final = (
    -0.1744469851255417,
    0.2873367965221405,
    -0.2990453541278839,
    0.33124786615371704,
    -0.39913666248321533,
    0.5000414848327637,
    -0.6666837334632874,
    0.9999997615814209,
    -2.0,
)
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


def normals(keys: Int[Tensor, " rows"], count: int, device: torch.device | str = "cpu") -> Float[Tensor, "rows count"]:
    """Return `count` normal numbers of each key, which are on the CPU, on any device."""
    keys = keys.to(device, non_blocking=True)
    half = (count + 1) // 2
    drawn = torch.empty(len(keys), 2 * half, device=keys.device)
    size = max(1, PIECE // max(1, len(keys))) if keys.device.type == "cpu" else half
    for begin in range(0, half, size):
        end = min(begin + size, half)
        drawn[:, begin:end], drawn[:, half + begin : half + end] = _pair(words(keys, begin, end))
    return drawn[:, :count].contiguous()


def _pair(word: Int[Tensor, ...]) -> tuple[Tensor, Tensor]:
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


def squared_radius(high: Int[Tensor, ...]) -> Float[Tensor, ...]:
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


BLOCK = 128
"""Tokens of a block when a large vocabulary is searched."""


def draw_token(log_probs: Tensor, generator: torch.Generator | None = None) -> Int[Tensor, ...]:
    """Return tokens drawn from log-probabilities, by the inverse of their sum in float64.

    Gumbel noise in float32 would quietly lower the temperature.
    """
    shape, device = log_probs.shape[:-1], log_probs.device
    return pick_token(log_probs, torch.rand(shape, generator=generator, dtype=torch.float64, device=device))


def pick_token(log_probs: Float[Tensor, "... v"], point: Float[Tensor, ...]) -> Int[Tensor, ...]:
    """Return the token in whose interval of the summed probabilities each point of [0, 1) lies."""
    if log_probs.shape[-1] > 4 * BLOCK and log_probs.dtype == torch.float32:
        return _pick_in_blocks(log_probs, point)
    counting = torch.promote_types(log_probs.dtype, torch.float32)  # exact for so few
    law = log_probs.to(counting).exp()
    mass = law.double().cumsum_(-1)
    # Counting beats a binary search, whose branches no processor can foretell, where there is little to count.
    passed = torch.le(mass, (point * mass[..., -1])[..., None], out=law)
    return passed.sum(-1).long().clamp_max_(mass.shape[-1] - 1)


def _pick_in_blocks(log_probs: Tensor, point: Tensor) -> Tensor:
    """Return the same for a large vocabulary: first a block of tokens, then a token in it.

    Only the sums are in float64, which is where digits would be lost: 20 times faster than float64 throughout.
    """
    law = log_probs.exp()
    tokens = law.shape[-1]
    whole = tokens - tokens % BLOCK
    parts = [law[..., :whole].unflatten(-1, (-1, BLOCK)).sum(-1)]
    if whole < tokens:  # an empty block could be drawn by a point that rounding puts at the very end
        parts.append(law[..., whole:].sum(-1, keepdim=True))
    part = torch.cat(parts, -1).double()
    mass = part.cumsum(-1)
    target = point * mass[..., -1]
    block = _inverse(mass, target)[..., None]
    index = block * BLOCK + torch.arange(BLOCK, device=law.device)
    inner = law.gather(-1, index.clamp_max(tokens - 1)).masked_fill_(index >= tokens, 0.0).double().cumsum_(-1)
    rest = target - (mass.gather(-1, block) - part.gather(-1, block)).squeeze(-1)
    # The block's own sum in float64 differs in the last digits from the one that chose it.
    last = torch.nextafter(inner[..., -1], torch.zeros_like(rest))
    return block.squeeze(-1) * BLOCK + _inverse(inner, torch.minimum(rest.clamp_min(0), last))


def _inverse(mass: Float[Tensor, "... v"], target: Float[Tensor, ...]) -> Int[Tensor, ...]:
    # On the right of equal sums: a token of probability 0 is never drawn, not even by the point 0.
    token = torch.searchsorted(mass, target[..., None].contiguous(), right=True).squeeze(-1)
    return token.clamp_max(mass.shape[-1] - 1)


class Noise:
    """The random draws of a batch of samples; a single generator, or none, serves them all together."""

    def __init__(self, generators: Sequence[torch.Generator | None], batch: int) -> None:
        self.generators, self.batch = list(generators), batch
        self.separate = len(self.generators) == batch
        """Whether every sample has a generator of its own."""

    def rows(self) -> Iterator[tuple[slice, torch.Generator | None]]:
        """Yield each generator with the samples that it serves."""
        share = self.batch // len(self.generators)
        for index, generator in enumerate(self.generators):
            yield slice(index * share, (index + 1) * share), generator

    def normal(self, like: Tensor) -> Tensor:
        """Return standard normal numbers in the shape of `like`, whose first axis is the batch."""
        # Generators live on the CPU, whatever the device; a key means the same on all.
        keys = torch.empty(len(self.generators), dtype=torch.int64)
        for key, generator in zip(keys.split(1), self.generators, strict=True):
            key.random_(generator=generator)
        drawn = normals(keys, like.numel() // len(keys), like.device)
        return drawn.view(like.shape).to(like.dtype)

    def uniform(self, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Return uniform numbers of [0, 1) in float64; the first axis is the batch."""
        drawn = torch.empty(tuple(shape), dtype=torch.float64)
        parts = drawn.split(self.batch // len(self.generators))  # all at once: a third of the time of slices
        for part, generator in zip(parts, self.generators, strict=True):
            part.uniform_(generator=generator)
        return drawn.to(device, non_blocking=True)

    def subset(self, chosen: Sequence[int]) -> Noise:
        """Return the noise of some of the samples, each of which has its own generator."""
        return Noise([self.generators[index] for index in chosen], len(chosen))
