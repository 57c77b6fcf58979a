"""Linear layers with the two initialisations of the networks."""

from __future__ import annotations

from torch import nn


def scaled(inputs: int, outputs: int) -> nn.Linear:
    """Return a layer whose outputs start with the variance of its inputs, and with a bias of zero."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    nn.init.zeros_(layer.bias)
    return layer


def zero(inputs: int, outputs: int) -> nn.Linear:
    """Return a layer whose outputs start at zero."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
