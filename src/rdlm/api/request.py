"""What to sample, and how: the options of `generate` and of `rdlm generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rdlm.errors import InputError
from rdlm.process.order import Order, TokenSchedule
from rdlm.sampling.constraints import Rules, Wish

COLDEST = 0.001
"""The lowest temperature: a law that is divided by much less leaves the range of numbers."""


@dataclass(frozen=True)
class Request:
    """What to sample, and how."""

    num: int = 1
    """Number of samples."""
    length: int | None = None
    """Tokens of a sample; the model's own length, or the infill's, if not given."""
    steps: int | None = None
    """Steps of the walk, the model's own number if not given; solvers with two network calls per step say so."""
    solver: str = "mixture"
    grid: str = "time"
    """Where the steps are: `time` (uniform), `log` (equal ratios of noise) or `information` (measured)."""
    seed: int = 0
    """Seed of the first sample; the next ones count up."""
    prompt: str = ""
    suffix: str = ""
    infill: str | None = None
    """A text in which every gap character is one open token."""
    gap: str = "_"
    ban: str = ""
    """Tokens that must not occur."""
    forbid: Mapping[int, str] = field(default_factory=dict)
    """Tokens that must not stand at a position; negative positions count from the end."""
    require: Mapping[int, str] = field(default_factory=dict)
    """Tokens of which one must stand at a position."""
    regex: str | None = None
    """A regular expression that the whole sample matches, see `rdlm.sampling.automaton`."""
    label: str | None = None
    """Class to condition on, by name or number."""
    signal: Sequence[float] | None = None
    """Profile to condition on, one number per token."""
    guidance: float = 1.0
    """Weight of the condition, Eq. (45): 0 ignores it, 1 is the conditional model, more exaggerates it."""
    wish: Wish | None = None
    """Classifier guidance: a differentiable score of probabilities [batch, length, v], one number per sample."""
    wish_scale: float = 1.0
    temperature: float = 1.0
    """Sharpens (below 1) or flattens what the context says of a token, not what its own state says."""
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False
    """Decode the likeliest token in the last step instead of drawing one."""
    window: float | None = None
    """Part of the walk in which one position runs; 1: all run together; None: as the model was made for."""
    order: Order | None = None
    """Order in which positions begin to run; None: the model's own."""
    block: int | None = None
    """Tokens of a chunk, where chunks are written one after the other and see nothing ahead; 0: no chunks; None: the
    model's own, unless a window or an order is named, or known tokens lie ahead of open ones. With fewer steps than
    chunks they are larger, or none."""
    stride: int | None = None
    """Tokens that each window adds past the model's length; half of that length if not given."""
    clean: bool = True
    """Known tokens stand finished from the beginning, and are heard from the first step; else, where all positions run
    together, they follow their own bridges, as in training, and are heard too late."""
    batch: int = 16
    """Samples that are walked together."""
    rows: int | None = None
    """Sequences per network call. If not given, on a CPU as many as leave samples independent of each other to the last
    bit, and elsewhere all of a batch."""
    trace: bool = False
    """Record how the first sample takes shape."""

    def __post_init__(self) -> None:
        for name in ("num", "steps", "batch"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.length is not None and self.length < 1:
            raise InputError(f"length must be at least 1, got {self.length}")
        if self.rows is not None and self.rows < 1:
            raise InputError(f"rows must be at least 1, got {self.rows}")
        if not self.temperature >= COLDEST:
            words = f"temperature must be at least {COLDEST:g}, got {self.temperature:g}"
            raise InputError(f"{words}; greedy decodes the likeliest")
        if self.infill is not None and (self.prompt or self.suffix):
            raise InputError("an infill is a whole sequence: write prompt and suffix into it")

    def clock(self) -> TokenSchedule:
        """Return the window in which positions run; all together where none is named."""
        return TokenSchedule(1.0 if self.window is None else self.window, self.order or "strided", self.block or 0)

    def rules(self) -> Rules:
        """Return the rules that hold at every position alike."""
        return Rules(self.top_k, self.top_p, self.greedy, wish=self.wish, wish_scale=self.wish_scale)

    @property
    def reshapes(self) -> bool:
        """Return whether anything but the model and its condition decides: then no bound of the model holds."""
        given = (self.prompt, self.suffix, self.infill, self.ban, self.forbid, self.require, self.regex, self.wish)
        cut = self.temperature != 1 or self.top_k is not None or self.top_p is not None
        return any(given) or cut or self.greedy or self.guidance != 1
