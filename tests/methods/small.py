"""Small methods for the tests: every layout, untrained or with a value for every parameter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rdlm.config import ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.methods.rdlm import Rdlm

SMALL = TransformerConfig(width=16, layers=1, heads=2)
LAYOUTS: dict[str, dict[str, Any]] = {
    "unsplit": {},
    "packed tokens": {"base": 2},
    "packed digits": {"base": 2, "head": "digit"},
    "serial": {"base": 2, "layout": "serial"},
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
BY_TOKEN = ("unsplit", "packed tokens")
"""The layouts whose head is over whole tokens."""


def method(vocabulary: int, classes: int = 0, signal: int = 0, scrambled: bool = False, **settings: Any) -> Rdlm:
    """Return a small method; each setting goes to the part of the configuration that has it."""
    config = RunConfig(process=ProcessConfig(levels=16, pairs=256), model=settings.pop("model", SMALL))
    for name, value in settings.items():
        part = next(p for p in ("process", "denoiser", "objective", "model") if hasattr(getattr(config, p), name))
        config = replace(config, **{part: replace(getattr(config, part), **{name: value})})
    torch.manual_seed(0)
    made = Rdlm(config, vocabulary, classes, signal)
    if scrambled:
        scramble(made.network)
    return made


def scramble(network: nn.Module, scale: float = 0.2) -> None:
    """Give every parameter a value, so that no gate is closed and no logit is zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))


def tokens(vocabulary: int, batch: int, length: int, seed: int = 2) -> Batch:
    return Batch(torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed)))


def mean_and_error(values: Tensor) -> tuple[float, float]:
    return values.mean().item(), values.std().item() / math.sqrt(len(values))


class Watched(nn.Module):
    """A network whose logits are zero; it keeps its inputs."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.calls: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def forward(self, inputs: Tensor, time: Tensor, condition: Tensor | None, previous: Tensor | None) -> Tensor:
        self.calls.append((inputs, time, condition))
        return torch.zeros(*inputs.shape[:2], self.outputs, requires_grad=True)
