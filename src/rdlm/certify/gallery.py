"""Estimators of the likelihood from the literature, each written from its published formula, with a known verdict.

An estimator maps an `Oracle` to nats per sequence, [n]. Expectations over times and noise are averages over a few
draws per sequence, stratified over time. `True` in `GALLERY` means that theory says: its expectation is an upper bound
on `-log p`. The table with the measured verdicts is docs/estimators.md, written by `rdlm certify --gallery`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.certify.oracle import Oracle
from rdlm.likelihood.estimators import forced_step
from rdlm.likelihood.terms import kernel_terms
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.path import Path, masked_path, switching_path
from rdlm.process.schedule import Geometric, uniform_in_time

Estimator = Callable[[Oracle], object]
"""Maps an oracle to nats per sequence: a value per sample, or their mean, or the mean and its standard error."""


def times_of(oracle: Oracle, times: int) -> Float[Tensor, "times n 1"]:
    """Return times in (0, 1), stratified for every sequence."""
    return ((torch.arange(times)[:, None] + oracle.uniform(times, len(oracle))) / times)[..., None]


# -- erased tokens -----------------------------------------------------------------------------------------------------


def autoregression(oracle: Oracle) -> Tensor:
    """Chain rule, left to right: `sum_i -log p(x_i | x_<i)`.

    Source: the chain rule of probability; Shannon 1948.
    """
    return oracle.surprise(oracle.left_to_right()).sum(-1)


def autoregression_peeking(oracle: Oracle) -> Tensor:
    """Chain rule with inputs shifted by one: position `i` also sees `x_{i+1}`.

    Source: an error of alignment, not a published formula.
    """
    value = torch.zeros(len(oracle))
    for i in range(oracle.length):
        hidden = torch.arange(oracle.length) >= i
        hidden[i + 1 : i + 2] = False
        value = value + oracle.surprise(oracle.erased(hidden.expand(len(oracle), -1)))[:, i]
    return value


def masked_continuous(oracle: Oracle, times: int = 24) -> Tensor:
    """Masked diffusion in continuous time: `E_s [-alpha' / (1 - alpha) sum over erased of -log p(x_i | z_s)]`.

    With `alpha = 1 - s^2`; the expectation is the same for every schedule, and this one has a finite variance.
    Source: MDLM (arXiv:2406.07524), continuous-time NELBO of a sequence; MD4 (arXiv:2406.04329), continuous-time ELBO.
    """
    s = times_of(oracle, times)
    erased = oracle.uniform(times, len(oracle), oracle.length) < s.square()
    return (oracle.surprise(oracle.erased(erased)) * erased * 2 / s).sum(-1).mean(0)


def masked_discrete(oracle: Oracle, steps: int = 16) -> Tensor:
    """Masked diffusion with `T` steps: step `i` reveals an erased token with chance `1/i`.

    Source: D3PM (arXiv:2107.03006), absorbing state; MDLM (arXiv:2406.07524), discrete-time NELBO.
    """
    i = torch.arange(1, steps + 1, dtype=torch.float64)[:, None, None]
    erased = oracle.uniform(steps, len(oracle), oracle.length) < i / steps
    return (oracle.surprise(oracle.erased(erased)) * erased / i).sum((0, -1))


def masked_one_rate(oracle: Oracle, rate: float = 0.15, draws: int = 24) -> Tensor:
    """Masked language model at one mask rate, divided by that rate: a pseudo-likelihood.

    Source: the objective of BERT (arXiv:1810.04805) read as a likelihood.
    """
    t = torch.full((draws, len(oracle), 1), rate, dtype=torch.float64)
    erased = oracle.uniform(draws, len(oracle), oracle.length) < t
    return (oracle.surprise(oracle.erased(erased)) * erased / t).sum(-1).mean(0)


def pseudo_likelihood(oracle: Oracle) -> Tensor:
    """Pseudo-log-likelihood: each token given all others, `sum_i -log p(x_i | x_-i)`.

    Source: Besag 1975; for masked language models arXiv:1910.14659, pseudo-log-likelihood score.
    """
    order = torch.arange(oracle.length)
    hidden = order == order[:, None]
    each = oracle.surprise(oracle.erased(hidden[:, None].expand(-1, len(oracle), -1)))  # [length, n, length]
    return each.diagonal(dim1=0, dim2=2).sum(-1)


def any_order(oracle: Oracle, draws: int = 8) -> Tensor:
    """Order-agnostic autoregression: the mean over random orders of the chain rule.

    Source: ARDM (arXiv:2110.02037), the bound over orders, with every step of an order evaluated.
    """
    return order_nll(oracle, draws).mean(0)


def order_nll(oracle: Oracle, draws: int) -> Float[Tensor, "draws n"]:
    """Return `-log p(x | order)` for random orders of each sequence."""
    rank = oracle.uniform(draws, len(oracle), oracle.length).argsort(-1).argsort(-1)
    value = torch.zeros(draws, len(oracle), dtype=torch.float64)
    for i in range(oracle.length):
        value += (oracle.surprise(oracle.erased(rank >= i)) * (rank == i)).sum(-1)
    return value


def importance_weighted(oracle: Oracle, draws: int = 8) -> Tensor:
    """Importance-weighted bound over orders: `-log mean_j p(x | order_j)`.

    Source: IWAE (arXiv:1509.00519), the k-sample bound, with the order as the latent variable.
    """
    return math.log(draws) - torch.logsumexp(-order_nll(oracle, draws), dim=0)


def importance_weighted_times(oracle: Oracle, draws: int = 8) -> Tensor:
    """Importance weights made of single-time estimates: `-log mean_j exp(-v_j)`, `v_j` the value at one random time.

    Source: the k-sample bound of IWAE (arXiv:1509.00519), applied to terms that are not log-ratios of paths.
    """
    t = 1 - oracle.uniform(draws, len(oracle), 1)
    erased = oracle.uniform(draws, len(oracle), oracle.length) < t
    value = (oracle.surprise(oracle.erased(erased)) * erased / t).sum(-1)
    return math.log(draws) - torch.logsumexp(-value, dim=0)


def block_diffusion(oracle: Oracle, block: int = 2, times: int = 24) -> Tensor:
    """Block diffusion: masked diffusion inside a block, given the clean blocks before it; later blocks are hidden.

    Source: BD3-LM (arXiv:2503.09573), NELBO over blocks.
    """
    index = torch.arange(oracle.length) // block
    value = torch.zeros(len(oracle), dtype=torch.float64)
    for b in range(int(index[-1]) + 1):
        s = times_of(oracle, times)
        erased = (oracle.uniform(times, len(oracle), oracle.length) < s.square()) & (index == b)
        nll = oracle.surprise(oracle.erased(erased | (index > b)))
        value += (nll * erased * 2 / s).sum(-1).mean(0)
    return value


def noisy_copies(oracle: Oracle, strength: float = 1.0, times: int = 24) -> Tensor:
    """Masked diffusion's weight, where erased positions show a noisy copy of their own token.

    Source: the weight of MDLM (arXiv:2406.07524) on states that are not erased: the information of the copy is free.
    """
    s = times_of(oracle, times)
    erased = oracle.uniform(times, len(oracle), oracle.length) < s.square()
    noise = strength**0.5 * oracle.normal(times, len(oracle), oracle.length, oracle.vocabulary)
    copy = strength * torch.eye(oracle.vocabulary, dtype=torch.float64)[oracle.tokens] + noise
    evidence = oracle.token_evidence(oracle.tokens, erased)
    log_probs = oracle.posterior(evidence + copy * erased[..., None])
    return (oracle.surprise(log_probs) * erased * 2 / s).sum(-1).mean(0)


def token_schedule_rates(oracle: Oracle, steps: int) -> tuple[Tensor, Tensor]:
    """Return the chance of every token to be erased at each of `T` levels, and to be revealed in the step from it."""
    power = torch.logspace(-1, 1, oracle.vocabulary, dtype=torch.float64)
    erased = (torch.arange(steps + 1, dtype=torch.float64)[:, None] / steps) ** power  # [steps + 1, v]
    return erased[1:], 1 - erased[:-1] / erased[1:]


def token_schedule(oracle: Oracle, steps: int = 32) -> Tensor:
    """Masked diffusion whose schedule depends on the token: to be still erased is evidence, and staying so has a cost.

    Source: MD4 (arXiv:2406.04329), state-dependent masking schedules, here in discrete time: the divergence of
    `reveal k with chance r_k` from `reveal l with chance p_l r_l`.
    """
    value = torch.zeros(len(oracle), dtype=torch.float64)
    for chance, reveal in zip(*token_schedule_rates(oracle, steps), strict=True):
        erased = oracle.uniform(len(oracle), oracle.length) < chance[oracle.tokens]
        log_probs = oracle.posterior(oracle.token_evidence(oracle.tokens, erased) + erased[..., None] * chance.log())
        own, mean = reveal[oracle.tokens], (log_probs.exp() * reveal).sum(-1)
        stay = torch.special.xlogy(1 - own, (1 - own) / (1 - mean).clamp_min(1e-300))
        value += ((own * oracle.surprise(log_probs) + stay) * erased).sum(-1)
    return value


def token_schedule_unpaid(oracle: Oracle, steps: int = 16) -> Tensor:
    """The same schedule with `T` steps, scored by the weighted cross-entropy alone: staying erased costs nothing.

    What is missing is of order 1/T where the posterior is exact, and of order 1 where it is not.
    Source: the loss of masked diffusion with the weight of a token-dependent schedule put in.
    """
    value = torch.zeros(len(oracle), dtype=torch.float64)
    for chance, reveal in zip(*token_schedule_rates(oracle, steps), strict=True):
        erased = oracle.uniform(len(oracle), oracle.length) < chance[oracle.tokens]
        log_probs = oracle.posterior(oracle.token_evidence(oracle.tokens, erased) + erased[..., None] * chance.log())
        own, stay = reveal[oracle.tokens], 0.0
        value += ((own * oracle.surprise(log_probs) + stay) * erased).sum(-1)
    return value


def partial_masking_marginal(oracle: Oracle, times: int = 24) -> Tensor:
    """Partial masking of base-2 digits, scored by each erased digit's marginal.

    Source: MDM-Prime (arXiv:2505.18495), the bound over sub-tokens, with `p` the marginals of the erased digits.
    """
    code, s = oracle.digit_table(), times_of(oracle, times)
    erased = oracle.uniform(times, len(oracle), oracle.length, code.shape[1]) < s.square()[..., None]
    probability = oracle.digits(erased).exp()  # [times, n, length, v]
    same = (code[oracle.tokens][:, :, None] == code).double()  # [n, length, v, m]
    marginal = (probability[..., None] * same).sum(-2)  # of the true digit
    return ((-marginal.log() * erased).sum(-1) * 2 / s).sum(-1).mean(0)


def partial_masking_joint(oracle: Oracle, times: int = 24) -> Tensor:
    """Partial masking of base-2 digits, scored by the joint posterior of a token's erased digits.

    Source: MDM-Prime (arXiv:2505.18495), the bound over sub-tokens, with `p` the joint of a token's digits.
    """
    code, s = oracle.digit_table(), times_of(oracle, times)
    erased = oracle.uniform(times, len(oracle), oracle.length, code.shape[1]) < s.square()[..., None]
    nll = oracle.surprise(oracle.digits(erased))  # 0 where no digit is erased
    return (nll * 2 / s).sum(-1).mean(0)


# -- uniform corruption ------------------------------------------------------------------------------------------------


def corrupt(oracle: Oracle, keep: Float[Tensor, "times n 1"]) -> Int[Tensor, "times n length"]:
    """Return the samples with each token kept with chance `keep`, else replaced by a uniform one."""
    shape = (len(keep), len(oracle), oracle.length)
    other = (oracle.uniform(*shape) * oracle.vocabulary).long()
    return torch.where(oracle.uniform(*shape) < keep, oracle.tokens, other)


def uniform_discrete(oracle: Oracle, steps: int = 24) -> Tensor:
    """Uniform diffusion with `T` steps: the divergence of `q(z_s | z_t, x)` from its mean over the posterior.

    Source: D3PM (arXiv:2107.03006), uniform transitions; multinomial diffusion (arXiv:2102.05379), its KL terms.
    """
    v, eye = oracle.vocabulary, torch.eye(oracle.vocabulary, dtype=torch.float64)
    value = torch.zeros(len(oracle), dtype=torch.float64)
    for i in range(1, steps + 1):
        after, before = 1 - i / steps, 1 - (i - 1) / steps  # chances to be kept at t and at s
        z = corrupt(oracle, torch.full((1, len(oracle), 1), after))[0]
        forward = after / before * eye[z] + (1 - after / before) / v  # q(z_t | z_s), [n, length, z_s]
        law = forward[..., None, :] * (before * eye + (1 - before) / v)  # [n, length, x, z_s]
        law = law / law.sum(-1, keepdim=True)
        own = law.gather(-2, oracle.tokens[..., None, None].expand(*z.shape, 1, v))[..., 0, :]
        model = (oracle.corrupted(z, after).exp()[..., None] * law).sum(-2)
        value += (torch.special.xlogy(own, own) - torch.special.xlogy(own, model)).sum((-1, -2))
    return value


def corrupted_states(oracle: Oracle, times: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return times `s`, samples `z` corrupted with `alpha = 1 - s^2`, their posteriors, and the law of corruption.

    The law is `q(j | l) = alpha [j = l] + (1 - alpha) / V`, [times, n, 1, l, j]; times V it is `x bar`.
    """
    s = times_of(oracle, times)
    z = corrupt(oracle, 1 - s.square())
    keep, eye = (1 - s.square())[..., None, None], torch.eye(oracle.vocabulary, dtype=torch.float64)
    return s, z, oracle.corrupted(z, 1 - s.square()).exp(), keep * eye + (1 - keep) / oracle.vocabulary


