"""Prompts: the known tokens of a sequence, and the windows in which a long sequence is sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rdlm.data.tokenizer import Characters, Tokenizer
from rdlm.errors import InputError


class Window(NamedTuple):
    """Tokens `begin` to `end` of a sequence; those from `fresh` on are new."""

    begin: int
    fresh: int
    end: int


def windows(length: int, context: int, stride: int | None = None) -> Iterator[Window]:
    """Yield the windows of at most `context` tokens that cover `length`; each but the first adds `stride` tokens.

    The stride is by default half the context; longer ones need fewer windows, shorter ones condition on more text.
    """
    size = max(1, context // 2) if stride is None else stride
    if not 1 <= size <= context:
        raise InputError(f"the stride must be 1 to {context} tokens, the model's length, got {size}")
    end = min(length, context)
    yield Window(0, 0, end)
    while end < length:
        fresh, end = end, min(length, end + size)
        yield Window(max(0, end - context), fresh, end)


OPEN = -1
"""The id of a position whose token is not known."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """Known ids, `OPEN` elsewhere, and the tokens that each position may take."""

    known: Int[Tensor, " length"]
    allowed: Bool[Tensor, "length v"] | None = None

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.known)

    def choices(self, vocabulary: int) -> Bool[Tensor, "length v"]:
        """Return the tokens that each position may take, known ones included."""
        allowed = torch.ones(self.length, vocabulary, dtype=torch.bool) if self.allowed is None else self.allowed
        fixed = torch.nn.functional.one_hot(self.known.clamp_min(0), vocabulary).bool()
        return torch.where((self.known != OPEN)[:, None], fixed & allowed, allowed)


def encode_prompt(tokenizer: Tokenizer, text: str, what: str, begin: int = 0) -> Int[Tensor, " n"]:
    """Return the ids of a text; a character outside the alphabet is an error even where the corpus was lenient.

    `begin` is the position of the text in the user's input.
    """
    if isinstance(tokenizer, Characters):
        for at, character in enumerate(text, begin):
            if character not in tokenizer.alphabet:
                raise InputError(
                    f"{what}: the character {character!r} at position {at} is outside the model's alphabet "
                    f"{tokenizer.alphabet!r}; with normalise, case is changed and digits are spelled"
                )
    return torch.from_numpy(tokenizer.encode(text).astype(np.int64))


def framed(tokenizer: Tokenizer, length: int, prompt: str = "", suffix: str = "") -> Int[Tensor, " length"]:
    """Return a sequence that begins with the prompt, ends with the suffix, and is open in between."""
    first, last = encode_prompt(tokenizer, prompt, "prompt"), encode_prompt(tokenizer, suffix, "suffix")
    if len(first) + len(last) >= length:
        raise InputError(
            f"a prompt and a suffix of {len(first)} and {len(last)} tokens leave nothing open in {length} tokens"
        )
    gap = torch.full((length - len(first) - len(last),), OPEN)
    return torch.cat([first, gap, last])


def infilled(tokenizer: Tokenizer, text: str, gap: str = "_") -> Int[Tensor, " n"]:
    """Return the ids of a text in which each gap character is one open token."""
    if len(gap) != 1:
        raise InputError(f"a gap is one character, got {gap!r}")
    if isinstance(tokenizer, Characters) and gap in tokenizer.alphabet:
        raise InputError(f"the gap {gap!r} is a character of the model's alphabet: choose another one with --gap")
    if gap not in text:
        raise InputError(f"the infill {text!r} has no gap: write {gap!r} for every open token")
    pieces, begin = [], 0
    for part in text.split(gap):
        pieces += [encode_prompt(tokenizer, part, "infill", begin), torch.tensor([OPEN])]
        begin += len(part) + 1
    return torch.cat(pieces[:-1])


def restricted(
    tokenizer: Tokenizer, known: Int[Tensor, " length"], ban: str, forbid: Mapping[int, str], require: Mapping[int, str]
) -> Prompt:
    """Return the prompt in which the tokens of `ban` occur nowhere, and positions avoid or take given tokens."""
    if not (ban or forbid or require):
        return Prompt(known)
    length = len(known)
    allowed = torch.ones(length, tokenizer.size, dtype=torch.bool)
    allowed[:, encode_prompt(tokenizer, ban, "ban")] = False
    for position, text in forbid.items():
        allowed[_place(position, length), encode_prompt(tokenizer, text, "forbid")] = False
    for position, text in require.items():
        wanted = torch.zeros(tokenizer.size, dtype=torch.bool)
        wanted[encode_prompt(tokenizer, text, "require")] = True
        allowed[_place(position, length)] &= wanted
    prompt = Prompt(known, allowed)
    stuck = (~prompt.choices(tokenizer.size).any(-1)).nonzero().flatten().tolist()
    if stuck:
        raise InputError(f"the conditions contradict each other: no token is left at position {stuck[0]}")
    return prompt


def _place(position: int, length: int) -> int:
    if not -length <= position < length:
        raise InputError(f"position {position} is outside a sequence of {length} tokens")
    return position % length
