"""The flow: our bridge without noise, its divergence, its floor on the whole sphere, and its samples."""

from __future__ import annotations

import math

import pytest
import torch
from exact_network import known
from scipy.stats import chisquare
from torch import nn

from rdlm.config import FisherFlowConfig, RunConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.methods.fisher_flow import FisherFlow
from rdlm.process.bridge import Bridge, masked_start, uniform_start
from rdlm.process.law import SimulatedLaw
from rdlm.process.schedule import uniform_in_log_remaining


class Sure(nn.Module):
    """A posterior that is certain of one token."""

    def __init__(self, states: int, token: int) -> None:
        super().__init__()
        self.logits = torch.full((states,), -200.0)
        self.logits[token] = 200.0

    def forward(self, features, time, condition=None):
        return self.logits + 0 * features


def flow_of(states: int, **choices: object) -> FisherFlow:
    return FisherFlow(RunConfig(method="fisher_flow", fisher_flow=FisherFlowConfig(**choices)), states)


@pytest.mark.parametrize("place", [masked_start(27), uniform_start(27), masked_start(3)])
@pytest.mark.parametrize("left", [0.9, 0.5, 0.1])
def test_is_our_bridge_without_noise(place, left):
    """The points of flows against the bridge's own random walk with almost no noise."""
    total, method = 1e-12, flow_of(place.dimension)
    token = torch.arange(place.vocabulary)[:, None]
    law = SimulatedLaw(Bridge(place, total, "logarithm"), uniform_in_log_remaining(total, 60))
    state = law.draw(token, left * total, torch.Generator().manual_seed(0))
    origin = place.point().expand(len(token), 1, -1)
    torch.testing.assert_close(method.interpolate(origin, token, 1 - left), state, atol=1e-4, rtol=0)


def test_a_step_is_the_drift_kernel_without_noise():
    method = known("fisher_flow", sources.skewed(5))
    point = method.origin(6, 1, torch.Generator().manual_seed(0))
    bridge = Bridge(masked_start(4), 1e-12, "logarithm")  # five coordinates; all of them tokens to the flow
    law = torch.softmax(method._output(point, torch.full((6,), 0.3), None), dim=-1).float()
    ours = 0.25 * bridge.mean_pull(point, law[..., :4], torch.zeros(6, 1))
    fifth = 0.25 * law[..., 4:] * sphere.logarithm(point, torch.eye(5)[4].expand_as(point))
    torch.testing.assert_close(0.25 * method.velocity(point, 0.7), ours + fifth, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("states", [3, 8])
def test_divergence_of_a_pull_to_one_vertex(states):
    """`div log_x(e) = -(1 + (d - 2) r cot r)` on the sphere in d dimensions, for two positions twice."""
    method = flow_of(states, divergence="exact")
    method.network = Sure(states, 1)
    point = method.origin(5, 2, torch.Generator().manual_seed(1))
    angle = sphere.distance(point, torch.eye(states)[1].expand_as(point)).double()
    expected = -(1 + (states - 2) * angle / angle.tan()).sum(-1)
    torch.testing.assert_close(method._divergence(point, 0.5, None, None)[1], expected, atol=1e-4, rtol=1e-4)


def test_hutchinson_agrees_with_the_exact_trace():
    source = sources.markov()
    exact = known("fisher_flow", source, divergence="exact", origin="sphere")
    guess = known("fisher_flow", source, divergence="hutchinson", origin="sphere")
    point = exact.origin(1, 2, torch.Generator().manual_seed(2))
    wanted = exact._divergence(point, 0.4, None, None)[1]
    values = guess._divergence(point.expand(4000, -1, -1), 0.4, None, torch.Generator().manual_seed(3))[1]
    stderr = float(values.std()) / math.sqrt(4000)
    assert 0 < stderr < 0.1
    assert abs(float(values.mean() - wanted)) < 4 * stderr


def test_contraction_measures_volume():
    """The mean of 1 / (density over the origin's) is the share of the sphere that the flow's points fill."""
    method = flow_of(3, origin="sphere", cut=0.2)
    origin = method.origin(200_000, 1, torch.Generator().manual_seed(4))
    token = torch.zeros(200_000, 1, dtype=torch.long)
    share = (-method._log_contraction(origin, token)).exp()
    assert float(share.mean()) == pytest.approx((1 - math.cos(0.2 * math.pi)) / 2, rel=0.03)


def test_on_the_whole_sphere_the_number_comes_within_three_percent_of_the_entropy():
    source = sources.skewed(3)
    method = known("fisher_flow", source, origin="sphere", divergence="exact")
    generator = torch.Generator().manual_seed(5)
    token = source.draw(800, generator)
    excess = method.bound(Batch(token), 128, generator) + source.log_joint[token[:, 0]]
    stderr = float(excess.std()) / math.sqrt(len(excess))
    assert stderr < 0.01 * source.entropy
    assert abs(float(excess.mean())) < 0.02 * source.entropy


def test_it_does_not_claim_a_bound_since_few_steps_fall_below_the_entropy():
    source = sources.skewed(3)
    method = known("fisher_flow", source, origin="sphere", divergence="exact")
    generator = torch.Generator().manual_seed(6)
    token = source.draw(800, generator)
    excess = method.bound(Batch(token), 4, generator) + source.log_joint[token[:, 0]]
    assert float(excess.mean() + 4 * excess.std() / math.sqrt(len(excess))) < 0
    assert method.claims_bound is False


@pytest.mark.parametrize("origin", ["sphere", "orthant"])
def test_samples_follow_the_source(origin):
    source = sources.skewed(3)
    drawn = known("fisher_flow", source, origin=origin).generate(3000, 1, 200, torch.Generator().manual_seed(8))
    assert chisquare(torch.bincount(drawn[:, 0], minlength=3), 3000 * source.log_joint.exp()).pvalue > 1e-3


def test_origins():
    generator = torch.Generator().manual_seed(0)
    assert float(flow_of(4).origin(50, 3, generator).min()) >= 0
    assert float(flow_of(4, origin="sphere").origin(50, 3, generator).min()) < -0.5


def test_a_cut_beyond_a_quarter_is_refused():
    with pytest.raises(InputError, match=r"flow\.cut"):
        FisherFlowConfig(cut=0.25)
    with pytest.raises(InputError, match="at least one network call"):
        flow_of(3).generate(1, 1, 0)
