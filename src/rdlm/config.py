"""The configuration of a run, as frozen dataclasses; no torch here.

Attribute docstrings are the help of the command line. `rdlm.storage.config_file` reads and writes configurations as
YAML.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import numbers
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from rdlm.deprecated import ORDERS
from rdlm.errors import InputError, unknown
from rdlm.method_config import BeliefConfig as BeliefConfig
from rdlm.method_config import BFNConfig as BFNConfig
from rdlm.method_config import BitDiffusionConfig as BitDiffusionConfig
from rdlm.method_config import Convolution2DConfig as Convolution2DConfig
from rdlm.method_config import ConvolutionConfig as ConvolutionConfig
from rdlm.method_config import D3PMConfig as D3PMConfig
from rdlm.method_config import DirichletFlowConfig as DirichletFlowConfig
from rdlm.method_config import DiscreteConfig as DiscreteConfig
from rdlm.method_config import FisherFlowConfig as FisherFlowConfig
from rdlm.method_config import Interface as Interface
from rdlm.method_config import MethodName as MethodName
from rdlm.method_config import NetworkConfig as NetworkConfig
from rdlm.method_config import PlaidConfig as PlaidConfig
from rdlm.method_config import TauLDRConfig as TauLDRConfig
from rdlm.method_config import TransformerConfig as TransformerConfig
from rdlm.method_config import check_within as _within

PAPER_TOTAL_NOISE = 0.03755909399773322
"""S of the paper's geometric schedule from 1e-3 to 0.2."""

MOST_NOISE = 1e9
"""Largest total noise, far within the range of float32."""

Head = Literal["token", "digit"]
OrderName = Literal["synchronous", "random", "strided", "left-to-right"]
"""Names of the orders in which the tokens of a sequence are generated."""
READ_EVIDENCE: tuple[MethodName, ...] = ("rdlm", "mdlm", "autoregressive", "ardm", "mac", "bert_mouth")
"""Methods whose network maps independent evidence about tokens to a posterior, so that inference can precede it."""


def _check_order(config: ProcessConfig | SamplingOptions, kind: str, choices: Iterable[str]) -> None:
    """Replace the former name of an order in a configuration; raise InputError for an unknown name."""
    order = ORDERS.get(str(config.order), str(config.order))
    if order not in choices:
        raise unknown(kind, order, choices)
    object.__setattr__(config, "order", order)


@dataclass(frozen=True)
class DataConfig:
    """The corpus: one of `rdlm data list`, or your own files."""

    name: str = "demo"
    """Name of the corpus."""
    length: int | None = None
    """Tokens per sequence; None: the length of the corpus."""
    protocol: str | None = None
    """Protocol of the corpus (splits and preprocessing), if it has several."""
    file: Path | None = None
    """Your file or folder, for corpora that need one."""
    hub: str | None = None
    """Dataset of the Hugging Face hub in place of a file, as NAME[:CONFIG][/SPLIT]."""
    limit: int | None = None
    """Largest number of characters to read from your own text; by default all of a file, 100 million of a dataset."""
    column: str | None = None
    """Column of your table (CSV, TSV, JSONL, JSON, Parquet), or of a dataset of the hub."""
    tokenizer: str | None = None
    """Tokenizer for your own text: characters, bytes, wordpiece (of BERT), bpe (trained on it), a tokenizer.json of
    the `tokenizers` library, or hf://NAME of the hub."""
    alphabet: str | None = None
    """Alphabet of your own text."""
    unknown: Literal["error", "skip", "replace", "extend"] | None = None
    """Characters outside of the alphabet: an error, left out (skip), spaces (replace), or more tokens (extend); None:
    spaces if the alphabet has one, else left out."""
    normalise: bool = False
    """Reduce your own text to 27 characters as in text8: lower case, digits spelled, other characters to spaces; with
    an alphabet, to its characters in the same way."""
    vocabulary: int = 8192
    """Vocabulary size of a tokenizer that is trained on your own text."""
    accept_licence: bool = False
    """Accept the licence of a corpus with restrictions."""

    def __post_init__(self) -> None:
        names = ("characters", "bytes", "wordpiece", "bpe")
        if self.tokenizer not in (None, *names) and not re.search(r"^hf://.|.\.json$", str(self.tokenizer)):
            raise unknown("value of data.tokenizer", str(self.tokenizer), (*names, "FILE.json", "hf://NAME"))
        if self.limit is not None and self.limit < 1:
            raise InputError(f"data.limit must be at least 1, got {self.limit}")


