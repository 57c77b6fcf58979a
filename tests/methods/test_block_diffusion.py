"""Block diffusion: one block is masked diffusion, blocks of one are autoregression."""

from __future__ import annotations

import math

import pytest
import torch
from exact_network import marginals
from scipy.stats import chisquare
from torch import nn

from rdlm.config import ConvolutionConfig, DiscreteConfig, RunConfig, TransformerConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods.block_diffusion import BlockDiffusion
from rdlm.methods.mdlm import MDLM

SMALL = TransformerConfig(width=16, layers=2, heads=2, time_width=8)


def method_of(block: int, states: int = 4) -> BlockDiffusion:
    torch.manual_seed(0)
    method = BlockDiffusion(RunConfig(model=SMALL, discrete=DiscreteConfig(block=block)), states)
    with torch.no_grad():
        for parameter in method.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return method.network.eval() and method


TOKEN = torch.randint(4, (64, 6), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("nfe", [1, 4])
def test_one_block_is_masked_diffusion(nfe):
    method, masked = method_of(6), MDLM(RunConfig(model=SMALL), 4)
    masked.network = method.network
    hidden = torch.rand(64, 6, generator=torch.Generator().manual_seed(2)) < 0.6
    with torch.no_grad():
        one = method._cross_entropy(TOKEN, hidden, None).sum(-1)
        other = masked.masked_cross_entropy(TOKEN, hidden, None)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    repeated = Batch(TOKEN[:1].repeat(6000, 1))
    values = [m.bound(repeated, nfe, torch.Generator().manual_seed(3)) for m in (method, masked)]
    error = math.sqrt(sum(float(v.var()) / 6000 for v in values))
    assert abs(float(values[0].mean() - values[1].mean())) < 4 * error + 1e-5


@pytest.mark.parametrize("nfe", [1, 6, 13])
def test_blocks_of_one_are_an_exact_autoregressive_likelihood(nfe):
    """One call per token: the chain rule, evaluated prefix by prefix as the sampler does."""
    method = method_of(1)
    assert method.sampling_nfe(6, nfe) == max(6, nfe // 6 * 6)
    expected = torch.zeros(64, dtype=torch.float64)
    with torch.no_grad():
        for place in range(6):
            prefix = torch.cat((TOKEN[:, :place], torch.full((64, 1), 4)), dim=1)
            law = method._log_probs(prefix, None, False)[:, -1]
            expected -= law.gather(-1, TOKEN[:, place, None])[:, 0].double()
    found = method.bound(Batch(TOKEN), 6, torch.Generator().manual_seed(1))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_doubled_pass_is_the_pass_of_the_sampler():
    """In one pass over clean and masked tokens every block predicts what it does as the next block to be sampled."""
    method = method_of(2)
    hidden = torch.rand(64, 6, generator=torch.Generator().manual_seed(2)) < 0.6
    with torch.no_grad():
        whole = method._cross_entropy(TOKEN, hidden, None)
        for begin in (0, 2, 4):
            ids = torch.cat((TOKEN[:, :begin], torch.where(hidden, 4, TOKEN)[:, begin : begin + 2]), dim=1)
            law = method._log_probs(ids, None, False)[:, begin:]
            own = -law.gather(-1, TOKEN[:, begin : begin + 2, None])[..., 0] * hidden[:, begin : begin + 2]
            torch.testing.assert_close(whole[:, begin : begin + 2], own.double(), atol=1e-5, rtol=1e-5)


class Exact(nn.Module):
    """The posterior of a source for blocks of two, given the clean blocks before and the unmasked tokens inside."""

    def __init__(self, source) -> None:
        super().__init__()
        self.source = source

    def law(self, ids):
        states, length = self.source.states, self.source.length
        seen = torch.nn.functional.one_hot(ids, states + 1)[..., :states].double().log()
        evidence = torch.zeros(len(ids), length, states, dtype=torch.float64)
        evidence[:, : ids.shape[1]] = torch.where(ids[..., None] == states, 0.0, seen)
        return marginals(self.source.log_joint, evidence)[:, : ids.shape[1]]

    def forward(self, ids, time, condition=None, block=0, doubled=False):
        if not doubled:
            return self.law(ids)
        clean, noisy = ids.chunk(2, dim=1)
        parts = []
        for begin in range(0, clean.shape[1], block):
            end = begin + block
            parts.append(self.law(torch.cat((clean[:, :begin], noisy[:, begin:end]), dim=1))[:, begin:end])
        return torch.cat(parts, dim=1)


@pytest.mark.parametrize(("block", "nfe"), [(1, 4), (2, 64), (4, 64)])
def test_an_exact_network_comes_within_three_percent_of_the_entropy_and_not_below(block, nfe):
    source = sources.markov(4)
    method = BlockDiffusion(RunConfig(model=SMALL, discrete=DiscreteConfig(block=block)), 3)
    method.network = Exact(source)
    generator = torch.Generator().manual_seed(1)
    token = source.draw(20_000, generator)
    excess = method.bound(Batch(token), nfe, generator) + source.log_joint[tuple(token.T)]
    stderr = float(excess.std()) / math.sqrt(len(excess))
    assert -4 * stderr - 1e-6 < float(excess.mean()) < 0.03 * source.entropy + 3 * stderr
    if block == 1:
        assert float(excess.abs().max()) < 1e-6  # exact for every sequence


def test_samples_follow_the_source():
    source = sources.markov(3)
    method = BlockDiffusion(RunConfig(model=SMALL, discrete=DiscreteConfig(block=2)), 3)
    method.network = Exact(source)
    drawn = method.generate(9000, 3, 80, torch.Generator().manual_seed(2))
    codes = (drawn * torch.tensor([9, 3, 1])).sum(-1)
    assert chisquare(torch.bincount(codes, minlength=27), 9000 * source.log_joint.exp().flatten()).pvalue > 1e-3


def test_needs_a_transformer_and_blocks():
    with pytest.raises(InputError, match="needs a transformer"):
        BlockDiffusion(RunConfig(model=ConvolutionConfig(width=8)), 3)
    with pytest.raises(InputError, match=r"discrete\.block must lie in"):
        DiscreteConfig(block=0)
