"""Spelling: digits that are chosen one by one must in the end be the digits of an existing token."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.sampler.automaton import Automaton, Choice, Restriction


def spelled(
    codes: Automaton,
    digit: Int[Tensor, "batch positions"],
    decoding: Bool[Tensor, "batch positions"],
    law: Float[Tensor, "batch positions b"],
    point: Float[Tensor, "batch positions"],
    choice: Choice,
    size: int,
) -> tuple[Int[Tensor, "batch positions"], int]:
    """Return digits of which those that decode spell tokens, `size` of them each, and how many codes did not.

    Such a code is chosen anew, digit by digit by its law among those that some token goes on with: `choice`, such as a
    cut to the likeliest, comes after that, so that it leaves a token.
    """
    code = digit.unflatten(1, (-1, size)).flatten(0, 1).cpu()  # [batch, tokens * m] -> [batch * tokens, m]
    wrong = ~codes.accepting[codes.run(code)] & decoding[:, ::size].flatten().cpu()
    if not bool(wrong.any()):
        return digit, 0
    laws = law.unflatten(1, (-1, size)).flatten(0, 1).cpu()[wrong]
    points = point.unflatten(1, (-1, size)).flatten(0, 1).cpu()[wrong]
    entry = torch.full((len(laws),), codes.start)
    code[wrong] = Restriction(codes, entry, codes.accepting).draw(laws, points, choice)
    return code.reshape(digit.shape).to(digit.device), int(wrong.sum())
