"""Gaussian observations of vectors: Bayesian flow networks, bit diffusion, and what they share with the channel."""

from __future__ import annotations

import math

import pytest
import torch
from exact_network import known
from scipy.stats import chisquare

from rdlm.config import BFNConfig, BitDiffusionConfig, RunConfig, TransformerConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.likelihood.terms import mixture_excess
from rdlm.methods.bfn import BFN
from rdlm.methods.bit_diffusion import BitDiffusion, bits
from rdlm.process.channel import Gaussian
from rdlm.process.kernel import StepCoefficients, step_log_density
from rdlm.process.schedule import Grid
from rdlm.process.tokens import Vertices
from rdlm.random import Draw

SMALL = TransformerConfig(width=16, layers=1, heads=2, time_width=8)


def excess_of(method, source, nfe, count=40_000, seed=7):
    generator = torch.Generator().manual_seed(seed)
    token = source.draw(count, generator)
    values = method.bound(Batch(token), nfe, generator) + source.log_joint[tuple(token.T)]
    return float(values.mean()), float(values.std()) / math.sqrt(count)


@pytest.mark.parametrize("states", [3, 27])
@pytest.mark.parametrize("nfe", [1, 2, 6])
def test_bfn_meets_the_entropy_of_an_independent_source_in_any_number_of_calls(states, nfe):
    source = sources.skewed(states)
    mean, stderr = excess_of(known("bfn", source), source, nfe)
    assert abs(mean) < 4 * stderr + 1e-6
    assert stderr < 0.015 * source.entropy


def test_bfn_pays_for_context_that_is_not_refreshed():
    source = sources.markov()
    method = known("bfn", source, accuracy=6.0)
    few, many = excess_of(method, source, 2), excess_of(method, source, 64)
    assert few[0] > 0.03 > many[0] - 4 * many[1]
    assert -4 * many[1] < many[0] < 0.03 * source.entropy + 3 * many[1]


def test_bfn_in_continuous_time_meets_the_entropy():
    source = sources.skewed(3)
    method = known("bfn", source)
    token = source.draw(100_000, torch.Generator().manual_seed(1))
    values = method.limit(Batch(token), torch.Generator().manual_seed(2)) + source.log_joint[token[:, 0]]
    assert abs(float(values.mean())) < 4 * float(values.std()) / math.sqrt(len(token)) < 0.02 * source.entropy


def test_a_bfn_step_is_a_step_of_the_gaussian_channel():
    """State `x = B u` with `a = 1/B - 1/S`: the log-density of a step for all tokens agrees up to a constant."""
    states, total, generator = 5, 0.7, torch.Generator().manual_seed(3)
    method = BFN(RunConfig(model=SMALL), states)
    strength = method.strength(method.times(9))
    remaining = 1 / (strength + 1 / total)
    grid = Grid(torch.cat([remaining, torch.zeros(1, dtype=torch.float64)]))
    channel = Gaussian.of(Vertices(states), total)
    token = torch.randint(states, (6, 4), generator=generator)
    state = method.observe(token, strength[2].expand(6), generator).double()
    gain = strength[3] - strength[2]
    y = gain * method.vector(token, state) + gain.sqrt() * torch.randn(state.shape, generator=generator).double()
    x, after = state * remaining[2], (state + y) * remaining[3]
    row = grid.coefficient_table[2].expand(6, 4, 3)
    density = step_log_density(channel, x, after - x, StepCoefficients(*row.unbind(-1)))
    own = method.log_density(y, gain)
    torch.testing.assert_close(density - density[..., :1], own - own[..., :1])
    # hence the same evidence and the same term of the bound
    evidence = channel.log_likelihood(x, remaining[2])
    torch.testing.assert_close(torch.softmax(evidence, -1), torch.softmax(state, -1))
    law = torch.log_softmax(torch.randn(6, 4, states, generator=generator).double(), -1)
    torch.testing.assert_close(mixture_excess(density, law, token), mixture_excess(own, law, token))


def test_bfn_states_are_those_of_the_literature():
    """y ~ N(beta (V e_k - 1), beta V I), up to a constant per position, which a softmax does not see."""
    method = BFN(RunConfig(model=SMALL, bfn=BFNConfig(accuracy=0.3)), 4)
    token = torch.full((50_000, 1), 2)
    state = method.observe(
        token, method.strength(torch.full((50_000,), 0.5).double()), torch.Generator().manual_seed(1)
    )
    beta = 0.3 * 0.25
    expected = beta * torch.tensor([-1.0, -1, 3, -1]) + beta
    assert (state.mean((0, 1)) - expected).abs().max() < 0.02
    assert state.std((0, 1)).mean() == pytest.approx(math.sqrt(4 * beta), rel=0.02)


@pytest.mark.parametrize("codes", ["bits", "onehot"])
@pytest.mark.parametrize("states", [3, 27])
def test_bits_come_close_to_the_entropy_and_never_below(codes, states):
    """The drift chain is not Bayes' rule in a step: its slack is that of a Riemann sum, about 4 / M of the entropy."""
    source = sources.skewed(states)
    method = known("bit_diffusion", source, codes=codes, head="token")
    slack = []
    for nfe in (64, 256):
        mean, stderr = excess_of(method, source, nfe)
        assert mean > -4 * stderr
        slack.append(mean / source.entropy)
    assert slack[1] < 0.03 + 3 * stderr / source.entropy and slack[1] < 0.7 * slack[0]


def test_bits_are_numbers():
    assert bits(5).tolist() == [[-1, -1, -1], [-1, -1, 1], [-1, 1, -1], [-1, 1, 1], [1, -1, -1]]
    assert bits(2).shape == (2, 1) and bits(27).shape == (27, 5)


