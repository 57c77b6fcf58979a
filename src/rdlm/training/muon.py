"""Muon: momentum whose matrices are made orthogonal before they are added, so that every direction learns alike.

A gradient's few large directions drown the others. Here all singular values of an update are about 1, by a polynomial
of odd powers that a few products of small matrices evaluate (Jordan and others, 2024). For the matrices between hidden
states alone; everything else is AdamW's.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rdlm.training.parallel import like

MOMENTUM = 0.95
"""Decay of the gradient's average."""

SIZE = 0.5
"""Root mean square of an update's entries as a share of the learning rate; of 0.2, 0.5 and 1 it measured best."""

ODD = (3.4445, -4.775, 2.0315)
"""Coefficients of the powers 1, 3 and 5, iterated `ROUNDS` times: from 0.01 upwards singular values end near 1."""

ROUNDS = 5


def hidden(network: nn.Module) -> set[str]:
    """Return the names of the matrices between hidden states: those of the blocks, without modulations by time."""
    stacks = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    inside = {id(parameter) for stack in stacks for parameter in stack.parameters()}
    return {
        name
        for name, parameter in network.named_parameters()
        if id(parameter) in inside and parameter.ndim > 1 and not name.endswith("modulation.weight")
    }


def orthogonal(x: Float[Tensor, "n rows columns"]) -> Float[Tensor, "n rows columns"]:
    """Return matrices with the singular vectors of `x` and singular values near 1, in its own precision."""
    if x.shape[1] > x.shape[2]:
        return orthogonal(x.mT).mT
    first, third, fifth = ODD
    # The Frobenius norm is no smaller than the largest singular value.
    x = x / x.flatten(1).norm(dim=1)[:, None, None].clamp_min(torch.finfo(x.dtype).tiny)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=third, alpha=fifth), x, beta=first)
    return x


class Muon(torch.optim.Optimizer):
    """The optimiser of hidden matrices; kernels of convolutions are matrices with as many rows as outputs."""

    def __init__(self, matrices: Iterable[Tensor], rate: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": rate, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step along the gradients that are there; matrices of one shape are made orthogonal together."""
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike.setdefault(parameter.shape, []).append(parameter)
            for parameters in alike.values():
                updates = orthogonal(torch.stack([self._direction(parameter) for parameter in parameters]))
                size = SIZE * max(updates.shape[1:]) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    whole = update.reshape(parameter.shape)
                    parameter.add_(like(parameter, whole), alpha=-group["lr"] * size)

    def _direction(self, parameter: Tensor) -> Float[Tensor, "rows columns"]:
        """Return the average of gradients, which takes the newest one twice, as a whole matrix."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        momentum = state["momentum"].mul_(MOMENTUM).add_(parameter.grad, alpha=1 - MOMENTUM)
        ahead = momentum * MOMENTUM + parameter.grad * (1 - MOMENTUM)
        return (ahead.full_tensor() if isinstance(ahead, DTensor) else ahead).flatten(1)