def jump_divergence(rate: Tensor, model: Tensor) -> Tensor:
    """Return `sum_j model_j - rate_j + rate_j log(rate_j / model_j)`, the divergence of two jump processes per time."""
    divergence: Tensor = (model - rate + torch.special.xlogy(rate, rate / model)).sum(-1)
    return divergence


def jump_ratio(law: Float[Tensor, "... j"], z: Int[Tensor, ...]) -> Float[Tensor, "... j"]:
    """Return `law_j / law_z`, to which the rate of the reverse jump from `z` to `j` is proportional."""
    return law / law.gather(-1, z[..., None])


def uniform_continuous(oracle: Oracle, times: int = 48) -> Tensor:
    """Uniform diffusion in continuous time, with the jump rates of a predicted token.

    Source: UDLM (arXiv:2412.10193), continuous-time NELBO for uniform noise. Its minimum over predictions is not the
    posterior but the posterior over `q(z | l)`, normalised: the law given the other positions, which is used here.
    """
    s, z, posterior, law = corrupted_states(oracle, times)
    prediction = (
        posterior / law.expand(*z.shape, -1, -1).gather(-1, z[..., None, None].expand_as(posterior[..., None]))[..., 0]
    )
    prediction = prediction / prediction.sum(-1, keepdim=True)
    mean = (1 - s.square())[..., None] * prediction + s.square()[..., None] / oracle.vocabulary
    true = jump_ratio(own_law(oracle, law, z), z)
    rate = 2 * s / (oracle.vocabulary * (1 - s.square()))  # -alpha' / (V alpha)
    return (rate * jump_divergence(true, jump_ratio(mean, z))).sum(-1).mean(0)