@dataclass(frozen=True)
class ProcessConfig:
    """The diffusion process: bridge, start, noise schedule, token schedule, and splitting of tokens into digits."""

    bridge: Literal["brownian", "logarithm", "gaussian"] = "brownian"
    """The Brownian bridge of the sphere, the paper's logarithm bridge, or Gaussian observations in flat space."""
    path: Literal["masked", "uniform", "constant", "switch"] = "masked"
    """Start of the bridge: the mask, the centre, a random one of the two, or the centre with a switch to the masked
    path."""
    weight: float = 0.5
    """Probability of the masked path with path constant."""
    switch: float = 0.35
    """Time of the switch with path switch."""
    total: float | None = None
    """Total noise S; None: the paper's, or as much as the number of tokens allows (docs/theory.md, section 7)."""
    schedule: Literal["geometric", "constant", "linear", "cosine"] = "geometric"
    """Noise schedule."""
    schedule_class: str | None = None
    """Your own noise schedule, as module:Class, built from the total noise; needs --trust."""
    bridge_class: str | None = None
    """Your own bridge of the sphere, as module:Class, built like rdlm's; needs --trust."""
    base: int | None = None
    """Split tokens into digits of this base; None: one sphere per token."""
    codes: Literal["auto", "onehot", "learned", "arc"] = "onehot"
    """Vectors of the tokens: onehot; learned unit vectors in fewer coordinates; arc, points of a half circle for
    ordered tokens such as grey levels; auto: learned for more than 1,024 tokens."""
    dimension: int = 16
    """Coordinates of learned codes and of the space of the half circle, not counting that of the mask."""
    layout: Literal["packed", "serial"] = "packed"
    """The digits of a token share a position (packed), or have one position each as in the paper (serial)."""
    window: float = 1.0
    """Share of the time during which a token moves in sampling and in the bound; 1: all tokens move together."""
    order: OrderName = "strided"
    """Order in which tokens start to move; strided: random, but tokens that move together are far apart. With a window
    of 1 every order is synchronous."""
    block: int = 0
    """Tokens per block. Blocks are generated left to right; 0: the whole sequence is one block."""
    law: Literal["exact", "normal", "simulated"] = "exact"
    """Distribution of the training states: exact, the paper's Riemannian normal approximation, or simulated."""
    levels: int = 256
    """Noise levels in the table of the distribution."""
    pairs: int = 16384
    """Draws per noise level in the table of the exact distribution."""

    def __post_init__(self) -> None:
        _within("process.weight", self.weight, 0, 1)
        _within("process.window", self.window, 1e-6, 1)
        _within("process.block", self.block, 0, 1 << 24)
        _within("process.switch", self.switch, 1e-3, 1 - 1e-3)
        _check_order(self, "process.order", get_args(OrderName))
        if self.order == "synchronous" and self.window != 1:
            raise InputError(f"process.order synchronous needs process.window 1, got {self.window:g}")
        if self.total is not None and not 0 < self.total <= MOST_NOISE:
            raise InputError(f"process.total must be positive and at most {MOST_NOISE:g}, got {self.total:g}")
        self._check_codes()

    def _check_codes(self) -> None:
        if self.bridge == "gaussian" and (self.path != "masked" or self.law == "normal"):
            raise InputError("process.bridge gaussian needs process.path masked and an exact or simulated process.law")
        if self.bridge == "gaussian" and self.bridge_class is not None:
            raise InputError("process.bridge_class is a bridge of the sphere: leave out process.bridge gaussian")
        if self.codes not in ("learned", "arc"):
            return
        codes = f"process.codes {self.codes}"
        if self.dimension < 3:
            raise InputError(f"{codes} needs process.dimension of at least 3, got {self.dimension}")
        if self.path != "masked":
            raise InputError(
                f"{codes} needs process.path masked, got {self.path}: other starts have unequal angles to the tokens"
            )
        if self.base is not None:
            raise InputError(f"{codes} needs one sphere per token: omit process.base")
        if self.law != "exact":
            raise InputError(f"{codes} needs process.law exact, got {self.law}")


@dataclass(frozen=True)
class DenoiserConfig:
    """The input features of the network, and the probabilities from its logits."""

    features: Literal["evidence", "mean", "statistic", "coordinates", "tokens", "top", "level"] = "evidence"
    """Network input. evidence: the evidence as probabilities; mean: the mean token vector under the evidence, for codes
    of many tokens; statistic: state over noise as a vector of the unit ball; coordinates, tokens, top: all coordinates,
    those of tokens, or all with the largest ones marked; level: for ordered tokens, the mean level under the evidence
    and its certainty."""
    top: int = 8
    """Number of coordinates that are marked with features top."""
    evidence: bool = True
    """Add the exact log-likelihood of the state at each position to its logits; --no-evidence: do not."""
    head: Head = "token"
    """Softmax over whole tokens, or over each digit separately."""
    time: bool | None = None
    """Give the network the time as a second input; None: only if its features are not evidence."""

    @property
    def timed(self) -> bool:
        """Whether the network has a time input; given the evidence, the posterior does not depend on the time."""
        return self.features in ("coordinates", "tokens", "top") if self.time is None else self.time


