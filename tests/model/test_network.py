"""What the transformer and the convolution network share: the signature, the zero start, the conditions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from rdlm.config import ConvolutionConfig, Interface, TransformerConfig
from rdlm.errors import InputError
from rdlm.model.network import build
from rdlm.storage.own_classes import import_name, trusting

CONFIGS = {
    "transformer": TransformerConfig(width=16, layers=2, heads=2, time_width=8, self_condition=True),
    "tied": TransformerConfig(width=16, layers=2, heads=2, time_width=8, self_condition=True, tie=True),
    "convolution": ConvolutionConfig(width=8, stacks=1, dilations=(1, 2), kernel=3, self_condition=True),
}
both = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@both
def test_logits_are_zero_at_the_start_and_every_parameter_soon_learns(config: Any) -> None:
    network = build(config, Interface(5, 4, digits=2, classes=3))
    x, time, labels = torch.randn(2, 6, 5), torch.rand(2, 6), torch.tensor([0, -1])
    assert torch.equal(network(x, time, labels), torch.zeros(2, 6, 4))
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    target = torch.randint(4, (2, 6), generator=torch.Generator().manual_seed(0))
    for _ in range(4):
        optimiser.zero_grad()
        logits = network(x, time, labels, previous=x.flip(0))
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        optimiser.step()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@both
def test_a_time_per_position_equals_a_shared_one(config: Any, awake: Any) -> None:
    network = awake(config, Interface(5, 4))
    x, time = normal(3, 6, 5), torch.tensor([0.1, 0.5, 0.9]).double()
    shared = network(x, time)
    torch.testing.assert_close(network(x, time[:, None].expand(3, 6)), shared)
    torch.testing.assert_close(network(x, time[:, None]), shared)
    torch.testing.assert_close(network(x, 0.5)[1], shared[1])
    torch.testing.assert_close(network(x, torch.tensor(0.5).double())[1], shared[1])
    assert (network(x, time + 0.05) - shared).abs().max() > 1e-3


@both
@pytest.mark.parametrize("classes", [0, 3])
def test_without_time_input_nothing_depends_on_the_time(config: Any, classes: int, awake: Any) -> None:
    network = awake(config, Interface(5, 4, classes=classes, timed=False)).train()
    x, labels = normal(2, 6, 5), torch.tensor([2, -1]) if classes else None
    expected = network(x, 0.5, labels)
    for time in (0.1, torch.tensor([0.2, 0.9]), torch.rand(2, 6, generator=torch.Generator().manual_seed(0))):
        assert torch.equal(network(x, time, labels), expected)
    expected.square().sum().backward()
    assert not any("inner" in name or "outer" in name for name, _ in network.time.named_parameters())
    for name, parameter in network.named_parameters():
        if name != "input.previous":  # multiplied by zeros: no previous prediction was given
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@both
def test_without_time_input_class_labels_still_modulate(config: Any, awake: Any) -> None:
    network = awake(config, Interface(5, 4, classes=3, timed=False))
    x = normal(1, 6, 5).expand(3, 6, 5)
    found = network(x, 0.5, torch.tensor([0, 1, -1]))
    assert min((found[0] - found[1]).abs().max(), (found[1] - found[2]).abs().max()) > 1e-3


@both
def test_a_position_depends_on_its_own_time(config: Any, awake: Any) -> None:
    network = awake(config, Interface(5, 4))
    x, time = normal(2, 6, 5), torch.full((2, 6), 0.5, dtype=torch.float64)
    other = time.clone()
    other[0, 2] = 0.9
    change = (network(x, other) - network(x, time)).abs().amax(-1)
    assert change[0, 2] > 1e-3
    assert (change[1] == 0).all()


@both
def test_ids_are_one_hot_features(config: Any, awake: Any) -> None:
    network = awake(config, Interface(5, 4))
    ids = torch.tensor([[0, 4, 2], [1, 1, 3]])
    torch.testing.assert_close(network(ids, 0.3), network(one_hot(ids, 5).double(), 0.3))


@both
def test_no_previous_prediction_is_one_of_zeros(config: Any, awake: Any) -> None:
    network = awake(config, Interface(5, 4))
    x = normal(2, 6, 5)
    torch.testing.assert_close(network(x, 0.3), network(x, 0.3, previous=torch.zeros_like(x)))
    assert (network(x, 0.3, previous=x) - network(x, 0.3)).abs().max() > 1e-3


@both
def test_the_null_label_is_no_label(config: Any, awake: Any) -> None:
    network = awake(config, Interface(5, 4, classes=3))
    x = normal(2, 6, 5)
    free, mixed = network(x, 0.3), network(x, 0.3, torch.tensor([-1, 2]))
    torch.testing.assert_close(mixed[0], free[0])
    assert (mixed[1] - free[1]).abs().max() > 1e-3


@both
def test_the_null_signal_is_no_signal(config: Any, awake: Any) -> None:
    network = awake(config, Interface(5, 4, signal=2))
    x, signal = normal(2, 6, 5), normal(2, 6, 2)
    signal[0] = torch.nan
    free, mixed = network(x, 0.3), network(x, 0.3, signal)
    torch.testing.assert_close(mixed[0], free[0])
    assert (mixed[1] - free[1]).abs().max() > 1e-3
    mixed.sum().backward()
    assert all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None)


@both
def test_every_parameter_takes_part_without_condition_and_previous(config: Any, awake: Any) -> None:
    for interface in (Interface(5, 4, digits=2, classes=3), Interface(5, 4, signal=2)):
        network = awake(config, interface)
        network(normal(2, 6, 5), 0.3).sum().backward()
        assert all(p.grad is not None for p in network.parameters())


@both
def test_half_precision_inside_single_outside(config: Any, awake: Any) -> None:
    network = awake(config, Interface(5, 4, digits=3, classes=3)).float()
    x, time, labels = normal(2, 6, 5).float(), torch.rand(2, 6), torch.tensor([1, -1])
    exact = network(x, time, labels, x)
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(x, time, labels, x)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact, atol=0.1 * exact.abs().max().item(), rtol=0)
    logits.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in network.parameters())


@both
def test_gradients_are_those_of_finite_differences(config: Any, awake: Any) -> None:
    network = awake(config, Interface(3, 2))
    x, time = normal(1, 4, 3).requires_grad_(), torch.rand(1, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda y: network(y, time), x)


@both
def test_wrong_inputs_are_refused(config: Any, awake: Any) -> None:
    plain = build(type(config)(**{**vars(config), "self_condition": False}), Interface(5, 4))
    x = torch.zeros(2, 6, 5)
    with pytest.raises(InputError, match="takes 5 features, got 4"):
        plain(x[..., :4], 0.5)
    with pytest.raises(InputError, match="the condition is labels, but the network was built for 0 classes"):
        plain(x, 0.5, torch.tensor([0, 1]))
    with pytest.raises(InputError, match="the condition is a signal"):
        plain(x, 0.5, x)
    with pytest.raises(InputError, match="without self_condition"):
        plain(x, 0.5, previous=x)


@both
def test_a_compiler_sees_one_whole_graph(config: Any, awake: Any) -> None:
    network = awake(config, Interface(5, 4, digits=3, classes=3))
    arguments = normal(2, 6, 5), torch.rand(2, 6).double(), torch.tensor([1, -1]), normal(2, 6, 5)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*arguments), network(*arguments))


class Pooled(nn.Module):
    """A network as a user may write it by mistake: one row of logits per sequence."""

    def __init__(self, config: object, interface: Interface) -> None:
        super().__init__()
        self.output = nn.Linear(interface.features, interface.outputs)

    def forward(self, inputs: Tensor, time: Tensor, condition: Tensor | None = None) -> Tensor:
        return self.output(inputs).mean(1)


def test_the_shape_of_the_logits_of_a_network_of_the_user_is_checked() -> None:
    with trusting([Pooled]):
        network = build(TransformerConfig(network_class=import_name(Pooled)), Interface(features=5, outputs=4))
    with pytest.raises(InputError, match=r"Pooled returned a tensor \[2, 4\], not logits .* = \[2, 3, 4\]"):
        network(torch.zeros(2, 3, 5), torch.zeros(2))
