"""The exponential moving average of a network's parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rdlm.errors import InputError


class MovingAverage:
    """Moving average with decay min(d, (1 + n) / (10 + n)) after n updates, which discounts early weights."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise InputError(f"decay {decay} of the moving average must lie in [0, 1)")
        self.decay = decay
        self.updates = 0
        self.tensors = {name: _wide(p).clone() for name, p in _trainable(network).items()}

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Update the average with the parameters of the network."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        current = [_wide(p) for p in _trainable(network).values()]
        torch._foreach_lerp_(list(self.tensors.values()), current, 1 - decay)

    @contextmanager
    def swap(self, network: nn.Module) -> Iterator[None]:
        """Context manager: use the averaged parameters inside, and restore the parameters afterwards."""
        own = {name: p.clone() for name, p in _trainable(network).items()}
        _assign(network, self.tensors)
        try:
            yield
        finally:
            _assign(network, own)


def _trainable(network: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}


def _wide(parameter: Tensor) -> Tensor:
    # In half precision a decay of 0.9999 rounds to no movement at all.
    return parameter.to(torch.promote_types(parameter.dtype, torch.float32))


def _assign(network: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name, parameter in _trainable(network).items():
        parameter.copy_(tensors[name])
