"""The configuration of a run: frozen dataclasses, the only truth about what is trained; no torch here.

Attribute docstrings become the command line's help. `rdlm.configfile` reads and writes them as YAML.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rdlm.errors import InputError
from rdlm.model.config import NetworkConfig, TransformerConfig

PAPER_TOTAL_NOISE = 0.03755909399773322
"""S of the paper's geometric schedule from 1e-3 to 0.2."""

Head = Literal["token", "digit"]
MethodName = Literal["rdlm", "masked", "uniform", "score_entropy", "autoregressive", "flow"]
"""Names of the methods; `rdlm.method.METHODS` says where each lives."""


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(f"{name} must lie in [{low:g}, {high:g}], got {value:g}")


@dataclass(frozen=True)
class DataConfig:
    """What is learned: a corpus of `rdlm data list`, or the user's own files."""

    name: str = "demo"
    """Name of the corpus."""
    length: int | None = None
    """Tokens per sequence; the corpus's own length if not given."""
    protocol: str | None = None
    """Protocol of the corpus where it has several."""
    file: Path | None = None
    """The user's file or folder, for corpora that read one."""
    tokenizer: Literal["characters", "bytes", "wordpiece", "bpe"] | None = None
    """Tokenizer for the user's own text."""
    vocabulary: int = 8192
    """Size of a vocabulary that is trained on the user's own text."""
    accept_licence: bool = False
    """Accept the licence of a corpus that asks for it."""


@dataclass(frozen=True)
class ProcessConfig:
    """The diffusion: where it starts, how it is pulled, how much noise it spends, and how tokens are split."""

    bridge: Literal["brownian", "logarithm"] = "brownian"
    """Pull towards the token: the Brownian bridge of the sphere, or the paper's logarithm bridge."""
    path: Literal["masked", "uniform", "constant", "switch"] = "masked"
    """Start at the mask, at the centre, at one of the two by chance, or at the centre with a switch to the mask's."""
    weight: float = 0.5
    """Probability of the masked path in the constant mixture."""
    switch: float = 0.35
    """Time of the switch."""
    total: float = PAPER_TOTAL_NOISE
    """Total noise S."""
    schedule: Literal["geometric", "constant", "linear", "cosine"] = "geometric"
    """Clock that spends the noise."""
    base: int | None = None
    """Split tokens into digits of this base; not given: one sphere per token."""
    layout: Literal["packed", "serial"] = "packed"
    """Digits of a token share a position, or follow each other as in the paper."""
    window: float = 1.0
    """Part of the time in which one position runs when the model is bounded and sampled, unless said otherwise."""
    order: Literal["random", "spread", "left_to_right"] = "spread"
    """Order in which those windows begin; spread: random, with what begins together far apart."""
    chunk: int = 0
    """Tokens of a chunk, where chunks run one after the other unless said otherwise; 0: all run together."""
    law: Literal["exact", "normal", "simulated"] = "exact"
    """Law of the training states: exact, the paper's Riemannian normal, or simulated."""
    levels: int = 256
    """Noise levels of the table of the law."""
    pairs: int = 16384
    """Draws per level of the table of the exact law."""

    def __post_init__(self) -> None:
        _within("process.weight", self.weight, 0, 1)
        _within("process.window", self.window, 1e-6, 1)
        _within("process.chunk", self.chunk, 0, 1 << 24)
        _within("process.switch", self.switch, 1e-3, 1 - 1e-3)
        if not self.total > 0:
            raise InputError(f"process.total must be positive, got {self.total:g}")


@dataclass(frozen=True)
class DenoiserConfig:
    """How states enter the network and how its logits become probabilities."""

    features: Literal["evidence", "coordinates", "tokens", "top"] = "evidence"
    """Network input: evidence as probabilities, all coordinates, those without the mask, or with the top few marked."""
    top: int = 8
    """Coordinates that are marked by `top` features."""
    evidence: bool = True
    """Add the exact log-likelihood of each position's own state to its logits."""
    head: Head = "token"
    """Logits over whole tokens, or over each digit on its own."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is minimised, and at which times."""

    loss: Literal["cross_entropy", "drift_error"] = "cross_entropy"
    """Cross-entropy, or the drift error of the likelihood bound."""
    proposal: Literal["uniform", "interval", "adaptive"] = "uniform"
    """Times: uniform, mostly from an interval as in the paper, or where the loss has been found to vary most."""
    interval: tuple[float, float] = (0.3, 0.6)
    """Interval of the interval proposal."""
    floor: float = 0.05
    """Share of uniform times in the interval and adaptive proposals."""
    low_discrepancy: bool = True
    """Spread the times of a batch evenly."""
    asynchronous: float = 0.0
    """Share of sequences whose positions run in windows of their own, of a random width."""
    narrow: float = 0.5
    """Share of those windows that are so narrow that positions are finished one by one."""
    order: Literal["random", "left_to_right", "both"] = "both"
    """Order of those windows."""
    prefix: float = 0.0
    """Share of sequences that begin with a finished prefix of random length."""
    chunked: float = 0.0
    """Share of sequences that are learned chunk by chunk, each chunk behind finished ones; a step of theirs costs
    twice as much, and asks all chunks at once."""
    chunks: tuple[int, ...] = (1,)
    """Tokens of those chunks, each size as likely; 1: one after the other."""
    condition_dropout: float = 0.1
    """Share of sequences that are trained without their condition."""

    def __post_init__(self) -> None:
        low, high = self.interval
        if not 0 <= low < high <= 1:
            raise InputError(f"objective.interval must be two rising times in [0, 1], got {self.interval}")
        _within("objective.floor", self.floor, 1e-4, 1)
        for name in ("asynchronous", "narrow", "prefix", "chunked", "condition_dropout"):
            _within(f"objective.{name}", getattr(self, name), 0, 1)
        if not self.chunks or min(self.chunks) < 1:
            raise InputError(f"objective.chunks must be numbers of at least one token, got {self.chunks}")
        if self.chunked and self.loss != "cross_entropy":
            raise InputError("objective.chunked goes with the loss cross_entropy")


