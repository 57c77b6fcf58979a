"""Random draws: normal numbers of a key, draws of a training step, and the noise of samples."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from rdlm import random as numbers
from rdlm.random import Draw, RandomStreams, draw_token, generator_of, pick_token

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
def test_normals_are_box_and_mullers(key: int) -> None:
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


def test_normals_do_not_depend_on_pieces() -> None:
    """Several keys are computed in other pieces than one."""
    keys = torch.tensor([3, 4, 5])
    count = 2 * numbers.TILE + 5
    together = numbers.normals(keys, count)
    for row, key in enumerate(keys):
        assert torch.equal(together[row], numbers.normals(key[None], count)[0])


def test_normals_are_standard_normal() -> None:
    drawn = numbers.normals(torch.tensor([11]), 1 << 21)[0]
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-3
    inner = stats.norm.cdf(drawn.numpy())
    counts = torch.histc(torch.as_tensor(inner), 4096, 0, 1)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_normals_have_their_tails() -> None:
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


def test_other_types_are_drawn_by_torch() -> None:
    drawn = numbers.normal((4,), generator_of(1), torch.float64)
    assert torch.equal(drawn, torch.randn(4, generator=generator_of(1), dtype=torch.float64))
    assert numbers.normal((2, 3), device="meta").device.type == "meta"


def test_empty_shapes() -> None:
    assert numbers.normal((0, 5)).shape == (0, 5)
    assert numbers.normals(torch.tensor([1, 2]), 0).shape == (2, 0)


def test_normals_on_another_device() -> None:
    assert numbers.normals(torch.tensor([1, 2]), 7, "meta").shape == (2, 7)


# -- a training step --------------------------------------------------------------------------------


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


# -- samples ----------------------------------------------------------------------------------------


def test_the_noise_of_a_sample_does_not_depend_on_the_batch() -> None:
    like = torch.empty(4, 3, 5)
    together = RandomStreams([generator_of("sample", i) for i in range(4)], 4)
    apart = RandomStreams([generator_of("sample", i) for i in (2, 3)], 2)
    for _ in range(2):
        assert torch.equal(together.normal(like)[2:], apart.normal(like[2:]))
        assert torch.equal(together.uniform((4, 3))[2:], apart.uniform((2, 3)))
    assert torch.equal(together.subset([1]).normal(like[:1]), together_once(1, like))


def together_once(index: int, like: torch.Tensor) -> torch.Tensor:
    noise = RandomStreams([generator_of("sample", index)], 1)
    for _ in range(2):
        noise.normal(like[:1])
        noise.uniform((1, 3))
    return noise.normal(like[:1])


def test_noise_is_standard_normal() -> None:
    noise = RandomStreams([generator_of("sample", i) for i in range(8)], 8)
    drawn = noise.normal(torch.empty(8, 4000))
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-3


@settings(max_examples=25)
@given(st.integers(513, 3000), st.integers(0, 1000))
@example(1024, 0)  # whole blocks only
def test_blocks_pick_the_same_token(tokens: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.log_softmax(5 * torch.randn(3, tokens, generator=generator), -1)
    log_probs[:, ::3] = -torch.inf
    point = torch.cat([torch.rand(1, generator=generator, dtype=torch.float64), torch.tensor([0.0, 1 - 2**-53])])
    fast, slow = pick_token(log_probs, point), pick_token(log_probs.double(), point)
    chosen = log_probs.gather(1, fast[:, None])[:, 0]
    assert bool((chosen > -torch.inf).all())
    # Sums in another order may move a boundary by a few units in the seventh digit.
    mass = log_probs.double().exp().cumsum(1)
    apart = (mass.gather(1, fast[:, None]) - mass.gather(1, slow[:, None]))[:, 0].abs() - chosen.double().exp()
    assert bool(((fast == slow) | (apart < 1e-6)).all())


def test_tokens_are_drawn_by_their_probabilities() -> None:
    probability = torch.tensor([0.5, 0.0, 0.3, 0.2])
    token = draw_token(probability.log().expand(20_000, 4), torch.Generator().manual_seed(9))
    count = torch.bincount(token, minlength=4)
    assert count[1] == 0
    assert stats.chisquare(count[[0, 2, 3]].numpy(), 20_000 * probability[[0, 2, 3]].double().numpy()).pvalue > 1e-3


@pytest.mark.parametrize("chance", [1e-9, 1e-12])
def test_tiny_probabilities_keep_their_share_of_the_points(chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The points that lead to a token of tiny probability fill an interval as long: float32 has none of them."""
    probability = torch.tensor([0.5, chance, 0.5 - chance], dtype=torch.float64)
    points = torch.tensor([0.5 + share * chance for share in (-0.01, 0.01, 0.99, 1.01)], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: points.to(options["dtype"]))
    assert draw_token(probability.log().expand(4, 3)).tolist() == [0, 1, 1, 2]


def test_rare_tokens_are_as_frequent_as_they_should_be() -> None:
    """Five tokens of 4e-6 behind a likely one, from float32 log-probabilities: 40 hits in 2,000,000."""
    probability = torch.full((6,), 4e-6)
    probability[0] = 1 - 2e-5
    generator, hits = torch.Generator().manual_seed(10), 0
    for _ in range(40):
        hits += int((draw_token(probability.log().expand(50_000, -1), generator) > 0).sum())
    assert hits == pytest.approx(40, abs=4 * math.sqrt(40))


def test_points_at_the_ends_never_draw_an_impossible_token(monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs = torch.tensor([0.0, 0.4, 0.6, 0.0], dtype=torch.float64).log()
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: ends)
    assert draw_token(log_probs.expand(2, 4)).tolist() == [1, 2]
