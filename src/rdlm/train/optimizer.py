"""The optimizer of a run: AdamW, or Muon and AdamW, with learning-rate schedule, gradient clipping and named state.

Muon (Jordan and others, 2024) replaces the momentum of a matrix by an orthogonal one with the same singular vectors, so
that directions with small gradients move as far as those with large ones. Newton-Schulz iterations of an odd polynomial
approximate it. It is for the weight matrices between hidden states; AdamW updates all other parameters.
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
from rdlm.process.tokens import Codes
from rdlm.train.parallel import assign, local_rows, sharded_like

FINAL = 0.1
"""Final learning rate of the cosine schedule as a fraction of the peak."""

MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "muon": ("momentum",)}
"""Optimizer -> its state tensors of a parameter, except the step count of AdamW."""

MOMENTUM = 0.95
"""Decay of the average of gradients in Muon."""

UPDATE_RMS = 0.5
"""RMS of the entries of a Muon update relative to the learning rate; the best of 0.2, 0.5 and 1 in experiments."""

NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)
"""Coefficients of x, x^3 and x^5; `ITERATIONS` iterations map singular values above 0.01 to about 1."""

ITERATIONS = 5


def lr(config: TrainingConfig, step: int) -> float:
    """Return the learning rate of a step: linear warm-up, then constant, or half a cosine down to a tenth."""
    warm = min(1.0, (step + 1) / max(config.warmup, 1))
    if config.decay == "constant" or step < config.warmup:
        return config.lr * warm
    progress = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.lr * (FINAL + (1 - FINAL) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2)


class Optimizer:
    """AdamW for all parameters of a network, or Muon for its hidden matrices and AdamW for the rest."""

    def __init__(self, network: nn.Module, config: TrainingConfig) -> None:
        self.config = config
        self.parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.matrices = hidden_matrices(network) & set(self.parameters) if config.optimizer == "muon" else set()
        self.codes = {f"{name}.weight": one for name, one in network.named_modules() if isinstance(one, Codes)}
        others = [p for name, p in self.parameters.items() if name not in self.matrices and name not in self.codes]
        # One kernel for the whole update of a parameter; mps has none.
        fused = all(p.device.type in ("cpu", "cuda") for p in others)
        self.adamw = torch.optim.AdamW(
            others, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=fused
        )
        if self.codes:
            rows = [codes.weight for codes in self.codes.values()]
            relative = config.codes_lr / config.lr
            self.adamw.add_param_group({"params": rows, "weight_decay": 0.0, "relative_lr": relative})
        self.parts: dict[str, torch.optim.Optimizer] = {"adamw": self.adamw}
        if self.matrices:
            matrices = [p for name, p in self.parameters.items() if name in self.matrices]
            dtype = torch.bfloat16 if config.precision == "bfloat16" else None
            self.parts["muon"] = Muon(matrices, config.lr, config.weight_decay, dtype)

    def norm(self) -> Tensor:
        """Return the norm of the gradient of all parameters but codes, over all shards; not finite if any is not."""
        norm = get_total_norm([p.grad for p in self._network_parameters() if p.grad is not None])
        for codes in self.codes.values():
            own = get_total_norm([] if codes.weight.grad is None else [codes.weight.grad])
            norm = torch.where(own.isfinite(), norm, own)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def update(self, step: int, norm: Tensor) -> None:
        """Update the parameters with the learning rate of a step; `norm` is that of the gradient, for clipping."""
        clip_grads_with_norm_(self._network_parameters(), self.config.clip, norm)
        for part in self.parts.values():
            for group in part.param_groups:
                group["lr"] = lr(self.config, step) * group.get("relative_lr", 1.0)
            part.step()
        for codes in self.codes.values():
            codes.normalise()

    def _network_parameters(self) -> list[Tensor]:
        """Return all parameters but codes, whose gradient is that of another loss and is not clipped."""
        return [p for name, p in self.parameters.items() if name not in self.codes]

    def zero_grad(self) -> None:
        """Reset the gradients."""
        for part in self.parts.values():
            part.zero_grad(set_to_none=True)

    def nonfinite_gradients(self) -> list[str]:
        """Return the names of parameters whose gradient, or this process's shard of it, is not finite."""
        names = []
        for name, parameter in self.parameters.items():
            gradient = parameter.grad
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            if local is not None and not local.isfinite().all():
                names.append(name)
        return names

    def state(self) -> dict[str, Tensor]:
        """Return moments, sharded like their parameters, and step counts by parameter name; empty before any update."""
        found = {}
        for name, parameter in self.parameters.items():
            for key, value in self.parts[self._part(name)].state.get(parameter, {}).items():
                found[f"{name}.{key}"] = value
        return found

    def template(self, updates: int) -> dict[str, Tensor]:
        """Return meta tensors with the names, shapes and types that `state` has after `updates` updates."""
        if updates == 0:
            return {}
        found: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            if self._part(name) == "adamw":
                found[f"{name}.step"] = torch.empty((), device="meta")
            for key in MOMENTS[self._part(name)]:
                found[f"{name}.{key}"] = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        return found

    def rows(self) -> dict[str, tuple[int, int]]:
        """Return the rows of each moment that this process has; none if nothing is sharded."""
        rows = local_rows(self.parameters)
        return {f"{name}.{key}": rows[name] for name in rows for key in MOMENTS[self._part(name)]}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned, whole or the `rows` of it."""
        for part in self.parts.values():
            part.state.clear()
        if not state:
            return
        for name, parameter in self.parameters.items():
            own: dict[str, Tensor] = {}
            if self._part(name) == "adamw":
                # As in torch.optim.AdamW, the step count is on the device of the parameter if the update is fused.
                device = parameter.device if self.adamw.defaults["fused"] else torch.device("cpu")
                own["step"] = state[f"{name}.step"].to(device, copy=True)
            for key in MOMENTS[self._part(name)]:
                own[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                assign(own[key], state[f"{name}.{key}"])
            self.parts[self._part(name)].state[parameter] = own

    def _part(self, name: str) -> str:
        """Return the optimizer of a parameter."""
        return "muon" if name in self.matrices else "adamw"


def hidden_matrices(network: nn.Module) -> set[str]:
    """Return the names of the weight matrices between hidden states: those of the blocks, without time modulation.

    The kernels of depthwise convolutions are no matrices: their channels are independent.
    """
    stacks = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    inside = {id(parameter) for stack in stacks for parameter in stack.parameters()}
    return {
        name
        for name, parameter in network.named_parameters()
        if id(parameter) in inside
        and parameter.ndim > 1
        and not name.endswith(("modulation.weight", "depthwise.weight"))
    }


def orthogonal(x: Float[Tensor, "n rows columns"]) -> Float[Tensor, "n rows columns"]:
    """Return matrices with the singular vectors of `x` and singular values near 1, in the precision of `x`."""
    if x.shape[1] > x.shape[2]:
        return orthogonal(x.mT).mT
    first, third, fifth = NEWTON_SCHULZ
    # The Frobenius norm is at least the largest singular value.
    x = x / x.flatten(1).norm(dim=1)[:, None, None].clamp_min(torch.finfo(x.dtype).tiny)
    for _ in range(ITERATIONS):
        square = x @ x.mT  # [n, rows, rows]
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=third, alpha=fifth), x, beta=first)
    return x


class Muon(torch.optim.Optimizer):
    """Muon for hidden matrices; the kernel of a convolution is flattened to [outputs, inputs * width].

    Matrices are orthogonalized in `dtype`, by default in that of the parameters. The iterations leave singular values
    between 0.7 and 1.2, so that bfloat16 is precise enough.
    """

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, weight_decay: float, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient; matrices of equal shape are orthogonalized in one batch."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                directions = torch.stack([self._direction(parameter) for parameter in parameters])
                updates = orthogonal(directions.to(self.dtype or directions.dtype)).to(directions.dtype)
                size = UPDATE_RMS * max(updates.shape[1:]) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    update = sharded_like(parameter, update.reshape(parameter.shape))
                    parameter.add_(update, alpha=-group["lr"] * size)

    def _direction(self, parameter: Tensor) -> Float[Tensor, "rows columns"]:
        """Return the Nesterov momentum of a parameter as an unsharded matrix."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        momentum = state["momentum"].mul_(MOMENTUM).add_(parameter.grad, alpha=1 - MOMENTUM)
        ahead = momentum * MOMENTUM + parameter.grad * (1 - MOMENTUM)
        return (ahead.full_tensor() if isinstance(ahead, DTensor) else ahead).flatten(1)
