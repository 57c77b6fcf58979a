"""Small networks away from their initial zeros."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rdlm.config import Interface, NetworkConfig
from rdlm.model.network import Network, build

Awake = Callable[[NetworkConfig, Interface], Network]


@pytest.fixture
def awake() -> Awake:
    """A function that builds a float64 network whose zero-initialised parameters have been moved."""

    def wake(config: NetworkConfig, interface: Interface) -> Network:
        torch.manual_seed(0)
        network = build(config, interface).double()
        for parameter in network.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
        return network.eval()

    return wake
