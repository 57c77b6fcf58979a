"""Uniform-state diffusion (uniform D3PM, UDLM): every token may change in every step until the last.

At time t a position has the state `z ~ alpha_t [z = x] + (1 - alpha_t) / V`. A reverse step goes from `alpha` to a
larger `alpha'`; with `a = alpha / alpha'` its posterior is

    q(z' | z, x)  ~  ( a [z' = z] + (1 - a) / V ) ( alpha' [z' = x] + (1 - alpha') / V )

and the model replaces `[. = x]` by its prediction `p(.)`, the distribution of the token given the *other* positions;
the formula adds the information of the position's own state. The bound of M steps is the sum of `KL(q || model)` over
steps; the last step, with `alpha' = 1`, decodes. Its limit for M to infinity is

    int alpha'_t / (alpha_t V)  E sum over j != z  r_j (exp(u_j) - 1 - u_j) dt,    r_j = q(j|x) / q(z|x),

with `u_j` the log of the model's ratio over the true one.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rdlm.methods import discrete
from rdlm.methods.base import Card, DiscreteDiffusion
from rdlm.methods.stepwise import Stepwise
from rdlm.random import Rng, draw_token


class UDLM(Stepwise, DiscreteDiffusion):
    """Uniform-state diffusion: a network over noisy tokens and a time, and a schedule."""

    card = Card("uniform tokens", "bound", "UDLM", 0.0)

    def integrand(self, token: Tensor, time: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return `alpha'_t / (alpha_t V)` times the sum of `r_j (exp(u_j) - 1 - u_j)` over positions and tokens."""
        time = time.double().clamp_min(torch.finfo(torch.float64).tiny).to(token.device)
        alpha, rate = discrete.alpha(self.schedule, time), discrete.alpha_rate(self.schedule, time)
        state = noisy(token, alpha, self.vocabulary, generator)
        log_probs = self.log_probs(state, time, condition).double()  # [B, L, V]
        # q(j) is proportional to 1 + odds p(j): this form keeps the precision of ratios for alpha near 0 and near 1.
        log_odds = (alpha * self.vocabulary / (1 - alpha)).log()[:, None, None]
        log_q = functional.softplus(log_odds + log_probs)
        model = log_q - log_q.gather(-1, state[..., None])
        excess = ratio_excess(model, true_log_ratio(token, state, log_odds, self.vocabulary), state)
        return rate / alpha / self.vocabulary * excess.sum(-1)

    def log_probs(self, state: Tensor, time: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return the predicted log-probabilities of each token given the other positions."""
        return torch.log_softmax(discrete.logits(self.network, state, time.float(), condition), dim=-1)

    def initial(self, count: int, length: int, generator: Rng) -> Tensor:
        """Return uniform tokens."""
        return torch.randint(self.vocabulary, (count, length), generator=generator)

    def noisy(self, token: Tensor, step: Tensor, steps: int, generator: Rng) -> Tensor:
        """Return tokens, resampled uniformly with probability `1 - alpha_m`."""
        grid = discrete.alpha_grid(self.schedule, steps).to(token.device)
        return noisy(token, grid[step], self.vocabulary, generator)

    def terms(
        self, log_probs: Tensor, token: Tensor, state: Tensor, step: Tensor, steps: int, generator: Rng
    ) -> Tensor:
        """Return `KL(q(z' | z, x) || model)`."""
        grid = discrete.alpha_grid(self.schedule, steps).to(token.device)
        now, later = grid[step], grid[step + 1]
        true = functional.one_hot(token, self.vocabulary).double()
        q, p = (posterior(marginal(x, later), state, now / later) for x in (true, log_probs.double().exp()))
        return kl_divergence(q, p)

    def advance(self, log_probs: Tensor, state: Tensor, step: int, steps: int, generator: Rng) -> Tensor:
        """Return states drawn from the model's posterior."""
        grid = discrete.alpha_grid(self.schedule, steps)
        prior = marginal(log_probs.double().exp(), grid[step + 1])
        return draw_token(posterior(prior, state, grid[step] / grid[step + 1]).log(), generator)


def noisy(
    token: Int[Tensor, "batch length"], alpha: Float[Tensor, " batch"], vocabulary: int, generator: Rng
) -> Int[Tensor, "batch length"]:
    """Return `z ~ q(z | x)`: each token is kept with probability alpha and otherwise resampled uniformly."""
    resampled = torch.randint(vocabulary, token.shape, generator=generator).to(token.device)
    return torch.where(discrete.uniform_like(token, generator) < alpha[:, None], token, resampled)


def marginal(probs: Float[Tensor, "batch length v"], alpha: Tensor) -> Float[Tensor, "batch length v"]:
    """Return the distribution of the state, `alpha p + (1 - alpha) / V`; alpha is [batch] or []."""
    alpha = alpha.view(-1, 1, 1)
    return alpha * probs + (1 - alpha) / probs.shape[-1]


def posterior(
    prior: Float[Tensor, "batch length v"], state: Int[Tensor, "batch length"], keep: Tensor
) -> Float[Tensor, "batch length v"]:
    """Return the distribution of the less noisy state, by Bayes' rule from its prior and the noisier state.

    `keep` [batch] or [] is the probability `a` that the forward step keeps the state.
    """
    keep = keep.view(-1, 1, 1)
    one_hot = functional.one_hot(state, prior.shape[-1]).to(prior)
    joint = (keep * one_hot + (1 - keep) / prior.shape[-1]) * prior
    return joint / joint.sum(-1, keepdim=True)


def kl_divergence(q: Float[Tensor, "... v"], p: Float[Tensor, "... v"]) -> Float[Tensor, ...]:
    """Return `KL(q || p)` over the last axis; terms with `q = 0` are 0."""
    return (torch.xlogy(q, q) - torch.xlogy(q, p)).sum(-1)


def true_log_ratio(
    token: Int[Tensor, "batch length"], state: Int[Tensor, "batch length"], log_odds: Tensor, vocabulary: int
) -> Float[Tensor, "batch length v"]:
    """Return `log r_j = log q(j | x) - log q(z | x)` for every j, with `log_odds = log(alpha V / (1 - alpha))`."""
    log_q = functional.softplus(log_odds) * functional.one_hot(token, vocabulary)  # up to a constant
    return log_q - log_q.gather(-1, state[..., None])


def ratio_excess(
    model: Float[Tensor, "batch length v"], true: Float[Tensor, "batch length v"], state: Int[Tensor, "batch length"]
) -> Float[Tensor, "batch length"]:
    """Return the sum of `r_j (exp(u_j) - 1 - u_j)` over `j != z`, from the log-ratios of the model and `log r_j`."""
    u = model - true
    terms = true.exp() * (torch.expm1(u) - u)
    return terms.scatter(-1, state[..., None], 0.0).sum(-1)
