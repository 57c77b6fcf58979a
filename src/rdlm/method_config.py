"""Options of networks and of the baselines: sections of the configuration of a run, one frozen dataclass each."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
    "ddsm",
]
"""Names of the methods; `rdlm.methods.METHODS` has the class of each."""


def check_within(name: str, value: float, low: float, high: float) -> None:
    """Raise InputError unless a value lies in an interval."""
    if not low <= value <= high:
        raise InputError(f"{name} must lie in [{low:g}, {high:g}], got {value:g}")


@dataclass(frozen=True)
class DiscreteConfig:
    """The discrete baselines mdlm, udlm and sedd."""

    schedule: Literal["log_linear", "cosine"] = "log_linear"
    """Schedule of the probability that a token is not corrupted."""
    graph: Literal["absorb", "uniform"] = "absorb"
    """Transition graph of sedd: to the mask, or to any token."""
    order: Literal["random", "strided"] = "random"
    """Tokens that mdlm reveals in one call: random, as in the literature, or strided, which are far apart."""
    stride: int = 25
    """Distance of consecutive positions in the canonical order of mac."""
    block: int = 16
    """Tokens of a block of block_diffusion."""
    spindle: float = 0.3
    """Strength of diffusion_bert's schedule, which reveals frequent tokens before rare ones; 0: one schedule for
    all."""

    def __post_init__(self) -> None:
        if self.order == "strided" and self.schedule != "log_linear":
            raise InputError("discrete.order strided needs discrete.schedule log_linear: equally many tokens per call")
        check_within("discrete.stride", self.stride, 1, 1 << 24)
        check_within("discrete.block", self.block, 1, 1 << 24)
        check_within("discrete.spindle", self.spindle, 0, 0.318)  # below 1 / pi, tokens are never masked again


@dataclass(frozen=True)
class D3PMConfig:
    """The baseline d3pm: discrete diffusion in T steps; multinomial uses only the number of steps."""

    matrix: Literal["uniform", "absorbing", "gauss"] = "uniform"
    """Transitions of the forward process: to any token, to the mask, or to tokens with near numbers (for pixels)."""
    steps: int = 1000
    """Steps T of the forward process; fewer steps in sampling use every (T/M)-th level."""
    hybrid: float = 0.001
    """Weight of the cross-entropy of the predicted tokens, added to the divergence of a step; 0: the bound alone."""
    head: Literal["logits", "logistic"] = "logits"
    """Output: a logit per token, or location and scale of a logistic distribution over ordered tokens."""
    betas: tuple[float, float] = (1e-4, 0.02)
    """First and last noise of the matrix gauss, for 1000 steps; small vocabularies need more."""

    def __post_init__(self) -> None:
        check_within("d3pm.steps", self.steps, 1, 1 << 20)
        check_within("d3pm.hybrid", self.hybrid, 0, 1e3)
        if not min(self.betas) > 0:
            raise InputError(f"d3pm.betas must be positive, got {self.betas}")


@dataclass(frozen=True)
class BFNConfig:
    """The baseline bfn: Bayesian flow networks."""

    accuracy: float = 0.5625
    """Total accuracy b of the observations; b times the vocabulary size is the strength of the Gaussian channel."""
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
    ahead: float = 0.0
    """Asymmetric time intervals of the sampler: number of steps by which states are ahead of the network's time input.
    Values above 0 can help with few calls; the likelihood is then an estimate."""

    def __post_init__(self) -> None:
        check_within("bit_diffusion.ahead", self.ahead, 0, 100)


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


# -- networks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interface:
    """Inputs and outputs of a network at each position, as given by the data and the layout."""

    features: int
    """Width of the input features, or the number of ids if the input is ids."""
    outputs: int
    """Number of logits per position."""
    digits: int = 1
    """Digits per token in the serial layout, in which position i has digit i mod digits; 1: no digit index."""
    classes: int = 0
    """Number of class labels to condition on; 0: none."""
    signal: int = 0
    """Width of the per-position conditioning signal; 0: none."""
    scale: float = 1.0
    """Norm of the feature vector of a known token; 1 for ids and one-hot vectors."""
    timed: bool = True
    """Whether the time is an input; without it the modulation of the layers is a learned constant per class."""
    weights: int = 0
    """How many of the logits are those of no token: weights of an inference layer, behind the others."""

    def __post_init__(self) -> None:
        _at_least(self, {"features": 1, "outputs": 1, "digits": 1, "classes": 0, "signal": 0})
        if self.classes and self.signal:
            raise InputError("a network is conditioned on classes or on a signal, not on both")


@dataclass(frozen=True, kw_only=True)
class BeliefConfig:
    """The inference layer below a network: exact posteriors under a small Markov chain."""

    belief: Literal["none", "ngram", "bigram", "hmm"] = "none"
    """Inference layer: none; an n-gram model of the training data; its frequent pairs, for large vocabularies; or a
    hidden Markov model, trained jointly."""
    order: int = 6
    """Order of the n-gram model: a symbol depends on up to `order - 1` symbols before it."""
    states: int | None = None
    """States of the chain: contexts of the n-gram model (by default 16384), pairs of the bigram model (262144), or
    hidden states (256)."""
    belief_input: bool = False
    """Use the posterior of the inference layer as a second input of the network; otherwise it is only added to the
    logits."""
    network_class: str | None = None
    """Your own network, as module:Class, built like rdlm's from the model's options; needs --trust."""

    @property
    def chain_states(self) -> int:
        """The number of states of the chain; of a bigram model the number of pairs."""
        return self.states or {"none": 0, "ngram": 16384, "bigram": 262144, "hmm": 256}[self.belief]


@dataclass(frozen=True)
class TransformerConfig(BeliefConfig):
    """The diffusion transformer; the defaults are a small network for two cores."""

    width: int = 256
    """Width of the residual stream."""
    layers: int = 6
    """Number of transformer blocks."""
    heads: int = 4
    """Number of attention heads; width / heads must be even for the rotary positions."""
    mlp_ratio: int = 4
    """Width of the hidden layer of each MLP, in units of the width."""
    time_width: int = 16
    """Width of the time and class embedding from which the modulation of every block is computed."""
    time_scale: float = 1000.0
    """Radians per unit of time of the fastest sinusoid of the time embedding, Eq. (44)."""
    dropout: float = 0.0
    """Probability of dropping an element of a block's output during training."""
    tie: bool = False
    """Tie the output matrix to the input matrix (needs outputs <= features)."""
    causal: bool = False
    """Causal attention: a position attends to itself and earlier positions."""
    self_condition: bool = False
    """Self-conditioning: the previous prediction is a second input."""
    places: int = 0
    """Positions with a learned embedding, such as all pixels of an image; 0: none, as for text."""
    frequencies: bool = False
    """Initialise the output bias at the log-frequencies of the tokens; saves steps for large vocabularies."""

    def __post_init__(self) -> None:
        _at_least(self, {"width": 2, "layers": 1, "heads": 1, "mlp_ratio": 1, "time_width": 1, "places": 0})
        _positive_scale_and_probability(self.time_scale, self.dropout)
        _check_belief(self)
        if self.width % (2 * self.heads):
            raise InputError(
                f"width {self.width} is not a multiple of 2 * heads = {2 * self.heads}: "
                "rotary embeddings need heads of equal and even width"
            )


