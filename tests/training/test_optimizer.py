from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rdlm.config import TrainingConfig
from rdlm.training.optimizer import Optimizer, rate


def test_the_rate_warms_up_and_falls() -> None:
    config = TrainingConfig(steps=110, warmup=10, rate=2.0, decay="cosine")
    assert [rate(config, step) for step in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    assert rate(config, 10) == pytest.approx(2.0)
    assert rate(config, 60) == pytest.approx(2.0 * 0.55)
    assert rate(config, 110) == pytest.approx(0.2) == rate(config, 500)
    falling = [rate(config, step) for step in range(10, 111)]
    assert falling == sorted(falling, reverse=True)
    constant = TrainingConfig(steps=100, warmup=0, rate=0.5)
    assert {rate(constant, step) for step in range(100)} == {0.5}


def stepped(optimizer: Optimizer, scale: float) -> None:
    optimizer.clear()
    for parameter in optimizer.parameters.values():
        parameter.grad = torch.full_like(parameter, scale)
    optimizer.update(1000, optimizer.norm())


def test_the_gradient_is_clipped_by_its_norm() -> None:
    network = nn.Linear(3, 1)
    optimizer = Optimizer(network, TrainingConfig(clip=0.5))
    stepped(optimizer, 3.0)
    assert float(optimizer.norm()) == pytest.approx(0.5, rel=1e-4)
    network.bias.grad = torch.tensor([math.inf])
    assert not optimizer.norm().isfinite() and optimizer.broken() == ["bias"]


def test_a_loaded_state_continues_bit_by_bit() -> None:
    torch.manual_seed(0)
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    a, b = (Optimizer(network, TrainingConfig(weight_decay=0.1)) for network in (one, other))
    assert a.state() == {} == a.template(0)
    stepped(a, 0.3)
    state = a.state()
    template = a.template(1)
    assert {n: (t.shape, t.dtype) for n, t in state.items()} == {n: (t.shape, t.dtype) for n, t in template.items()}
    other.load_state_dict(one.state_dict())
    b.load(state)
    for optimizer in (a, b):
        stepped(optimizer, -0.2)
    assert all(p.equal(q) for p, q in zip(one.parameters(), other.parameters(), strict=True))
