"""What is timed: training steps of the method, and of the same network without it."""

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
from rdlm.presets import ONE_BY_ONE
from rdlm.process.layout import Layout
from rdlm.random import Draw

LETTERS, PIECES = 27, 30522
"""Tokens of text8 and of LM1B."""

NETWORK = TransformerConfig(width=256, layers=6, heads=4)
TINY = TransformerConfig(width=64, layers=2, heads=4)
SMALL_TABLE = ProcessConfig(levels=64, pairs=1024)
SPLIT = replace(SMALL_TABLE, base=3)
ONE_SPHERE = replace(SMALL_TABLE, bridge="logarithm")
"""On 30,523 coordinates the Brownian bridge and the evidence are out of range at the paper's noise."""
PLAIN = DenoiserConfig(features="tokens", evidence=False)
SYNCHRONOUS, WINDOWS = ObjectiveConfig(), ONE_BY_ONE
CHUNKS = replace(ONE_BY_ONE, blockwise=1.0, block_sizes=(1,))


class Timed(nn.Module):
    """A network, or a model around one, that adds up the processor seconds spent in it."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call, self.seconds = call, 0.0

    def forward(self, *inputs: Tensor | float | None) -> Tensor:
        """Return the answer."""
        begin = time.process_time()
        answer = self.call(*inputs)
        self.seconds += time.process_time() - begin
        return answer


def tokens(vocabulary: int, batch: int, length: int) -> Tensor:
    """Return random token ids, always the same ones."""
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))


def method(config: RunConfig, vocabulary: int) -> Rdlm:
    """Return the method with fresh weights, always the same ones."""
    torch.manual_seed(0)
    return Rdlm(config, vocabulary)


def training_step(subject: Rdlm, ids: Tensor) -> Callable[[], None]:
    """Return a work that takes the loss and its gradient, with other times and states in every call."""
    steps = count()

    def work() -> None:
        subject.network.zero_grad()
        subject.loss(Batch(ids), Draw(0, next(steps))).backward()

    return work


def network_on_ids(
    config: TransformerConfig, vocabulary: int, ids: Tensor, layout: Layout | None = None
) -> Callable[[], None]:
    """Return a work that masked diffusion needs too: the network on ids, partly masked, a time per sequence.

    It tells tokens, or with a codec their digits.
    """
    network = _network(config, vocabulary + 1, vocabulary if layout is None else layout.base * layout.digits)
    labels = ids if layout is None else layout.encode(ids)

    def work() -> None:
        time = torch.rand(len(ids))
        visible = torch.where(torch.rand(ids.shape) < time[:, None], ids, vocabulary)
        _backward(network, visible, time, labels)

    return work


def network_on_features(config: TransformerConfig, vocabulary: int) -> Callable[[Tensor, Tensor], None]:
    """Return the step of a network with a dense feature and a logit per token, on features and ids."""
    network = _network(config, vocabulary, vocabulary)
    return lambda features, ids: _backward(network, features, torch.rand(len(ids)), ids)


def _network(config: TransformerConfig, inputs: int, outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return build(config, Interface(inputs, outputs))


def _backward(network: nn.Module, inputs: Tensor, time: Tensor, labels: Tensor) -> None:
    network.zero_grad()
    logits = network(inputs, time)
    functional.cross_entropy(logits.view(labels.numel(), -1), labels.flatten()).backward()