def own_law(oracle: Oracle, law: Tensor, z: Tensor) -> Float[Tensor, "times n length j"]:
    """Return the law of corruption of the true tokens."""
    index = oracle.tokens[..., None, None].expand(*z.shape, 1, oracle.vocabulary)
    return law.expand(*z.shape, -1, -1).gather(-2, index)[..., 0, :]


def score_entropy_uniform(oracle: Oracle, times: int = 48) -> Tensor:
    """Score entropy with uniform transitions; the score is the mean ratio.

    Source: SEDD (arXiv:2310.16834), Thm. 3.6 (diffusion-weighted denoising score entropy).
    """
    s, z, posterior, law = corrupted_states(oracle, times)
    ratio = jump_ratio(law.expand(*z.shape, -1, -1), z[..., None].expand(*z.shape, oracle.vocabulary))
    score = (posterior[..., None] * ratio).sum(-2)
    true = jump_ratio(own_law(oracle, law, z), z)
    rate = 2 * s / (oracle.vocabulary * (1 - s.square()))
    return (rate * jump_divergence(true, score)).sum(-1).mean(0)


def score_entropy_absorbing(oracle: Oracle, times: int = 24) -> Tensor:
    """Score entropy with an absorbing state: ratios `p(token) / p(mask)` at erased positions.

    Source: SEDD (arXiv:2310.16834), Thm. 3.6, with the absorbing transitions of its Sec. 3.3.
    """
    s = times_of(oracle, times)
    erased = oracle.uniform(times, len(oracle), oracle.length) < s.square()
    odds = (1 / s.square() - 1)[..., None]
    score = odds * oracle.erased(erased).exp().clamp_min(1e-300)
    ratio = odds * torch.eye(oracle.vocabulary, dtype=torch.float64)[oracle.tokens]
    return (jump_divergence(ratio, score) * erased * 2 * s / (1 - s.square())).sum(-1).mean(0)