MOST_DILATION = 1 << 20
"""Largest dilation of a convolution: that of the longest sequence."""


@dataclass(frozen=True)
class ConvolutionConfig(BeliefConfig):
    """The one-dimensional dilated convolution network of the promoter task; the defaults are the paper's."""

    width: int = 256
    """Number of channels."""
    stacks: int = 4
    """Repetitions of the cycle of dilations; layers = stacks * len(dilations)."""
    dilations: tuple[int, ...] = (1, 1, 4, 16, 64)
    """Dilations of one cycle of layers."""
    kernel: int = 9
    """Kernel size of the dilated convolutions; odd."""
    time_scale: float = 1000.0
    """Radians per unit of time of the fastest sinusoid of the time embedding, Eq. (44)."""
    dropout: float = 0.0
    """Probability of dropping an element of a layer's input during training."""
    self_condition: bool = False
    """Self-conditioning: the previous prediction is a second input."""

    def __post_init__(self) -> None:
        _at_least(self, {"width": 1, "stacks": 1, "kernel": 1})
        _positive_scale_and_probability(self.time_scale, self.dropout)
        _check_belief(self)
        if self.kernel % 2 == 0:
            raise InputError(f"kernel {self.kernel} must be odd, so that input and output have equal length")
        if not self.dilations or not all(1 <= dilation <= MOST_DILATION for dilation in self.dilations):
            raise InputError(f"dilations {self.dilations} must be one or more integers from 1 to {MOST_DILATION}")


