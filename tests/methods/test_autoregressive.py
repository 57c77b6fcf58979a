"""The autoregressive method: a likelihood that sums to one, and a cache that changes nothing."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import chisquare

from rdlm.config import Convolution2DConfig, ConvolutionConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods.autoregressive import Autoregressive


@pytest.fixture
def method() -> Autoregressive:
    torch.manual_seed(0)
    config = TransformerConfig(width=16, layers=2, heads=2, time_width=8)
    method = Autoregressive(RunConfig(method="autoregressive", model=config), 3, classes=2)
    with torch.no_grad():  # new weights predict the uniform law, whatever they see
        for parameter in method.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return method.network.eval() and method


@pytest.fixture
def pixels() -> Autoregressive:
    torch.manual_seed(0)
    model = Convolution2DConfig(image=(1, 2, 2), width=8, layers=2, kernel=3, patch=1)
    method = Autoregressive(RunConfig(method="autoregressive", model=model), 3)
    with torch.no_grad():
        for parameter in method.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return method.network.eval() and method


def test_likelihoods_of_images_sum_to_one_and_samples_follow_them(pixels):
    every = torch.tensor(list(itertools.product(range(3), repeat=4)))
    law = pixels.log_likelihood(every).exp()
    assert float(law.sum()) == pytest.approx(1, abs=1e-5)
    assert float(law.max() / law.min()) > 3
    drawn = pixels.generate(8000, 4, 64, torch.Generator().manual_seed(1))
    counts = torch.bincount((drawn * torch.tensor([27, 9, 3, 1])).sum(-1), minlength=81)
    assert chisquare(counts, 8000 * law / law.sum()).pvalue > 1e-3


EVERY = torch.tensor(list(itertools.product(range(3), repeat=3)))


@pytest.mark.parametrize("label", [None, 1])
def test_likelihoods_sum_to_one_and_samples_follow_them(method, label):
    condition = None if label is None else torch.full((27,), label)
    law = method.log_likelihood(EVERY, condition).exp()
    assert float(law.sum()) == pytest.approx(1, abs=1e-5)
    assert float(law.max() / law.min()) > 3
    told = None if label is None else torch.full((8000,), label)
    drawn = method.generate(8000, 3, 64, torch.Generator().manual_seed(1), told)
    counts = torch.bincount((drawn * torch.tensor([9, 3, 1])).sum(-1), minlength=27)
    assert chisquare(counts, 8000 * law / law.sum()).pvalue > 1e-3


def test_the_bound_is_the_likelihood(method):
    label = torch.arange(27) % 2
    expected = -method.log_likelihood(EVERY, label)
    torch.testing.assert_close(method.bound(Batch(EVERY, label), 5), expected)
    assert not torch.allclose(expected, -method.log_likelihood(EVERY))


def test_needs_a_causal_network():
    with pytest.raises(InputError, match="needs a causal network"):
        Autoregressive(RunConfig(model=ConvolutionConfig()), 3)
