"""The denoiser: Bayes' rule without a network, and every kind of input and head at its declared width."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn

from rdlm.config import DenoiserConfig, Head, TransformerConfig
from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.model.denoiser import Denoiser
from rdlm.model.network import build
from rdlm.process.bridge import EXPANSION_RANGE, Bridge, BridgeKind, masked_start
from rdlm.process.exact import tabulate
from rdlm.process.layout import Layout, Placement
from rdlm.process.schedule import Geometric, uniform_in_time

SCHEDULE = Geometric()
FEATURES = get_args(get_type_hints(DenoiserConfig)["features"])
LAYOUTS: dict[str, tuple[int, Placement, Head]] = {
    "unsplit": (7, "packed", "token"),
    "packed tokens": (3, "packed", "token"),
    "packed digits": (3, "packed", "digit"),
    "serial": (3, "serial", "token"),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
V, L = 7, 5


def denoiser(layout: str = "unsplit", kind: BridgeKind = "brownian", **settings: object) -> Denoiser:
    base, place, head = LAYOUTS[layout]
    config = DenoiserConfig(**{"head": head, "top": 2, **settings})  # type: ignore[arg-type]
    return Denoiser(config, Layout(V, base, place, head), Bridge(masked_start(base), SCHEDULE.total, kind), SCHEDULE)


def states(one: Denoiser, remaining: Tensor, batch: int = 4, seed: int = 0) -> Tensor:
    """Return states of random tokens at the noise of each position, in the shape of the process."""
    generator = torch.Generator().manual_seed(seed)
    digit = one.layout.encode(torch.randint(V, (batch, L), generator=generator))
    digit = digit if one.layout.joint else digit.flatten(1)
    law = tabulate(one.bridge, uniform_in_time(SCHEDULE, 16), 64, generator)
    level = remaining[..., None] if one.layout.joint else remaining
    return law.draw(digit, level.expand(digit.shape), generator)


def positions(one: Denoiser) -> int:
    """Return the process's positions of L tokens."""
    return L if one.layout.joint else L * one.layout.digits


class Zero(nn.Module):
    """A network whose logits are zero; it keeps its inputs."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, inputs: Tensor, time: Tensor, condition: Tensor | None, previous: Tensor | None) -> Tensor:
        self.inputs, self.time = inputs, time
        return torch.zeros(*inputs.shape[:2], self.outputs)


# -- evidence ---------------------------------------------------------------------------------------


def angle_likelihood(one: Denoiser, state: Tensor, remaining: Tensor) -> Tensor:
    """Return log h in float64 from angles: two terms of the heat kernel, written out."""
    x = state.double()[..., : one.layout.base]
    level, half = remaining.double()[..., None], (one.bridge.dimension - 2) / 2
    theta = torch.arccos(x.clamp(-1, 1))
    curve = (theta / torch.tan(theta) - 1) / theta.square()
    return -theta.square() / (2 * level) + half * (theta / theta.sin()).log() + level * half * (half - 1) / 2 * curve


@pytest.mark.parametrize("layout", ["unsplit", "packed digits", "serial"])
def test_without_a_network_predictions_are_bayes_rule(layout: str) -> None:
    one = denoiser(layout)
    remaining = torch.tensor([0.035, 0.02, 0.01, 0.004])[:, None].expand(4, positions(one))
    state = states(one, remaining)
    found = one(Zero(one.interface().outputs), state, remaining)
    expected = torch.log_softmax(angle_likelihood(one, state, remaining), -1)
    assert found.shape == (4, positions(one), one.layout.base)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=2e-4)


def test_a_head_over_tokens_multiplies_their_digits() -> None:
    one = denoiser("packed tokens")
    remaining = torch.tensor([0.035, 0.02, 0.01, 0.004])[:, None].expand(4, L)
    state = states(one, remaining)
    assert state.shape == (4, L, 2, 4)
    likelihood = angle_likelihood(one, state, remaining[..., None].expand(4, L, 2))  # [4, L, 2, 3]
    expected = torch.stack([likelihood[..., 0, k // 3] + likelihood[..., 1, k % 3] for k in range(V)], -1)
    found = one(Zero(V), state, remaining)
    torch.testing.assert_close(found.double(), torch.log_softmax(expected, -1), rtol=1e-3, atol=5e-4)


def test_the_network_is_a_prior() -> None:
    """Logits of the network are the log-prior given the context; the rest is Bayes' rule."""
    one = denoiser()
    prior = torch.tensor([0.4, 0.2, 0.2, 0.1, 0.05, 0.03, 0.02])
    remaining = torch.full((4, L), 0.03)
    state = states(one, remaining)

    class Prior(Zero):
        def forward(self, *inputs: Tensor) -> Tensor:
            return super().forward(*inputs) + prior.log()

    likelihood = angle_likelihood(one, state, remaining).exp()
    expected = likelihood * prior / (likelihood * prior).sum(-1, keepdim=True)
    torch.testing.assert_close(one(Prior(V), state, remaining).double().exp(), expected.double(), rtol=1e-3, atol=1e-4)


