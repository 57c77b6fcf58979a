"""Tokens split into digits that move together: the chain, its bound and its sampler against whole tokens."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from scipy import stats
from torch import Tensor

from rdlm.data.sources import skewed
from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.likelihood.estimators import forced_step, path_terms
from rdlm.likelihood.terms import step_terms
from rdlm.process.bridge import Bridge
from rdlm.process.kernel import Chain, Kernel, step_log_density
from rdlm.process.layout import Layout
from rdlm.process.order import Order, TokenSteps
from rdlm.process.path import Path, masked_path, switching_path, uniform_path
from rdlm.process.schedule import Geometric, StepCoefficients, uniform_in_time
from rdlm.sampling.sampler import sample_chain

S = Geometric().total
V = 7
SOURCE = skewed(V)
KERNELS: tuple[Kernel, ...] = ("mixture", "drift")
every_base = pytest.mark.parametrize("base", [2, 3])
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def exact_posterior(bridge: Bridge, layout: Layout, state: Tensor, remaining: Tensor) -> Tensor:
    """Return `log p(token | state)` of the skewed source: its prior and the evidence of all digits, by Bayes."""
    evidence = layout.evidence(bridge.log_likelihood(state, remaining[..., None]))
    return torch.log_softmax(evidence + SOURCE.log_joint.to(state), -1)


def situation(base: int, kernel: Kernel = "mixture", steps: int = 16, path: Path | None = None) -> Chain:
    chosen = path or masked_path(base, S)
    return Chain(chosen, uniform_in_time(Geometric(), steps), kernel, layout=Layout(V, base))


def posterior_of(chain: Chain) -> partial[Tensor]:
    assert chain.layout is not None
    return partial(exact_posterior, chain.path.bridge, chain.layout)


# -- what a chain does with digits ------------------------------------------------------------------


@every_base
def test_log_density_of_tokens_is_the_sum_of_dense_gaussians(base: int) -> None:
    """Each digit's step is a Gaussian of its tangent space; a token's is their product."""
    chain, generator = situation(base), torch.Generator().manual_seed(0)
    layout, bridge = chain.layout, chain.path.bridge
    assert layout is not None
    count = 10
    state = sphere.uniform((count, layout.digits), base + 1, generator, torch.float64)
    step = 0.1 * sphere.tangent_normal(state, generator)
    coefficients = StepCoefficients(
        *(torch.full((count, layout.digits), v, dtype=torch.float64) for v in (0.02, 0.3, 0.011))
    )
    found = chain.join(step_log_density(bridge, state, step, coefficients))
    expected = torch.zeros(count, V, dtype=torch.float64)
    vertices = torch.eye(base + 1, dtype=torch.float64)
    for k in range(V):
        for j in range(layout.digits):
            digit = k // base ** (layout.digits - 1 - j) % base
            logarithm = sphere.logarithm(state[:, j], vertices[digit].expand(count, -1))
            angle = logarithm.norm(dim=-1, keepdim=True)
            pull = 0.3 * logarithm * bridge.pull(angle, 0.02) / angle
            expected[:, k] -= (step[:, j] - pull).square().sum(-1) / (2 * 0.011)
    # Up to what all tokens have in common.
    torch.testing.assert_close(found - found[:, :1], expected - expected[:, :1], rtol=1e-9, atol=1e-9)


@every_base
def test_split_spread_marginals_and_gather(base: int) -> None:
    chain = situation(base)
    assert chain.layout is not None
    m = chain.layout.digits
    token = torch.arange(V).view(1, V)
    digit = chain.split(token)
    assert digit.shape == (1, V, m)
    assert [int("".join(map(str, row)), base) for row in digit[0].tolist()] == list(range(V))
    level = torch.arange(V).view(1, V)
    assert torch.equal(chain.per_sphere(level, digit), level[..., None].expand(1, V, m))
    law = torch.softmax(torch.randn(2, V, generator=torch.Generator().manual_seed(1)), -1)
    dense = torch.zeros(2, m, base)
    for k in range(V):
        for j in range(m):
            dense[:, j, digit[0, k, j]] += law[:, k]
    torch.testing.assert_close(chain.marginals(law), dense)
    assert torch.equal(chain.gather(digit.double()), digit.double().sum(-1))


def test_without_a_codec_nothing_is_changed() -> None:
    chain = Chain(masked_path(V, S), uniform_in_time(Geometric(), 4))
    value = torch.rand(2, 3, V)
    token = torch.randint(V, (2, 3))
    assert chain.split(token) is token and chain.per_sphere(token, token) is token
    assert chain.join(value) is value and chain.marginals(value) is value and chain.gather(value) is value


def test_digits_need_a_path_over_their_base() -> None:
    with pytest.raises(InputError, match="digits of base 3 need a path over 3 tokens"):
        Chain(masked_path(V, S), uniform_in_time(Geometric(), 4), layout=Layout(V, 3))


@pytest.mark.parametrize("order", ["random", "strided", "left_to_right"])
def test_a_group_shares_its_lane(order: Order) -> None:
    token_steps = TokenSteps(16, 4, order)
    chain = Chain(
        masked_path(3, S), uniform_in_time(Geometric(), 4), asynchronous=token_steps, layout=Layout(9, 3, "serial")
    )
    offsets = chain.offsets(torch.zeros(50, 10, dtype=torch.long), torch.Generator().manual_seed(2))
    assert offsets.shape == (50, 10)
    assert torch.equal(offsets[:, ::2], offsets[:, 1::2])
    assert int(offsets.min()) == 0 and int(offsets.max()) == 12
    if order == "left_to_right":
        assert torch.equal(offsets[0, ::2], torch.tensor([0, 3, 6, 9, 12]))


# -- the floor --------------------------------------------------------------------------------------


def excess(chain: Chain, count: int, seed: int = 3) -> tuple[float, float]:
    """Return by how much the bound exceeds the entropy, and its standard error, from whole paths."""
    generator = torch.Generator().manual_seed(seed)
    token = SOURCE.draw(count, generator)
    terms = path_terms(posterior_of(chain), chain, token, generator, torch.float64).sum((0, 2))
    over = terms + SOURCE.log_joint[token[:, 0]]
    return over.mean().item(), over.std().item() / math.sqrt(count)


@every_base
@pytest.mark.parametrize(("kernel", "slack"), [("mixture", 0.003), ("drift", 0.12)])
def test_the_bound_of_split_tokens_keeps_above_the_entropy(base: int, kernel: Kernel, slack: float) -> None:
    over, error = excess(situation(base, kernel, 32), 2000)
    assert over > -4 * error
    assert over < slack * SOURCE.entropy + 4 * error
    assert error < 0.02


@every_base
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_few_steps_cost_nothing_where_there_is_no_context(base: int, steps: int) -> None:
    """The digits' dependence is kept by the head over tokens, so the mixture kernel is tight for every M."""
    over, error = excess(situation(base, "mixture", steps), 2000)
    assert abs(over) < 0.003 * SOURCE.entropy + 4 * error


