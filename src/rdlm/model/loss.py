"""What a token costs, `-log p(token)`, in as little memory and as few passes as its logits allow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

CACHED = 2**17
"""Logits that are worked on at once on a CPU, so that what is computed of them stays in its cache."""


def fused_cross_entropy(
    logits: Float[Tensor, "... v"], token: Int[Tensor, ...], evidence: Float[Tensor, "... v"] | None = None
) -> Float[Tensor, ...]:
    """Return `-log softmax(logits + evidence)` at each token, Eq. (27) and (36).

    No probability is kept: `backward` computes them again, and writes the gradient over the logits, which nobody may
    need any more. The evidence gets no gradient.
    """
    loss: Tensor = _Surprisal.apply(logits, token, evidence)  # type: ignore[no-untyped-call]
    return loss


class _Surprisal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, token: Tensor, evidence: Tensor | None) -> Tensor:
        ctx.save_for_backward(logits, token, evidence)
        ctx.kept = logits.is_leaf  # somebody's own tensor
        flat, index = logits.reshape(-1, logits.shape[-1]), token.reshape(-1, 1)
        loss = flat.new_empty(len(flat), 1)
        for rows, scores in _pieces(flat, evidence):
            torch.neg(torch.log_softmax(scores, -1).gather(1, index[rows]), out=loss[rows])
        return loss.view(token.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, token, evidence = ctx.saved_tensors
        index, weight = token.reshape(-1, 1), gradients[0].reshape(-1, 1)
        flat = logits.reshape(-1, logits.shape[-1])
        gradient = torch.empty_like(flat) if ctx.kept else flat
        for rows, scores in _pieces(flat, evidence):
            torch.mul(torch.softmax(scores, -1), weight[rows], out=gradient[rows])
        gradient.scatter_add_(1, index, -weight)
        return gradient.view(logits.shape), None, None


def _pieces(logits: Tensor, evidence: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows and their logits with the evidence added: as many as a CPU's cache holds, elsewhere all."""
    size = max(1, CACHED // logits.shape[1]) if logits.device.type == "cpu" else sys.maxsize
    added = None if evidence is None else evidence.reshape(logits.shape)
    for begin in range(0, len(logits), min(size, max(1, len(logits)))):
        rows = slice(begin, begin + size)
        yield rows, logits[rows] if added is None else logits[rows] + added[rows]