@dataclass(frozen=True)
class ObjectiveConfig:
    """The training loss, and the distribution of training times."""

    loss: Literal["cross_entropy", "drift_error"] = "cross_entropy"
    """Cross-entropy, or the drift error of the likelihood bound."""
    proposal: Literal["information", "uniform", "interval", "adaptive"] = "information"
    """Distribution of the training times. information: in proportion to the information gained at each noise level,
    measured on held-out sequences, without weights; with importance weights: uniform, interval (mostly from an
    interval, as in the paper), or adaptive to the variance of the loss."""
    interval: tuple[float, float] = (0.3, 0.6)
    """Interval of the interval proposal."""
    floor: float = 0.05
    """Share of uniform times in the interval and adaptive proposals, and of log-uniform noise levels with
    information."""
    low_discrepancy: bool = True
    """Stratify the times of a batch (low-discrepancy sampling); --no-low-discrepancy: draw them independently."""
    mixed: float = 0.0
    """Share of sequences in which each token has its own noise level, from a range of random width of the proposal."""
    readings: float = 0.0
    """Share of sequences whose input is a reading with errors and gaps, as in `rdlm restore`."""
    asynchronous: float = 0.0
    """Share of sequences in which each token has its own time, within a window of random width."""
    narrow: float = 0.5
    """Share of those windows that are narrow enough to generate tokens one by one."""
    order: Literal["random", "left_to_right", "both"] = "both"
    """Token order in those windows."""
    prefix: float = 0.0
    """Share of sequences with a clean prefix of random length."""
    blockwise: float = 0.0
    """Share of sequences trained block by block, each block conditioned on the clean blocks before it (BD3-LM); such
    a sequence costs twice as much, because the network processes a clean and a noisy copy of it."""
    block_sizes: tuple[int, ...] = (1,)
    """Block sizes of those sequences, drawn uniformly; 1 is the autoregressive order."""
    condition_dropout: float = 0.1
    """Share of sequences trained without their condition, for guidance."""

    def __post_init__(self) -> None:
        low, high = self.interval
        if not 0 <= low < high <= 1:
            raise InputError(f"objective.interval must be two increasing times in [0, 1], got {self.interval}")
        _within("objective.floor", self.floor, 1e-4, 1)
        for name in ("mixed", "readings", "asynchronous", "narrow", "prefix", "blockwise", "condition_dropout"):
            _within(f"objective.{name}", getattr(self, name), 0, 1)
        if not self.block_sizes or min(self.block_sizes) < 1:
            raise InputError(f"objective.block_sizes must be at least 1, got {self.block_sizes}")
        if self.mixed + self.readings + self.asynchronous > 1 + 1e-9:
            given = f"{self.mixed:g} + {self.readings:g} + {self.asynchronous:g}"
            raise InputError(
                f"objective.mixed, objective.readings and objective.asynchronous must add up to at most 1, got {given}"
            )
        if (self.blockwise or self.mixed or self.readings) and self.loss != "cross_entropy":
            given = "blockwise" if self.blockwise else "mixed" if self.mixed else "readings"
            raise InputError(f"objective.{given} needs objective.loss cross_entropy")