@dataclass(frozen=True)
class DiscreteConfig:
    """The rivals that jump between tokens: masked, uniform and score_entropy."""

    schedule: Literal["log_linear", "cosine"] = "log_linear"
    """How the probability that a token is still itself rises with time."""
    graph: Literal["absorb", "uniform"] = "absorb"
    """What score_entropy's tokens jump to: the mask, or any token."""
    order: Literal["random", "spread"] = "random"
    """Which tokens masked reveals in one call: any, as in the literature, or tokens far apart, as rdlm does."""

    def __post_init__(self) -> None:
        if self.order == "spread" and self.schedule != "log_linear":
            raise InputError("discrete.order spread needs the log_linear schedule: every call reveals alike many")


@dataclass(frozen=True)
class FlowConfig:
    """The rival without noise: flow matching on the statistical manifold."""

    predict: Literal["posterior", "velocity"] = "posterior"
    """What the network predicts: the token, by cross-entropy, or the velocity, by squared error."""
    origin: Literal["orthant", "sphere"] = "orthant"
    """Where flows set out, uniformly: the statistical manifold itself, or the whole sphere, which has no edges."""
    cut: float = 0.1
    """Part of the way that is left when the nearest vertex is taken; below 1/4 it is never the wrong one."""
    divergence: Literal["exact", "hutchinson"] = "hutchinson"
    """Trace of the Jacobian: exact, at as many backward passes as there are coordinates, or from one random vector."""

    def __post_init__(self) -> None:
        _within("flow.cut", self.cut, 1e-4, 0.24)


@dataclass(frozen=True)
class TrainingConfig:
    """The optimiser, its budget, and what is kept."""

    steps: int = 1000
    """Optimiser steps."""
    batch: int = 32
    """Sequences per step, over all processes and accumulated parts."""
    accumulate: int = 1
    """Parts of a batch whose gradients one process adds up."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW for all parameters, or Muon for the matrices of the blocks and AdamW for the others."""
    rate: float = 3e-4
    """Learning rate after the warm-up."""
    warmup: int = 100
    """Steps of linear warm-up."""
    decay: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to a tenth by half a cosine."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates."""
    weight_decay: float = 0.0
    """The optimiser's weight decay."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    ema: float = 0.9999
    """Decay of the moving average of the weights, which is what is evaluated; it warms up."""
    seed: int = 0
    """Seed of weights, data order and noise."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type in which the network runs; geometry always stays in float32 or wider."""
    compile: bool = False
    """Compile the network."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How several processes share the work."""
    device: str = "auto"
    """Device: auto, cpu, cuda, mps."""
    tolerance: int = 10
    """Steps in a row with a loss or gradient that is not finite, each of them skipped, after which the run stops."""
    record_every: int = 10
    """Steps between lines of the record."""
    save_every: int = 500
    """Steps between checkpoints."""
    validate_every: int = 500
    """Steps between validations."""
    validation_sequences: int = 64
    """Sequences of a validation."""
    validation_calls: int = 64
    """Network calls M of the chain whose bound a validation measures."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "tolerance", "record_every", "save_every", "validate_every",
                     "validation_sequences", "validation_calls"):  # fmt: skip
            if getattr(self, name) < 1:
                raise InputError(f"training.{name} must be at least 1, got {getattr(self, name)}")
        if self.batch % self.accumulate:
            raise InputError(f"training.batch {self.batch} is not a multiple of training.accumulate {self.accumulate}")
        if not 0 <= self.ema < 1:
            raise InputError(f"training.ema must lie in [0, 1), got {self.ema:g}")
        if self.warmup < 0 or not all(0 <= beta < 1 for beta in self.betas):
            given = f"{self.warmup} and {self.betas}"
            raise InputError(f"training.warmup must be at least 0 and training.betas lie in [0, 1), got {given}")
        if not (self.rate > 0 and self.clip > 0):
            raise InputError(f"training.rate and training.clip must be positive, got {self.rate:g} and {self.clip:g}")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run."""

    method: MethodName = "rdlm"
    """What is trained: this package's method, or a rival on the same network and data."""
    data: DataConfig = field(default_factory=DataConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    denoiser: DenoiserConfig = field(default_factory=DenoiserConfig)
    model: NetworkConfig = field(default_factory=TransformerConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    discrete: DiscreteConfig = field(default_factory=DiscreteConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
