"""The options of methods other than rdlm, one frozen dataclass each, as sections of the configuration of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rdlm.errors import InputError

MethodName = Literal[
    "rdlm",
    "mdlm",
    "udlm",
    "sedd",
    "autoregressive",
    "fisher_flow",
    "ardm",
    "mac",
    "d3pm",
    "multinomial",
    "bfn",
    "bit_diffusion",
    "block_diffusion",
    "diffusion_bert",
    "bert_mouth",
    "tau_ldr",
    "plaid",
    "diffusion_lm",
    "dirichlet_flow",
]
"""Names of the methods; `rdlm.methods.METHODS` has the class of each."""


def check_within(name: str, value: float, low: float, high: float) -> None:
    """Raise InputError unless a value lies in an interval."""
    if not low <= value <= high:
        raise InputError(f"{name} must lie in [{low:g}, {high:g}], got {value:g}")


@dataclass(frozen=True)
class DiscreteConfig:
    """The discrete baselines: mdlm, udlm and sedd."""

    schedule: Literal["log_linear", "cosine"] = "log_linear"
    """Schedule of the probability that a token is not corrupted."""
    graph: Literal["absorb", "uniform"] = "absorb"
    """Transition graph of sedd: to the mask, or to any token."""
    order: Literal["random", "strided"] = "random"
    """Tokens that mdlm reveals in one call: random ones, as in the literature, or tokens that are far apart."""
    stride: int = 25
    """Distance of consecutive positions in the canonical order of mac."""
    block: int = 16
    """Tokens of a block of block_diffusion."""
    spindle: float = 0.3
    """How much earlier diffusion_bert reveals frequent tokens than rare ones; 0: all alike."""

    def __post_init__(self) -> None:
        if self.order == "strided" and self.schedule != "log_linear":
            raise InputError("discrete.order strided needs discrete.schedule log_linear: equally many tokens per call")
        check_within("discrete.stride", self.stride, 1, 1 << 24)
        check_within("discrete.block", self.block, 1, 1 << 24)
        check_within("discrete.spindle", self.spindle, 0, 0.318)  # below 1 / pi, tokens are never masked again


@dataclass(frozen=True)
class D3PMConfig:
    """The baseline d3pm: discrete diffusion in T steps; multinomial has the steps alone."""

    matrix: Literal["uniform", "absorbing", "gauss"] = "uniform"
    """Transitions of the forward process: to any token, to the mask, or to tokens with near numbers (for pixels)."""
    steps: int = 1000
    """Steps T of the forward process; fewer steps in sampling use every (T/M)-th level."""
    hybrid: float = 0.001
    """Weight of the cross-entropy of the predicted tokens beside the divergence of a step; 0: the bound alone."""
    head: Literal["logits", "logistic"] = "logits"
    """Output: a logit per token, or location and scale of a logistic distribution over ordered tokens."""
    betas: tuple[float, float] = (1e-4, 0.02)
    """First and last noise of the matrix gauss, for 1000 steps; few tokens need more."""

    def __post_init__(self) -> None:
        check_within("d3pm.steps", self.steps, 1, 1 << 20)
        check_within("d3pm.hybrid", self.hybrid, 0, 1e3)
        if not min(self.betas) > 0:
            raise InputError(f"d3pm.betas must be positive, got {self.betas}")


@dataclass(frozen=True)
class BFNConfig:
    """The baseline bfn: Bayesian flow networks."""

    accuracy: float = 0.5625
    """Accuracy b of all observations together, times the vocabulary the strength of the Gaussian channel."""
    steps: int = 0
    """Steps n of the training loss; 0: continuous time."""

    def __post_init__(self) -> None:
        check_within("bfn.accuracy", self.accuracy, 1e-6, 1e6)
        check_within("bfn.steps", self.steps, 0, 1 << 20)


@dataclass(frozen=True)
class BitDiffusionConfig:
    """The baseline bit_diffusion: Gaussian diffusion of the bits of a token's number."""

    codes: Literal["bits", "onehot"] = "bits"
    """Vector of a token: the bits of its number, or one coordinate per token, as -1 and 1."""
    head: Literal["bit", "token"] = "bit"
    """Output: a logit per coordinate, or one per token."""
    loss: Literal["squared_error", "cross_entropy"] = "squared_error"
    """Loss of the predicted vector, as in the paper, or of the predicted token."""


@dataclass(frozen=True)
class PlaidConfig:
    """The baselines plaid and diffusion_lm: Gaussian diffusion of learned vectors."""

    dimension: int = 16
    """Coordinates of a token's vector."""

    def __post_init__(self) -> None:
        check_within("plaid.dimension", self.dimension, 3, 1 << 16)


@dataclass(frozen=True)
class TauLDRConfig:
    """The baseline tau_ldr: a continuous-time Markov chain with tau-leaping."""

    rates: Literal["uniform", "gauss"] = "uniform"
    """Jumps to any token, or to tokens with near numbers (for pixels)."""
    corrector: int = 0
    """Corrector leaps after each leap of the sampler; each is a network evaluation."""
    corrector_step: float = 1.5
    """Size of a corrector leap, in units of the leap before it."""

    def __post_init__(self) -> None:
        check_within("tau_ldr.corrector", self.corrector, 0, 1000)
        check_within("tau_ldr.corrector_step", self.corrector_step, 0, 100)


@dataclass(frozen=True)
class DirichletFlowConfig:
    """The baseline dirichlet_flow: flow matching on the simplex."""

    last: float = 8.0
    """Concentration a at which tokens are decoded."""
    evidence: bool = True
    """Add the exact log-likelihood of a position's own point to its logits; --no-evidence: do not."""
    divergence: Literal["exact", "hutchinson"] = "hutchinson"
    """Trace of the Jacobian: exact, with one backward pass per coordinate, or Hutchinson's estimator."""

    def __post_init__(self) -> None:
        check_within("dirichlet_flow.last", self.last, 1.1, 1000)


@dataclass(frozen=True)
class FisherFlowConfig:
    """The baseline fisher_flow: flow matching on the statistical manifold."""

    predict: Literal["posterior", "velocity"] = "posterior"
    """The network predicts the token (cross-entropy) or the velocity (squared error)."""
    origin: Literal["orthant", "sphere"] = "orthant"
    """Uniform prior on the positive orthant, or on the whole sphere, which has no boundary."""
    cut: float = 0.1
    """Remaining time at which the nearest vertex is decoded; below 1/4 it is never the wrong one."""
    divergence: Literal["exact", "hutchinson"] = "hutchinson"
    """Trace of the Jacobian: exact, with one backward pass per coordinate, or Hutchinson's estimator."""

    def __post_init__(self) -> None:
        check_within("fisher_flow.cut", self.cut, 1e-4, 0.24)
