"""Uniform-state diffusion (uniform D3PM, UDLM): a token keeps changing into any other until it settles.

At time t a position holds `z ~ alpha_t [z = x] + (1 - alpha_t) / V`. One step back in noise, from `alpha` to a larger
`alpha'`, with `a = alpha / alpha'`:

    q(z' | z, x)  ~  ( a [z' = z] + (1 - a) / V ) ( alpha' [z' = x] + (1 - alpha') / V )

and the model puts its prediction `p(.)` in place of `[. = x]`. The prediction is then the law of the token given the
*other* positions, and the formula adds what the position itself says. The bound of M calls is the sum of
`KL(q || model)` over steps; the last step, with `alpha' = 1`, decodes. Its limit for M to infinity is

    int alpha'_t / (alpha_t V)  E sum over j != z  r_j (exp(u_j) - 1 - u_j) dt,    r_j = q(j|x) / q(z|x),

with `u_j` the log of the model's ratio over the true one.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import RunConfig
from rdlm.data.batch import Batch
from rdlm.methods import discrete
from rdlm.methods.base import Baseline
from rdlm.random import Draw, draw_token


class UDLM(Baseline):
    """The method: a network over noisy tokens and a time, and the schedule by which they settle."""

    claims_bound = True

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.config, self.vocabulary = config, vocabulary
        self.schedule = config.discrete.schedule
        self.network: nn.Module = discrete.token_network(config.model, vocabulary, classes, signal)

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the continuous-time bound in nats per token, at evenly spread times."""
        return discrete.mean_rate(self._rates, batch, self.config, draw)

    def limit(self, batch: Batch, generator: torch.Generator | None = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of the bound for M to infinity."""
        return discrete.rates_of(self._rates, batch, generator)

    def _rates(
        self, token: Tensor, time: Tensor, condition: Tensor | None, generator: torch.Generator | None
    ) -> Float[Tensor, " batch"]:
        """Return the integrand of the continuous-time bound at one time for each sequence."""
        time = time.double().clamp_min(torch.finfo(torch.float64).tiny).to(token.device)
        alpha, rate = discrete.kept(self.schedule, time), discrete.kept_rate(self.schedule, time)
        state = noisy(token, alpha, self.vocabulary, generator)
        log_law = self.log_probs(state, time, condition).double()
        # q(j) is proportional to 1 + odds p(j): every ratio keeps its digits, whether alpha is near 0 or near 1.
        log_odds = (alpha * self.vocabulary / (1 - alpha)).log()[:, None, None]
        level = functional.softplus(log_odds + log_law)
        model = level - level.gather(-1, state[..., None])
        excess = ratio_excess(model, true_log_ratio(token, state, log_odds, self.vocabulary), state)
        return rate / alpha / self.vocabulary * excess.sum(-1)

    def log_probs(
        self, state: Int[Tensor, "batch length"], time: Float[Tensor, " batch"], condition: Tensor | None = None
    ) -> Float[Tensor, "batch length v"]:
        """Return the predicted law of each token given the other positions."""
        return torch.log_softmax(discrete.ask(self.network, state, time.float(), condition), dim=-1)

    @torch.no_grad()
    def bound(self, batch: Batch, nfe: int, generator: torch.Generator | None = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of its bound with M = `nfe`, from one step."""
        token, grid = batch.ids, discrete.kept_grid(self.schedule, nfe).to(batch.ids.device)
        step = discrete.spread_steps(len(token), nfe, generator).to(token.device)
        now, later = grid[step], grid[step + 1]
        state = noisy(token, now, self.vocabulary, generator)
        law = self.log_probs(state, step / nfe, discrete.condition_of(batch)).double().exp()
        truth = functional.one_hot(token, self.vocabulary).double()
        true_step, step_taken = (reverse(blurred(p, later), state, now / later) for p in (truth, law))
        return nfe * divergence(true_step, step_taken).sum(-1)

    @torch.no_grad()
    def generate(
        self,
        count: int,
        length: int,
        nfe: int,
        generator: torch.Generator | None = None,
        condition: Tensor | None = None,
    ) -> Int[Tensor, "count length"]:
        """Return token ids after `nfe` steps from uniform noise."""
        grid = discrete.kept_grid(self.schedule, nfe)
        state = torch.randint(self.vocabulary, (count, length), generator=generator)
        for step in range(nfe):
            law = self.log_probs(state, torch.full((count,), step / nfe), condition).double().exp()
            weight = reverse(blurred(law, grid[step + 1]), state, grid[step] / grid[step + 1])
            state = draw_token(weight.log(), generator)
        return state


def noisy(
    token: Int[Tensor, "batch length"],
    alpha: Float[Tensor, " batch"],
    vocabulary: int,
    generator: torch.Generator | None,
) -> Int[Tensor, "batch length"]:
    """Return tokens that are kept with probability alpha and otherwise drawn anew, uniformly."""
    anew = torch.randint(vocabulary, token.shape, generator=generator).to(token.device)
    return torch.where(discrete.chance(token, generator) < alpha[:, None], token, anew)


def blurred(law: Float[Tensor, "batch length v"], alpha: Tensor) -> Float[Tensor, "batch length v"]:
    """Return the law of the state at a kept probability `alpha` [batch] or [], given the law of its token."""
    alpha = alpha.view(-1, 1, 1)
    return alpha * law + (1 - alpha) / law.shape[-1]


def reverse(
    later: Float[Tensor, "batch length v"], state: Int[Tensor, "batch length"], keep: Tensor
) -> Float[Tensor, "batch length v"]:
    """Return the law of the less noisy state, by Bayes' rule from its law beforehand and the noisier state it led to.

    `keep` [batch] or [] is the probability that the noisier state is the same token.
    """
    keep = keep.view(-1, 1, 1)
    here = functional.one_hot(state, later.shape[-1]).to(later)
    weight = (keep * here + (1 - keep) / later.shape[-1]) * later
    return weight / weight.sum(-1, keepdim=True)


def divergence(q: Float[Tensor, "... v"], p: Float[Tensor, "... v"]) -> Float[Tensor, ...]:
    """Return KL(q || p) over the last axis."""
    return (torch.xlogy(q, q) - torch.xlogy(q, p)).sum(-1)


def true_log_ratio(
    token: Int[Tensor, "batch length"], state: Int[Tensor, "batch length"], log_odds: Tensor, vocabulary: int
) -> Float[Tensor, "batch length v"]:
    """Return `log q(j | x) - log q(z | x)` for every j, with `log_odds = log(alpha V / (1 - alpha))`."""
    height = functional.softplus(log_odds)
    level = height * functional.one_hot(token, vocabulary)
    return level - level.gather(-1, state[..., None])


def ratio_excess(
    model: Float[Tensor, "batch length v"], truth: Float[Tensor, "batch length v"], state: Int[Tensor, "batch length"]
) -> Float[Tensor, "batch length"]:
    """Return `sum over j != z of r_j (exp(u_j) - 1 - u_j)` from log-ratios: how far the model's rates are off."""
    excess = model - truth
    terms = truth.exp() * (torch.expm1(excess) - excess)
    return terms.scatter(-1, state[..., None], 0.0).sum(-1)