@every_kernel
@pytest.mark.parametrize("kind", ["uniform", "switch"])
def test_the_floor_holds_on_other_paths(kind: str, kernel: Kernel) -> None:
    path = uniform_path(3, S) if kind == "uniform" else switching_path(3, S, float(Geometric().remaining(0.6)))
    over, error = excess(situation(3, kernel, 16, path), 2000)
    assert over > -4 * error
    assert over < 0.5 * SOURCE.entropy


@every_kernel
def test_single_steps_and_whole_paths_agree(kernel: Kernel) -> None:
    chain = situation(3, kernel, 6)
    generator = torch.Generator().manual_seed(4)
    count = 12_000
    over, error = excess(chain, 3000)
    token = SOURCE.draw(count, generator)
    step = torch.arange(count) % chain.nfe
    law = chain.law(50_000, generator)
    terms = chain.nfe * step_terms(posterior_of(chain), chain, law, token, step, generator).double()[:, 0]
    deviation = terms.std().item() / math.sqrt(count)
    assert terms.mean().item() == pytest.approx(SOURCE.entropy + over, abs=4 * math.hypot(error, deviation))


def test_a_forced_walk_ends_at_the_digits_of_its_token() -> None:
    chain = situation(2, steps=8)
    token = torch.arange(V).view(1, V)
    state = sphere.uniform((1, V, 3), 3, torch.Generator().manual_seed(5))
    log_probs = SOURCE.log_joint.float().expand(1, V, V)
    after, term = forced_step(chain, state, token, torch.full((1, V), 7), log_probs)
    assert torch.equal(after, torch.eye(3)[chain.split(token)])
    torch.testing.assert_close(term, -SOURCE.log_joint.float().expand(1, V))


