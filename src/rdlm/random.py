"""Reproducible randomness: keyed generators, counter-based normal numbers, and categorical draws.

- *Generators by key.* Training draws depend on (seed, step, shard) only, not on the number of processes, on resumption
  or on earlier draws. The batch of a step is split into shards, one per process and accumulation step, each with its
  own generator: one process with two shards draws the same numbers as two processes with one shard each.
- *Normal numbers by counter.* `normals` is a function of a key and an index, with the same bits on every device: it
  uses only operations that all devices round alike (integers, sums, products, square roots). On a CPU it is also faster
  than torch's generator, a sequential Mersenne twister.
- *Tokens* are drawn by inverting the cumulative probabilities in float64.
- *Streams per sample.* `RandomStreams` gives every sample of a batch its own generator, so that a sample does not
  depend on the other samples of its batch.

| variable | meaning |
|---|---|
| `word` | 64 random bits: the output of SplitMix64 (Steele, Lea and Flood, 2014) at an index of its sequence |
| `high`, `low` | 31 bits of a word for the radius, 32 for the angle: two normal numbers by the Box-Muller transform |
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

from rdlm.errors import DamagedFileError

Rng = torch.Generator | None
"""A source of random numbers; None is torch's global one."""

# -- generators by key and the draws of training -------------------------------------------------


def generator_of(*key: int | str) -> torch.Generator:
    """Return a CPU generator seeded by a hash of the key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def on_device(generator: Rng, device: torch.device) -> Rng:
    """Return a generator for `device`: the given one if it is on that device, else a new one seeded from it."""
    if generator is None or generator.device.type == device.type:
        return generator
    seed = int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
    return generator_on(device).manual_seed(seed)


def generator_on(device: torch.device) -> torch.Generator:
    """Return a generator of a device."""
    return torch.Generator(device)


@dataclass(frozen=True)
class Draw:
    """The randomness of one shard of one step."""

    seed: int
    step: int
    shard: int = 0
    shards: int = 1

    def generator(self) -> torch.Generator:
        """Return a new generator for this shard, always with the same seed."""
        return generator_of("shard", self.seed, self.step, self.shard, self.shards)

    def quantiles(self, count: int) -> Tensor:
        """Return `count` points of [0, 1) in random order; those of all shards together are equally spaced."""
        # The strings are part of the keys: changing them would change all draws.
        shift = torch.rand((), generator=generator_of("comb", self.seed, self.step))
        order = torch.randperm(count, generator=generator_of("order", self.seed, self.step, self.shard, self.shards))
        return ((order * self.shards + self.shard) / (count * self.shards) + shift) % 1.0


# -- counter-based normal numbers ----------------------------------------------------------------

STRIDE: Final = 0x9E3779B97F4A7C15 - (1 << 64)
MIXERS: Final = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
"""Constants of SplitMix64, as signed integers."""

ROOT_HALF: Final = 0x3F3504F3
"""Bits of sqrt(1/2) in float32; the polynomial of the logarithm is for arguments in [sqrt(1/2), sqrt(2))."""

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
"""Coefficients of `-2 log(1 + f) / f`, highest power first; relative error at most 3e-8, as for the next two."""
SINE: Final = (-0.00460165785625577, 0.07968003302812576, -0.6459634900093079, 1.5707963705062866)
"""Coefficients of `sin(pi t / 2) / t` in `t^2`."""
COSINE: Final = (-0.02039858140051365, 0.25359493494033813, -1.233696699142456, 0.9999999403953552)
"""Coefficients of `cos(pi t / 2)` in `t^2`."""
TWICE_LOG_TWO: Final = 1.3862943649291992

TILE: Final = 2**17
"""Words per tile on a CPU, so that intermediate results stay in its cache."""


def normal(
    shape: Sequence[int],
    generator: Rng = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return standard normal numbers, like `torch.randn`: counter-based, with a key drawn from the generator.

    Other devices than the CPU and other types than float32 use `torch.randn`.
    """
    device = torch.get_default_device() if device is None else torch.device(device)
    if (dtype or torch.get_default_dtype()) != torch.float32 or device.type != "cpu":
        return torch.randn(*shape, generator=generator, dtype=dtype, device=device)
    key = torch.empty(1, dtype=torch.int64).random_(generator=generator)
    return normals(key, math.prod(shape)).view(*shape)


