"""Gaussian observations of token vectors: the base class of bfn, bit_diffusion, plaid and diffusion_lm.

A state is the sum `u` of observations of the token's vector `c_k` with total strength `a` (signal-to-noise ratio),

    u = a c_k + sqrt(a) z        this is the channel of Eq. (56); `sqrt(g) c + sqrt(1 - g) z = u sqrt((1 - g) / a)`

A chain of M calls has strengths `0 = a_0 < a_1 < ... < a_{M-1}`. Call m predicts `p(l | u)`; the calls but the last add
an observation of strength `h = a_{m+1} - a_m`, and the last one draws the token. The observation is of the predicted
mean (drift) or of a token drawn from `p` (mixture), with the terms of Eq. (70), Eq. (74):

    drift      h/2 |c_k - sum_l p_l c_l|^2
    mixture    E[ log N_k(y) - log sum_l p_l N_l(y) ],      y = h c_k + sqrt(h) z,    N_l the density of y for token l

The drift chain is DDPM's ancestral sampler with the variance of the posterior; both tend to the same integral.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.likelihood.terms import mixture_excess
from rdlm.methods import discrete
from rdlm.methods.stepwise import Stepwise
from rdlm.random import Rng, draw_token, normal


class GaussianCodes(Stepwise):
    """A chain of Gaussian observations; a subclass defines the vectors, the strengths and the network, with its input.

    With self-conditioning (`model.self_condition`) a call is two evaluations of the network; the mean that the first
    predicts is an input of the second. So predictions depend on the state alone, as the bound requires.
    """

    kernel: Literal["drift", "mixture"] = "drift"
    spread: int = 1
    """Inverse mean square of a vector's coordinates: 1 for entries of size 1, the dimension for unit vectors."""

    @abstractmethod
    def times(self, steps: int) -> Float[Tensor, " steps"]:
        """Return the network's times of all calls, from 0 (noise), in float64."""

    @abstractmethod
    def strength(self, time: Tensor) -> Tensor:
        """Return the strength of the observations at times."""

    @abstractmethod
    def codes(self, like: Tensor) -> Float[Tensor, "v d"]:
        """Return the vectors of all tokens in the type and on the device of `like`."""

    # -- one evaluation of the network ---------------------------------------------------------------------------------

    def features(
        self, state: Float[Tensor, "batch length d"], time: Float[Tensor, " batch"]
    ) -> Float[Tensor, "batch length d"]:
        """Return the network's input: by default the states, scaled to variance one."""
        strength = self.strength(time.to(state.device)).to(state).view(-1, 1, 1)
        tiny = torch.finfo(state.dtype).tiny  # without observations the state is 0
        return state / (strength * (1 + strength / self.spread)).clamp_min(tiny).sqrt()

    def token_logits(self, output: Tensor, state: Float[Tensor, "batch length d"]) -> Float[Tensor, "batch length v"]:
        """Return the logits of the tokens from the output of the network: by default the output itself."""
        return output

    def predict(
        self, state: Tensor, time: Float[Tensor, " batch"], condition: Tensor | None, previous: Tensor | None
    ) -> Float[Tensor, "batch length v"]:
        """Return the log-probabilities of the tokens by one evaluation of the network."""
        more = () if previous is None else (previous,)
        output = discrete.logits(self.network, self.features(state, time).float(), time.float(), condition, *more)
        return torch.log_softmax(self.token_logits(output, state), dim=-1)

    # -- products with the vectors, which one-hot vectors do not need -------------------------------------------------

    def vector(self, token: Int[Tensor, "batch length"], like: Tensor) -> Float[Tensor, "batch length d"]:
        """Return `c_k` at every position."""
        return self.codes(like)[token]

    def mean(self, log_probs: Float[Tensor, "batch length v"]) -> Float[Tensor, "batch length d"]:
        """Return `sum_l p_l c_l`."""
        return log_probs.exp() @ self.codes(log_probs)

    def log_density(self, y: Float[Tensor, "batch length d"], gain: Tensor) -> Float[Tensor, "batch length v"]:
        """Return `log N_l(y)` of an observation of strength `gain` for every token, up to a common constant."""
        codes = self.codes(y)
        return y @ codes.T - gain / 2 * codes.square().sum(-1)

    # -- calls ---------------------------------------------------------------------------------------------------------

    @property
    def evaluations(self) -> int:
        """Evaluations of the network in a call."""
        return 2 if self.config.model.self_condition else 1

    def steps(self, length: int, nfe: int) -> int:
        """Return the calls for a number of evaluations."""
        return max(1, nfe // self.evaluations)

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return the evaluations of all calls."""
        return self.evaluations * self.steps(length, super().sampling_nfe(length, steps))

    def log_probs(
        self,
        state: Float[Tensor, "batch length d"],
        time: Float[Tensor, " batch"],
        condition: Tensor | None = None,
        first: Bool[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch length v"]:
        """Return the predicted log-probabilities of the tokens.

        In training, `first` marks the sequences without an earlier prediction.
        """
        if self.evaluations == 1:
            return self.predict(state, time, condition, None)
        with torch.no_grad():
            previous = self.mean(self.predict(state, time, condition, None)).float()
        if first is not None:
            previous = previous.masked_fill(first[:, None, None], 0.0)
        return self.predict(state, time, condition, previous)

    def initial(self, count: int, length: int, generator: Rng) -> Tensor:
        """Return states without observations."""
        return torch.zeros_like(self.vector(torch.zeros(count, length, dtype=torch.long), torch.empty(())))

    def noisy(self, token: Tensor, step: Tensor, steps: int, generator: Rng) -> Tensor:
        """Return the observations before call m."""
        return self.observe(token, self.strength(self.times(steps).to(token.device)[step]), generator)

    def observe(
        self, token: Tensor, strength: Float[Tensor, " batch"], generator: Rng
    ) -> Float[Tensor, "batch length d"]:
        """Return `a c_k + sqrt(a) z`."""
        vector = self.vector(token, torch.empty((), device=token.device))
        scale = strength.to(vector).view(-1, 1, 1)
        return scale * vector + scale.sqrt() * normal(vector.shape, generator, vector.dtype).to(vector.device)

    def time(self, step: Tensor, steps: int) -> Tensor:
        """Return the time of call m."""
        return self.times(steps).to(step.device)[step]

    def terms(
        self, log_probs: Tensor, token: Tensor, state: Tensor, step: Tensor, steps: int, generator: Rng
    ) -> Tensor:
        """Return the term of call m, Eq. (74); of the last call, the cross-entropy of the token."""
        time = self.times(steps).to(token.device)
        gain = (self.strength(time[(step + 1).clamp_max(steps - 1)]) - self.strength(time[step])).view(-1, 1, 1)
        log_probs = log_probs.double()
        decode = -log_probs.gather(-1, token[..., None])[..., 0]
        if self.kernel == "drift":
            moved = gain[..., 0] / 2 * self.squared_error(token, log_probs)
        else:
            moved = self._mixture_term(token, log_probs, gain, generator)
        return torch.where((step == steps - 1)[:, None], decode, moved)

    def squared_error(self, token: Tensor, log_probs: Tensor) -> Float[Tensor, "batch length"]:
        """Return `|c_k - sum_l p_l c_l|^2`."""
        return (self.vector(token, log_probs) - self.mean(log_probs)).square().sum(-1)

    def _mixture_term(
        self, token: Tensor, log_probs: Tensor, gain: Tensor, generator: Rng
    ) -> Float[Tensor, "batch length"]:
        """Return the divergence of the mixture from an antithetic pair of draws."""
        vector = self.vector(token, log_probs)
        noise = normal(vector.shape, generator, torch.float32).to(vector)
        plus, minus = (
            mixture_excess(self.log_density(gain * vector + sign * gain.sqrt() * noise, gain), log_probs, token)
            for sign in (1, -1)
        )
        return (plus + minus) / 2

    def advance(self, log_probs: Tensor, state: Tensor, step: int, steps: int, generator: Rng) -> Tensor:
        """Return the states with one more observation, or the tokens after the last call."""
        if step == steps - 1:
            return draw_token(log_probs, generator)
        time = self.times(steps).to(state.device)
        return self.observed(state, log_probs, self.strength(time[step + 1]) - self.strength(time[step]), generator)

    def observed(self, state: Tensor, log_probs: Tensor, gain: Float[Tensor, ""], generator: Rng) -> Tensor:
        """Return the states with an observation of strength `gain` of the predicted mean, or of a drawn token."""
        gain = gain.to(state)
        aim = self.mean(log_probs) if self.kernel == "drift" else self.vector(draw_token(log_probs, generator), state)
        noise = normal(state.shape, generator, state.dtype).to(state.device)
        return state + gain * aim.to(state) + gain.sqrt() * noise
