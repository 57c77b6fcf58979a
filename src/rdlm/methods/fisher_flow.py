"""Flow matching on the statistical manifold (SFM, Fisher-Flow): our bridge without noise, from a random origin.

A flow goes from its origin `x_0` to a token's vertex along the geodesic, `kappa = 1 - t` of which is left at time t:
`x_t = exp_{e_k}(kappa log_{e_k} x_0)`, Eq. (15). The network predicts the token (posterior) or the velocity itself:

    dx / d lambda = sum_k p(k | x) log_x(e_k)   or   kappa v(x),      lambda = -log kappa

In the clock `lambda` nothing grows large towards the data. Sampling follows this equation until `kappa = cut` and takes
the nearest vertex. The likelihood follows it back from `x ~ q(x | k)`, the law of the flow's points at the cut:

    -log p(k)  <=  E[ log q(x | k) - log p(x) ]  =  E[ sum over positions log( (sin(r/kappa) / sin r)^(d-2) / kappa )
                                                       + int div(dx / d lambda) d lambda ],      r = angle(x, e_k).

Up to the cut nothing is left out: below kappa = 1/4 the nearest vertex is always k. But the integral is computed in
steps, whose error has no sign, and from the orthant the densities jump at moving edges, which a divergence does not
see. So the number is *not a bound*, and says so.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import Interface, RunConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.geometry import special, sphere
from rdlm.methods import discrete
from rdlm.methods.base import Baseline, BoundEstimator
from rdlm.model.network import build
from rdlm.process.bridge import mixture_direction
from rdlm.process.flow import flow
from rdlm.random import Draw


class FisherFlow(Baseline):
    """The method: a network over points of the sphere and a time, and the flow that it drives."""

    claims_bound = False
    bound_estimator: BoundEstimator | None = "path"

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.config, self.vocabulary = config, vocabulary
        interface = Interface(vocabulary, vocabulary, classes=classes, signal=signal)
        self.network: nn.Module = build(config.model, interface)

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the cross-entropy of the token, or the squared error of the velocity, per token."""
        generator, token = draw.generator(), batch.ids
        condition = discrete.training_condition(batch, self.config, generator)
        # No later time is ever asked for.
        time = (draw.quantiles(len(token)) * (1 - self.config.fisher_flow.cut)).to(token.device)
        point = self.interpolate(self.origin(len(token), token.shape[1], generator).to(token.device), token, time)
        if self.config.fisher_flow.predict == "posterior":
            log_law = torch.log_softmax(self._ask(point, time, condition), dim=-1)
            return functional.nll_loss(log_law.flatten(0, 1), token.flatten())
        vertex = functional.one_hot(token, self.vocabulary).to(point)
        target = sphere.logarithm(point, vertex) / (1 - time).view(-1, 1, 1)
        error = sphere.tangent(point, self._ask(point, time, condition)) - target
        return error.square().sum(-1).mean()

    def origin(self, count: int, length: int, generator: torch.Generator | None) -> Float[Tensor, "count length v"]:
        """Return uniform points of the orthant, where the roots of probabilities live, or of the whole sphere."""
        point = sphere.uniform((count, length), self.vocabulary, generator)
        return point.abs() if self.config.fisher_flow.origin == "orthant" else point

    def interpolate(
        self, origin: Float[Tensor, "batch length v"], token: Int[Tensor, "batch length"], time: Tensor | float
    ) -> Float[Tensor, "batch length v"]:
        """Return the points of the flows to the tokens at a time [batch] or number, Eq. (15)."""
        vertex = functional.one_hot(token, self.vocabulary).to(origin)
        left = (1 - time).view(-1, 1).expand(token.shape) if isinstance(time, Tensor) else 1 - time
        return sphere.project(flow(origin, vertex, left))

    def motion(
        self, point: Float[Tensor, "batch length v"], left: float, condition: Tensor | None = None
    ) -> Float[Tensor, "batch length v"]:
        """Return `dx / d lambda` where the part `left` of the way is left, as a tangent vector."""
        time = torch.full((len(point),), 1 - left, device=point.device)
        answer = self._ask(point, time, condition).to(point.dtype)
        if self.config.fisher_flow.predict == "velocity":
            return left * sphere.tangent(point, answer)
        return mixture_direction(point, torch.softmax(answer, dim=-1) * special.angle_over_sine(point))

    def _ask(self, point: Tensor, time: Tensor, condition: Tensor | None) -> Tensor:
        # Coordinates have the size 1/sqrt(V) on average; the network wants numbers of order one.
        return discrete.ask(self.network, point.float() * math.sqrt(self.vocabulary), time, condition)

    @torch.no_grad()
    def generate(
        self,
        count: int,
        length: int,
        nfe: int,
        generator: torch.Generator | None = None,
        condition: Tensor | None = None,
    ) -> Int[Tensor, "count length"]:
        """Return the vertices next to where `nfe` geodesic steps end."""
        point = self.origin(count, length, generator)
        for left, after in pairwise(self._parts_left(nfe)):
            # The exact factor for a flow to one token: the part of the remaining way that the step goes.
            factor = 1 - after / left
            point = sphere.project(sphere.exponential(point, factor * self.motion(point, left, condition)))
        return point.argmax(-1)

    def _parts_left(self, steps: int) -> list[float]:
        """Return `kappa` from 1 to the cut, equally spaced in `lambda`."""
        if steps < 1:
            raise InputError(f"at least one network call is needed, got {steps}")
        return [self.config.fisher_flow.cut ** (step / steps) for step in range(steps + 1)]

    def bound(self, batch: Batch, nfe: int, generator: torch.Generator | None = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an estimate in nats of `-log p` by the divergence; *not a bound*, see above.

        Midpoint steps, each of two network calls, whose error falls with their square.
        """
        token, cut = batch.ids, self.config.fisher_flow.cut
        origin = self.origin(len(token), token.shape[1], generator).to(token.device)
        point = self.interpolate(origin, token, 1 - cut)
        value = self._log_contraction(origin, token).double().sum(-1)
        condition = discrete.condition_of(batch)
        parts = self._parts_left(max(1, nfe // 2))
        width = math.log(1 / cut) / (len(parts) - 1)
        for left, after in pairwise(reversed(parts)):
            with torch.no_grad():
                halfway = sphere.exponential(point, -width / 2 * self.motion(point, left, condition))
            move, divergence = self._divergence(halfway, math.sqrt(left * after), condition, generator)
            back = sphere.transport(halfway, point, move)
            point = sphere.project(sphere.exponential(point, -width * back))
            value += width * divergence
        return value

    def _log_contraction(self, origin: Tensor, token: Tensor) -> Float[Tensor, "batch length"]:
        """Return `log q(x | k)` at the cut over the density of the origin: how much a volume has shrunk on the way."""
        cut = self.config.fisher_flow.cut
        angle = sphere.distance(origin, functional.one_hot(token, self.vocabulary).to(origin))
        ratio = (special.sinc(angle) / special.sinc(cut * angle)).clamp_min(torch.finfo(angle.dtype).tiny)
        return (self.vocabulary - 2) * (ratio.log() - math.log(cut)) - math.log(cut)

    def _divergence(
        self, point: Tensor, left: float, condition: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Float[Tensor, " batch"]]:
        """Return the motion at a point and its divergence on the product of spheres.

        Composed with the projection onto the sphere, the motion does not change across it, so that the trace over all
        coordinates is that over the tangent space.
        """
        with torch.enable_grad():
            place = point.detach().requires_grad_()
            motion = self.motion(sphere.project(place), left, condition)
            probes = self._probes(motion, generator)
            trace = torch.zeros(len(point), dtype=torch.float64, device=point.device)
            for number, probe in enumerate(probes):
                more = number + 1 < len(probes)
                (image,) = torch.autograd.grad(motion, place, probe, retain_graph=more)
                trace += (image * probe).double().flatten(1).sum(-1)
        return motion.detach(), trace

    def _probes(self, like: Tensor, generator: torch.Generator | None) -> list[Tensor]:
        """Return vectors whose outer products add up to the identity: all unit vectors, or on average one of signs."""
        if self.config.fisher_flow.divergence == "exact":
            size = like.shape[1] * like.shape[2]
            return [unit.view(1, *like.shape[1:]).expand_as(like) for unit in torch.eye(size).to(like)]
        signs = torch.randint(2, like.shape, generator=generator).to(like)
        return [2 * signs - 1]
