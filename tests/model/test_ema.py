"""The moving average against a float64 recursion, its swap and its state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rdlm.errors import InputError
from rdlm.model.network import MovingAverage


def walk(network: nn.Module, average: MovingAverage, steps: int) -> list[dict[str, torch.Tensor]]:
    """Move the parameters at random and update the average; the parameters after each step."""
    generator = torch.Generator().manual_seed(3)
    seen = []
    for _ in range(steps):
        for parameter in network.parameters():
            parameter.data.add_(torch.randn(parameter.shape, generator=generator))
        average.update(network)
        seen.append({name: p.detach().double().clone() for name, p in network.named_parameters()})
    return seen


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9999])
def test_average_follows_the_recursion(decay: float) -> None:
    network = nn.Linear(3, 2)
    average = MovingAverage(network, decay)
    expected = {name: p.detach().double() for name, p in network.named_parameters()}
    expected = {name: p.clone() for name, p in expected.items()}
    for n, parameters in enumerate(walk(network, average, 50)):
        d = min(decay, (1 + n) / (10 + n))
        expected = {name: d * expected[name] + (1 - d) * parameters[name] for name in expected}
    for name, tensor in average.tensors.items():
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-5, rtol=1e-5)
    assert average.updates == 50


def test_swap_restores_the_parameters_even_after_an_error() -> None:
    network = nn.Linear(3, 2)
    average = MovingAverage(network, 0.9)
    walk(network, average, 5)
    own = network.weight.detach().clone()
    identity = network.weight
    lent: list[torch.Tensor] = []

    def fail() -> None:
        with average.swap(network):
            lent.append(network.weight.detach().clone())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.equal(lent[0], average.tensors["weight"])
    assert torch.equal(network.weight, own)
    assert network.weight is identity


def test_half_precision_parameters_have_a_single_precision_average() -> None:
    network = nn.Linear(3, 2).bfloat16()
    average = MovingAverage(network, 0.9999)
    assert {t.dtype for t in average.tensors.values()} == {torch.float32}
    average.update(network)
    with average.swap(network):
        assert network.weight.dtype == torch.bfloat16


def test_frozen_parameters_are_left_out() -> None:
    network = nn.Linear(3, 2)
    network.bias.requires_grad_(False)
    assert list(MovingAverage(network, 0.9).tensors) == ["weight"]


def test_a_decay_of_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"decay 1\.0"):
        MovingAverage(nn.Linear(3, 2), 1.0)