def normals(keys: Int[Tensor, " rows"], count: int, device: torch.device | str = "cpu") -> Float[Tensor, "rows count"]:
    """Return the first `count` normal numbers of each key on a device; the keys are on the CPU."""
    keys = keys.to(device, non_blocking=True)
    half = (count + 1) // 2
    drawn = torch.empty(len(keys), 2 * half, device=keys.device)
    size = max(1, TILE // max(1, len(keys))) if keys.device.type == "cpu" else half
    for begin in range(0, half, size):
        end = min(begin + size, half)
        drawn[:, begin:end], drawn[:, half + begin : half + end] = _pair(words(keys, begin, end))
    return drawn[:, :count].contiguous()


def _pair(word: Int[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return two normal numbers for each word, by the Box-Muller transform."""
    low = word.to(torch.int32)
    radius = _root(squared_radius(_shifted(word, 33).to(torch.int32)))
    radius.view(torch.int32).bitwise_xor_(low & -(1 << 31))  # takes the sign of `low`
    t = (low << 2).to(torch.float32).mul_(2.0**-32)
    square = t * t
    sine, cosine = _polynomial(SINE, square).mul_(t), _polynomial(COSINE, square)
    swap = sine.view(torch.int32).bitwise_xor(cosine.view(torch.int32)).bitwise_and_((low << 1) >> 31)
    for value in (sine, cosine):  # swapped where the second bit of `low` is 1
        value.view(torch.int32).bitwise_xor_(swap)
    return cosine.mul_(radius), sine.mul_(radius)


def words(keys: Int[Tensor, " rows"], begin: int, end: int) -> Int[Tensor, "rows indices"]:
    """Return the words of each key at the indices `begin` to `end - 1`."""
    word = keys[:, None] + torch.arange(begin + 1, end + 1, device=keys.device) * STRIDE
    for shift, mixer in zip((30, 27), MIXERS, strict=True):
        word.bitwise_xor_(_shifted(word, shift)).mul_(mixer)
    return word.bitwise_xor_(_shifted(word, 31))


def squared_radius(high: Int[Tensor, ...]) -> Float[Tensor, ...]:
    """Return `-2 log u` for the midpoint `u` of interval `high` of 2^31 equal intervals of [0, 1]."""
    bits = high.to(torch.float32).add_(0.5).mul_(2.0**-31).view(torch.int32)
    exponent = (bits - ROOT_HALF).bitwise_right_shift_(23)
    f = bits.sub_(exponent << 23).view(torch.float32).sub_(1.0)
    return _polynomial(LOGARITHM, f).mul_(f).add_(exponent.to(torch.float32).mul_(-TWICE_LOG_TWO))


def _root(square: Tensor) -> Tensor:
    """Return correctly rounded square roots: through float64 on a CPU, where float32 roots may be off by a bit."""
    return square.double().sqrt_().float() if square.device.type == "cpu" else square.sqrt_()


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Return a polynomial by Horner's rule, rounding after each product and each sum (no fused multiply-add)."""
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value.mul_(x).add_(coefficient)
    return value


def _shifted(word: Tensor, by: int) -> Tensor:
    """Return words shifted right logically, with zeros shifted in."""
    return (word >> by).bitwise_and_((1 << (64 - by)) - 1)


# -- categorical draws ---------------------------------------------------------------------------

BLOCK = 128
"""Tokens per block in the two-level search of a large vocabulary."""


def check_numbers(log_probs: Tensor) -> None:
    """Raise DamagedFileError if an entry is NaN; a draw from NaN would silently be token 0."""
    if bool(log_probs.isnan().any()):
        raise DamagedFileError(
            "the network's log-probabilities are not finite: its weights overflow, or are damaged; nothing is sampled"
        )


def draw_token(log_probs: Tensor, generator: Rng = None) -> Int[Tensor, ...]:
    """Return tokens drawn from log-probabilities, by inverting their cumulative sum in float64.

    Gumbel noise in float32 would silently lower the temperature.
    """
    shape, device = log_probs.shape[:-1], log_probs.device
    if device.type == "cpu":  # on other devices, reading a result would synchronise
        check_numbers(log_probs.sum())  # log-probabilities are not positive: only NaN makes NaN
    generator = on_device(generator, device)
    return pick_token(log_probs, torch.rand(shape, generator=generator, dtype=torch.float64, device=device))


def pick_token(log_probs: Float[Tensor, "... v"], point: Float[Tensor, ...]) -> Int[Tensor, ...]:
    """Return the token whose interval of the cumulative probabilities contains each point of [0, 1)."""
    if log_probs.shape[-1] > 4 * BLOCK and log_probs.dtype == torch.float32:
        return _pick_in_blocks(log_probs, point)
    counting = torch.promote_types(log_probs.dtype, torch.float32)  # its integers are exact up to 2^24
    probs = log_probs.to(counting).exp()
    cumulative = probs.double().cumsum_(-1)
    # For small vocabularies counting is faster than a binary search, which mispredicts branches.
    passed = torch.le(cumulative, (point * cumulative[..., -1])[..., None], out=probs)
    return passed.sum(-1).long().clamp_max_(cumulative.shape[-1] - 1)


def _pick_in_blocks(log_probs: Tensor, point: Tensor) -> Tensor:
    """Return the same for a large vocabulary, by a two-level search: first for a block of tokens, then within it.

    Only the cumulative sums need float64: 20 times faster than float64 throughout.
    """
    probs = log_probs.exp()
    tokens = probs.shape[-1]
    full = tokens - tokens % BLOCK  # tokens in full blocks
    sums = [probs[..., :full].unflatten(-1, (-1, BLOCK)).sum(-1)]
    if full < tokens:  # an empty last block could be drawn by a point that rounds up to the end
        sums.append(probs[..., full:].sum(-1, keepdim=True))
    mass = torch.cat(sums, -1).double()  # [..., blocks]
    cumulative = mass.cumsum(-1)
    target = point * cumulative[..., -1]
    block = _inverse(cumulative, target)[..., None]
    index = block * BLOCK + torch.arange(BLOCK, device=probs.device)  # [..., BLOCK]: the tokens of the block
    inner = probs.gather(-1, index.clamp_max(tokens - 1)).masked_fill_(index >= tokens, 0.0).double().cumsum_(-1)
    rest = target - (cumulative.gather(-1, block) - mass.gather(-1, block)).squeeze(-1)
    # The sum of the block in float64 differs by rounding from the float32 sum that selected it.
    last = torch.nextafter(inner[..., -1], torch.zeros_like(rest))
    return block.squeeze(-1) * BLOCK + _inverse(inner, torch.minimum(rest.clamp_min(0), last))


def _inverse(cumulative: Float[Tensor, "... v"], target: Float[Tensor, ...]) -> Int[Tensor, ...]:
    # `right=True`: a token of probability 0 is never drawn, not even by the point 0.
    token = torch.searchsorted(cumulative, target[..., None].contiguous(), right=True).squeeze(-1)
    return token.clamp_max(cumulative.shape[-1] - 1)


# -- one generator per sample --------------------------------------------------------------------


class RandomStreams:
    """Random draws for a batch of samples: one generator per sample, or a single one (or None) for all of them."""

    def __init__(self, generators: Sequence[Rng], batch: int) -> None:
        self.generators, self.batch = list(generators), batch
        self.separate = len(self.generators) == batch
        """Whether every sample has its own generator."""

    def rows(self) -> Iterator[tuple[slice, Rng]]:
        """Yield each generator with the slice of samples that draw from it."""
        share = self.batch // len(self.generators)
        for index, generator in enumerate(self.generators):
            yield slice(index * share, (index + 1) * share), generator

    def normal(self, like: Tensor) -> Tensor:
        """Return standard normal numbers in the shape of `like`, whose first axis is the batch."""
        # Generators are on the CPU; only their keys go to the device, where they give the same numbers.
        keys = torch.empty(len(self.generators), dtype=torch.int64)
        for key, generator in zip(keys.split(1), self.generators, strict=True):
            key.random_(generator=generator)
        drawn = normals(keys, like.numel() // len(keys), like.device)
        return drawn.view(like.shape).to(like.dtype)

    def uniform(self, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Return uniform numbers of [0, 1) in float64; the first axis is the batch."""
        drawn = torch.empty(tuple(shape), dtype=torch.float64)
        parts = drawn.split(self.batch // len(self.generators))  # takes a third of the time of slicing
        for part, generator in zip(parts, self.generators, strict=True):
            part.uniform_(generator=generator)
        return drawn.to(device, non_blocking=True)

    def subset(self, chosen: Sequence[int]) -> RandomStreams:
        """Return the streams of some of the samples; requires one generator per sample."""
        return RandomStreams([self.generators[index] for index in chosen], len(chosen))
