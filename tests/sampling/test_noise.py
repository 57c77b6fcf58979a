"""Random draws: a sample's numbers are its own, and large vocabularies are searched as exactly as small ones."""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from rdlm.random import RandomStreams, generator_of, pick_token


def test_a_samples_noise_is_its_own() -> None:
    like = torch.empty(4, 3, 5)
    together = RandomStreams([generator_of("sample", i) for i in range(4)], 4)
    apart = RandomStreams([generator_of("sample", i) for i in (2, 3)], 2)
    for _ in range(2):
        assert torch.equal(together.normal(like)[2:], apart.normal(like[2:]))
        assert torch.equal(together.uniform((4, 3))[2:], apart.uniform((2, 3)))
    assert torch.equal(together.subset([1]).normal(like[:1]), together_once(1, like))


def together_once(index: int, like: torch.Tensor) -> torch.Tensor:
    remaining = RandomStreams([generator_of("sample", index)], 1)
    for _ in range(2):
        remaining.normal(like[:1])
        remaining.uniform((1, 3))
    return remaining.normal(like[:1])


def test_normals_are_normal() -> None:
    remaining = RandomStreams([generator_of("sample", i) for i in range(8)], 8)
    drawn = remaining.normal(torch.empty(8, 4000))
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-3


@settings(max_examples=25)
@given(st.integers(513, 3000), st.integers(0, 1000))
@example(1024, 0)  # whole blocks only
def test_blocks_pick_the_same_token(tokens: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    law = torch.log_softmax(5 * torch.randn(3, tokens, generator=generator), -1)
    law[:, ::3] = -torch.inf
    point = torch.cat([torch.rand(1, generator=generator, dtype=torch.float64), torch.tensor([0.0, 1 - 2**-53])])
    fast, slow = pick_token(law, point), pick_token(law.double(), point)
    chosen = law.gather(1, fast[:, None])[:, 0]
    assert bool((chosen > -torch.inf).all())
    # Sums in another order may move a boundary by a few units in the seventh digit.
    mass = law.double().exp().cumsum(1)
    apart = (mass.gather(1, fast[:, None]) - mass.gather(1, slow[:, None]))[:, 0].abs() - chosen.double().exp()
    assert bool(((fast == slow) | (apart < 1e-6)).all())
