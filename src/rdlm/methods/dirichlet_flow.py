"""Dirichlet flow matching: a flow on the simplex whose points are Dirichlet-distributed at every concentration.

Given token k the point has the distribution `Dir(1 + (a - 1) e_k)`, uniform at a = 1. The network predicts the token by
cross-entropy at `a = 1 + 2 Exp(1)`; the evidence of a position's own point is exactly `(a - 1) log x_l`, which is added
to the logits. The flow is, Eq. (80),

    dx / da = sum over l of p_l C(x_l, a) (e_l - x),
    C(b, a) = -(d/da I_b(a, V - 1)) Beta(a, V - 1) / ((1 - b)^(V-1) b^(a-1)),      I_b the distribution function of Beta

Sampling takes Euler steps from `Dir(1)` to `a = last` and draws the token there. The likelihood integrates the flow
back from `x ~ Dir(1 + (last - 1) e_k)`,

    -log p(k)  ~  E[ log q(x | k) - log p(x) - log p(k | x) ],      log p(x) = log Gamma(V) - int div(dx / da) da

It is an *estimate*: the error of the integral has no sign.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import Interface, RunConfig
from rdlm.errors import InputError
from rdlm.methods import discrete
from rdlm.methods.base import Baseline, Card
from rdlm.methods.fisher_flow import trace_of_jacobian, trace_probes
from rdlm.model.network import build
from rdlm.random import Rng, check_numbers, draw_token

NODES = 64
"""Nodes of the quadrature of C."""

KNOTS = 1024
"""Points of [0, 1] at which C is computed; it is interpolated between them."""

MOST_TOKENS = 1024
"""Largest vocabulary for which the quadrature of C is accurate to 0.2%."""

LEAST = 1e-12
"""Least coordinate of a point."""


class DirichletFlow(Baseline):
    """Flow matching on the simplex: a network over points and concentrations, and the flow of its posterior."""

    card = Card("Dirichlet points of the simplex", "estimate", "Dirichlet flow matching")
    claims_bound = False
    bound_estimator = "path"

    def new_network(self, classes: int, signal: int) -> nn.Module:
        """Return a network from points to logits."""
        return simplex_network("dirichlet_flow", self.config, self.vocabulary, classes, signal)

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the cross-entropy of the token per token."""
        concentration = 1 - 2 * torch.log1p(-quantile.double()).to(token.device)
        log_probs = self.log_probs(self.points(token, concentration, generator), concentration, condition)
        return functional.nll_loss(log_probs.flatten(0, 1), token.flatten())

    def points(
        self, token: Int[Tensor, "batch length"], concentration: Float[Tensor, " batch"], generator: Rng
    ) -> Float[Tensor, "batch length v"]:
        """Return points `x ~ Dir(1 + (a - 1) e_k)`, in float64."""
        level = concentration.double()[:, None].expand(token.shape)
        return dirichlet_points(token, level, self.vocabulary, generator)

    def log_probs(
        self,
        point: Float[Tensor, "batch length v"],
        concentration: Float[Tensor, " batch"],
        condition: Tensor | None = None,
    ) -> Float[Tensor, "batch length v"]:
        """Return the predicted log-probabilities of the tokens; the network's time is `1 - 2 / (a + 1)`."""
        time = 1 - 2 / (concentration.to(point.device) + 1)
        logits = discrete.logits(self.network, point.float(), time.float(), condition).to(point)
        if self.config.dirichlet_flow.evidence:
            logits = logits + (concentration - 1).to(point).view(-1, 1, 1) * point.clamp_min(LEAST).log()
        return torch.log_softmax(logits, dim=-1)

    def velocity(
        self, point: Float[Tensor, "batch length v"], concentration: float, condition: Tensor | None = None
    ) -> Float[Tensor, "batch length v"]:
        """Return `dx / da`, Eq. (80)."""
        level = torch.full((len(point),), concentration, dtype=torch.float64, device=point.device)
        weight = self.log_probs(point, level, condition).exp() * speeds(point, concentration)
        return weight - weight.sum(-1, keepdim=True) * point

    def _levels(self, calls: int) -> list[float]:
        """Return the concentrations of all calls, from 1 to the last."""
        return torch.linspace(1, self.config.dirichlet_flow.last, max(2, calls), dtype=torch.float64).tolist()

    def sample(self, count: int, length: int, nfe: int, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return tokens drawn at the end of M - 1 Euler steps; with one call, at the start."""
        levels = self._levels(nfe)
        first = torch.zeros(count, length, dtype=torch.long)
        point = self.points(first, torch.ones(count), generator)
        for now, after in pairwise(levels if nfe > 1 else []):
            point = (point + (after - now) * self.velocity(point, now, condition)).clamp_min(LEAST)
            point = point / point.sum(-1, keepdim=True)
        check_numbers(point)
        last = levels[-1] if nfe > 1 else 1.0
        return draw_token(self.log_probs(point, torch.full((count,), last).double(), condition), generator)

    def nll(self, token: Tensor, nfe: int, condition: Tensor | None, generator: Rng) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an estimate in nats of `-log p` from the divergence; *not a bound*, see above.

        The integral uses midpoint steps of two network evaluations each.
        """
        last, size = self.config.dirichlet_flow.last, self.vocabulary
        level = torch.full((len(token),), last, dtype=torch.float64, device=token.device)
        point = self.points(token, level, generator)
        own = point.gather(-1, token[..., None])[..., 0]
        decode = -self.log_probs(point, level, condition).gather(-1, token[..., None])[..., 0]
        constant = math.lgamma(size - 1 + last) - math.lgamma(last) - math.lgamma(size)
        value = (constant + (last - 1) * own.log() + decode).sum(-1)
        for after, now in pairwise(reversed(self._levels(1 + max(1, nfe // 2)))):
            width = after - now
            middle = on_simplex(point - width / 2 * self.velocity(point, after, condition))
            velocity, divergence = self._divergence(middle, (after + now) / 2, condition, generator)
            point = on_simplex(point - width * velocity)
            value = value + width * divergence
        return value

    def _divergence(
        self, point: Tensor, concentration: float, condition: Tensor | None, generator: Rng
    ) -> tuple[Tensor, Float[Tensor, " batch"]]:
        """Return the velocity at a point and its divergence on the simplex: probes are made to sum to zero."""
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            velocity = self.velocity(point, concentration, condition)
            probes = trace_probes(velocity, self.config.dirichlet_flow.divergence == "exact", generator)
            probes = [probe - probe.mean(-1, keepdim=True) for probe in probes]
            return velocity.detach(), trace_of_jacobian(velocity, point, probes)


def simplex_network(name: str, config: RunConfig, vocabulary: int, classes: int, signal: int) -> nn.Module:
    """Return a network from points of the simplex to logits; InputError for too many tokens."""
    if vocabulary > MOST_TOKENS:
        raise InputError(
            f"{name} needs at most {MOST_TOKENS} tokens, got {vocabulary}: its points have a coordinate per "
            "token, and its tables are inaccurate for more"
        )
    return build(config.model, Interface(vocabulary, vocabulary, classes=classes, signal=signal))


def dirichlet_points(
    token: Int[Tensor, "batch length"], level: Float[Tensor, "batch length"], vocabulary: int, generator: Rng
) -> Float[Tensor, "batch length v"]:
    """Return points `x ~ Dir(1 + (a - 1) e_k)` with a level `a` for each position, from Gamma variables, in float64."""
    shape = (*token.shape, vocabulary)
    others = -torch.log1p(-torch.rand(shape, generator=generator, dtype=torch.float64)).to(token.device)
    own = torch._standard_gamma(level.cpu(), generator=generator).to(token.device)
    drawn = others.scatter(-1, token[..., None], own[..., None]).clamp_min(LEAST)
    return drawn / drawn.sum(-1, keepdim=True)


def on_simplex(point: Float[Tensor, "... v"]) -> Float[Tensor, "... v"]:
    """Return points with positive coordinates that sum to one."""
    point = point.clamp_min(LEAST)
    return point / point.sum(-1, keepdim=True)


def speeds(point: Float[Tensor, "... v"], concentration: float) -> Float[Tensor, "... v"]:
    """Return `C(x_l, a)` of every coordinate, interpolated between knots that are denser near 0."""
    knot = torch.linspace(0, 1, KNOTS, dtype=torch.float64).square()
    table = speed_table(knot, concentration, point.shape[-1] - 1).to(point)
    place = point.clamp(0, 1).sqrt() * (KNOTS - 1)
    low = place.detach().floor().long().clamp_max(KNOTS - 2)
    left, right = knot.to(point)[low], knot.to(point)[low + 1]
    return torch.lerp(table[low], table[low + 1], (point - left) / (right - left))


def speed_table(share: Float[Tensor, " n"], concentration: float, others: int) -> Float[Tensor, " n"]:
    """Return `C(b, a)` for coordinates b: minus an integral from 0 to b where b is small, else that from b to 1.

    Both are the same, because the integral from 0 to 1 vanishes; each is well conditioned on its side of the mean.
    """
    node, weight = legendre_nodes(NODES)
    b = share[:, None]
    mean = torch.digamma(torch.tensor([concentration, concentration + others], dtype=torch.float64))
    shift = float(mean[1] - mean[0])
    w = node.square()  # removes the logarithm's singularity at 0
    inside = (b * w).clamp_min(1e-300).log() + shift
    below = w ** (concentration - 1) * (1 - b * w) ** (others - 1) * inside * 2 * node
    low = -(below @ weight) * share / (1 - share).clamp_min(1e-3) ** others
    s = b + (1 - b) * node
    above = (s / b.clamp_min(1e-12)) ** (concentration - 1) * (1 - node) ** (others - 1) * (s.log() + shift)
    return torch.where(share < concentration / (concentration + others), low, above @ weight)  # split at the mean


def legendre_nodes(count: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return nodes and weights of Gauss-Legendre quadrature on [0, 1], from the eigenvalues of Jacobi's matrix."""
    index = torch.arange(1, count, dtype=torch.float64)
    beta = index / (4 * index.square() - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(beta, 1) + torch.diag(beta, -1))
    return (values + 1) / 2, vectors[0].square()
