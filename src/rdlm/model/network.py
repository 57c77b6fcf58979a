"""The network of a configuration: transformer or convolution, with or without an inference layer below it."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from rdlm.config import Interface, NetworkConfig, TransformerConfig
from rdlm.model.belief import WEIGHTS, BeliefNetwork, belief_of
from rdlm.model.cnn import Convolution
from rdlm.model.transformer import Transformer

Network = Transformer | Convolution | BeliefNetwork


def build(config: NetworkConfig, interface: Interface) -> Network:
    """Return the network with fresh parameters, on torch's default device and from its global seed."""
    if config.belief != "none":
        belief = belief_of(config, interface)
        own = replace(interface, outputs=interface.outputs + WEIGHTS)
        causal = isinstance(config, TransformerConfig) and config.causal
        return BeliefNetwork(build(replace(config, belief="none"), own), belief, interface.outputs, causal)
    if isinstance(config, TransformerConfig):
        return Transformer(config, interface)
    return Convolution(config, interface)


def parameter_count(network: nn.Module) -> int:
    """Return the number of trainable parameters; shared ones count once."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def transformer_of(network: nn.Module) -> Transformer | None:
    """Return the transformer of a network, with or without an inference layer; None for another kind of network."""
    inner = network.network if isinstance(network, BeliefNetwork) else network
    return inner if isinstance(inner, Transformer) else None
