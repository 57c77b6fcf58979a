"""Draws that depend on their key alone, and times that are one comb over all shards."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdlm.random import Draw, generator_of

small = st.integers(0, 1000)


@given(seed=small, step=small, shards=st.integers(1, 5), count=st.integers(1, 40))
def test_quantiles_of_all_shards_are_one_even_comb(seed: int, step: int, shards: int, count: int) -> None:
    together = torch.cat([Draw(seed, step, shard, shards).quantiles(count) for shard in range(shards)])
    assert bool(((together >= 0) & (together < 1)).all())
    ordered = together.sort().values.double()
    gaps = torch.diff(ordered, append=ordered[:1] + 1)
    torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / (shards * count)), rtol=0, atol=5e-7)


def test_one_shard_of_a_step_is_spread_as_evenly_as_the_whole() -> None:
    """Each shard's own times are a comb, too: a process never sees all of the early times."""
    ordered = Draw(3, 5, shard=1, shards=4).quantiles(16).sort().values
    gaps = torch.diff(ordered, append=ordered[:1] + 1)
    torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / 16), rtol=0, atol=1e-6)


def test_the_comb_moves_from_step_to_step_uniformly() -> None:
    shifts = torch.stack([Draw(0, step).quantiles(1)[0] for step in range(2000)])
    deviation = (shifts.sort().values - (torch.arange(2000) + 0.5) / 2000).abs().max().item()
    assert deviation < 1.95 / 2000**0.5  # Kolmogorov's distance at level 1e-3


def test_every_order_of_the_comb_comes_up() -> None:
    """A row of the batch must not always get the earliest time."""
    first = torch.stack([Draw(0, step).quantiles(8) for step in range(400)]).argsort(1)[:, 0]
    counts = torch.bincount(first, minlength=8).double()
    assert ((counts - 50).square() / 50).sum().item() < 24.3  # chi-square, 7 degrees of freedom, level 1e-3


def test_a_draw_is_a_pure_function_of_its_key() -> None:
    torch.manual_seed(1)
    one = Draw(4, 7, 1, 3)
    numbers, quantiles = torch.rand(5, generator=one.generator()), one.quantiles(6)
    torch.manual_seed(2)
    torch.rand(11)  # what else was drawn does not matter
    again = Draw(4, 7, 1, 3)
    assert torch.equal(torch.rand(5, generator=again.generator()), numbers)
    assert torch.equal(again.quantiles(6), quantiles)
    assert torch.equal(torch.rand(5, generator=one.generator()), numbers)  # fresh each time


@pytest.mark.parametrize("other", [Draw(1, 7, 1, 3), Draw(4, 8, 1, 3), Draw(4, 7, 2, 3), Draw(4, 7, 1, 4)])
def test_seed_step_and_shard_each_change_the_generator(other: Draw) -> None:
    draws = [torch.rand(4, generator=draw.generator()) for draw in (Draw(4, 7, 1, 3), other)]
    assert not bool((draws[0] == draws[1]).any())


def test_keys_do_not_run_into_each_other() -> None:
    keys: list[tuple[int | str, ...]] = [(1, 23), (12, 3), ("1", 23), ("a", "b"), ("ab",), ("a, b",)]
    assert len({generator_of(*key).initial_seed() for key in keys}) == len(keys)