def test_logits_of_bits_give_tokens_only():
    method = BitDiffusion(RunConfig(model=SMALL), 5)
    law = method.log_probs(torch.randn(3, 4, 3), torch.full((3,), 0.4)).exp()
    torch.testing.assert_close(law, torch.full_like(law, 0.2))  # untrained: uniform over the five tokens, not eight

    class Fixed(torch.nn.Module):
        def forward(self, inputs, time, condition=None):
            return torch.tensor([0.3, -0.2, 1.0]).expand(*inputs.shape[:2], 3)

    method.network = Fixed()
    law = method.log_probs(torch.zeros(1, 1, 3), torch.zeros(1))[0, 0].exp()
    each = torch.sigmoid(torch.tensor([0.3, -0.2, 1.0]))
    product = torch.where(bits(5) > 0, each, 1 - each).prod(-1)
    torch.testing.assert_close(law, product / product.sum())


class Wild(torch.nn.Module):
    """Logits that are those of nothing, but depend on the state."""

    def forward(self, inputs, time, condition=None):
        return torch.sin(3 * inputs.cumsum(-1) + time[:, None, None]) * 2


@pytest.mark.parametrize("name", ["bfn", "bit_diffusion"])
def test_the_bound_holds_for_any_network(name):
    """The law of one position in two calls, by drawing it very often."""
    config = RunConfig(model=SMALL, bit_diffusion=BitDiffusionConfig(codes="onehot", head="token"))
    method = {"bfn": BFN, "bit_diffusion": BitDiffusion}[name](config, 3)
    method.network = Wild()
    drawn = method.generate(100_000, 1, 2, torch.Generator().manual_seed(4))[:, 0]
    share = torch.bincount(drawn, minlength=3).double() / len(drawn)
    assert share.min() > 0.02
    for token in range(3):
        values = method.bound(Batch(torch.full((20_000, 1), token)), 2, torch.Generator().manual_seed(3))
        assert float(values.mean()) + 4 * float(values.std()) / 141 > -math.log(float(share[token])) - 0.02


@pytest.mark.parametrize(("name", "nfe"), [("bfn", 5), ("bit_diffusion", 100)])
def test_samples_follow_the_source(name, nfe):
    source = sources.skewed(27)
    choices = {"head": "token"} if name == "bit_diffusion" else {}
    drawn = known(name, source, **choices).generate(4000, 1, nfe, torch.Generator().manual_seed(5))
    assert chisquare(torch.bincount(drawn[:, 0], minlength=27), 4000 * source.log_joint.exp()).pvalue > 1e-3


def test_self_conditioning_takes_two_evaluations_a_call():
    model = TransformerConfig(width=16, layers=1, heads=2, time_width=8, self_condition=True)
    method = BitDiffusion(RunConfig(model=model), 6)
    assert method.sampling_nfe(9, 8) == 8 and method.steps(9, 8) == 4 and method.sampling_nfe(9, 7) == 6
    with torch.no_grad():
        for parameter in method.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    calls = []
    method.network.register_forward_pre_hook(lambda module, inputs: calls.append(inputs[3:]))
    batch = Batch(torch.randint(6, (8, 5)))
    assert method.bound(batch, 8).isfinite().all() and len(calls) == 2
    assert calls[0] == () and calls[1][0].abs().sum() > 0 and not calls[1][0].requires_grad
    calls.clear()
    method.loss(batch, Draw(0, 0)).backward()
    rows = calls[1][0].abs().sum((1, 2)) > 0
    assert rows.any() and not rows.all()  # half of the sequences see no earlier prediction
    calls.clear()
    assert method.generate(2, 5, 8).shape == (2, 5) and len(calls) == 8


def test_asymmetric_times_reach_less_noise_than_the_network_is_told():
    """With a network that knows one token, the state is `a c + sqrt(a) z` up to the scale of the time that is told."""

    class Certain(torch.nn.Module):
        def forward(self, inputs, time, condition=None):
            return torch.tensor([30.0, 0.0, 0.0]).expand(*inputs.shape[:2], 3)

    options = BitDiffusionConfig(codes="onehot", head="token", ahead=2.0)
    method = BitDiffusion(RunConfig(model=SMALL, bit_diffusion=options), 3)
    method.network = Certain()
    steps, generator = 10, torch.Generator().manual_seed(0)
    state = method.initial(20_000, 1, generator)
    log_probs = method.log_probs(state, torch.zeros(20_000))
    state = method.advance(log_probs, state, 0, steps, generator)
    told, goal = method.strength(torch.tensor([0.1, 0.3], dtype=torch.float64))
    seen = state * (goal * (1 + goal) / (told * (1 + told))).sqrt().float()
    assert seen[..., 0].mean().item() == pytest.approx(goal.item(), abs=4 * float((goal / 20_000).sqrt()))
    assert seen.std(0).mean().item() == pytest.approx(float(goal.sqrt()), rel=0.02)
    assert method.generate(50, 2, 10, generator).eq(0).all()


def test_without_asymmetry_the_chain_is_that_of_the_bound():
    plain = BitDiffusion(RunConfig(model=SMALL), 6)
    assert plain.claims_bound
    ahead = BitDiffusion(RunConfig(model=SMALL, bit_diffusion=BitDiffusionConfig(ahead=1.0)), 6)
    assert not ahead.claims_bound
    ahead.network = plain.network
    ahead.options = plain.options
    drawn = [one.generate(4, 5, 8, torch.Generator().manual_seed(1)) for one in (plain, ahead)]
    assert drawn[0].equal(drawn[1])


def test_asymmetric_times_are_not_negative():
    with pytest.raises(InputError, match=r"bit_diffusion\.ahead must lie in"):
        BitDiffusionConfig(ahead=-1.0)