def test_without_evidence_predictions_are_the_networks() -> None:
    one = denoiser(evidence=False)
    remaining = torch.full((4, L), 0.01)
    found = one(Zero(V), states(one, remaining), remaining)
    torch.testing.assert_close(found, torch.full_like(found, -math.log(V)))


@every_layout
def test_a_finished_position_is_certain_of_its_token(layout: str) -> None:
    one = denoiser(layout)
    token = torch.arange(V).repeat(2)[: 2 * L].view(2, L)
    digit = one.layout.encode(token)
    digit = digit if one.layout.joint else digit.flatten(1)
    network = build(TransformerConfig(width=16, layers=1, heads=2), one.interface())
    scramble(network)
    vertex = torch.eye(one.bridge.dimension)[digit]
    found = one(network, vertex, torch.zeros(2, positions(one)))
    symbol = token if one.layout.joint or one.layout.digits == 1 else digit
    own = found.gather(-1, symbol[..., None])
    assert torch.equal(own, torch.zeros_like(own))
    assert bool((found <= 0).all()) and bool(found.isfinite().all())


# -- networks ---------------------------------------------------------------------------------------


def scramble(network: nn.Module) -> None:
    """Give every parameter a value, so that no gate is closed."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("evidence", [True, False])
@pytest.mark.parametrize("features", FEATURES)
@every_layout
def test_networks_of_the_stated_widths_serve(layout: str, features: str, evidence: bool) -> None:
    one = denoiser(layout, features=features, evidence=evidence)
    interface = one.interface(classes=3)
    network = build(TransformerConfig(width=16, layers=1, heads=2, self_condition=True), interface)
    scramble(network)
    remaining = torch.rand(4, positions(one) // one.layout.digits if not one.layout.joint else L) * SCHEDULE.total
    remaining = remaining if one.layout.joint else remaining.repeat_interleave(one.layout.digits, 1)
    state, label = states(one, remaining), torch.tensor([0, 1, 2, -1])
    first = one(network, state, remaining, label)
    assert first.shape == (4, positions(one), V if one.layout.joint else one.layout.base)
    torch.testing.assert_close(first.exp().sum(-1), torch.ones(first.shape[:2]))
    previous = one.previous(first)
    assert previous.shape == (4, L * one.layout.positions, interface.features)
    second = one(network, state, remaining, label, previous)
    assert bool(second.isfinite().all()) and not torch.allclose(first, second)
    assert interface.digits == (2 if layout == "serial" else 1) and interface.classes == 3


@pytest.mark.parametrize("features", FEATURES)
@every_layout
def test_equal_noise_may_be_given_once(layout: str, features: str) -> None:
    one = denoiser(layout, features=features)
    network = build(TransformerConfig(width=16, layers=1, heads=2), one.interface())
    scramble(network)
    shared = torch.tensor([[0.037], [0.01], [0.002], [0.0]])
    state = states(one, shared.expand(4, positions(one)))
    each = one(network, state, shared.expand(4, positions(one)))
    torch.testing.assert_close(one(network, state, shared), each, rtol=1e-4, atol=1e-4)


@every_layout
def test_every_position_of_the_network_gets_its_own_time(layout: str) -> None:
    one = denoiser(layout)
    network = Zero(one.interface().outputs)
    tokens = torch.rand(4, L, generator=torch.Generator().manual_seed(5))
    remaining = SCHEDULE.remaining(tokens)
    spread = remaining if one.layout.joint else remaining.repeat_interleave(one.layout.digits, 1)
    one(network, states(one, spread), spread)
    wanted = tokens.repeat_interleave(one.layout.positions, 1)
    torch.testing.assert_close(network.time, wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("features", "time", "timed"),
    [
        ("evidence", None, False),
        ("evidence", True, True),
        ("coordinates", None, True),
        ("tokens", None, True),
        ("top", False, False),
    ],
)
def test_time_is_an_input_where_the_features_are_not_evidence(features: str, time: bool | None, timed: bool) -> None:
    assert denoiser(features=features, time=time).interface().timed is timed


def test_features_are_as_documented() -> None:
    remaining = torch.full((4, L), 0.02)
    network = Zero(V)
    for features, width in {"evidence": V, "tokens": V, "coordinates": V + 1, "top": 2 * (V + 1) + 2}.items():
        one = denoiser(features=features)
        state = states(one, remaining)
        one(network, state, remaining)
        assert network.inputs.shape == (4, L, width) and one.sphere_width == width
        if features == "evidence":
            law = torch.softmax(angle_likelihood(one, state, remaining), -1).float()
            torch.testing.assert_close(network.inputs, (law - 1 / V) * V**0.5, rtol=1e-3, atol=1e-3)
        else:
            assert torch.equal(network.inputs[..., :V], state[..., :V])


@pytest.mark.parametrize("layout", ["packed digits", "packed tokens"])
def test_digits_that_share_a_position_enter_in_order(layout: str) -> None:
    one = denoiser(layout, features="coordinates")
    network = Zero(one.interface().outputs)
    remaining = torch.full((4, positions(one)), 0.02)
    state = states(one, remaining)
    one(network, state, remaining)
    assert torch.equal(network.inputs, state.reshape(4, L, 2 * 4))


def test_a_prediction_comes_back_centred_and_padded() -> None:
    """Certainty of digit 0 is (1 - 1/b) sqrt(b), ignorance is 0, and what pads is 0."""
    one = denoiser("packed tokens", features="coordinates")
    certain = torch.full((1, 1, V), -math.inf)
    certain[..., 5] = 0.0  # digits 1, 2
    found = one.previous(certain).view(2, 4)
    expected = (torch.tensor([[0.0, 1, 0], [0, 0, 1]]) - 1 / 3) * 3**0.5
    torch.testing.assert_close(found, torch.cat((expected, torch.zeros(2, 1)), 1))
    even = denoiser("serial").previous(torch.full((1, 2 * L, 3), -math.log(3)))
    torch.testing.assert_close(even, torch.zeros(1, 2 * L, 3), rtol=0, atol=1e-6)


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("features", "evidence"), [("evidence", False), ("coordinates", True)])
def test_evidence_is_refused_where_it_is_not_accurate(features: str, evidence: bool) -> None:
    bridge = Bridge(masked_start(30522), SCHEDULE.total, "logarithm")
    config = DenoiserConfig(features=features, evidence=evidence)  # type: ignore[arg-type]
    most = 0.99 * EXPANSION_RANGE / (bridge.dimension - 2)
    with pytest.raises(InputError, match=f"lower the total noise to {most:.2g}, or leave it out"):
        Denoiser(config, Layout(30522, 30522), bridge, SCHEDULE)
    Denoiser(config, Layout(30522, 3), Bridge(masked_start(3), SCHEDULE.total, "logarithm"), SCHEDULE)  # as advised


def test_plain_coordinates_are_served_in_any_dimension() -> None:
    bridge = Bridge(masked_start(30522), SCHEDULE.total, "logarithm")
    config = DenoiserConfig(features="tokens", evidence=False)
    one = Denoiser(config, Layout(30522, 30522), bridge, SCHEDULE)
    state = sphere.uniform((1, 2), 30523, torch.Generator().manual_seed(6))
    assert one(Zero(30522), state, torch.full((1, 1), 0.01)).shape == (1, 2, 30522)


@pytest.mark.parametrize("layout", ["serial", "packed tokens"])
@pytest.mark.parametrize("top", [0, 5])
def test_more_top_coordinates_than_there_are_is_refused(layout: str, top: int) -> None:
    with pytest.raises(InputError, match=rf"denoiser.top must lie in \[1, 4\], the coordinates, got {top}"):
        denoiser(layout, features="top", top=top)
