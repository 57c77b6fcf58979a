"""Samplers whose denoiser is an exact posterior, and the test that their samples follow a source."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from rdlm.data.sources import Source
from rdlm.likelihood.terms import Posterior
from rdlm.process.kernel import Chain
from rdlm.process.path import Path, joint_posterior
from rdlm.process.schedule import Geometric, Schedule
from rdlm.random import RandomStreams
from rdlm.sampling.denoisers import CachedPrefix, Denoising
from rdlm.sampling.sampler import Denoise, Output, Sampler
from rdlm.sampling.solvers import SOLVERS

SCHEDULE = Geometric()


def exact_posterior(source: Source, path: Path) -> Posterior:
    """Return `log p(token | states)` of a source by summing over all of its sequences."""
    return partial(joint_posterior, path, source.log_joint)


def denoiser_of(posterior: Posterior) -> Denoise:
    """Return a denoiser that calls a posterior and yields no queries."""

    def denoise(state: Tensor, remaining: Tensor, prefix: CachedPrefix | None) -> Denoising:
        yield from ()
        return posterior(state, remaining)

    return denoise


def sampler_of(
    posterior: Posterior, chain: Chain, solver: str = "mixture", schedule: Schedule = SCHEDULE, **options: Any
) -> Sampler:
    """Return a sampler by a posterior."""
    return Sampler(denoiser_of(posterior), chain, SOLVERS[solver], schedule, **options)


def output_of(sampler: Sampler, known: Tensor, noise: RandomStreams) -> Output:
    """Return the output of a sampler that yields no queries."""
    try:
        next(sampler.sample(known, noise))
    except StopIteration as stop:
        output: Output = stop.value
        return output
    raise AssertionError("an exact posterior needs no network")


def p_value(source: Source, token: Tensor) -> float:
    """Return the p-value of a chi-square test of whole sequences against the source's joint distribution."""
    code = sum(token[:, i] * source.states ** (source.length - 1 - i) for i in range(source.length))
    count = torch.bincount(torch.as_tensor(code), minlength=source.states**source.length)
    expected = len(token) * source.log_joint.exp().flatten()
    return float(stats.chisquare(count.numpy(), expected.numpy()).pvalue)
