"""The layout of tokens on spheres and network positions: dimension splitting into base-b digits, Eq. (39) and Eq. (40).

| unit | meaning |
|---|---|
| token | an id in 0 .. V - 1 |
| digit | one of the `m` base-b digits of a token; each has a sphere of its own; m = 1 where nothing is split |
| symbol | the unit that the process decodes: a token, or one digit of it |
| position | an input and an output of the network: packed digits share one, serial digits have one each |

The digits of a token are the path to its leaf in a b-ary tree. Sums over the tree, one level at a time, cost O(V) in
all, where a 0/1 matrix from tokens to digits would cost O(V m b).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from rdlm.config import Head
from rdlm.errors import InputError, unknown

Placement = Literal["packed", "serial"]
PLACEMENTS: tuple[Placement, ...] = ("packed", "serial")


@dataclass(frozen=True)
class Layout:
    """The map between `vocabulary` tokens, their digits in `base`, most significant first, and network positions."""

    vocabulary: int
    """V, the number of tokens."""
    base: int
    """b, the number of values of a digit; b = V is one digit, the token itself."""
    placement: Placement = "packed"
    """packed: the digits of a token share its position; serial: each digit has a position of its own."""
    head: Head = "token"
    """token: the network's output is over whole tokens where digits share a position; digit: over each digit."""

    def __post_init__(self) -> None:
        if self.vocabulary < 2:
            raise InputError(f"a vocabulary needs at least 2 tokens, got {self.vocabulary}")
        if self.base < 2:
            raise InputError(f"base {self.base} must be at least 2")
        if self.vocabulary < self.base:
            raise InputError(
                f"base {self.base} exceeds the vocabulary of {self.vocabulary} tokens: "
                f"use base = {self.vocabulary} for one digit per token"
            )
        if self.placement not in PLACEMENTS:
            raise unknown("layout", self.placement, PLACEMENTS)

    @cached_property
    def digits(self) -> int:
        """`m = ceil(log_b V)`, Eq. (39), in integers: a floating-point logarithm fails at exact powers."""
        digits = 1
        while self.base**digits < self.vocabulary:
            digits += 1
        return digits

    @cached_property
    def positions(self) -> int:
        """The number of positions that one token takes."""
        return self.digits if self.placement == "serial" else 1

    @cached_property
    def spheres(self) -> int:
        """The number of spheres at a position of the network."""
        return 1 if self.placement == "serial" else self.digits

    @cached_property
    def joint(self) -> bool:
        """Whether the digits at a position are decoded together, as one token with several spheres."""
        return self.head == "token" and self.spheres > 1

    @cached_property
    def symbols_per_token(self) -> int:
        """The number of symbols of a token: its digits, unless they are decoded together."""
        return 1 if self.joint else self.digits

    def symbols(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch symbols"]:
        """Return the symbols of tokens: the tokens themselves, or all digits in a row."""
        return ids if self.symbols_per_token == 1 else self.encode(ids).flatten(1)

    def ids(self, symbols: Int[Tensor, "batch symbols"]) -> Int[Tensor, "batch length"]:
        """Return the token ids of symbols; -1 where digits are the code of no token."""
        if self.symbols_per_token == 1:
            return symbols
        digits = symbols if self.placement == "serial" else symbols.unflatten(1, (-1, self.digits))
        return self.decode(digits)

    def split(self, symbol: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Return the vertex of each sphere: the symbols, or their digits [..., m] where these are joint, Eq. (39)."""
        return self.encode(symbol) if self.joint else symbol

    def per_symbol(self, value: Float[Tensor, "batch length"]) -> Float[Tensor, "batch symbols"]:
        """Return a value of each token for each of its symbols; one column for all tokens stays one."""
        return value if value.shape[1] == 1 else value.repeat_interleave(self.symbols_per_token, dim=1)

    def per_position(self, signal: Float[Tensor, "batch length *s"]) -> Float[Tensor, "batch positions s"]:
        """Return a signal of each token at each position of the network."""
        signal = signal if signal.ndim == 3 else signal[..., None]
        return signal.repeat_interleave(self.positions, dim=1)

    def encode(self, ids: Int[Tensor, "... length"]) -> Int[Tensor, ...]:
        """Return the digits of each id, Eq. (39): [..., L, m] if packed, [..., L * m] if serial."""
        # Checked on the CPU only: on other devices the check would synchronise.
        if ids.device.type == "cpu" and ids.numel() and not (ids.min() >= 0 and ids.max() < self.vocabulary):
            raise InputError(
                f"token ids must lie in [0, {self.vocabulary - 1}], got {int(ids.min())} to {int(ids.max())}"
            )
        digits = ids[..., None] // self._powers(ids.device) % self.base
        return digits.flatten(-2) if self.placement == "serial" else digits

    def decode(self, digits: Int[Tensor, ...]) -> Int[Tensor, "... length"]:
        """Return the ids of digits, -1 where they are the code of no token, without a synchronisation with their
        device."""
        if self.placement == "serial":
            length, odd = divmod(digits.shape[-1], self.digits)
            if odd:
                raise InputError(f"{digits.shape[-1]} digits are not whole tokens of {self.digits} digits")
            digits = digits.reshape(*digits.shape[:-1], length, self.digits)
        if digits.shape[-1] != self.digits:
            raise InputError(f"tokens have {self.digits} digits, got {digits.shape[-1]}")
        if digits.device.type == "cpu" and digits.numel() and not (digits.min() >= 0 and digits.max() < self.base):
            raise InputError(f"digits must lie in [0, {self.base - 1}], got {int(digits.min())} to {int(digits.max())}")
        ids = (digits * self._powers(digits.device)).sum(-1)
        return ids.masked_fill(ids >= self.vocabulary, -1)

    def marginals(self, probability: Float[Tensor, "... v"]) -> Float[Tensor, "... m b"]:
        """Return the marginal distribution of each digit, Eq. (40); invalid codes have probability 0."""
        law: Tensor = _Marginals.apply(probability, self)  # type: ignore[no-untyped-call]
        return law

    def evidence(self, digit: Float[Tensor, "... m b"]) -> Float[Tensor, "... v"]:
        """Return each token's sum of its digits' log-evidences, Eq. (40)."""
        token: Tensor = _Evidence.apply(digit, self)  # type: ignore[no-untyped-call]
        return token

    def _prefixes(self, length: int) -> int:
        """Return how many prefixes of `length` digits begin some token."""
        leaves: int = self.base ** (self.digits - length)
        return -(-self.vocabulary // leaves)

    def _powers(self, device: torch.device) -> Int[Tensor, " m"]:
        return torch.tensor([self.base**j for j in range(self.digits)][::-1], device=device)


def _sums(digit: Float[Tensor, "... m b"]) -> Float[Tensor, "... codes"]:
    """Return the sum over the digits of each of the b^m codes, in their order."""
    total = digit[..., 0, :]
    for level in range(1, digit.shape[-2]):
        # [..., prefixes, 1] + [..., 1, b] -> [..., longer prefixes]
        total = (total[..., :, None] + digit[..., level, None, :]).flatten(-2)
    return total


class _Marginals(torch.autograd.Function):
    """Sums over the tree from the root; its adjoint is `_Evidence`, so backward is as cheap as forward."""

    @staticmethod
    def forward(ctx: Any, probability: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        laws, suffix = [], probability
        for level in range(layout.digits):
            leaves = layout.base ** (layout.digits - 1 - level)
            # [..., tokens] -> [..., digit, leaves below it]; the tree is incomplete on its right
            used = -(-suffix.shape[-1] // leaves)
            padded = pad(suffix, (0, used * leaves - suffix.shape[-1]))
            below = padded.reshape(*suffix.shape[:-1], used, leaves)
            laws.append(pad(below.sum(-1), (0, layout.base - used)))
            suffix = below.sum(-2)
        return torch.stack(laws, dim=-2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.evidence(gradients[0]), None


class _Evidence(torch.autograd.Function):
    """Sums along the paths of the tree; its adjoint is `_Marginals`."""

    @staticmethod
    def forward(ctx: Any, digit: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        # The two halves of a code first, then their sums: a separate last level would have rows of only b numbers.
        half = layout.digits // 2
        token = _sums(digit[..., half:, :])
        if half:
            heads = _sums(digit[..., :half, :])[..., : layout._prefixes(half)]
            token = (heads[..., :, None] + token[..., None, :]).flatten(-2)  # [..., prefixes, suffixes] -> tokens
        token = token[..., : layout.vocabulary]
        return token.clone() if layout.digits == 1 else token

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.marginals(gradients[0]), None
