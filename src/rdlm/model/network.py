"""The network of a configuration: transformer or convolution."""

from __future__ import annotations

from torch import nn

from rdlm.config import Interface, NetworkConfig, TransformerConfig
from rdlm.model.cnn import Convolution
from rdlm.model.transformer import Transformer

Network = Transformer | Convolution


def build(config: NetworkConfig, interface: Interface) -> Network:
    """Return the network with fresh parameters, on torch's default device and from its global seed."""
    if isinstance(config, TransformerConfig):
        return Transformer(config, interface)
    return Convolution(config, interface)


def parameter_count(network: nn.Module) -> int:
    """Return the number of trainable parameters; shared ones count once."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)
