"""Fused cross-entropy: `-log p(token)` without keeping probabilities, in tiles that fit the cache of a CPU.

`backward` recomputes the softmax and overwrites the logits with their gradient, so that peak memory is one tensor of
logits instead of three.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

TILE = 2**17
"""Logits per tile on a CPU, so that intermediate results stay in its cache."""


def fused_cross_entropy(
    logits: Float[Tensor, "... v"], token: Int[Tensor, ...], evidence: Float[Tensor, "... v"] | None = None
) -> Float[Tensor, ...]:
    """Return `-log softmax(logits + evidence)` at each token, Eq. (27) and (36).

    `backward` overwrites logits that are not a leaf: the caller must not use them afterwards. The evidence gets no
    gradient.
    """
    loss: Tensor = _FusedCrossEntropy.apply(logits, token, evidence)  # type: ignore[no-untyped-call]
    return loss


class _FusedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, token: Tensor, evidence: Tensor | None) -> Tensor:
        ctx.save_for_backward(logits, token, evidence)
        ctx.is_leaf = logits.is_leaf  # a tensor of the caller, not to be overwritten
        flat, index = logits.reshape(-1, logits.shape[-1]), token.reshape(-1, 1)  # [N, V], [N, 1]
        loss = flat.new_empty(len(flat), 1)
        for rows, scores in _tiles(flat, evidence):
            torch.neg(torch.log_softmax(scores, -1).gather(1, index[rows]), out=loss[rows])
        return loss.view(token.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, token, evidence = ctx.saved_tensors
        index, weight = token.reshape(-1, 1), gradients[0].reshape(-1, 1)
        flat = logits.reshape(-1, logits.shape[-1])
        gradient = torch.empty_like(flat) if ctx.is_leaf else flat
        for rows, scores in _tiles(flat, evidence):
            torch.mul(torch.softmax(scores, -1), weight[rows], out=gradient[rows])
        gradient.scatter_add_(1, index, -weight)
        return gradient.view(logits.shape), None, None


def _tiles(logits: Tensor, evidence: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows and their logits plus evidence: tiles that fit the cache of a CPU, else all rows."""
    size = max(1, TILE // logits.shape[1]) if logits.device.type == "cpu" else sys.maxsize
    flat = None if evidence is None else evidence.reshape(logits.shape)
    for begin in range(0, len(logits), min(size, max(1, len(logits)))):
        rows = slice(begin, begin + size)
        yield rows, logits[rows] if flat is None else logits[rows] + flat[rows]
