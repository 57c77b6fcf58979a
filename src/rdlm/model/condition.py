"""Conditioning by class or by a per-position signal, and the learned null condition that guidance needs.

A label of -1 and a signal of NaN mean 'no condition'. They may differ from sequence to sequence, so a guided
sampler can put the conditional and the unconditional half into one batch.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rdlm.errors import InputError
from rdlm.model.config import Interface
from rdlm.model.linear import scaled


def label_or_signal(condition: Tensor | None, interface: Interface) -> tuple[Tensor | None, Tensor | None]:
    """Return the condition as (labels, None) or (None, signal), whichever the network was built for."""
    if condition is None:
        return None, None
    if condition.is_floating_point() and interface.signal:
        return None, condition
    if not condition.is_floating_point() and interface.classes:
        return condition, None
    given = "a signal" if condition.is_floating_point() else "labels"
    built = f"{interface.classes} classes and a signal of width {interface.signal}"
    raise InputError(f"the condition is {given}, but the network was built for {built}")


def drop(condition: Tensor, probability: float, generator: torch.Generator | None = None) -> Tensor:
    """Return the condition with whole sequences replaced by 'none' (-1 or NaN) with the given probability."""
    if not 0 <= probability <= 1:
        raise InputError(f"probability {probability} of dropping a condition must lie in [0, 1]")
    shape = (condition.shape[0],) + (1,) * (condition.ndim - 1)
    dropped = torch.rand(shape, generator=generator, device=condition.device) < probability
    return condition.masked_fill(dropped, float("nan") if condition.is_floating_point() else -1)


class ClassCondition(nn.Module):
    """An embedding of each class label and one of 'no label'."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.table = nn.Embedding(classes + 1, width)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, labels: Int[Tensor, " batch"] | None) -> Float[Tensor, "batch 1 width"]:
        """Return the embedding of each label; -1, or no labels at all, gives the null embedding."""
        if labels is None:
            labels = torch.full((1,), -1, device=self.table.weight.device)
        embedding: Tensor = self.table(labels.masked_fill(labels == -1, self.classes))
        return embedding[:, None]


class SignalCondition(nn.Module):
    """A linear map of the signal at each position and a learned vector for 'no signal'."""

    def __init__(self, signal: int, width: int) -> None:
        super().__init__()
        self.linear = scaled(signal, width)
        self.null = nn.Parameter(torch.zeros(width))

    def forward(self, signal: Float[Tensor, "batch length s"] | None) -> Float[Tensor, "batch length width"]:
        """Return the image of each position's signal; NaN, or no signal at all, gives the null vector."""
        if signal is None:
            # The map takes part all the same: distributed training wants every parameter in every step.
            signal = self.null.new_full((1, 1, self.linear.in_features), float("nan"))
        absent = signal.isnan().any(-1, keepdim=True)
        present: Tensor = self.linear(signal.masked_fill(absent, 0.0))
        return torch.where(absent, self.null.to(present.dtype), present)
