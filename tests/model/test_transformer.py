"""The transformer's own laws: rotary positions, causality, the cache, the serial digit index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rdlm.config import Interface, TransformerConfig
from rdlm.errors import InputError
from rdlm.model.transformer import Transformer, angles, attend, rotate

CONFIG = TransformerConfig(width=16, layers=2, heads=2, time_width=8)
CAUSAL = replace(CONFIG, causal=True)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_products_of_rotated_vectors_depend_on_the_distance_alone() -> None:
    query, key = normal(8).expand(1, 50, 8), normal(8).flip(0).expand(1, 50, 8)
    near, far = (angles(start, 50, 8, query) for start in (0, 30))
    product = rotate(query, near) @ rotate(key, near).mT
    torch.testing.assert_close(product, rotate(query, far) @ rotate(key, far).mT)
    for distance in (-7, 0, 3):
        along = product.diagonal(distance, 1, 2)
        torch.testing.assert_close(along, along[:, :1].expand_as(along))
    assert product[0, 0].std() > 0.1


def test_rotation_keeps_lengths_and_starts_at_the_identity() -> None:
    x = normal(2, 9, 3, 8)
    turned = rotate(x, angles(0, 9, 8, x))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[:, 0], x[:, 0])


def test_both_forms_of_the_rotation_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(2, 9, 3, 8)
    fast = rotate(x, angles(4, 9, 8, x))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(rotate(x, angles(4, 9, 8, x)), fast)


def test_positions_matter_and_only_relatively(awake: Any) -> None:
    network = awake(CONFIG, Interface(5, 4))
    x = normal(1, 6, 5)
    flipped = network(x.flip(1), 0.3).flip(1)
    assert (flipped - network(x, 0.3)).abs().max() > 1e-3
    alike = network(x[:, :1].expand(1, 6, 5), 0.3)
    torch.testing.assert_close(alike, alike[:, :1].expand_as(alike))


def test_places_tell_equal_positions_apart(awake: Any) -> None:
    network = awake(replace(CONFIG, places=6), Interface(5, 4))
    logits = network(normal(1, 1, 5).expand(1, 6, 5), 0.3)
    assert (logits - logits[:, :1]).abs().amax(-1)[:, 1:].min() > 1e-3
    with pytest.raises(InputError, match="6 position embeddings, but 7 are needed"):
        network(normal(1, 7, 5), 0.3)


def test_without_causality_all_positions_are_attended_to(awake: Any) -> None:
    network = awake(CONFIG, Interface(5, 4))
    x = normal(1, 6, 5)
    other = x.clone()
    other[:, 5] += 1
    assert ((network(other, 0.3) - network(x, 0.3)).abs().amax(-1) > 1e-6).all()


def test_a_causal_network_does_not_see_the_future(awake: Any) -> None:
    network = awake(CAUSAL, Interface(5, 4))
    x = normal(1, 6, 5)
    for position in range(6):
        other = x.clone()
        other[:, position] += 1
        change = (network(other, 0.3) - network(x, 0.3)).abs().amax(-1)[0]
        assert (change[:position] == 0).all()
        assert (change[position:] > 1e-6).all()


@pytest.mark.parametrize("sizes", [[1] * 7, [3, 4], [4, 1, 2], [7]])
def test_the_cached_forward_is_the_full_one(awake: Any, sizes: list[int]) -> None:
    network = awake(CAUSAL, Interface(5, 4, digits=3, signal=2))
    x, time, signal = normal(2, 7, 5), normal(2, 7), normal(2, 7, 2)
    cache = network.cache()
    parts = [
        network(x_part, time_part, signal_part, cache=cache)
        for x_part, time_part, signal_part in zip(
            x.split(sizes, 1), time.split(sizes, 1), signal.split(sizes, 1), strict=True
        )
    ]
    assert cache.length == 7
    torch.testing.assert_close(torch.cat(parts, 1), network(x, time, signal))


def test_a_cache_needs_a_causal_network(awake: Any) -> None:
    network = awake(CONFIG, Interface(5, 4))
    with pytest.raises(InputError, match="causal network or blocks"):
        network(normal(1, 2, 5), 0.3, cache=network.cache())


def test_the_digit_index_tells_digits_apart(awake: Any) -> None:
    network = awake(CONFIG, Interface(5, 4, digits=3))
    logits = network(normal(1, 1, 5).expand(1, 6, 5), 0.3)
    assert (logits[:, 0] - logits[:, 1]).abs().max() > 1e-3


def test_a_tied_head_uses_the_rows_of_the_input(awake: Any) -> None:
    network = awake(replace(CONFIG, tie=True), Interface(5, 4))
    x = normal(1, 3, 5)
    x[..., 3] = 0
    before = network(x, 0.3)
    with torch.no_grad():
        network.input.weight[3] = 0
    after = network(x, 0.3)
    torch.testing.assert_close(after[..., :3], before[..., :3])
    torch.testing.assert_close(after[..., 3], network.head.bias[3].expand(1, 3))
    assert (before[..., 3] - after[..., 3]).abs().max() > 1e-3


def test_dropout_acts_in_training_alone(awake: Any) -> None:
    network = awake(replace(CONFIG, dropout=0.5), Interface(5, 4))
    x = normal(1, 6, 5)
    assert torch.equal(network(x, 0.3), network(x, 0.3))
    network.train()
    assert not torch.equal(network(x, 0.3), network(x, 0.3))


def test_a_shared_time_is_modulated_once_per_sequence(awake: Any) -> None:
    network = awake(CONFIG, Interface(5, 4))
    shapes = []
    network.blocks[0].modulation.register_forward_hook(lambda _m, _i, out: shapes.append(out.shape[:2]))
    network(normal(3, 6, 5), torch.rand(3))
    network(normal(3, 6, 5), torch.rand(3, 6))
    assert shapes == [(3, 1), (3, 6)]


def test_equal_times_are_embedded_once_in_training_with_the_same_result(awake: Any) -> None:
    """Positions in windows mostly wait or are finished; outputs and gradients must not notice the shortcut."""
    network = awake(CONFIG, Interface(5, 4))
    x, time = normal(3, 6, 5), torch.tensor([0.0, 0.3, 1.0, 1.0, 0.0, 0.7], dtype=torch.float64).repeat(3, 1)
    time[1, 2] = 0.4
    assert network.train().time.embed(time, None).embedding.shape[0] == 5
    assert network.eval().time.embed(time, None).row is None

    def outcome(training: bool) -> list[Tensor]:
        network.train(training).zero_grad()
        logits = network(x, time)
        logits.square().sum().backward()
        return [logits.detach(), *(p.grad.clone() for p in network.parameters() if p.grad is not None)]

    pairs = list(zip(outcome(True), outcome(False), strict=True))
    assert len(pairs) > 20
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_with_many_outputs_perceptrons_are_computed_again_for_the_same_gradients(
    awake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gelu, calls, gradients = functional.gelu, [], []
    monkeypatch.setattr(functional, "gelu", lambda hidden: calls.append(1) or gelu(hidden))
    few, many = awake(CONFIG, Interface(5, 128)), awake(CONFIG, Interface(5, 129))  # two perceptrons of 64
    assert [network.blocks[0].recompute_mlp for network in (few, many)] == [False, True]
    for frugal, expected in ((True, 4), (False, 2)):
        for block in many.blocks:
            block.recompute_mlp = frugal
        many.zero_grad()
        many(normal(2, 6, 5), 0.3).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in many.parameters()])
        assert len(calls) == expected
        calls.clear()
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def test_a_network_from_the_meta_device_is_whole(awake: Any) -> None:
    network = awake(CONFIG, Interface(5, 4))
    with torch.device("meta"):
        empty = Transformer(CONFIG, Interface(5, 4))
    empty = empty.double().to_empty(device="cpu")
    empty.load_state_dict(network.state_dict())
    x = normal(1, 6, 5)
    assert torch.equal(empty(x, 0.3), network(x, 0.3))


def test_blocks_of_one_are_causal() -> None:
    network, causal = (Transformer(config, Interface(5, 3)).double() for config in (CONFIG, CAUSAL))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    causal.load_state_dict(network.state_dict())
    inputs, time = normal(2, 7, 5), normal(2, 7).abs()
    torch.testing.assert_close(network(inputs, time, block=1), causal(inputs, time))
    torch.testing.assert_close(network(inputs, time, block=7), network(inputs, time))


@pytest.mark.parametrize("settings", [{}, {"classes": 4}, {"signal": 2}, {"digits": 2}])
def test_a_doubled_sequence_predicts_every_block_as_if_it_were_the_next(settings: dict[str, int]) -> None:
    """Each row has blocks of its own size; positions, conditions and a previous prediction matter, too."""
    network = Transformer(replace(CONFIG, places=8, self_condition=True), Interface(5, 3, **settings)).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    finished, noisy, time, previous = normal(3, 8, 5), normal(3, 8, 5).flip(0), normal(3, 8).abs(), normal(3, 8, 5)
    condition = None
    if settings.get("classes"):
        condition = torch.tensor([0, 3, -1])
    elif settings.get("signal"):
        condition = normal(3, 8, 2)
    size = torch.tensor([1, 3, 8])
    both = torch.cat((finished, noisy), 1), torch.cat((torch.ones(3, 8), time), 1)
    answer = network(*both, condition, previous, block=size, doubled=True)
    assert answer.shape == (3, 8, 3)
    for row, block in enumerate(size.tolist()):
        one = slice(row, row + 1)
        for first in range(0, 8, block):
            ahead = torch.arange(8) >= first
            seen = torch.where(ahead[:, None], noisy[one], finished[one])
            when = torch.where(ahead, time[one], torch.ones(()))
            given = None if condition is None else condition[one]
            alone = network(seen, when, given, previous[one], block=block)
            torch.testing.assert_close(answer[one, first : first + block], alone[:, first : first + block])


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, False), (False, True)])
def test_attention_in_half_precision_is_that_in_full_precision_with_its_gradients(causal: bool, masked: bool) -> None:
    whole = [torch.randn(2, 3, 9, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    half = [one.detach().bfloat16().requires_grad_() for one in whole]
    mask = (torch.rand(2, 1, 9, 9) < 0.5) | torch.eye(9, dtype=torch.bool) if masked else None
    direction = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    expected, found = attend(*whole, mask, causal), attend(*half, mask, causal)
    assert found.dtype == torch.bfloat16
    # Eight bits of mantissa, in sums of nine terms.
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.05)
    (expected * direction).sum().backward()
    (found.double() * direction).sum().backward()
    for one, other in zip(whole, half, strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(other.grad.double(), one.grad, rtol=0.1, atol=0.1)


def test_attention_in_half_precision_ignores_what_is_masked() -> None:
    query, key, value = (torch.randn(1, 1, 5, 4, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    attend(query, key, value, None, True)[..., 2, :].sum().backward()
    assert value.grad is not None and key.grad is not None
    assert value.grad[..., 3:, :].eq(0).all() and key.grad[..., 3:, :].eq(0).all()
    assert value.grad[..., :3, :].ne(0).any()