@dataclass(frozen=True)
class TrainingConfig:
    """Optimiser, training budget, checkpoints and validation."""

    steps: int = 1000
    """Optimiser steps."""
    batch: int = 32
    """Sequences per step, over all processes and accumulation steps."""
    accumulate: int = 1
    """Gradient accumulation steps per process."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW for all parameters, or Muon for the matrices of the blocks and AdamW for the rest."""
    lr: float = 3e-4
    """Learning rate after the warm-up."""
    codes_lr: float = 1e-2
    """Learning rate of learned codes after the warm-up."""
    warmup: int = 100
    """Steps of linear warm-up."""
    decay: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or a cosine decay to a tenth."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Betas of AdamW."""
    weight_decay: float = 0.0
    """Weight decay."""
    clip: float = 1.0
    """Gradient norm clipping."""
    ema: float = 0.9999
    """Decay of the exponential moving average of the weights that is used for evaluation, after a warm-up."""
    seed: int = 0
    """Random seed of weights, data order and noise."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network; the geometry is always in float32 or float64."""
    compile: bool = False
    """Compile the network with torch.compile."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Parallelism of several processes."""
    device: str = "auto"
    """Device: auto, cpu, cuda, mps."""
    tolerance: int = 10
    """Number of consecutive steps with a non-finite loss or gradient after which the run stops; such steps are
    skipped."""
    record_every: int = 10
    """Steps between lines of the training record."""
    save_every: int = 500
    """Steps between checkpoints."""
    validate_every: int = 500
    """Steps between validations."""
    validation_sequences: int = 64
    """Sequences of a validation."""
    validation_nfe: int = 64
    """Network calls M of the sampler in validation bounds."""

    def __post_init__(self) -> None:
        every = ("record_every", "save_every", "validate_every", "validation_sequences", "validation_nfe")
        for name in ("steps", "batch", "accumulate", "tolerance", *every):
            if getattr(self, name) < 1:
                raise InputError(f"training.{name} must be at least 1, got {getattr(self, name)}")
        if self.batch % self.accumulate:
            raise InputError(f"training.batch {self.batch} is not a multiple of training.accumulate {self.accumulate}")
        if not 0 <= self.ema < 1:
            raise InputError(f"training.ema must lie in [0, 1), got {self.ema:g}")
        if self.warmup < 0 or not all(0 <= beta < 1 for beta in self.betas):
            given = f"{self.warmup} and {self.betas}"
            raise InputError(f"training.warmup must be at least 0 and training.betas lie in [0, 1), got {given}")
        if not (self.lr > 0 and self.clip > 0):
            raise InputError(f"training.lr and training.clip must be positive, got {self.lr:g} and {self.clip:g}")


