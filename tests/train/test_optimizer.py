from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rdlm.config import ConvolutionConfig, Interface, TrainingConfig, TransformerConfig
from rdlm.model.network import build
from rdlm.train.optimizer import UPDATE_RMS, Muon, Optimizer, hidden_matrices, lr, orthogonal


def test_the_learning_rate_warms_up_and_decays() -> None:
    config = TrainingConfig(steps=110, warmup=10, lr=2.0, decay="cosine")
    assert [lr(config, step) for step in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    assert lr(config, 10) == pytest.approx(2.0)
    assert lr(config, 60) == pytest.approx(2.0 * 0.55)
    assert lr(config, 110) == pytest.approx(0.2) == lr(config, 500)
    falling = [lr(config, step) for step in range(10, 111)]
    assert falling == sorted(falling, reverse=True)
    constant = TrainingConfig(steps=100, warmup=0, lr=0.5)
    assert {lr(constant, step) for step in range(100)} == {0.5}


def stepped(optimizer: Optimizer, scale: float) -> None:
    optimizer.zero_grad()
    for parameter in optimizer.parameters.values():
        parameter.grad = torch.full_like(parameter, scale)
    optimizer.update(1000, optimizer.norm())


def test_the_gradient_is_clipped_by_its_norm() -> None:
    network = nn.Linear(3, 1)
    optimizer = Optimizer(network, TrainingConfig(clip=0.5))
    stepped(optimizer, 3.0)
    assert float(optimizer.norm()) == pytest.approx(0.5, rel=1e-4)
    network.bias.grad = torch.tensor([math.inf])
    assert not optimizer.norm().isfinite() and optimizer.nonfinite_gradients() == ["bias"]


def stack() -> nn.Module:
    return nn.ModuleList([nn.Linear(3, 2), nn.LayerNorm(2)])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_loaded_state_continues_bit_by_bit(optimizer: str) -> None:
    torch.manual_seed(0)
    one, other = stack(), stack()
    config = TrainingConfig(weight_decay=0.1, optimizer=optimizer)  # type: ignore[arg-type]
    a, b = (Optimizer(network, config) for network in (one, other))
    assert a.state() == {} == a.template(0)
    stepped(a, 0.3)
    state = a.state()
    template = a.template(1)
    assert {n: (t.shape, t.dtype) for n, t in state.items()} == {n: (t.shape, t.dtype) for n, t in template.items()}
    assert ("0.weight.momentum" in state) == (optimizer == "muon") and "0.bias.exp_avg" in state
    other.load_state_dict(one.state_dict())
    b.load(state)
    for part in (a, b):
        stepped(part, -0.2)
    assert all(p.equal(q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (8, 40), (40, 8)])
def test_orthogonal_matrices_keep_singular_vectors_and_lose_singular_values(rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, rows, columns, generator=generator, dtype=torch.float64)
    u, size, v = torch.linalg.svd(x, full_matrices=False)
    found = u.mT @ orthogonal(1e-3 * x) @ v.mT
    kept = found.diagonal(dim1=1, dim2=2)
    assert (found - torch.diag_embed(kept)).abs().max() < 1e-9
    clear = size > 0.02 * size.norm(dim=1, keepdim=True)
    assert clear.sum() > 0.8 * clear.numel()
    assert ((kept > 0.6) & (kept < 1.3))[clear].all()
    assert orthogonal(torch.zeros(1, 2, 3)).eq(0).all()


@pytest.mark.parametrize("kernel", [(), (3,)])
def test_the_rms_of_an_update_follows_the_learning_rate(kernel: tuple[int, ...]) -> None:
    matrix = nn.Parameter(torch.zeros(64, 32, *kernel))
    muon = Muon([matrix], lr=0.1, weight_decay=0.0)
    matrix.grad = 1e-4 * torch.randn(matrix.shape, generator=torch.Generator().manual_seed(0))
    muon.step()
    # The singular values lie between 0.7 and 1.2.
    assert float(matrix.detach().square().mean().sqrt()) == pytest.approx(0.1 * UPDATE_RMS, rel=0.2)
    muon.param_groups[0]["weight_decay"] = 2.0
    before, matrix.grad = matrix.detach().clone(), torch.zeros_like(matrix)
    muon.state.clear()
    muon.step()
    torch.testing.assert_close(matrix.detach(), 0.8 * before)


def test_muon_in_half_precision_moves_as_in_full_precision() -> None:
    start, gradient, moved = torch.randn(24, 16), torch.randn(24, 16), []
    for dtype in (None, torch.bfloat16):
        matrix = nn.Parameter(start.clone())
        matrix.grad = gradient.clone()
        Muon([matrix], lr=0.1, weight_decay=0.0, dtype=dtype).step()
        assert matrix.dtype == torch.float32
        moved.append((matrix.detach() - start).flatten())
    assert float(torch.cosine_similarity(moved[0], moved[1], dim=0)) > 0.999
    assert float(moved[1].norm() / moved[0].norm()) == pytest.approx(1.0, abs=0.02)


def test_a_run_in_half_precision_has_muon_in_half_precision() -> None:
    network = build(TransformerConfig(width=16, layers=1, heads=2), Interface(features=5, outputs=4))
    found = [
        Optimizer(network, TrainingConfig(optimizer="muon", precision=precision)).parts["muon"]
        for precision in ("float32", "bfloat16")
    ]
    assert [one.dtype for one in found if isinstance(one, Muon)] == [None, torch.bfloat16]


def test_muon_is_for_the_matrices_between_hidden_states() -> None:
    interface = Interface(features=5, outputs=4)
    transformer = build(TransformerConfig(width=8, layers=2, heads=2), interface)
    wanted = {"attention.qkv", "attention.out", "inner", "outer"}
    assert hidden_matrices(transformer) == {f"blocks.{layer}.{name}.weight" for layer in range(2) for name in wanted}
    convolution = build(ConvolutionConfig(width=8, stacks=1), interface)
    assert {name.split(".", 2)[2] for name in hidden_matrices(convolution)} == {"time.weight", "convolution.weight"}
