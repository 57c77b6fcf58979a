"""Networks with the exact posterior of a source, so that only a method's own error is left."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import RunConfig, TransformerConfig
from rdlm.data.sources import Source
from rdlm.geometry import sphere
from rdlm.methods import METHODS, discrete
from rdlm.methods.bit_diffusion import bits
from rdlm.methods.d3pm import chain_levels
from rdlm.methods.ddsm import LATEST, evidence_of, lineages
from rdlm.methods.sedd import UNIFORM_START
from rdlm.methods.tau_ldr import spectrum_of

SECTIONS = ("discrete", "d3pm")
"""Sections of the configuration that several methods share."""


def known(name: str, source: Source, **choices: Any) -> Any:
    """Return a method whose network knows the source; `choices` are keys of its configuration."""
    config = RunConfig(method=name, model=TransformerConfig(width=8, layers=1, heads=2, time_width=8))
    for key, value in choices.items():
        part = next(part for part in (name, *SECTIONS) if hasattr(getattr(config, part, None), key))
        config = replace(config, **{part: replace(getattr(config, part), **{key: value})})
    method = METHODS[name](config, source.states, 0, 0)
    method.network = Known(source, config)
    if name in ("plaid", "diffusion_lm"):
        method.network.vectors = partial(vectors_seen, method)
    return method


def marginals(log_joint: Tensor, evidence: Tensor, own: bool = True) -> Tensor:
    """Return `log p(x_i | states)` [B, L, V], or without what position i itself says, by summing over all sequences."""
    batch, length, states = evidence.shape
    found = []
    for i in range(length):
        joint = log_joint.to(evidence)
        for j in range(length):
            if own or j != i:
                joint = joint + evidence[:, j].view(batch, *[states if axis == j else 1 for axis in range(length)])
        joint = joint.expand(batch, *[states] * length).movedim(i + 1, 1).reshape(batch, states, -1)
        found.append(torch.log_softmax(joint.logsumexp(-1), dim=-1))
    return torch.stack(found, dim=1)


def vectors_seen(method: Any, features: Tensor, time: Tensor) -> Tensor:
    """Return what the noisy vectors that are the features of plaid say of every token."""
    strength = method.strength(time).view(-1, 1, 1)
    state = features.double() * (strength * (1 + strength / method.dimension)).sqrt()
    return method.log_density(state, strength).detach()


class Known(nn.Module):
    """The exact network of a method for a source; `nfe` counts the sequences that it has evaluated."""

    def __init__(self, source: Source, config: RunConfig) -> None:
        super().__init__()
        self.source, self.config = source, config
        self.nfe = 0
        self.frequency = torch.zeros(source.states, dtype=torch.float64)
        """Of diffusion_bert: the weights of its schedule."""
        self.answer = {
            "mdlm": self.masked,
            "ardm": self.masked,
            "mac": self.masked,
            "udlm": self.uniform,
            "sedd": self.absorb if config.discrete.graph == "absorb" else self.scores,
            "fisher_flow": self.fisher_flow,
            "d3pm": self.matrices,
            "multinomial": self.matrices,
            "bert_mouth": self.masked,
            "diffusion_bert": self.spindle,
            "tau_ldr": self.jumps,
            "plaid": self.noisy_vectors,
            "diffusion_lm": self.noisy_vectors,
            "dirichlet_flow": self.points_seen,
            "ddsm": self.diffused_points,
            "bfn": self.posterior_seen,
            "bit_diffusion": self.noisy_bits,
        }[config.method]

    def forward(self, inputs: Tensor, time: Tensor | float, condition: Tensor | None = None) -> Tensor:
        self.nfe += len(inputs)
        return self.answer(inputs, time)

    def masked(self, ids: Tensor, time: Tensor | float) -> Tensor:
        states = self.source.states
        seen = functional.one_hot(ids, states + 1)[..., :states].double().log()
        return marginals(self.source.log_joint, torch.where(ids[..., None] == states, 0.0, seen))

    def absorb(self, ids: Tensor, time: Tensor | float) -> Tensor:
        return self.masked(ids, time) + math.log(self.source.states)

    def context(self, ids: Tensor, alpha: Tensor) -> Tensor:
        alpha = alpha.view(-1, 1, 1)
        here = functional.one_hot(ids, self.source.states).double()
        evidence = (alpha * here + (1 - alpha) / self.source.states).log()
        return marginals(self.source.log_joint, evidence, own=False)

    def matrices(self, ids: Tensor, time: Tensor) -> Tensor:
        """Return the law of a token given the other positions, whose states have the probabilities of Qbar."""
        uniform = replace(self.config.d3pm, matrix="uniform")
        options = uniform if self.config.method == "multinomial" else self.config.d3pm
        levels = chain_levels(options, self.source.states, options.steps, ids.device)
        rows = levels.marginal[(time.double() * options.steps).round().long()]  # [B, token, state]
        column = rows.mT.gather(1, ids[..., None].expand(*ids.shape, rows.shape[-1]))  # [B, L, token]
        return marginals(self.source.log_joint, column[..., : self.source.states].log(), own=False)

    def spindle(self, ids: Tensor, time: Tensor) -> Tensor:
        """Return the law of masked tokens: a token that is still masked is probably one that is revealed late."""
        states = self.source.states
        moment = time.double().view(-1, 1, 1)
        alpha = moment + self.config.discrete.spindle * torch.sin(math.pi * moment) * self.frequency
        seen = functional.one_hot(ids, states + 1)[..., :states].double().log()
        late = (1 - alpha).clamp_min(1e-30).log().expand(*ids.shape, states)
        return marginals(self.source.log_joint, torch.where(ids[..., None] == states, late, seen))

    def posterior_seen(self, features: Tensor, time: Tensor) -> Tensor:
        """Return the law of each token from the posteriors under a uniform prior, which are the likelihoods."""
        return marginals(self.source.log_joint, ((features.double() + 1) / 2).clamp_min(1e-12).log())

    def noisy_bits(self, features: Tensor, time: Tensor) -> Tensor:
        """Return the law of each token from `sqrt(g) c + sqrt(1 - g) z`."""
        states, kept = self.source.states, torch.sin(math.pi / 2 * time.double()).view(-1, 1, 1)
        codes = (bits(states) if self.config.bit_diffusion.codes == "bits" else 2 * torch.eye(states) - 1).double()
        distance = (features.double()[..., None, :] - kept[..., None] * codes).square().sum(-1)
        return marginals(self.source.log_joint, -distance / (2 * (1 - kept.square())))

    def jumps(self, ids: Tensor, time: Tensor) -> Tensor:
        """Return the law of a token given the other positions of a continuous-time chain."""
        spectrum = spectrum_of(self.config.tau_ldr.rates, self.source.states)
        rows = spectrum.transition(spectrum.clock(1 - time.double()))
        column = rows.mT.gather(1, ids[..., None].expand(*ids.shape, rows.shape[-1]))
        return marginals(self.source.log_joint, column.log(), own=False)

    def noisy_vectors(self, features: Tensor, time: Tensor) -> Tensor:
        """Return the law of a token, for plaid without what its own position says, which the method adds."""
        own = self.config.method == "diffusion_lm"
        return marginals(self.source.log_joint, self.vectors(features, time), own=own)

    def diffused_points(self, point: Tensor, time: Tensor) -> Tensor:
        """Return the law of a token given the points of the other positions; the method adds its own."""
        states = self.source.states
        times, place = time.double().unique(return_inverse=True)
        weight = lineages(LATEST / states * (1 - times).square(), states)[place]
        return marginals(self.source.log_joint, evidence_of(point.double(), weight)[0], own=False)

    def points_seen(self, point: Tensor, time: Tensor) -> Tensor:
        """Return the law of a token given the points of the other positions; the method adds its own."""
        concentration = 2 / (1 - time.double()) - 1
        evidence = (concentration - 1).view(-1, 1, 1) * point.double().clamp_min(1e-30).log()
        return marginals(self.source.log_joint, evidence, own=False)

    def uniform(self, ids: Tensor, time: Tensor) -> Tensor:
        return self.context(ids, discrete.alpha(self.config.discrete.schedule, time))

    def scores(self, ids: Tensor, time: Tensor) -> Tensor:
        alpha = UNIFORM_START + (1 - UNIFORM_START) * discrete.alpha(self.config.discrete.schedule, time)
        law = self.context(ids, alpha).exp()
        blurred = (alpha.view(-1, 1, 1) * law + (1 - alpha.view(-1, 1, 1)) / self.source.states).log()
        return blurred - blurred.gather(-1, ids[..., None])

    def fisher_flow(self, features: Tensor, time: Tensor) -> Tensor:
        """Return the posterior from `q(x | k)`: the volume by which the flow to k has shrunk around x."""
        states = self.source.states
        point = features.double() / math.sqrt(states)
        left = (1 - time.double()).view(-1, 1, 1)
        angle = sphere.distance(point[..., None, :], torch.eye(states, dtype=torch.float64)) / left
        inside = angle < math.pi
        if self.config.fisher_flow.origin == "orthant":
            vertex = torch.eye(states, dtype=torch.float64).expand(*point.shape[:-1], states, states)
            back = sphere.logarithm(vertex, point[..., None, :].expand_as(vertex)) / left[..., None]
            inside = (sphere.exponential(vertex, back).min(-1).values > -1e-6) & (angle < 0.6 * math.pi)
        safe = torch.where(inside, angle, 1.0)
        ratio = torch.sin(safe) / torch.sin(safe * left)
        evidence = torch.where(inside, (states - 2) * ratio.log(), -60.0)
        return marginals(self.source.log_joint, evidence)
