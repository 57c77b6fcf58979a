"""What the benchmarks time: training steps of the method, and of the same network without the method."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import DenoiserConfig, Interface, ObjectiveConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.methods.rdlm import Rdlm
from rdlm.model.network import build
from rdlm.process.layout import Layout
from rdlm.random import Draw

LETTERS, PIECES = 27, 30522
"""Vocabulary sizes of text8 and of LM1B."""

NETWORK = TransformerConfig(width=256, layers=6, heads=4)
TINY = TransformerConfig(width=64, layers=2, heads=4)
SMALL_TABLE = ProcessConfig(levels=64, pairs=1024)
SPLIT = replace(SMALL_TABLE, base=3)
ONE_SPHERE = replace(SMALL_TABLE, bridge="logarithm")
"""On 30,523 coordinates the Brownian bridge and the evidence are out of range at the paper's noise."""
PLAIN = DenoiserConfig(features="tokens", evidence=False)
SYNCHRONOUS, WINDOWS = ObjectiveConfig(), ObjectiveConfig(asynchronous=1.0, narrow=0.9, order="random")
BLOCKWISE = replace(WINDOWS, blockwise=1.0, block_sizes=(1,))


class Timed(nn.Module):
    """A network, or a model around one, that adds up the processor seconds spent in it."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call, self.seconds = call, 0.0

    def forward(self, *inputs: Tensor | float | None) -> Tensor:
        """Return the output of the wrapped call."""
        begin = time.process_time()
        output = self.call(*inputs)
        self.seconds += time.process_time() - begin
        return output


def tokens(vocabulary: int, batch: int, length: int) -> Tensor:
    """Return random token ids [batch, length] from a fixed seed."""
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))


def method(config: RunConfig, vocabulary: int) -> Rdlm:
    """Return the method with untrained weights from a fixed seed."""
    torch.manual_seed(0)
    return Rdlm(config, vocabulary)


def training_step(trained: Rdlm, ids: Tensor) -> Callable[[], None]:
    """Return a function that computes loss and gradient, with new times and states at every call."""
    steps = count()

    def work() -> None:
        trained.network.zero_grad()
        trained.loss(Batch(ids), Draw(0, next(steps))).backward()

    return work


def network_on_ids(
    config: TransformerConfig, vocabulary: int, ids: Tensor, layout: Layout | None = None
) -> Callable[[], None]:
    """Return the training step of masked diffusion: the network on partly masked ids with one time per sequence.

    The network predicts tokens or, with a codec, their digits.
    """
    network = _network(config, vocabulary + 1, vocabulary if layout is None else layout.base * layout.digits)
    labels = ids if layout is None else layout.encode(ids)

    def work() -> None:
        time = torch.rand(len(ids))
        visible = torch.where(torch.rand(ids.shape) < time[:, None], ids, vocabulary)
        _backward(network, visible, time, labels)

    return work


def network_on_features(config: TransformerConfig, vocabulary: int) -> Callable[[Tensor, Tensor], None]:
    """Return the training step, on features and ids, of a network with one dense feature and one logit per token."""
    network = _network(config, vocabulary, vocabulary)
    return lambda features, ids: _backward(network, features, torch.rand(len(ids)), ids)


def _network(config: TransformerConfig, inputs: int, outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return build(config, Interface(inputs, outputs))


def _backward(network: nn.Module, inputs: Tensor, time: Tensor, labels: Tensor) -> None:
    network.zero_grad()
    logits = network(inputs, time)
    functional.cross_entropy(logits.view(labels.numel(), -1), labels.flatten()).backward()