@dataclass(frozen=True)
class RunConfig:
    """The complete configuration of a run."""

    method: MethodName = "rdlm"
    """Method: rdlm, or a baseline on the same network and data."""
    data: DataConfig = field(default_factory=DataConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    denoiser: DenoiserConfig = field(default_factory=DenoiserConfig)
    model: NetworkConfig = field(default_factory=TransformerConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    discrete: DiscreteConfig = field(default_factory=DiscreteConfig)
    d3pm: D3PMConfig = field(default_factory=D3PMConfig)
    bfn: BFNConfig = field(default_factory=BFNConfig)
    bit_diffusion: BitDiffusionConfig = field(default_factory=BitDiffusionConfig)
    plaid: PlaidConfig = field(default_factory=PlaidConfig)
    tau_ldr: TauLDRConfig = field(default_factory=TauLDRConfig)
    dirichlet_flow: DirichletFlowConfig = field(default_factory=DirichletFlowConfig)
    fisher_flow: FisherFlowConfig = field(default_factory=FisherFlowConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        if self.model.belief != "none" and self.method not in READ_EVIDENCE:
            readers = ", ".join(READ_EVIDENCE)
            raise InputError(f"model.belief needs a method that reads evidence ({readers}), got {self.method}")
        if self.model.network_class is not None and self.method in ("autoregressive", "block_diffusion"):
            raise InputError(f"the method {self.method} masks attention: it needs rdlm's own transformer")


SolverName = Literal["mixture", "drift", "heun", "corrector", "deterministic", "euler"]
GridName = Literal["time", "log", "information"]
OrderChoice = Literal["auto", "synchronous", "random", "strided", "left-to-right"]
"""An order by its name, or the one with the best measured bound."""

LONGEST = 1 << 20
"""Most tokens of a sequence, most sampling steps, and most samples."""
COLDEST = 0.001
"""The lowest temperature: dividing log-probabilities by much less leaves the range of float32."""


@dataclass(frozen=True)
class SamplingOptions:
    """Sampling options, declared once for the command line, Python and the HTTP service."""

    num: int = 1
    """Number of samples."""
    length: int | None = None
    """Tokens of a sample; by default the length of the model or of the infill. Beyond the model's length, a window
    slides along the sequence."""
    steps: int | None = None
    """Sampling steps (network evaluations, NFE; heun and corrector take two per step); by default the model's, which is
    64, or one per block."""
    solver: SolverName = "mixture"
    """Solver of the steps."""
    grid: GridName = "time"
    """Grid of the steps: uniform in time, in equal ratios of noise (log), or with equal information, as measured by
    `rdlm evaluate`."""
    seed: int = 0
    """Seed of the first sample; sample i has the seed + i."""
    prompt: str = ""
    """Text at the beginning of every sample."""
    suffix: str = ""
    """Text at the end of every sample."""
    infill: str | None = None
    """Text in which every gap character is one token to generate, such as "the ____ of"."""
    gap: str = "_"
    """The gap character."""
    ban: str = ""
    """Tokens that must not occur."""
    forbid: dict[int, str] = field(default_factory=dict)
    """Tokens that must not occur at a position; negative positions count from the end."""
    require: dict[int, str] = field(default_factory=dict)
    """Tokens of which one must occur at a position."""
    regex: str | None = None
    """Regular expression that the whole sample matches."""
    label: str | None = None
    """Class to sample, by its name or number."""
    signal: tuple[float, ...] | None = None
    """Profile to condition on, one number per token."""
    guidance: float = 1.0
    """Guidance weight of the condition: 0 ignores it, 1 is the model as trained, larger values amplify it."""
    temperature: float = 1.0
    """Below 1, likely tokens become more likely. Applies to the prediction from the context, not to the evidence."""
    top_k: int | None = None
    """Draw from this many of the most likely tokens."""
    top_p: float | None = None
    """Draw from the most likely tokens that together have this probability."""
    greedy: bool = False
    """Decode the most likely token in the last step instead of drawing one."""
    window: float | None = None
    """For experts: share of the sampling time during which a position is active; 1: all positions together. By default
    that of the order."""
    order: OrderChoice | None = "auto"
    """Order of generation: synchronous (all tokens move together in every step), random or strided (tokens are decoded
    once, in random order; strided: tokens of one step are far apart), left-to-right (block by block), or auto: the
    order with the best measured bound within the steps, or the model's own if none was measured or a window or block is
    given."""
    block: int | None = None
    """Tokens per block; blocks are generated left to right, each in the given order; 0: the whole sequence is one
    block. By default, left-to-right has blocks of 1, or larger ones with fewer steps than tokens, and other orders have
    one block. The blocks of the model's own order are enlarged, or merged into one, with fewer steps than blocks."""
    stride: int | None = None
    """Tokens that each further window adds beyond the model's length; by default half of that length."""
    clean: bool = True
    """Clamp known tokens to their vertices from step 0. --no-clean: known tokens follow their bridges, as in training,
    if all positions are synchronous."""
    batch: int = 16
    """Samples per batch; does not affect the samples."""
    rows: int | None = None
    """Sequences per forward pass. By default, on a CPU the largest number that does not change the bits of any sample,
    on other devices the whole batch."""

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("num", "steps", "batch", "length", "rows", "top_k"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        for name in ("num", "steps", "length", "batch"):
            if (getattr(self, name) or 0) > LONGEST:
                raise InputError(f"{name} must be at most {LONGEST:,}, got {getattr(self, name):,}")
        if len(self.infill or "") > LONGEST:
            raise InputError(f"an infill may have at most {LONGEST:,} characters, got {len(self.infill or ''):,}")
        if self.order is None:
            object.__setattr__(self, "order", "auto")
        _check_order(self, "order", get_args(OrderChoice))
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top-p must lie in (0, 1], got {self.top_p:g}")
        if not self.temperature >= COLDEST:
            message = f"temperature must be at least {COLDEST:g}, got {self.temperature:g}"
            raise InputError(f"{message}; greedy decodes the most likely tokens")
        if self.infill is not None and (self.prompt or self.suffix):
            raise InputError("an infill is a whole sequence: write prompt and suffix into it")

    @property
    def changes(self) -> tuple[str, ...]:
        """Names of the options by which samples depend on more than the model and its condition: then no bound of the
        model holds."""
        given = ("prompt", "suffix", "infill", "ban", "forbid", "require", "regex", "greedy")
        found = [name for name in given if getattr(self, name)]
        found += [name for name in ("temperature", "guidance") if getattr(self, name) != 1]
        return (*found, *(name.replace("_", "-") for name in ("top_k", "top_p") if getattr(self, name) is not None))


def _check_types(options: SamplingOptions) -> None:
    """Raise InputError for an option of a wrong type; None only where it is the default."""
    kinds = {"int": (numbers.Integral, "an integer"), "float": (numbers.Real, "a number"), "str": (str, "a text")}
    for option in fields(options):
        kind, *rest = str(option.type).split(" | ")
        value = getattr(options, option.name)
        if kind in kinds and option.name != "label" and not (rest == ["None"] and value is None):
            wanted, words = kinds[kind]
            if not isinstance(value, wanted):
                raise InputError(f"{option.name.replace('_', '-')} must be {words}, got {value!r}")


def attribute_docstrings(home: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, each in one line."""
    body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(home))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, after in itertools.pairwise(body.body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[ast.unparse(statement.target)] = " ".join(str(after.value.value).split())
    return found