# -- Gaussian observations ---------------------------------------------------------------------------------------------


def bfn_state(oracle: Oracle, beta: Tensor) -> Float[Tensor, "times n length v"]:
    """Return `y ~ N(beta (V e_k - 1), beta V)`, the evidence of a Bayesian flow network at accuracy `beta`."""
    v = oracle.vocabulary
    noise = oracle.normal(len(beta), len(oracle), oracle.length, v)
    mean = v * torch.eye(v, dtype=torch.float64)[oracle.tokens] - 1
    return beta[..., None] * mean + (beta[..., None] * v).sqrt() * noise


def bfn_continuous(oracle: Oracle, accuracy: float = 0.75, times: int = 48) -> Tensor:
    """Bayesian flow network in continuous time: `V b E_t [t |e_k - p|^2]` and the reconstruction term.

    Source: BFN (arXiv:2308.07037), discrete data: continuous-time loss and reconstruction loss, `beta(t) = b t^2`.
    """
    t = times_of(oracle, times)
    probability = oracle.posterior(bfn_state(oracle, accuracy * t.square())).exp()
    error = (torch.eye(oracle.vocabulary, dtype=torch.float64)[oracle.tokens] - probability).square().sum((-1, -2))
    final = oracle.posterior(bfn_state(oracle, accuracy * torch.ones(1, len(oracle), 1)))
    return (oracle.vocabulary * accuracy * t[..., 0] * error).mean(0) + oracle.surprise(final).sum(-1)[0]