# -- the sampler ------------------------------------------------------------------------------------


@every_base
@pytest.mark.parametrize("path", ["masked", "switch"])
def test_samples_have_the_source_as_their_law(base: int, path: str) -> None:
    chosen = masked_path(base, S) if path == "masked" else switching_path(base, S, float(Geometric().remaining(0.6)))
    chain = situation(base, "mixture", 8, chosen)
    count = 20_000
    token = sample_chain(posterior_of(chain), chain, count // 4, 4, torch.Generator().manual_seed(6))
    assert token.shape == (count // 4, 4) and int(token.min()) >= 0 and int(token.max()) < V
    found = torch.bincount(token.flatten(), minlength=V).numpy()
    expected = count * SOURCE.log_joint.exp().numpy()
    assert stats.chisquare(found, expected).pvalue > 1e-3


def test_after_the_switch_digits_stand_on_the_second_bridge() -> None:
    """The law of samples cannot tell, since the evidence is the same on both: the mask's coordinate can."""
    chain = situation(3, "mixture", 8, switching_path(3, S, float(Geometric().remaining(0.6))))
    states: list[Tensor] = []

    def watched(state: Tensor, remaining: Tensor) -> Tensor:
        states.append(state)
        return posterior_of(chain)(state, remaining)

    count = 2000
    token = sample_chain(watched, chain, count, 1, torch.Generator().manual_seed(10))
    switch = chain.switch
    assert 0 < switch < 7 and len(states) == 8
    digit = chain.split(token)
    law = chain.law(count, torch.Generator().manual_seed(11))
    for step, bridge in zip((switch, switch + 1), law.laws, strict=True):
        wanted = bridge.draw_at_level(digit, torch.tensor(step), torch.Generator().manual_seed(12))[..., -1]
        found = states[step][..., -1]
        error = ((wanted.var() + found.var()) / found.numel()).sqrt().item()
        assert found.mean().item() == pytest.approx(wanted.mean().item(), abs=4 * error)
    before, after = states[switch][..., -1].mean(), states[switch + 1][..., -1].mean()
    assert after - before > 0.1


def test_the_drift_kernel_walks_on_marginals_and_ends_in_tokens() -> None:
    chain = situation(3, "drift", 48)
    count = 8000
    token = sample_chain(posterior_of(chain), chain, count, 1, torch.Generator().manual_seed(7)).flatten()
    found = torch.bincount(token, minlength=V).double() / count
    assert len(found) == V  # two of the nine codes spell no token, and never come up
    wrong = torch.roll(SOURCE.log_joint.exp(), 1)
    assert (found - SOURCE.log_joint.exp()).abs().sum() < 0.3 * (found - wrong).abs().sum()


@every_kernel
def test_the_same_generator_walks_the_same_way(kernel: Kernel) -> None:
    chain = situation(2, kernel, 6)
    first, second = (
        sample_chain(posterior_of(chain), chain, 20, 3, torch.Generator().manual_seed(8)) for _ in range(2)
    )
    assert torch.equal(first, second)


def test_token_schedule_and_digits_combine() -> None:
    """A token's digits wait, move and finish as one; for independent tokens no window changes the bound."""
    token_steps = TokenSteps(12, 4)
    chain = Chain(masked_path(3, S), uniform_in_time(Geometric(), 4), asynchronous=token_steps, layout=Layout(V, 3))
    generator = torch.Generator().manual_seed(9)
    count = 2000
    token = torch.cat([SOURCE.draw(count, generator) for _ in range(2)], 1)
    seen: list[Tensor] = []

    def watched(state: Tensor, remaining: Tensor) -> Tensor:
        seen.append(remaining)
        start = chain.path.bridge.start.point(state.dtype)
        resting = (remaining == remaining.max()) & (remaining >= 0.999 * S)
        assert torch.equal(state[resting], start.expand_as(state[resting]))
        return posterior_of(chain)(state, remaining)

    terms = path_terms(watched, chain, token, generator, torch.float64).sum((0, 2))
    over = terms + SOURCE.log_joint[token].sum(1)
    assert len(seen) == 12 and seen[0].shape == (count, 2)
    assert abs(over.mean().item()) < 0.003 * 2 * SOURCE.entropy + 4 * over.std().item() / math.sqrt(count)
