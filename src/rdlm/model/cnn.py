"""The one-dimensional convolutional network of the promoter task: residual dilated layers."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import ConvolutionConfig, Interface
from rdlm.model.layers import Input, TimeEmbedding, label_or_signal, scaled_linear, zero_linear

SINUSOIDS = 256
"""Sinusoidal features of a time, before its embedding."""


class Layer(nn.Module):
    """A residual dilated convolution of the normed sum of the state and the projected time."""

    def __init__(self, config: ConvolutionConfig, dilation: int) -> None:
        super().__init__()
        width, padding = config.width, dilation * (config.kernel // 2)
        self.time = scaled_linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.convolution = nn.Conv1d(width, width, config.kernel, padding=padding, dilation=dilation)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "b l w"], time: Float[Tensor, "b l w"]) -> Float[Tensor, "b l w"]:
        """Return the residual stream after this layer."""
        normed = self.norm(self.dropout(x) + self.time(time))
        convolved = self.convolution(normed.transpose(1, 2)).transpose(1, 2)  # Conv1d takes [B, W, L]
        return x + functional.relu(convolved)


class Convolution(nn.Module):
    """The promoter network: logits from features or ids and times, with the transformer's interface."""

    def __init__(self, config: ConvolutionConfig, interface: Interface) -> None:
        super().__init__()
        self.interface = interface
        self.input = Input(interface, config.width, config.self_condition)
        self.time = TimeEmbedding(config.width, config.time_scale, SINUSOIDS, interface.classes, interface.timed)
        self.layers = nn.ModuleList(Layer(config, d) for _ in range(config.stacks) for d in config.dilations)
        self.inner = scaled_linear(config.width, config.width)
        self.outer = zero_linear(config.width, interface.outputs)

    def forward(
        self,
        inputs: Shaped[Tensor, "batch length *features"],
        time: Tensor | float,
        condition: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Float[Tensor, "batch length outputs"]:
        """Return the logits at each position, in float32 or wider; for the arguments see `Transformer.forward`."""
        labels, signal = label_or_signal(condition, self.interface)
        x = self.input(inputs, signal, previous, start=0)
        embedding = self.time(time, labels)
        for layer in self.layers:
            x = layer(x, embedding)
        logits: Tensor = self.outer(functional.relu(self.inner(x)))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))