def bfn_unreconstructed(oracle: Oracle, accuracy: float = 0.75, times: int = 48) -> Tensor:
    """The same integral without the reconstruction term.

    Source: BFN (arXiv:2308.07037), the continuous-time loss alone, which is a part of the bound.
    """
    t = times_of(oracle, times)
    probability = oracle.posterior(bfn_state(oracle, accuracy * t.square())).exp()
    error = (torch.eye(oracle.vocabulary, dtype=torch.float64)[oracle.tokens] - probability).square().sum((-1, -2))
    final = 0.0
    return (oracle.vocabulary * accuracy * t[..., 0] * error).mean(0) + final


def bfn_steps(oracle: Oracle, accuracy: float = 0.75, steps: int = 10) -> Tensor:
    """Bayesian flow network with `n` steps: the sender's density against the receiver's mixture, and reconstruction.

    Source: BFN (arXiv:2308.07037), discrete data: n-step loss, one draw of `y` per step, and reconstruction loss.
    """
    v, eye = oracle.vocabulary, torch.eye(oracle.vocabulary, dtype=torch.float64)
    state = torch.zeros(len(oracle), oracle.length, v, dtype=torch.float64)
    value = torch.zeros(len(oracle), dtype=torch.float64)
    for i in range(1, steps + 1):
        alpha = torch.full((1, len(oracle), 1), accuracy * (2 * i - 1) / steps**2, dtype=torch.float64)
        y = bfn_state(oracle, alpha)[0]
        # log N(y | alpha (V e_l - 1), alpha V) is y_l up to a constant
        receiver = torch.logsumexp(oracle.posterior(state) + y, dim=-1)
        value += ((y * eye[oracle.tokens]).sum(-1) - receiver).sum(-1)
        state = state + y
    return value + oracle.surprise(oracle.posterior(state)).sum(-1)


