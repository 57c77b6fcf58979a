"""Whole paths and single steps estimate the same number, for every kernel, path and token schedule."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from rdlm.data.sources import Source, markov, skewed
from rdlm.likelihood.estimators import path_terms
from rdlm.process.bridge import BridgeKind
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.order import TokenSteps
from rdlm.process.path import Path, joint_posterior, masked_path, switching_path, uniform_path
from rdlm.process.schedule import Geometric, uniform_in_time
from tests.likelihood.source_curve import curve_of_source

S = Geometric().total
KERNELS: tuple[Kernel, ...] = ("mixture", "drift")
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def switching(kind: BridgeKind = "brownian") -> Path:
    return switching_path(3, S, float(Geometric().remaining(0.6)), kind)


@every_kernel
@pytest.mark.parametrize(
    ("source", "path", "token_steps"),
    [
        (skewed(3), masked_path(3, S), None),
        (skewed(3), uniform_path(3, S, "logarithm"), None),
        (skewed(3), switching(), None),
        (markov(), masked_path(3, S), TokenSteps(16, 8)),
        (markov(), switching("logarithm"), TokenSteps(16, 8, "left_to_right")),
    ],
    ids=["masked", "uniform-logarithm", "switch", "token-schedule", "switch-token-schedule"],
)
def test_steps_and_paths_agree(source: Source, path: Path, token_steps: TokenSteps | None, kernel: Kernel) -> None:
    chain = Chain(path, uniform_in_time(Geometric(), 8), kernel, token_steps)
    # A posterior that is wrong on purpose, so that no term vanishes.
    posterior = partial(joint_posterior, path, 0.5 * source.log_joint)
    generator = torch.Generator().manual_seed(0)
    count = 6000
    terms = path_terms(posterior, chain, source.draw(count, generator), generator).sum(-1)  # [calls, count]
    curve = curve_of_source(posterior, chain, source.draw, 12_000 * chain.nfe, generator)
    assert terms.shape == (chain.nfe, count) and terms.dtype == torch.float64
    total = terms.sum(0)
    error = math.hypot(curve.total.stderr, total.std().item() / math.sqrt(count))
    assert curve.total.value == pytest.approx(total.mean().item(), abs=4 * error)
    each = (curve.variance + terms.var(1) / count).sqrt()
    # Some steps of a lane hardly vary: rounding of the float32 states is left.
    assert bool(((curve.mean - terms.mean(1)).abs() < 4.5 * each + 1e-5).all())


@every_kernel
@pytest.mark.parametrize("token_steps", [None, TokenSteps(4, 4), TokenSteps(7, 4), TokenSteps(4, 4, block=3, turns=4)])
def test_a_known_token_is_at_its_vertex_in_every_step(kernel: Kernel, token_steps: TokenSteps | None) -> None:
    """As in the sampler, whose default is to clamp prompts in every order: else the bound is that of another one."""
    path, token, seen = masked_path(3, S), torch.tensor([[2, 0, 1]] * 5), []
    chain = Chain(path, uniform_in_time(Geometric(), 4), kernel, token_steps)

    def posterior(state: Tensor, remaining: Tensor) -> Tensor:
        seen.append((state.clone(), remaining.clone()))
        return state[..., :3].log_softmax(-1)

    terms = path_terms(posterior, chain, token, torch.Generator().manual_seed(0), known=1)
    assert len(seen) == chain.nfe and bool((terms[..., 0] == 0).all()) and bool((terms.sum(0)[:, 1:] != 0).all())
    for state, remaining in seen:
        torch.testing.assert_close(state[:, 0], torch.eye(4)[2].expand(5, 4))
        assert bool((remaining[:, 0] == 0).all())


@every_kernel
def test_one_step_is_the_decoder_alone(kernel: Kernel) -> None:
    """With one call nothing is known when the token is named: minus the log of its prior, on every path."""
    source, path = skewed(27), masked_path(27, S)
    chain = Chain(path, uniform_in_time(Geometric(), 1), kernel)
    token = source.draw(50, torch.Generator().manual_seed(1))
    terms = path_terms(partial(joint_posterior, path, source.log_joint), chain, token, dtype=torch.float64)
    torch.testing.assert_close(terms[0, :, 0], -source.log_joint[token[:, 0]], rtol=1e-9, atol=0)


def test_a_path_hardly_varies_where_the_posterior_is_exact() -> None:
    """Then every path of the mixture kernel gives -log p(token), to the accuracy of the chain's evidence."""
    source, path = skewed(3), masked_path(3, S)
    chain = Chain(path, uniform_in_time(Geometric(), 64))
    token = source.draw(400, torch.Generator().manual_seed(2))
    posterior = partial(joint_posterior, path, source.log_joint)
    terms = path_terms(posterior, chain, token, torch.Generator().manual_seed(3), torch.float64)
    excess = terms.sum((0, 2)) + source.log_joint[token[:, 0]]
    assert excess.std().item() < 0.05 and abs(excess.mean().item()) < 0.01


def test_each_lane_is_counted_once_and_in_its_time() -> None:
    chain = Chain(masked_path(3, S), uniform_in_time(Geometric(), 2), asynchronous=TokenSteps(6, 2, "left_to_right"))

    def posterior(state: Tensor, remaining: Tensor) -> Tensor:
        return torch.full((*state.shape[:-1], 3), -math.log(3.0), dtype=state.dtype)

    terms = path_terms(posterior, chain, torch.tensor([[0, 1, 2]]))
    assert torch.equal(terms[:, 0] != 0, torch.eye(3, dtype=torch.bool).repeat_interleave(2, 0))
    assert terms[1::2, 0].diagonal().tolist() == pytest.approx([math.log(3)] * 3)


def test_same_generator_same_terms() -> None:
    source, path = markov(), switching()
    chain = Chain(path, uniform_in_time(Geometric(), 6))
    posterior = partial(joint_posterior, path, source.log_joint)
    token = source.draw(20, torch.Generator().manual_seed(4))
    first, second = (path_terms(posterior, chain, token, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
