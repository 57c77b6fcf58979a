"""Blocks from left to right: exact likelihoods, one bound in sequence and side by side, and samples that follow it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from scipy import stats
from small import BY_TOKEN, LAYOUTS, every_layout, mean_and_error, method, tokens
from torch import Tensor

from rdlm.config import ConvolutionConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.likelihood.estimators import path_bound, path_terms, stratified_bound
from rdlm.methods.rdlm import Rdlm
from rdlm.process.order import TokenSchedule
from rdlm.random import Draw

ONE_STEP = 0.01


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def nats(model: Rdlm, batch: Batch, nfe: int, token_schedule: TokenSchedule, paths: int = 1) -> Tensor:
    return path_bound(model.problem(batch, nfe, token_schedule=token_schedule), paths, seeded()).sum((1, 3))


@every_layout
def test_token_by_token_the_bound_is_an_exact_likelihood(layout: str) -> None:
    """The probabilities of all sequences add up to one."""
    model = method(3, scrambled=True, **LAYOUTS[layout])
    every = Batch(torch.tensor(list(itertools.product(range(3), repeat=3))))
    token_schedule = TokenSchedule(ONE_STEP, "strided", 1)
    total = torch.logsumexp(-nats(model, every, 3, token_schedule)[0], 0)
    if layout in BY_TOKEN:
        assert float(total) == pytest.approx(0, abs=1e-5)
    else:  # codes of no token have the rest
        assert -3 < float(total) < -1e-3


def test_samples_follow_the_bound() -> None:
    model = method(3, scrambled=True)
    every = Batch(torch.tensor(list(itertools.product(range(3), repeat=3))))
    token_schedule = TokenSchedule(ONE_STEP, "strided", 1)
    law = (-nats(model, every, 3, token_schedule)[0]).exp()
    drawn = model.generate(4000, 3, 3, seeded(1), token_schedule=token_schedule)
    counts = torch.bincount((drawn * torch.tensor([9, 3, 1])).sum(1), minlength=27)
    assert stats.chisquare(counts.numpy(), (law / law.sum() * 4000).numpy()).pvalue > 1e-3


@every_layout
@pytest.mark.parametrize(("block", "nfe", "width"), [(1, 6, ONE_STEP), (2, 6, ONE_STEP), (3, 8, 1.0), (4, 9, 0.5)])
def test_in_sequence_and_side_by_side_are_the_same_bound(layout: str, block: int, nfe: int, width: float) -> None:
    """In sequence the network is evaluated block after block, as by the sampler; side by side once for all."""
    model = method(5, scrambled=True, **LAYOUTS[layout])
    batch, token_schedule = tokens(5, 3, 6), TokenSchedule(width, "strided", block)
    chain = model.chain(model.process.mixture.paths[0], nfe, "mixture", token_schedule, length=6)
    token, posterior = model.layout.symbols(batch.ids), model.posterior(None, model.block_mask(chain))
    line = torch.stack([path_terms(posterior, chain, token, seeded(s)).sum((0, 2)).mean() for s in range(100)])
    beside = nats(model, batch, nfe, token_schedule, paths=100).mean(1)
    (first, first_error), (second, second_error) = mean_and_error(line), mean_and_error(beside)
    assert first == pytest.approx(second, abs=5 * math.hypot(first_error, second_error) + 1e-4)
    single = stratified_bound(model.problem(batch, nfe, token_schedule=token_schedule), 600, seeded()).total
    assert single.value == pytest.approx(second, abs=5 * math.hypot(single.stderr, second_error) + 1e-4)


def test_the_loss_is_the_bound_of_its_blocks() -> None:
    """With blocks of one and of all tokens, decoded one by one, its mean is the bound per token."""
    batch = tokens(5, 4, 6)
    for size in (1, 3, 6):
        model = method(5, scrambled=True, blockwise=1.0, block_sizes=(size,), narrow=1.0)
        losses = torch.stack([model.loss(batch, Draw(0, step, 0, 1)).detach() for step in range(300)])
        bound = (
            nats(model, batch, 6, TokenSchedule(ONE_STEP, "random" if size == 6 else "strided", size), paths=50).mean(1)
            / 6
        )
        (loss, loss_error), (value, error) = mean_and_error(losses), mean_and_error(bound)
        # At time 0 a drawn state is at the start to 5e-5, the root of float32's rounding, which changes the output.
        assert loss == pytest.approx(value, abs=5 * math.hypot(loss_error, error) + 2e-3)


def test_some_rows_in_blocks_and_some_without_make_one_loss() -> None:
    model = method(5, blockwise=0.5, block_sizes=(1, 2), asynchronous=1.0)
    model.loss(tokens(5, 5, 6), Draw(0, 0, 0, 1)).backward()
    assert all(parameter.grad is not None for parameter in model.network.parameters())
    plain = method(5, blockwise=0.0, asynchronous=1.0)
    assert torch.equal(plain.loss(tokens(5, 5, 6), Draw(0, 1, 0, 1)), plain.loss(tokens(5, 5, 6), Draw(0, 1, 0, 1)))


@pytest.mark.parametrize("settings", [{"block": 1}, {"blockwise": 0.5}])
def test_networks_without_a_block_mask_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="blocks need a transformer"):
        method(5, model=ConvolutionConfig(width=8, stacks=1), **settings)
    with pytest.raises(InputError, match="blocks need a transformer"):
        method(5, causal=True, **settings)
