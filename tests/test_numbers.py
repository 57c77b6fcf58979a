"""Normal numbers of a key: their bits, their law, and that keys and places do not know of each other."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rdlm import random as numbers
from rdlm.random import generator_of

MASK = (1 << 64) - 1
KEYS = st.integers(-(1 << 63), (1 << 63) - 1)


def word(key: int, place: int) -> int:
    """SplitMix64 in whole numbers of any size."""
    z = (key + (place + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def share(high: int) -> float:
    """The middle of a part of [0, 1], as float32 has it."""
    return torch.tensor(float(high)).add(0.5).mul(2.0**-31).item()


def pair(drawn: int) -> tuple[mp.mpf, mp.mpf]:
    """Box and Muller's two numbers, up to which axis the angle is measured from."""
    radius = mp.sqrt(-2 * mp.log(share(drawn >> 33)))
    low = drawn & 0xFFFFFFFF
    quarter = (low << 2) & 0xFFFFFFFF
    t = mp.mpf(quarter - (1 << 32) if quarter >> 31 else quarter) / 2**32
    found = radius * mp.cos(mp.pi * t / 2), radius * mp.sin(mp.pi * t / 2)
    one, other = found[::-1] if low >> 30 & 1 else found
    return (-one, -other) if low >> 31 else (one, other)


@given(KEYS, st.integers(0, 2000))
def test_words_are_those_of_splitmix(key: int, begin: int) -> None:
    found = numbers.words(torch.tensor([key]), begin, begin + 3)[0].tolist()
    assert [one & MASK for one in found] == [word(key, begin + i) for i in range(3)]


def test_the_first_words_of_a_known_key() -> None:
    """Of the key 1234567, as published beside the reference implementation."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [one & MASK for one in numbers.words(torch.tensor([1234567]), 0, 4)[0].tolist()] == expected


@given(KEYS)
def test_they_are_box_and_mullers(key: int) -> None:
    found = numbers.normals(torch.tensor([key]), 10)[0].tolist()
    expected = [pair(word(key, place)) for place in range(5)]
    for place, (one, other) in enumerate(expected):
        size = float(mp.hypot(one, other))
        assert math.isclose(found[place], one, abs_tol=4e-7 * size)
        assert math.isclose(found[5 + place], other, abs_tol=4e-7 * size)


@pytest.mark.parametrize("high", [0, 1, 2**22, 2**30, 2**31 - 65, 2**31 - 1])
def test_the_radius_to_its_ends(high: int) -> None:
    found = float(numbers.squared_radius(torch.tensor([high], dtype=torch.int32)))
    assert math.isclose(found, float(-2 * mp.log(share(high))), rel_tol=3e-7, abs_tol=0.0)


def test_no_piece_of_the_definition_shows() -> None:
    """Pieces of several keys are cut elsewhere than those of one."""
    keys = torch.tensor([3, 4, 5])
    count = 2 * numbers.TILE + 5
    together = numbers.normals(keys, count)
    for row, key in enumerate(keys):
        assert torch.equal(together[row], numbers.normals(key[None], count)[0])


def test_their_law_is_normal() -> None:
    drawn = numbers.normals(torch.tensor([11]), 1 << 21)[0]
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-3
    inner = stats.norm.cdf(drawn.numpy())
    counts = torch.histc(torch.as_tensor(inner), 4096, 0, 1)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_the_tails_are_there() -> None:
    drawn = numbers.normals(torch.tensor([5]), 1 << 24)[0].abs()
    for threshold in (3.0, 4.0, 5.0):
        expected = 2 * stats.norm.sf(threshold) * len(drawn)
        assert abs(int((drawn > threshold).sum()) - expected) < 5 * expected**0.5
    assert 5.0 < float(drawn.max()) < 6.7


@pytest.mark.parametrize("lag", [1, 2, 28, 1 << 10, (1 << 19) - 1, 1 << 19])
def test_places_are_independent(lag: int) -> None:
    """The last lag is from each number to the other one of its pair."""
    drawn = numbers.normals(torch.tensor([17]), 1 << 20)[0].double()
    here, there = drawn[:-lag], drawn[lag:]
    spread = len(here) ** -0.5
    assert abs(float((here * there).mean())) < 5 * spread
    assert abs(float(((here**2 - 1) * (there**2 - 1)).mean() / 2)) < 5 * spread


def test_neighbouring_keys_are_independent() -> None:
    drawn = numbers.normals(torch.arange(64), 1 << 14).double()
    correlation = drawn @ drawn.T / (1 << 14)
    assert float((correlation - torch.diag(correlation.diag())).abs().max()) < 5.5 * 2**-7


def test_a_generator_is_a_source_of_keys() -> None:
    once, again = (numbers.normal((3, 5), generator_of("n")) for _ in range(2))
    assert torch.equal(once, again) and once.shape == (3, 5) and once.dtype == torch.float32
    source = generator_of("n")
    numbers.normal((3, 5), source)
    assert not torch.equal(once, numbers.normal((3, 5), source))


def test_other_types_are_torchs_own() -> None:
    drawn = numbers.normal((4,), generator_of(1), torch.float64)
    assert torch.equal(drawn, torch.randn(4, generator=generator_of(1), dtype=torch.float64))
    assert numbers.normal((2, 3), device="meta").device.type == "meta"


def test_nothing_is_drawn_for_nobody() -> None:
    assert numbers.normal((0, 5)).shape == (0, 5)
    assert numbers.normals(torch.tensor([1, 2]), 0).shape == (2, 0)


def test_other_devices_get_the_definition() -> None:
    assert numbers.normals(torch.tensor([1, 2]), 7, "meta").shape == (2, 7)
