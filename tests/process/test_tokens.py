"""Tokens as points: codes against dense vectors, one-hot codes against vertices, and what codes must be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rdlm.errors import InputError
from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge, BridgeKind, Start, masked_start
from rdlm.process.kernel import mean_step_log_density, step_log_density
from rdlm.process.path import ChannelKind, masked_path
from rdlm.process.schedule import StepCoefficients
from rdlm.process.tokens import Codes, Vertices

S = 0.03756
every_kind = pytest.mark.parametrize("kind", ["brownian", "logarithm", "gaussian"])


def codes(vocabulary: int, coordinates: int, seed: int = 0) -> Codes:
    return Codes(vocabulary, coordinates, torch.Generator().manual_seed(seed))


def one_hot(vocabulary: int) -> Codes:
    """Return codes whose vectors are the vertices."""
    found = codes(vocabulary, vocabulary)
    with torch.no_grad():
        found.weight.copy_(torch.eye(vocabulary))
    return found


def states(count: int, dimension: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return sphere.uniform((count,), dimension, generator, dtype=torch.float64)


@pytest.mark.parametrize("coordinates", [3, 8])
def test_every_product_is_that_of_dense_vectors(coordinates: int) -> None:
    made, x, token = codes(5, coordinates), states(6, coordinates + 1), torch.tensor([0, 4, 2, 2, 1, 3])
    dense = torch.nn.functional.pad(made.vectors(x), (0, 1))  # [v, d]: 0 on the mask
    weight = torch.randn(6, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(made.cosines(x), x @ dense.T)
    torch.testing.assert_close(made.cosine(x, token), (x * dense[token]).sum(-1))
    torch.testing.assert_close(made.at(token, x), dense[token])
    torch.testing.assert_close(made.add_(x.clone(), token, weight[:, 0]), x + weight[:, :1] * dense[token])
    torch.testing.assert_close(made.add_mean_(x.clone(), weight), x + weight @ dense)
    torch.testing.assert_close(made.add_mean_(x.clone(), weight, weight), x + weight.square() @ dense)
    torch.testing.assert_close(made.mean_product(x, weight), (x * (weight @ dense)).sum(-1))
    squares = (weight @ dense).square().sum(-1), (x * (weight @ dense)).sum(-1).square()
    torch.testing.assert_close(made.mean_squares(x, weight), squares)


@every_kind
def test_one_hot_codes_are_vertices(kind: ChannelKind) -> None:
    """Evidence, pulls, densities and moves agree to rounding: codes are the same process in other coordinates."""
    vertex, coded = (masked_path(4, S, kind, points).bridge for points in (Vertices(4), one_hot(4)))
    x, token = states(7, vertex.dimension), torch.tensor([0, 3, 1, 2, 0, 1, 3])
    step = vertex.noise(x, torch.Generator().manual_seed(3))
    probability = torch.softmax(torch.randn(7, 4, generator=torch.Generator().manual_seed(4)).double(), -1)
    gain = torch.full((7,), 0.3, dtype=torch.float64)
    coefficients = StepCoefficients(gain * S, gain, gain * S / 4)
    for one, other in (
        (vertex.log_likelihood(x, gain * S), coded.log_likelihood(x, gain * S)),
        (vertex.token_direction(x, token, gain), coded.token_direction(x, token, gain)),
        (vertex.mean_pull(x, probability, gain * S), coded.mean_pull(x, probability, gain * S)),
        (vertex.squared_length(x, probability), coded.squared_length(x, probability)),
        (step_log_density(vertex, x, step, coefficients), step_log_density(coded, x, step, coefficients)),
        (
            mean_step_log_density(vertex, x, step, probability, coefficients),
            mean_step_log_density(coded, x, step, probability, coefficients),
        ),
        (vertex.tokens.at(token, x), coded.tokens.at(token, x)),
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["brownian", "logarithm"])
def test_a_rotation_of_the_codes_rotates_the_process(kind: BridgeKind) -> None:
    """Nothing but angles matters: rotated codes at rotated states give the same evidence and rotated pulls."""
    made, x = codes(5, 6), states(8, 7)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(5)).double()).Q
    turned = codes(5, 6)
    turned.weight = torch.nn.Parameter(made.weight.detach().double() @ rotation)
    y = torch.cat([x[:, :6] @ rotation, x[:, 6:]], -1)
    one, other = (masked_path(5, S, kind, points).bridge for points in (made, turned))
    torch.testing.assert_close(one.log_likelihood(x, 0.01), other.log_likelihood(y, 0.01), rtol=1e-6, atol=1e-5)
    pull = one.mean_pull(x, torch.full((8, 5), 0.2).double(), torch.full((8,), 0.01))
    again = other.mean_pull(y, torch.full((8, 5), 0.2).double(), torch.full((8,), 0.01))
    torch.testing.assert_close(torch.cat([pull[:, :6] @ rotation, pull[:, 6:]], -1), again, rtol=1e-6, atol=1e-6)


def test_first_codes_are_orthonormal_where_there_is_room_and_unit_vectors_else() -> None:
    wide, narrow = codes(5, 8).weight.detach(), codes(12, 4).weight.detach()
    torch.testing.assert_close(wide @ wide.T, torch.eye(5), rtol=0, atol=1e-6)
    torch.testing.assert_close(narrow.norm(dim=1), torch.ones(12))
    assert float((narrow @ narrow.T - torch.eye(12)).abs().max()) > 0.5


def test_codes_have_unit_length_whatever_the_parameter() -> None:
    made = codes(4, 3)
    with torch.no_grad():
        made.weight.mul_(torch.tensor([[0.1], [1.0], [3.0], [50.0]]))
    torch.testing.assert_close(made.vectors(torch.zeros(())).norm(dim=1), torch.ones(4))
    made.normalise()
    torch.testing.assert_close(made.weight.detach().norm(dim=1), torch.ones(4))


def test_only_learning_codes_pass_gradients() -> None:
    made, x = codes(4, 3), torch.ones(2, 4)
    assert not made.cosines(x).requires_grad
    learning = made.learning()
    assert learning.weight is made.weight and learning.cosines(x).requires_grad
    assert not made.cosines(x).requires_grad  # the copy does not change the original


def test_bad_codes_are_refused() -> None:
    with pytest.raises(InputError, match="at least 3 dimensions"):
        Codes(5, 2)
    with pytest.raises(InputError, match="masked start"):
        Start(5, 0.5, coordinates=8)
    with pytest.raises(InputError, match="coordinates"):
        Bridge(masked_start(5), S, points=codes(5, 8))
    with pytest.raises(InputError, match="S \\(d - 2\\)"):
        masked_path(5, 1.0, "brownian", codes(5, 8))


def test_bridges_that_differ_in_their_points_alone_are_equal() -> None:
    """So that tables of the exact law are shared."""
    one, other = (masked_path(5, S, "brownian", codes(5, 8, seed)).bridge for seed in (0, 1))
    assert one == other and hash(one) == hash(other)


def test_points_of_an_arc_are_evenly_spaced_in_their_order_and_not_learned() -> None:
    arc = Codes.arc(9, 4)
    assert not arc.learned and codes(9, 4).learned
    vectors = arc.vectors(torch.zeros((), dtype=torch.float64))
    angle = (vectors @ vectors.T).clamp(-1, 1).acos()
    place = torch.arange(9.0, dtype=torch.float64)
    torch.testing.assert_close(angle, (place[:, None] - place).abs() * torch.pi / 8, atol=1e-3, rtol=0)


def test_evidence_of_an_arc_is_that_of_noisy_observations_of_the_level() -> None:
    bridge, remaining = masked_path(9, S, "gaussian", Codes.arc(9, 3)).bridge, S / 20
    state = torch.tensor([0.2, 0.9, -0.1], dtype=torch.float64)
    vectors, strength = Codes.arc(9, 3).vectors(state), 1 / remaining - 1 / S
    observed = torch.distributions.Normal(strength * vectors, strength**0.5).log_prob(state / remaining).sum(-1)
    found = bridge.log_likelihood(state, remaining)
    torch.testing.assert_close(found - found[0], observed - observed[0])
