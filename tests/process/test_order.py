"""Token schedules: starts, offsets, and every position takes all of its steps."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.config import OrderName
from rdlm.errors import InputError
from rdlm.process.order import ONE_STEP, Order, TokenSchedule, TokenSteps, named_schedule

orders = st.sampled_from(["random", "strided", "left_to_right"])


@pytest.mark.parametrize("order", ["random", "strided", "left_to_right"])
def test_width_one_is_synchronous(order: Order) -> None:
    window = TokenSchedule(1.0, order)
    starts = window.starts(4, 7)
    assert torch.equal(starts, torch.zeros(4, 7))
    token_steps = window.discretize(16)
    assert token_steps.steps == token_steps.nfe == 16
    assert not token_steps.offsets(4, 7).any()


@given(width=st.floats(0.01, 1), order=orders)
def test_every_position_fits_into_the_sampling_time(width: float, order: Order) -> None:
    starts = TokenSchedule(width, order).starts(3, 5, torch.Generator().manual_seed(0)).double()
    assert bool((starts >= 0).all()) and bool((starts + width <= 1 + 1e-6).all())


def test_ordered_starts_rise_and_fill_the_time() -> None:
    starts = TokenSchedule(0.25, "left_to_right").starts(2, 6)
    assert bool((starts.diff(dim=-1) > 0).all())
    assert starts[:, 0].tolist() == [0, 0] and starts[:, -1].tolist() == pytest.approx([0.75, 0.75])


def test_random_starts_are_uniform_and_repeatable() -> None:
    window = TokenSchedule(0.2)
    first, second = (window.starts(100, 400, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    count = first.numel()
    assert first.mean().item() == pytest.approx(0.4, abs=4 * 0.8 / math.sqrt(12 * count))
    assert first.var().item() == pytest.approx(0.64 / 12, rel=0.03)


@settings(max_examples=60)
@given(nfe=st.integers(1, 40), share=st.floats(0, 1), length=st.integers(1, 9), order=orders)
def test_every_position_takes_exactly_its_steps(nfe: int, share: float, length: int, order: Order) -> None:
    token_steps = TokenSteps(nfe, max(1, round(share * nfe)), order)
    offsets = token_steps.offsets(3, length, torch.Generator().manual_seed(1))
    assert offsets.min() >= 0 and offsets.max() <= nfe - token_steps.steps
    local = torch.stack([token_steps.local_step(step, offsets) for step in range(nfe + 1)])
    assert not local[0].any() and bool((local[-1] == token_steps.steps).all())
    moves = local.diff(dim=0)  # [nfe, 3, length]: 1 where a position moves
    assert set(moves.unique().tolist()) <= {0, 1}
    assert bool((moves.sum(0) == token_steps.steps).all())
    common = torch.arange(nfe)[:, None, None]
    moving = (common >= offsets) & (local[:-1] < token_steps.steps)
    assert torch.equal(moving, moves.bool())


@given(nfe=st.integers(1, 30), steps=st.integers(1, 30), length=st.integers(2, 20))
def test_left_to_right_offsets_increase_and_use_all_steps(nfe: int, steps: int, length: int) -> None:
    token_steps = TokenSteps(nfe, min(steps, nfe), "left_to_right")
    offsets = token_steps.offsets(1, length)[0]
    assert bool((offsets.diff() >= 0).all())
    assert offsets[0] == 0 and offsets[-1] == nfe - token_steps.steps


@pytest.mark.parametrize("order", ["random", "strided"])
def test_random_offsets_are_uniform(order: Order) -> None:
    offsets = TokenSteps(6, 3, order).offsets(40_000, 5, torch.Generator().manual_seed(2))[:, 1]
    share = torch.bincount(offsets, minlength=4) / offsets.numel()
    assert share.tolist() == pytest.approx([0.25] * 4, abs=4 * math.sqrt(0.25 * 0.75 / offsets.numel()))


@given(nfe=st.integers(1, 30), steps=st.integers(1, 30), length=st.integers(1, 40))
def test_strided_positions_start_together_only_far_apart(nfe: int, steps: int, length: int) -> None:
    token_steps = TokenSteps(nfe, min(steps, nfe), "strided")
    slots = nfe - token_steps.steps + 1
    offsets = token_steps.offsets(2, length, torch.Generator().manual_seed(4))
    for row in offsets.tolist():
        for near in range(1, slots):
            assert all(a != b for a, b in zip(row, row[near:], strict=False))
    counts = torch.stack([torch.bincount(row, minlength=slots) for row in offsets])
    assert counts.max() - counts.min() <= 1  # every step starts alike many


def test_spread_orders_are_all_alike_likely() -> None:
    offsets = TokenSteps(3, 1, "strided").offsets(60_000, 3, torch.Generator().manual_seed(5))
    code = offsets @ torch.tensor([9, 3, 1])
    share = torch.bincount(code, minlength=27)[code.unique()] / len(code)
    assert share.tolist() == pytest.approx([1 / 6] * 6, abs=4 * math.sqrt(5 / 36 / len(code)))


@pytest.mark.parametrize(("width", "nfe", "steps"), [(0.25, 64, 16), (0.001, 10, 1), (0.5, 7, 4), (0.99, 100, 99)])
def test_steps_of_a_position_are_the_width_in_steps(width: float, nfe: int, steps: int) -> None:
    assert TokenSchedule(width, "left_to_right").discretize(nfe) == TokenSteps(nfe, steps, "left_to_right")


@pytest.mark.parametrize("width", [0.0, -0.5, 1.01, math.nan])
def test_width_outside_its_range_is_refused(width: float) -> None:
    with pytest.raises(InputError, match=r"width of a window must lie in \(0, 1\]"):
        TokenSchedule(width)


@pytest.mark.parametrize("steps", [0, 5])
def test_more_steps_than_the_sampling_time_are_refused(steps: int) -> None:
    with pytest.raises(InputError, match=r"steps of a position must lie in \[1, 4\]"):
        TokenSteps(4, steps)


def test_no_call_is_refused() -> None:
    with pytest.raises(InputError, match="at least one network evaluation"):
        TokenSchedule().discretize(0)


@pytest.mark.parametrize(
    "kind", [TokenSchedule, lambda order: TokenSteps(4, 2, order)], ids=["TokenSchedule", "TokenSteps"]
)
def test_unknown_order_is_refused_with_a_suggestion(kind: type[TokenSchedule]) -> None:
    with pytest.raises(InputError, match="did you mean 'left_to_right'"):
        kind(order="left_to_rigth")  # type: ignore[arg-type]


@given(nfe=st.integers(1, 20), steps=st.integers(1, 20), order=orders)
def test_shares_count_every_step_of_a_position_once_on_average(nfe: int, steps: int, order: Order) -> None:
    token_steps = TokenSteps(nfe, min(steps, nfe), order)
    offsets = torch.arange(nfe - token_steps.steps + 1)  # every possible start, alike likely
    step = torch.arange(nfe)[:, None]
    share = token_steps.share(step, offsets)
    local = token_steps.local_step(step, offsets)
    counted = torch.zeros(token_steps.steps + 1).index_add_(0, local.flatten(), share.flatten()) / len(offsets)
    assert counted.tolist() == pytest.approx([1.0] * token_steps.steps + [0.0], abs=1e-5)
    moving = (step >= offsets) & (local < token_steps.steps)
    if order == "left_to_right":
        assert torch.equal(share, moving.float())
    else:  # a position that rests counts in place of the one that starts, a finished one never
        assert not share[local == token_steps.steps].any()
        torch.testing.assert_close(share.mean(1), moving.float().mean(1))


@given(
    length=st.integers(1, 20),
    block=st.integers(1, 20),
    nfe=st.integers(1, 60),
    width=st.floats(0.01, 1),
    order=orders,
)
def test_blocks_run_one_after_the_other(length: int, block: int, nfe: int, width: float, order: Order) -> None:
    token_steps = TokenSchedule(width, order, block).discretize(nfe, length)
    blocks = math.ceil(length / block)
    assert token_steps.nfe <= nfe
    if nfe < blocks <= 2 * nfe:
        block = 4 * block
        blocks = math.ceil(length / block)
        assert blocks == 1 or token_steps.turns in (nfe // blocks, block)
    if blocks == 1 or nfe < blocks:
        assert token_steps == TokenSchedule(width, order).discretize(nfe)
        return
    assert token_steps.block == block
    assert token_steps.nfe == blocks * token_steps.turns
    assert token_steps.nfe > nfe - blocks or (token_steps.steps == 1 and token_steps.turns == block)
    offsets = token_steps.offsets(3, length, torch.Generator().manual_seed(0))
    first = torch.arange(length) // block * token_steps.turns
    assert bool((offsets >= first).all()) and bool((offsets + token_steps.steps <= first + token_steps.turns).all())
    beside = token_steps.side_by_side()
    assert torch.equal(beside.offsets(3, length, torch.Generator().manual_seed(0)), offsets - first)
    for step in range(token_steps.turns):  # the share in line is that side by side, and elsewhere a chunk has none
        inside = beside.share(torch.full((3, 1), step), offsets - first)
        for number in range(blocks):
            mine = slice(number * block, (number + 1) * block)
            share = token_steps.share(torch.full((3, 1), number * token_steps.turns + step), offsets)
            torch.testing.assert_close(share[:, mine], inside[:, mine])
            share[:, mine] = 0
            assert not share.any()


def test_a_negative_block_is_refused() -> None:
    with pytest.raises(InputError, match="at least one position"):
        TokenSchedule(0.5, "strided", -1)


# -- orders by name --------------------------------------------------------------------------------------------------

names = st.sampled_from(get_args(OrderName))


@given(name=names, nfe=st.integers(1, 300), length=st.integers(1, 200))
def test_a_named_order_takes_no_more_calls_than_it_says(name: OrderName, nfe: int, length: int) -> None:
    schedule, used = named_schedule(name, nfe, length)
    steps = schedule.discretize(used, length)
    assert 1 <= steps.nfe == used <= nfe
    if name == "synchronous":
        assert used == nfe == steps.steps and schedule == TokenSchedule(1.0, "strided")
    else:
        assert used <= length and steps.steps == 1
    again, calls = named_schedule(name, used, length, schedule.block)
    assert (again, calls) == (schedule, used)


@given(name=st.sampled_from(["random", "strided", "left-to-right"]), length=st.integers(1, 40), more=st.integers(0, 99))
def test_one_call_per_token_decodes_them_one_by_one(name: OrderName, length: int, more: int) -> None:
    schedule, used = named_schedule(name, length + more, length)
    offsets = schedule.discretize(used, length).offsets(3, length, torch.Generator().manual_seed(more))
    assert used == length
    for row in offsets.tolist():
        assert sorted(row) == list(range(length))
        assert name != "left-to-right" or row == sorted(row)


@given(nfe=st.integers(2, 99), length=st.integers(3, 200))
def test_left_to_right_has_blocks_at_any_number_of_calls(nfe: int, length: int) -> None:
    schedule, used = named_schedule("left-to-right", nfe, length)
    steps = schedule.discretize(used, length)
    assert 1 <= steps.block == schedule.block < length
    blocks = steps.offsets(1, length)[0] // steps.turns
    assert torch.equal(blocks, torch.arange(length) // steps.block)


def test_tokens_of_one_call_are_apart_from_left_to_right() -> None:
    schedule, used = named_schedule("left-to-right", 32, 128)
    assert (schedule.block, used) == (16, 32)
    offsets = schedule.discretize(32, 128).offsets(1, 128)[0]
    for call in range(32):
        assert set(torch.diff((offsets == call).nonzero()[:, 0]).tolist()) == {4}


def test_blocks_and_windows_change_an_order() -> None:
    assert named_schedule("synchronous", 12, 12, 4) == (TokenSchedule(1.0, "strided", 4), 12)
    assert named_schedule("synchronous", 13, 12, 4) == (TokenSchedule(1.0, "strided", 4), 12)
    assert named_schedule("random", 6, 12, 4) == (TokenSchedule(ONE_STEP, "random", 4), 6)
    assert named_schedule("random", 50, 12, 4) == (TokenSchedule(ONE_STEP, "strided", 4), 12)
    assert named_schedule("left-to-right", 12, 12, 4) == (TokenSchedule(ONE_STEP, "strided", 4), 12)
    assert named_schedule("left-to-right", 12, 12, 0) == (TokenSchedule(ONE_STEP, "left_to_right"), 12)
    assert named_schedule("left-to-right", 6, 12, None, 0.5) == (TokenSchedule(0.5, "left_to_right"), 6)


@given(name=names, nfe=st.integers(1, 40), length=st.integers(2, 40))
def test_a_schedule_knows_its_name(name: OrderName, nfe: int, length: int) -> None:
    schedule, _ = named_schedule(name, nfe, length)
    one_by_one = name == "random" and nfe >= length
    assert schedule.name == ("strided" if one_by_one else name)