def plaid(oracle: Oracle, times: int = 48, low: float = -3.0, high: float = 6.0) -> Tensor:
    """Gaussian diffusion of embeddings: prior term, reconstruction, and the integral of squared errors.

    Source: VDM (arXiv:2107.00630), prior, reconstruction and diffusion loss; Plaid (arXiv:2305.18619), with unit
    embeddings, here fixed ones.
    """
    codes = torch.randn(oracle.vocabulary, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    codes = torch.nn.functional.normalize(codes, dim=-1)
    clean = codes[oracle.tokens]  # [n, length, 4]

    def denoise(g: Tensor) -> tuple[Tensor, Tensor]:
        scale, std = torch.sigmoid(-g).sqrt()[..., None], torch.sigmoid(g).sqrt()[..., None]
        x = scale * clean + std * oracle.normal(len(g), *clean.shape)
        log_probs = oracle.gaussian(x, scale, std, codes)
        return log_probs, (clean - log_probs.exp() @ codes).square().sum((-1, -2))

    g = low + (high - low) * times_of(oracle, times)
    diffusion = ((high - low) / 2 * (-g[..., 0]).exp() * denoise(g)[1]).mean(0)
    reconstruction = oracle.surprise(denoise(torch.full((1, len(oracle), 1), low, dtype=torch.float64))[0])[0].sum(-1)
    noise = 1 / (1 + math.exp(-high))  # sigma^2 at the end
    prior = oracle.length * (4 * (noise - 1 - math.log(noise)) + 1 - noise) / 2
    return diffusion + reconstruction + prior


# -- probability flow of one-hot vectors -------------------------------------------------------------------------------

LAST_TIME = 0.75
"""Time at which a flow ends and a token is drawn from the posterior."""

Divergence = Callable[[Oracle, Tensor, float], tuple[Tensor, Tensor]]
"""Maps a state and its time to the mean of the posterior and the trace of its Jacobian (or an estimate of it)."""


def flow_nll(oracle: Oracle, divergence: Divergence, steps: int = 24) -> Tensor:
    """Return `log q(y | x) - log p(y) - log p(x | y)`, `y` the flow's state at its last time and `p(y)` its density.

    The flow is `dx/dt = (E[e | x] - x) / (1 - t)` of the path `(1 - t) noise + t e`; it is solved backwards by the
    classical Runge-Kutta method together with the integral of its divergence (instantaneous change of variables,
    arXiv:1806.07366, Thm. 1). Without the two other terms a density would be compared with a probability.
    """
    v, eye = oracle.vocabulary, torch.eye(oracle.vocabulary, dtype=torch.float64)
    noise = oracle.normal(len(oracle), oracle.length, v)
    x = LAST_TIME * eye[oracle.tokens] + (1 - LAST_TIME) * noise
    decode = oracle.surprise(oracle.gaussian(x, LAST_TIME, 1 - LAST_TIME)).sum(-1)
    given = -(noise.square() / 2 + math.log(1 - LAST_TIME)).sum((-1, -2))  # log q(y | x), without 2 pi

    def slope(x: Tensor, t: float) -> tuple[Tensor, Tensor]:
        mean, trace = divergence(oracle, x, t)
        return (mean - x) / (1 - t), (trace - oracle.length * v) / (1 - t)

    gained, h = torch.zeros(len(oracle), dtype=torch.float64), -LAST_TIME / steps
    for i in range(steps):
        t = LAST_TIME + i * h
        k1, d1 = slope(x, t)
        k2, d2 = slope(x + h / 2 * k1, t + h / 2)
        k3, d3 = slope(x + h / 2 * k2, t + h / 2)
        k4, d4 = slope(x + h * k3, t + h)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        gained = gained - h / 6 * (d1 + 2 * d2 + 2 * d3 + d4)
    density = -(x.square() / 2).sum((-1, -2)) - gained
    return given - density + decode


def exact_trace(oracle: Oracle, x: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """Return the posterior mean and its Jacobian's trace: `d p_k / d evidence_k = p_k (1 - p_k)`."""
    mean = oracle.gaussian(x, t, 1 - t).exp()
    return mean, t / (1 - t) ** 2 * (mean * (1 - mean)).sum((-1, -2))


def ode_exact(oracle: Oracle) -> Tensor:
    """Likelihood of the probability-flow ODE with the exact divergence, and a decoder at its end.

    Source: score-based SDEs (arXiv:2011.13456), likelihood by the probability-flow ODE; decoder at its end as in
    variational dequantisation (arXiv:1902.00275).
    """
    return flow_nll(oracle, exact_trace)


def ode_hutchinson(oracle: Oracle, draws: int = 10) -> Tensor:
    """The same with Hutchinson's estimate of the divergence, `E[w . (J w)]`, `w` random signs.

    Source: FFJORD (arXiv:1810.01367), unbiased log-density; score-based SDEs (arXiv:2011.13456), Skilling-Hutchinson.
    """
    shape = (draws, len(oracle), oracle.length, oracle.vocabulary)
    signs = (oracle.uniform(*shape) < 0.5).double() * 2 - 1

    def divergence(oracle: Oracle, x: Tensor, t: float) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        mean = oracle.gaussian(x, t, 1 - t).exp()
        products = [torch.autograd.grad(mean, x, sign, retain_graph=True)[0] for sign in signs]
        return mean.detach(), (signs * torch.stack(products)).sum((-1, -2)).mean(0)

    return flow_nll(oracle, divergence)


def two_passes(oracle: Oracle, x: Tensor, t: float, first: Tensor) -> Tensor:
    """Return a self-conditioned prediction: the mean of this pass and of the first one, which it is given."""
    return (oracle.gaussian(x, t, 1 - t).exp() + first) / 2


def ode_self_conditioned(oracle: Oracle) -> Tensor:
    """ODE likelihood of a self-conditioned network, with the divergence of both passes.

    Source: self-conditioning of Analog Bits (arXiv:2208.04202) in the ODE likelihood of arXiv:2011.13456.
    """

    def divergence(oracle: Oracle, x: Tensor, t: float) -> tuple[Tensor, Tensor]:
        first, trace = exact_trace(oracle, x, t)
        second = exact_trace(oracle, x, t)[1]
        return two_passes(oracle, x, t, first), (trace + second) / 2

    return flow_nll(oracle, divergence)


def ode_cut(oracle: Oracle) -> Tensor:
    """ODE likelihood of a self-conditioned network whose first pass is detached: its part of the divergence is cut.

    Source: the same formulas, with the stop-gradient of training left in place for the likelihood.
    """

    def divergence(oracle: Oracle, x: Tensor, t: float) -> tuple[Tensor, Tensor]:
        first, trace = exact_trace(oracle, x, t)
        second = exact_trace(oracle, x, t)[1]
        trace = torch.zeros_like(trace)  # a detached prediction has no derivative
        return two_passes(oracle, x, t, first), (trace + second) / 2

    return flow_nll(oracle, divergence)


# -- bridges of the sphere ---------------------------------------------------------------------------------------------


def sphere_terms(oracle: Oracle, path: Path, kernel: Kernel, steps: int) -> tuple[Chain, Float[Tensor, "nfe n"]]:
    """Return a chain of `steps` network evaluations, and the terms of its bound along one path per sequence."""
    chain, token = Chain(path, uniform_in_time(Geometric(), steps), kernel), oracle.tokens
    state = path.bridge.start.point(torch.float64, token.device).repeat(*token.shape, 1)
    terms = []
    for step in range(chain.nfe):
        local = torch.full_like(token, step)
        log_probs = oracle.sphere(state, chain.grid.remaining[local])
        after, term = forced_step(chain, state, token, local, log_probs, oracle.generator)
        if kernel == "drift" and step not in (chain.switch, chain.nfe - 1):  # in closed form, with less variance
            term = kernel_terms(chain, state, token, local, log_probs, oracle.generator)
        terms.append(term.sum(-1))
        state = after
    return chain, torch.stack(terms)


def sphere_mixture(oracle: Oracle, steps: int = 16) -> Tensor:
    """Brownian bridges of the sphere with the mixture kernel, at `M` steps.

    Source: docs/theory.md, Eqs. (29) and (30).
    """
    path = masked_path(oracle.vocabulary, Geometric().total)
    return sphere_terms(oracle, path, "mixture", steps)[1].sum(0)


def sphere_drift(oracle: Oracle, steps: int = 24) -> Tensor:
    """Bridges of the sphere with the drift kernel, at `M` steps.

    Source: docs/theory.md, Eqs. (28) and (30); in the limit of many steps RDLM (arXiv:2502.11564), Sec. 3.3.
    """
    path = masked_path(oracle.vocabulary, Geometric().total, "logarithm")
    return sphere_terms(oracle, path, "drift", steps)[1].sum(0)


def sphere_spliced(oracle: Oracle, steps: int = 32, switch: float = 0.35) -> Tensor:
    """The drift integral of two paths, one before and one after a switch, without a term for the switch.

    Source: RDLM (arXiv:2502.11564), Sec. 3.2, mixture paths with a step as schedule; docs/theory.md, Eq. (33).
    """
    schedule = Geometric()
    path = switching_path(oracle.vocabulary, schedule.total, float(schedule.remaining(switch)), "logarithm")
    chain, terms = sphere_terms(oracle, path, "drift", steps)
    unpaid = [chain.switch, chain.nfe - 1]  # neither the switch nor the decode step
    terms[unpaid] = 0
    return terms.sum(0)


GALLERY: dict[Estimator, bool] = {
    autoregression: True,
    autoregression_peeking: False,
    any_order: True,
    importance_weighted: True,
    importance_weighted_times: False,
    masked_continuous: True,
    masked_discrete: True,
    masked_one_rate: False,
    pseudo_likelihood: False,
    noisy_copies: False,
    block_diffusion: True,
    token_schedule: True,
    token_schedule_unpaid: False,
    partial_masking_marginal: True,
    partial_masking_joint: False,
    uniform_discrete: True,
    uniform_continuous: True,
    score_entropy_uniform: True,
    score_entropy_absorbing: True,
    bfn_steps: True,
    bfn_continuous: True,
    bfn_unreconstructed: False,
    plaid: True,
    ode_exact: True,
    ode_hutchinson: True,
    ode_self_conditioned: True,
    ode_cut: False,
    sphere_mixture: True,
    sphere_drift: True,
    sphere_spliced: False,
}
"""Every estimator, and whether it is a bound."""
