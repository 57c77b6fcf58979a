"""Continuous-time chains: rates, the integral that meets the entropy, uniform diffusion, and tau-leaping."""

from __future__ import annotations

import math

import pytest
import torch
from exact_network import known
from scipy.linalg import expm
from scipy.stats import chisquare

from rdlm.config import RunConfig, TauLDRConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods.tau_ldr import TauLDR, spectrum_of
from rdlm.methods.udlm import UDLM

every_rates = pytest.mark.parametrize("rates", ["uniform", "gauss"])


@every_rates
@pytest.mark.parametrize("states", [3, 27])
def test_rates_are_reversible_and_transitions_are_their_exponential(rates, states):
    spectrum = spectrum_of(rates, states)
    flow = spectrum.end[:, None] * spectrum.rate
    torch.testing.assert_close(flow, flow.T)
    assert spectrum.rate.sum(-1).abs().max() < 1e-12
    for moment in (0.05, 0.7, 9.0):
        found = spectrum.transition(torch.tensor(moment, dtype=torch.float64))
        torch.testing.assert_close(found, torch.from_numpy(expm(moment * spectrum.rate.numpy())), atol=1e-10, rtol=0)


@every_rates
@pytest.mark.parametrize("states", [3, 27, 256])
def test_the_clock_is_the_integral_of_the_speed_and_ends_where_nothing_is_left_of_the_token(rates, states):
    spectrum, time = spectrum_of(rates, states), torch.linspace(0, 1, 10_001, dtype=torch.float64)
    first, last = spectrum.clock(time[[0, -1]])
    assert float(torch.trapezoid(spectrum.speed(time), time)) == pytest.approx(float(last - first), rel=1e-4)
    torch.testing.assert_close(spectrum.transition(last), spectrum.end.expand(states, -1), atol=1e-3, rtol=0)
    assert float(TauLDR(RunConfig(tau_ldr=TauLDRConfig(rates)), states).prior().max()) < 1e-3


def test_times_are_spent_where_information_is_lost():
    """The share of times at which less than a thousandth of a uniform token's information is left."""
    spectrum, time = spectrum_of("uniform", 27), torch.linspace(0, 1, 101, dtype=torch.float64)
    law = spectrum.transition(spectrum.clock(time))
    left = (torch.xlogy(law, law).sum(-1).mean(-1) + math.log(27)) / math.log(27)
    assert float((left < 1e-3).double().mean()) < 0.3


def expected(method: TauLDR, source, points: int = 100) -> float:
    """The mean of the estimate for one position, by enumeration of tokens and states and quadrature over time."""
    law, total = source.log_joint.exp(), 0.0
    token, state = (grid.reshape(-1, 1) for grid in torch.meshgrid(*[torch.arange(source.states)] * 2, indexing="ij"))
    for index in range(points):
        time = torch.full((len(token),), (index + 0.5) / points, dtype=torch.float64)
        rows = method.spectrum.transition(method.spectrum.clock(time[0]))
        model = method.log_probs(state, time).exp() @ rows
        rate = method.divergence_rate(rows[token], model, state)[:, 0].nan_to_num(0.0, 0.0, 0.0)
        weight = law[token[:, 0]] * rows[token[:, 0], state[:, 0]]
        total += float((weight * method.spectrum.speed(time) * rate).sum()) / points
    rows = method.spectrum.transition(method.spectrum.clock(torch.tensor(0.0, dtype=torch.float64)))
    joint = law[:, None] * rows
    posterior = joint / joint.sum(0)
    return total - float(torch.xlogy(joint, posterior).nan_to_num().sum()) + float((law * method.prior()).sum())


@every_rates
@pytest.mark.parametrize("states", [3, 27])
def test_the_integral_meets_the_entropy(rates, states):
    source = sources.skewed(states)
    method = known("tau_ldr", source, rates=rates)
    assert expected(method, source) == pytest.approx(source.entropy, rel=5e-3)


@every_rates
def test_the_estimate_has_that_mean(rates):
    source = sources.skewed(27)
    method = known("tau_ldr", source, rates=rates)
    token = source.draw(20_000, torch.Generator().manual_seed(1))
    excess = method.bound(Batch(token), 64, torch.Generator().manual_seed(2)) + source.log_joint[token[:, 0]]
    stderr = float(excess.std()) / math.sqrt(len(token))
    assert abs(float(excess.mean())) < 4 * stderr < 0.2 * source.entropy


def test_uniform_rates_have_the_integrand_of_uniform_diffusion():
    """alpha = exp(-B): both integrands, per unit of the clock, for the same predictions and states."""
    states = 4
    method, plain = TauLDR(RunConfig(), states), UDLM(RunConfig(), states)
    table = torch.randn(states, states, generator=torch.Generator().manual_seed(1)).double()

    class Fixed(torch.nn.Module):
        def forward(self, ids, time, condition=None):
            return table[ids]

    method.network = plain.network = Fixed()
    token = torch.randint(states, (300, 2), generator=torch.Generator().manual_seed(2))
    moment = torch.tensor(0.8, dtype=torch.float64)
    alpha = torch.exp(-moment)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    # udlm's integrand is per unit of alpha, and d alpha / d B = -alpha
    other = plain.integrand(token, alpha.repeat(300), None, generators[0]) * alpha
    from rdlm.methods.udlm import noisy

    state = noisy(token, alpha.repeat(300), states, generators[1])
    rows = method.spectrum.transition(moment.repeat(300))
    true = rows.gather(1, token[..., None].expand(-1, -1, states))
    model = method.log_probs(state, torch.full((300,), 0.5)).exp() @ rows
    torch.testing.assert_close(method.divergence_rate(true, model, state).sum(-1), other, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("rates", "corrector"), [("uniform", 0), ("gauss", 1)])
def test_samples_of_many_leaps_follow_the_source(rates, corrector):
    source = sources.skewed(3)
    method = known("tau_ldr", source, rates=rates, corrector=corrector)
    drawn = method.generate(2000, 1, 400, torch.Generator().manual_seed(5))
    assert chisquare(torch.bincount(drawn[:, 0], minlength=3), 2000 * source.log_joint.exp()).pvalue > 1e-3


def test_calls_are_leaps_correctors_and_a_draw():
    method = known("tau_ldr", sources.markov(), corrector=2)
    assert method.sampling_nfe(2, 64) == 64 and method.sampling_nfe(2, 3) == 1
    method.generate(5, 2, 64, torch.Generator().manual_seed(1))
    assert method.network.nfe == 5 * 64
    assert not method.claims_bound
    with pytest.raises(InputError, match=r"tau_ldr\.corrector must lie in"):
        TauLDRConfig(corrector=-1)