@dataclass(frozen=True)
class Convolution2DConfig(BeliefConfig):
    """Two-dimensional convolutions over patches of an image with levels as tokens; the defaults are for CIFAR-10."""

    image: tuple[int, int, int] = (32, 32, 3)
    """Height, width and channels; a sequence has their product of tokens, in this order."""
    width: int = 160
    """Number of channels of the residual stream."""
    layers: int = 8
    """Number of residual blocks."""
    kernel: int = 5
    """Kernel size of the depthwise convolution of a block; odd."""
    expansion: int = 2
    """Width of the hidden layer of a block, in units of the width."""
    patch: int = 2
    """Side of the square of pixels that shares a position of the convolutions."""
    rank: int = 8
    """Outputs per token from which a correction of the level distribution is computed; 0: none."""
    time_scale: float = 1000.0
    """Radians per unit of time of the fastest sinusoid of the time embedding, Eq. (44)."""
    dropout: float = 0.0
    """Probability of dropping an element of a block's output during training."""
    causal: bool = False
    """Causal convolutions: a token depends on itself and on earlier ones, in rows; patches are single tokens."""
    self_condition: bool = False
    """Not supported by this network."""

    def __post_init__(self) -> None:
        _at_least(self, {"width": 1, "layers": 1, "kernel": 1, "expansion": 1, "patch": 1, "rank": 0})
        _positive_scale_and_probability(self.time_scale, self.dropout)
        if self.kernel % 2 == 0:
            raise InputError(f"kernel {self.kernel} must be odd, so that input and output have equal size")
        if min(self.image) < 1 or self.image[0] % self.patch or self.image[1] % self.patch:
            raise InputError(
                f"model.image {self.image} must be a height and width in multiples of model.patch {self.patch}"
            )
        if self.belief != "none" or self.self_condition:
            raise InputError("convolution2d has neither model.belief nor model.self_condition")


NetworkConfig = TransformerConfig | ConvolutionConfig | Convolution2DConfig


def _at_least(config: Interface | NetworkConfig, lowest: dict[str, int]) -> None:
    for entry in fields(config):
        value = getattr(config, entry.name)
        if entry.name in lowest and value < lowest[entry.name]:
            raise InputError(f"{entry.name} {value} must be at least {lowest[entry.name]}")


def _positive_scale_and_probability(time_scale: float, dropout: float) -> None:
    if not time_scale > 0:
        raise InputError(f"time_scale {time_scale} must be positive")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout {dropout} must lie in [0, 1)")


def _check_belief(config: NetworkConfig) -> None:
    _at_least(config, {"order": 2})
    if config.states is not None and config.states < 2:
        raise InputError(f"model.states {config.states} must be at least 2")
    if config.belief != "none" and config.self_condition:
        raise InputError("model.belief cannot be combined with model.self_condition: choose one of them")
