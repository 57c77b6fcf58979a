"""Discrete diffusion with T steps and a transition matrix (D3PM); multinomial diffusion is its uniform form.

In step t = 1 .. T of the forward process a token moves by the matrix `Q_t`; `Qbar_t = Q_1 ... Q_t` has the rows of
`q(x_t | x)`. With `p` the network's distribution of the token, a step back from t to s < t has, Eq. (73),

    q(x_s | x_t, x)   ~  Q_{s -> t}[x_s, x_t]  Qbar_s[x, x_s]
    model             ~  Q_{s -> t}[x_s, x_t]  sum over k of p(k) Qbar_s[k, x_s]

    matrix      Q_t                                                                       end of the forward process
    uniform     a_t I + (1 - a_t) / V, with a_1 ... a_t a cosine                          uniform tokens
    absorbing   to the mask with probability 1 / (T - t + 1)                              masks
    gauss       off the diagonal ~ exp(-4 (i - j)^2 / ((V - 1)^2 beta_t)), doubly stochastic   uniform tokens

The bound is Eq. (70) with the divergences in closed form, the first one (of the end) included. M < T steps use every
(T/M)-th level: the matrices of several steps are multiplied. The loss is a random step of all T and, for D3PM, a little
cross-entropy of `p` (hybrid). The head `logistic` is for ordered tokens: a location, relative to the state, and a scale
give the probabilities of all tokens as the bins of a logistic distribution.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import D3PMConfig, Interface, RunConfig
from rdlm.errors import InputError
from rdlm.methods import discrete
from rdlm.methods.base import Card
from rdlm.methods.stepwise import Stepwise
from rdlm.methods.udlm import kl_divergence
from rdlm.model.network import build
from rdlm.random import Rng, draw_token

LARGEST = 1 << 26
"""Most entries of the matrices of all steps: 512 MiB in float64."""

PAPER_STEPS = 1000
"""Steps for which the noise of the matrix gauss is given; for other numbers it is rescaled to the same sum."""

OFFSET = 0.008
"""Offset of the cosine schedule of Improved DDPM."""


class ChainLevels(NamedTuple):
    """The matrices of a chain of M steps, from noise (m = 0) to tokens (m = M)."""

    marginal: Float[Tensor, "levels s s"]
    """`q(state at level m | token)`, rows by token; the rows of the mask are not used."""
    jump: Float[Tensor, "steps s s"]
    """Of step m: `q(state at level m | state at level m + 1)`."""
    time: Float[Tensor, " levels"]
    """1 for tokens, 0 after all T steps."""


class D3PM(Stepwise):
    """Discrete diffusion in T steps: a network over states and times, and a transition matrix for each step."""

    card = Card("uniform, absorbing or Gaussian matrices, T steps", "bound", "D3PM", 0.0)

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.options = config.d3pm
        self.size = vocabulary + (self.options.matrix == "absorbing")
        if self.options.steps * self.size**2 > LARGEST:
            most = LARGEST // self.size**2
            raise InputError(
                f"d3pm.steps {self.options.steps} for {self.size} states need matrices of {self.size}^2 numbers each: "
                + (f"use at most {most} steps" if most else "use mdlm or udlm, which need no matrices")
            )
        super().__init__(config, vocabulary, classes, signal)

    def new_network(self, classes: int, signal: int) -> nn.Module:
        """Return a network from ids 0 .. V to logits of tokens, or to location and scale of ordered tokens."""
        outputs = 2 if self.options.head == "logistic" else self.vocabulary
        return build(self.config.model, Interface(self.vocabulary + 1, outputs, classes=classes, signal=signal))

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return the steps, at most T."""
        return min(super().sampling_nfe(length, steps), self.options.steps)

    def _levels(self, steps: int, like: Tensor) -> ChainLevels:
        return chain_levels(self.options, self.vocabulary, steps, like.device)

    def log_probs(self, state: Tensor, time: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return the predicted log-probabilities of each token, in float64."""
        output = discrete.logits(self.network, state, time.float(), condition).double()
        if self.options.head == "logistic":
            output = logistic_logits(output, state, self.vocabulary)
        return torch.log_softmax(output, dim=-1)

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return `T (KL + w CE)` of a random step of all T in nats per token, with the weight w of the hybrid loss."""
        steps = self.options.steps
        step = (quantile * steps).long().clamp_max(steps - 1).to(token.device)
        state = self.noisy(token, step, steps, generator)
        log_probs = self.log_probs(state, self.time(step, steps), condition)
        losses = self.terms(log_probs, token, state, step, steps, generator)
        if self.options.hybrid:
            losses = losses - self.options.hybrid * log_probs.gather(-1, token[..., None])[..., 0]
        return steps * losses.mean()

    def time(self, step: Tensor, steps: int) -> Tensor:
        """Return 1 minus the share of the T steps that are left."""
        return self._levels(steps, step).time[step]

    def prior(self, token: Int[Tensor, "batch length"], steps: int) -> Float[Tensor, " batch"]:
        """Return `KL(q(x_T | x) || end)`, summed over positions."""
        end = torch.full((self.size,), 1 / self.size, dtype=torch.float64)
        if self.options.matrix == "absorbing":
            end = functional.one_hot(torch.tensor(self.vocabulary), self.size).double()
        rows = self._levels(self.options.steps, token).marginal[0, : self.vocabulary]
        return kl_divergence(rows, end.to(rows))[token].sum(-1)

    def initial(self, count: int, length: int, generator: Rng) -> Tensor:
        """Return masks, or uniform tokens."""
        if self.options.matrix == "absorbing":
            return torch.full((count, length), self.vocabulary)
        return torch.randint(self.vocabulary, (count, length), generator=generator)

    def noisy(self, token: Tensor, step: Tensor, steps: int, generator: Rng) -> Tensor:
        """Return states drawn from the rows of the matrix of level m."""
        rows = self._levels(steps, token).marginal[step[:, None], token]  # [B, L, S]
        return draw_token(rows.log(), generator)

    def terms(
        self, log_probs: Tensor, token: Tensor, state: Tensor, step: Tensor, steps: int, generator: Rng
    ) -> Tensor:
        """Return `KL(q(x_s | x_t, x) || model)` of a step."""
        levels = self._levels(steps, state)
        later, jump = levels.marginal[step + 1], levels.jump[step]  # [B, S, S]
        true = later.gather(1, token[..., None].expand(-1, -1, self.size))
        q, p = (step_back(prior, jump, state) for prior in (true, self._mixed(log_probs, later)))
        return kl_divergence(q, p.clamp_min(torch.finfo(p.dtype).tiny))  # 0 where both are: no gradient of 0 / 0

    def _mixed(self, log_probs: Tensor, later: Tensor) -> Float[Tensor, "batch length s"]:
        """Return the distribution of the less noisy state under the predicted tokens."""
        return log_probs.exp() @ later[..., : self.vocabulary, :]

    def advance(self, log_probs: Tensor, state: Tensor, step: int, steps: int, generator: Rng) -> Tensor:
        """Return states drawn from the model's posterior; the last step, to `Qbar = I`, draws tokens."""
        levels = self._levels(steps, state)
        jump = levels.jump[step].expand(len(state), -1, -1)
        law = step_back(self._mixed(log_probs, levels.marginal[step + 1]), jump, state)
        return draw_token(law.log(), generator)


class Multinomial(D3PM):
    """Multinomial diffusion: D3PM with uniform matrices, trained on its bound alone."""

    card = Card("uniform matrices, T steps", "bound", "Multinomial diffusion", 0.0)

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        uniform = replace(config.d3pm, matrix="uniform", head="logits", hybrid=0.0)
        super().__init__(replace(config, d3pm=uniform), vocabulary, classes, signal)


def step_back(
    prior: Float[Tensor, "batch length s"], jump: Float[Tensor, "batch s s"], state: Int[Tensor, "batch length"]
) -> Float[Tensor, "batch length s"]:
    """Return the distribution of the less noisy state, from its prior and the noisier state by Bayes' rule, Eq.
    (73)."""
    likelihood = jump.mT.gather(1, state[..., None].expand(-1, -1, jump.shape[-1]))  # [B, L, S]: the column of x_t
    joint = prior * likelihood
    return joint / joint.sum(-1, keepdim=True)


def logistic_logits(
    output: Float[Tensor, "batch length 2"], state: Int[Tensor, "batch length"], vocabulary: int
) -> Float[Tensor, "batch length v"]:
    """Return the log-masses of the bins of ordered tokens under a logistic distribution, centred near the state."""
    location, log_scale = output.unbind(-1)
    # the mask is not one of the ordered tokens: its location is relative to their middle
    place = torch.where(state < vocabulary, 2 * state.double() / (vocabulary - 1) - 1, 0.0)
    location = torch.tanh(location + place)[..., None]
    steepness = torch.exp(2 - log_scale)[..., None]
    centre = torch.linspace(-1, 1, vocabulary, dtype=output.dtype, device=output.device)
    half = 1 / (vocabulary - 1)
    high = functional.logsigmoid(steepness * (centre + half - location))
    low = functional.logsigmoid(steepness * (centre - half - location))
    return high + torch.log(-torch.expm1((low - high).clamp_max(-1e-12)))


@lru_cache(maxsize=4)
def chain_levels(options: D3PMConfig, vocabulary: int, steps: int, device: torch.device) -> ChainLevels:
    """Return the matrices of a chain of M `steps` through every (T/M)-th level, in float64, on a device."""
    single = forward_matrices(options, vocabulary)
    at = [round(options.steps * (1 - m / steps)) for m in range(steps + 1)]  # T ... 0: forward steps at level m
    size = single.shape[-1]
    marginal, jump = [torch.eye(size, dtype=torch.float64)], []
    for m in reversed(range(steps)):
        product = single[at[m + 1]]
        for t in range(at[m + 1] + 1, at[m]):
            product = product @ single[t]
        jump.append(product)
        marginal.append(marginal[-1] @ product)
    time = 1 - torch.tensor(at, dtype=torch.float64) / options.steps
    return ChainLevels(torch.stack(marginal[::-1]).to(device), torch.stack(jump[::-1]).to(device), time.to(device))


def forward_matrices(options: D3PMConfig, vocabulary: int) -> Float[Tensor, "steps s s"]:
    """Return `Q_t` for t = 1 .. T, rows by the state before, in float64."""
    if options.matrix == "gauss":
        first, last = options.betas
        betas = torch.linspace(first, last, options.steps, dtype=torch.float64) * PAPER_STEPS / options.steps
        return torch.stack([gauss_matrix(vocabulary, float(beta)) for beta in betas])
    time = torch.arange(options.steps + 1, dtype=torch.float64) / options.steps
    if options.matrix == "absorbing":
        kept, size, end = 1 - time, vocabulary + 1, vocabulary
        target = functional.one_hot(torch.tensor(end), size).double().expand(size, size)
    else:
        kept, size = torch.cos((time + OFFSET) / (1 + OFFSET) * math.pi / 2), vocabulary
        kept[-1] = 0.0  # the cosine is off by rounding
        target = torch.full((size, size), 1 / size, dtype=torch.float64)
    keep = (kept[1:] / kept[:-1]).view(-1, 1, 1)
    return keep * torch.eye(size, dtype=torch.float64) + (1 - keep) * target


def gauss_matrix(vocabulary: int, beta: float) -> Float[Tensor, "v v"]:
    """Return the doubly stochastic matrix of a discretised Gaussian step; jumps out of the range are rejected."""
    place = torch.arange(vocabulary, dtype=torch.float64)
    offset = torch.arange(1 - vocabulary, vocabulary, dtype=torch.float64)
    scale = -4 / ((vocabulary - 1) ** 2 * beta)
    mass = torch.exp(scale * offset.square()).sum()
    matrix = torch.exp(scale * (place[:, None] - place).square()) / mass
    matrix.fill_diagonal_(0.0)
    return matrix + torch.diag(1 - matrix.sum(-1))
