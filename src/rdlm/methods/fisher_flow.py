"""Flow matching on the statistical manifold (SFM, Fisher-Flow): the bridge of RDLM without noise, from a random origin.

A flow follows the geodesic from its origin `x_0` to a token's vertex; at time t the part `kappa = 1 - t` remains:
`x_t = exp_{e_k}(kappa log_{e_k} x_0)`, Eq. (15). The network predicts the token (posterior) or the velocity itself:

    dx / d lambda = sum_k p(k | x) log_x(e_k)   or   kappa v(x),      lambda = -log kappa

In the time `lambda` the velocity stays bounded towards the data. Sampling integrates this equation to `kappa = cut` and
takes the nearest vertex. The likelihood integrates it back from `x ~ q(x | k)`, the flow's distribution at the cut:

    -log p(k)  <=  E[ log q(x | k) - log p(x) ]  =  E[ sum over positions log( (sin(r/kappa) / sin r)^(d-2) / kappa )
                                                       + int div(dx / d lambda) d lambda ],      r = angle(x, e_k).

The inequality is exact up to the cut: below kappa = 1/4 the nearest vertex is always k. But the discretization error of
the integral has no sign, and densities that start on the orthant are discontinuous at moving edges, which are not part
of the divergence. So the estimate is *not a bound*, and `claims_bound` is False.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import Interface
from rdlm.geometry import special, sphere
from rdlm.methods import discrete
from rdlm.methods.base import Baseline, Card
from rdlm.model.network import build
from rdlm.random import Rng, check_numbers


class FisherFlow(Baseline):
    """Flow matching: a network over points of the sphere and a time, and the flow of its velocity."""

    card = Card("geodesic flow of a sphere", "estimate", "Fisher-Flow")
    claims_bound = False
    bound_estimator = "path"

    def new_network(self, classes: int, signal: int) -> nn.Module:
        """Return a network from points to logits, or to velocities."""
        return build(self.config.model, Interface(self.vocabulary, self.vocabulary, classes=classes, signal=signal))

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the cross-entropy of the token, or the squared error of the velocity, per token."""
        # The sampler evaluates no time after 1 - cut.
        time = (quantile * (1 - self.config.fisher_flow.cut)).to(token.device)
        point = self.interpolate(self.origin(len(token), token.shape[1], generator).to(token.device), token, time)
        if self.config.fisher_flow.predict == "posterior":
            log_probs = torch.log_softmax(self._output(point, time, condition), dim=-1)
            return functional.nll_loss(log_probs.flatten(0, 1), token.flatten())  # [B L, V], [B L]
        vertex = functional.one_hot(token, self.vocabulary).to(point)
        target = sphere.logarithm(point, vertex) / (1 - time).view(-1, 1, 1)
        error = sphere.tangent(point, self._output(point, time, condition)) - target
        return error.square().sum(-1).mean()

    def origin(self, count: int, length: int, generator: Rng) -> Float[Tensor, "count length v"]:
        """Return uniform points of the positive orthant, the image of the simplex, or of the sphere."""
        point = sphere.uniform((count, length), self.vocabulary, generator)
        return point.abs() if self.config.fisher_flow.origin == "orthant" else point

    def interpolate(
        self, origin: Float[Tensor, "batch length v"], token: Int[Tensor, "batch length"], time: Tensor | float
    ) -> Float[Tensor, "batch length v"]:
        """Return the point of each flow to its token at a time, [batch] or a number, Eq. (15).

        Written from the token, so that nothing is divided by the sine of the whole angle, which is 0 if both coincide.
        """
        vertex = functional.one_hot(token, self.vocabulary).to(origin)
        kappa = (1 - time).view(-1, 1).expand(token.shape) if isinstance(time, Tensor) else 1 - time
        return sphere.project(sphere.geodesic(vertex, origin, kappa))

    def velocity(
        self, point: Float[Tensor, "batch length v"], kappa: float, condition: Tensor | None = None
    ) -> Float[Tensor, "batch length v"]:
        """Return the tangent vector `dx / d lambda` where the part `kappa` of the geodesic remains."""
        time = torch.full((len(point),), 1 - kappa, device=point.device)
        output = self._output(point, time, condition).to(point.dtype)
        if self.config.fisher_flow.predict == "velocity":
            return kappa * sphere.tangent(point, output)
        return sphere.tangent(point, torch.softmax(output, dim=-1) * special.angle_over_sine(point))

    def _output(self, point: Tensor, time: Tensor, condition: Tensor | None) -> Float[Tensor, "batch length v"]:
        """Return the network's logits or velocity; coordinates of size 1/sqrt(V) are rescaled to order one."""
        return discrete.logits(self.network, point.float() * math.sqrt(self.vocabulary), time, condition)

    def sample(self, count: int, length: int, nfe: int, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the vertices nearest to the end points of `nfe` geodesic steps."""
        point = self.origin(count, length, generator)
        for kappa, after in pairwise(self._kappas(nfe)):
            # The part of the remaining geodesic that the step covers: exact for a flow to a single token.
            factor = 1 - after / kappa
            point = sphere.project(sphere.exponential(point, factor * self.velocity(point, kappa, condition)))
        check_numbers(point)
        return point.argmax(-1)

    def _kappas(self, steps: int) -> list[float]:
        """Return `kappa` from 1 down to the cut, equally spaced in `lambda`."""
        return [self.config.fisher_flow.cut ** (step / steps) for step in range(steps + 1)]

    def nll(self, token: Tensor, nfe: int, condition: Tensor | None, generator: Rng) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an estimate in nats of `-log p` from the divergence; *not a bound*, see above.

        The integral uses midpoint steps of two network evaluations each, whose error is of second order.
        """
        cut = self.config.fisher_flow.cut
        origin = self.origin(len(token), token.shape[1], generator).to(token.device)
        point = self.interpolate(origin, token, 1 - cut)
        value = self._log_contraction(origin, token).double().sum(-1)
        kappas = self._kappas(max(1, nfe // 2))
        width = math.log(1 / cut) / (len(kappas) - 1)
        for kappa, after in pairwise(reversed(kappas)):
            midpoint = sphere.exponential(point, -width / 2 * self.velocity(point, kappa, condition))
            velocity, divergence = self._divergence(midpoint, math.sqrt(kappa * after), condition, generator)
            velocity = sphere.transport(midpoint, point, velocity)
            point = sphere.project(sphere.exponential(point, -width * velocity))
            value += width * divergence
        return value

    def _log_contraction(self, origin: Tensor, token: Tensor) -> Float[Tensor, "batch length"]:
        """Return `log q(x | k)` at the cut minus the log-density of the origin: the flow's contraction of volume."""
        cut = self.config.fisher_flow.cut
        angle = sphere.distance(origin, functional.one_hot(token, self.vocabulary).to(origin))
        ratio = (special.sinc(angle) / special.sinc(cut * angle)).clamp_min(torch.finfo(angle.dtype).tiny)
        return (self.vocabulary - 2) * (ratio.log() - math.log(cut)) - math.log(cut)

    def _divergence(
        self, point: Tensor, kappa: float, condition: Tensor | None, generator: Rng
    ) -> tuple[Tensor, Float[Tensor, " batch"]]:
        """Return the velocity at a point and its divergence on the product of spheres.

        Composed with the projection onto the sphere, the velocity is constant in the radial direction, so that the
        trace over all coordinates equals the trace over the tangent space.
        """
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            velocity = self.velocity(sphere.project(point), kappa, condition)
            probes = trace_probes(velocity, self.config.fisher_flow.divergence == "exact", generator)
            return velocity.detach(), trace_of_jacobian(velocity, point, probes)


def trace_probes(like: Tensor, exact: bool, generator: Rng) -> list[Tensor]:
    """Return all unit vectors for the exact trace, or one vector of random signs (Hutchinson's estimator)."""
    if exact:
        size = like.shape[1] * like.shape[2]
        return [unit.view(1, *like.shape[1:]).expand_as(like) for unit in torch.eye(size).to(like)]
    signs = torch.randint(2, like.shape, generator=generator).to(like)
    return [2 * signs - 1]


def trace_of_jacobian(velocity: Tensor, point: Tensor, probes: list[Tensor]) -> Float[Tensor, " batch"]:
    """Return the sum over probes of `v^T J v`, with J the derivative of a velocity with respect to its point."""
    trace = torch.zeros(len(point), dtype=torch.float64, device=point.device)
    for number, probe in enumerate(probes):
        more = number + 1 < len(probes)
        (vjp,) = torch.autograd.grad(velocity, point, probe, retain_graph=more)
        trace += (vjp * probe).double().flatten(1).sum(-1)
    return trace
