"""The cost of tokens: against the plain formula, in values and gradients, in pieces and whole, once and not twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rdlm.model import denoiser as home
from rdlm.model.denoiser import fused_cross_entropy


def example(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits with a history, tokens and evidence of the sizes that states have."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, dtype=torch.float64)
    evidence = -30 * torch.rand(*shape, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(shape[-1], shape[:-1], generator=generator), evidence


def plain(logits: Tensor, token: Tensor, evidence: Tensor | None) -> Tensor:
    total = logits if evidence is None else logits + evidence
    return -torch.log_softmax(total, -1).gather(-1, token[..., None])[..., 0]


@pytest.mark.parametrize("with_evidence", [False, True])
@pytest.mark.parametrize("cached", [1, 20, 2**17])
def test_values_and_gradients_are_those_of_the_plain_formula(
    with_evidence: bool, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "TILE", cached)
    leaf, token, added = example(3, 4, 7)
    evidence = added if with_evidence else None
    weight = torch.rand(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outcomes = []
    for formula in (fused_cross_entropy, plain):
        loss = formula(2 * leaf, token, evidence)
        gradient = torch.autograd.grad((loss * weight).sum(), leaf)[0]
        outcomes.append((loss.detach(), gradient))
    for ours, theirs in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_certain_tokens_cost_nothing_and_impossible_ones_a_finite_amount() -> None:
    logits = torch.tensor([[0.0, -200.0], [0.0, -200.0]])
    loss = fused_cross_entropy(logits, torch.tensor([0, 1]))
    assert loss.tolist() == [0.0, 200.0]


def test_the_gradient_takes_the_place_of_the_logits() -> None:
    leaf, token, _ = example(2, 3, 5)
    logits = 1 * leaf
    before = logits.detach().clone()
    fused_cross_entropy(logits, token).sum().backward()
    expected = torch.softmax(before, -1) - torch.nn.functional.one_hot(token, 5)
    torch.testing.assert_close(logits.detach(), expected)


def test_a_second_backward_is_refused_rather_than_wrong() -> None:
    leaf, token, _ = example(2, 3, 5)
    loss = fused_cross_entropy(1 * leaf, token).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_tensor_of_the_caller_is_left_alone() -> None:
    leaf, token, _ = example(2, 3, 5)
    before = leaf.detach().clone()
    fused_cross_entropy(leaf, token).sum().backward()
    assert torch.equal(leaf.detach(), before)


def test_no_tokens_cost_nothing() -> None:
    assert fused_cross_entropy(torch.zeros(0, 4, 5), torch.zeros(0, 4, dtype=torch.long)).shape == (0, 4)
