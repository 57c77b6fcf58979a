"""Muon: momentum whose matrices are made orthogonal before they are added, so that every direction learns alike.

A gradient's few large directions drown the others. Here all singular values of an update are about 1, by a polynomial
of odd powers that a few products of small matrices evaluate (Jordan and others, 2024). For the matrices between hidden
states alone; everything else is AdamW's.

AdamW, or Muon and AdamW, with their learning rate, the norm of the gradient, and their state by parameter name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from rdlm.config import TrainingConfig
from rdlm.train.parallel import assign, like, whole

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

    def __init__(self, matrices: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

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


FINAL = 0.1
"""Share of the learning rate that a cosine ends with."""

MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "muon": ("momentum",)}
"""What each remembers of a parameter's gradients; AdamW counts its steps, too."""


def lr(config: TrainingConfig, step: int) -> float:
    """Return the learning rate of a step: linear warm-up, then constant or half a cosine down to a tenth."""
    warm = min(1.0, (step + 1) / max(config.warmup, 1))
    if config.decay == "constant" or step < config.warmup:
        return config.lr * warm
    progress = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.lr * (FINAL + (1 - FINAL) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2)


class Optimizer:
    """AdamW over a network's parameters, by their names, or over those that Muon leaves to it."""

    def __init__(self, network: nn.Module, config: TrainingConfig) -> None:
        self.config = config
        self.parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.matrices = hidden(network) & set(self.parameters) if config.optimizer == "muon" else set()
        others = [p for name, p in self.parameters.items() if name not in self.matrices]
        # One kernel for all of a parameter's update; mps has none.
        fused = all(p.device.type in ("cpu", "cuda") for p in others)
        self.adamw = torch.optim.AdamW(
            others, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=fused
        )
        self.parts: dict[str, torch.optim.Optimizer] = {"adamw": self.adamw}
        if self.matrices:
            matrices = [p for name, p in self.parameters.items() if name in self.matrices]
            self.parts["muon"] = Muon(matrices, config.lr, config.weight_decay)

    def norm(self) -> Tensor:
        """Return the norm of the whole gradient, over all shards."""
        norm = get_total_norm([p.grad for p in self.parameters.values() if p.grad is not None])
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def update(self, step: int, norm: Tensor) -> None:
        """Take a step at its learning rate along the gradient, clipped by its `norm`."""
        clip_grads_with_norm_(self.parameters.values(), self.config.clip, norm)
        for part in self.parts.values():
            for group in part.param_groups:
                group["lr"] = lr(self.config, step)
            part.step()

    def clear(self) -> None:
        """Forget the gradient."""
        for part in self.parts.values():
            part.zero_grad(set_to_none=True)

    def broken(self) -> list[str]:
        """Return the names of parameters whose gradient, or this process's part of it, is not finite."""
        names = []
        for name, parameter in self.parameters.items():
            gradient = parameter.grad
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            if local is not None and not local.isfinite().all():
                names.append(name)
        return names

    def state(self) -> dict[str, Tensor]:
        """Return the moments and step counts by parameter name, whole; nothing before the first update."""
        kept = {}
        for name, parameter in self.parameters.items():
            for key, value in self.parts[self._part(name)].state.get(parameter, {}).items():
                kept[f"{name}.{key}"] = whole(value)
        return kept

    def template(self, updates: int) -> dict[str, Tensor]:
        """Return tensors of the names, shapes and types that `state` has after so many updates, on no device."""
        if updates == 0:
            return {}
        kept: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            if self._part(name) == "adamw":
                kept[f"{name}.step"] = torch.empty((), device="meta")
            for key in MOMENTS[self._part(name)]:
                kept[f"{name}.{key}"] = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        return kept

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""
        for part in self.parts.values():
            part.state.clear()
        if not state:
            return
        for name, parameter in self.parameters.items():
            own: dict[str, Tensor] = {}
            if self._part(name) == "adamw":
                # The step count stays where the optimizer would have put it: with its parameter if the update is fused.
                place = parameter.device if self.adamw.defaults["fused"] else torch.device("cpu")
                own["step"] = state[f"{name}.step"].to(place, copy=True)
            for key in MOMENTS[self._part(name)]:
                own[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                assign(own[key], state[f"{name}.{key}"])
            self.parts[self._part(name)].state[parameter] = own

    def _part(self, name: str) -> str:
        """Return who updates a parameter."""
        return "muon" if name in self.matrices else "adamw"
