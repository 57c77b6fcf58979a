"""The limits of a certificate, as docs/guides/certify.md states them: what is wrong and held, or right and refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rdlm
from rdlm.certify import Oracle
from rdlm.certify.gallery import Estimator, sphere_terms
from rdlm.data import sources
from rdlm.process.kernel import Kernel
from rdlm.process.path import masked_path
from rdlm.process.schedule import Geometric


def exact(oracle: Oracle) -> Tensor:
    return oracle.surprise(oracle.left_to_right()).sum(-1)


def in_bits(oracle: Oracle) -> Tensor:
    return exact(oracle) / math.log(2)


def cut(oracle: Oracle, last: float = 0.002, times: int = 32) -> Tensor:
    """Masked diffusion without its times below `last`: the value is too small by this share of the entropy."""
    t = ((oracle.uniform(times, 1, 1) + torch.arange(times)[:, None, None]) / times).expand(times, len(oracle), 1)
    erased = oracle.uniform(times, len(oracle), oracle.length) < t
    nll = oracle.surprise(oracle.erased(erased))
    return ((nll * erased / t).sum(-1) * (t[..., 0] > last)).mean(0)


def without_decode_term(oracle: Oracle, kernel: Kernel = "drift") -> Tensor:
    """Two steps of the drift kernel, whose slack is larger than the missing term."""
    return sphere_terms(oracle, masked_path(oracle.vocabulary, Geometric().total), kernel, 2)[1][:-1].sum(0)


def wrong_where_large(oracle: Oracle) -> Tensor:
    return exact(oracle) * (oracle.vocabulary <= 16 and oracle.length <= 6)


def shared_by_the_batch(oracle: Oracle) -> Tensor:
    return exact(oracle).mean().expand(len(oracle))


@pytest.mark.parametrize("estimator", [in_bits, cut, without_decode_term, wrong_where_large, shared_by_the_batch])
def test_what_a_certificate_does_not_see(estimator: Estimator) -> None:
    listed = [sources.uniform(4, 2), sources.skewed(3, 2), sources.markov(4)]
    assert rdlm.certify(estimator, sources=listed, laws=[]).verdict == "bound held"


def test_the_same_mistakes_are_seen_where_they_exceed_slack_and_noise() -> None:
    listed = [sources.uniform(4, 2)]
    without_slack: Estimator = lambda oracle: without_decode_term(oracle, "mixture")  # noqa: E731
    assert rdlm.certify(without_slack, sources=listed, laws=[]).verdict == "not a bound"
    assert rdlm.certify(lambda oracle: cut(oracle, 0.05), sources=listed, laws=[]).verdict == "not a bound"


def of_another_sampler(oracle: Oracle) -> Tensor:
    """The likelihood at temperature 1."""
    return exact(oracle)


def sharpened(oracle: Oracle, count: int) -> Tensor:
    """Samples of an independent source at temperature 1/2."""
    law = oracle.erased(torch.ones(1, oracle.length, dtype=torch.bool), torch.zeros(1, oracle.length))[0]
    tokens = torch.multinomial((2 * law).softmax(-1), count, replacement=True, generator=oracle.generator)
    return tokens.T


def test_another_sampler_is_seen_only_if_it_is_given() -> None:
    listed = [sources.skewed(3, 2)]
    assert rdlm.certify(of_another_sampler, sources=listed).verdict == "bound held"
    found = rdlm.certify(of_another_sampler, sources=listed, laws=["sampler"], sampler=sharpened)
    assert any(one.check == "sampler" and one.outcome == "violated" for one in found.findings)


def by_number(oracle: Oracle) -> Tensor:
    """A bound that is loose for sequences that begin with token 0."""
    return exact(oracle) + 0.3 * (oracle.tokens[:, 0] == 0)


def looser_with_steps(oracle: Oracle, steps: int = 8) -> Tensor:
    return exact(oracle) + 0.02 * steps


@pytest.mark.parametrize(("estimator", "law"), [(by_number, "relabelling"), (looser_with_steps, "steps")])
def test_loose_bounds_that_violate_another_law_are_refused_by_that_law_alone(estimator: Estimator, law: str) -> None:
    found = rdlm.certify(estimator, sources=[sources.skewed(3, 2)])
    assert {one.check for one in found.findings if one.outcome != "held"} == {law}
    assert rdlm.certify(estimator, sources=[sources.skewed(3, 2)], laws=[]).verdict == "bound held"
