"""The interface of a method, which the trainer, the evaluator and the command line use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from jaxtyping import Float, Int
from torch import Tensor, nn

from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.process.order import TokenSchedule
from rdlm.random import Draw, Rng

BoundEstimator = Literal["steps", "path"]

DEFAULT_NFE = 64
"""Network evaluations of a sample unless another number is given."""


@dataclass(frozen=True)
class Card:
    """The kind and accuracy of a method's likelihood: a line of `rdlm methods`."""

    process: str
    """The corruption of a token and its reverse."""
    number: Literal["exact", "bound", "estimate"]
    """Whether `Method.bound` is the likelihood of the sampler that runs, a bound on it, or neither."""
    paper: str
    """The work, by its name in the references of docs/theory.md."""
    slack: float | None = None
    """Largest excess over the entropy of an independent source in percent, with the exact posterior and 64 calls;
    measured by a test. None: an estimate, which has no certificate."""
    reason: str = ""
    """The cause of the slack."""


def check_nfe(nfe: int) -> None:
    """Raise an error unless there is at least one network evaluation."""
    if nfe < 1:
        raise InputError(f"at least one network call is needed, got {nfe}")


class Method(Protocol):
    """A way to model sequences of tokens with one network."""

    claims_bound: bool
    """Whether the mean of `bound` is an upper bound on `-log p` of what `generate` samples from."""

    bound_estimator: BoundEstimator | None
    """The estimator of `bound`: single random steps, or whole paths; None: selected by the caller."""

    network: nn.Module
    """The network; the trainer may replace it by a wrapper with the same call (DDP, compiled)."""

    @property
    def token_schedule(self) -> TokenSchedule | None:
        """The token schedule of samples and bounds unless another one is given.

        None: the method samples whole sequences in its own order, without prompts, constraints or guidance.
        """

    def renew(self, held_out: Batch, draw: Draw) -> None:
        """Update the statistics of the loss on held-out sequences; called before every step."""

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the training loss of a shard, averaged over its tokens."""

    def bound(self, batch: Batch, nfe: int, generator: Rng = None) -> Float[Tensor, " batch"]:
        """Return for each sequence an unbiased estimate in nats of an upper bound on `-log p` of `nfe`-step samples."""

    def generate(self, count: int, length: int, nfe: int, generator: Rng = None) -> Int[Tensor, "count length"]:
        """Return sampled token ids."""

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return the network evaluations of a sample in `steps` steps, by default the method's own number."""

    def state(self) -> dict[str, Tensor]:
        """Return the learned state outside of the network (such as a time proposal), for a checkpoint."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""


class Baseline:
    """Defaults of methods that sample whole sequences in their own order and have no state outside of the network."""

    card: Card | None = None
    token_schedule: TokenSchedule | None = None
    order_name: str | None = None
    """Name of the order in which tokens are generated, if it has one."""
    bound_estimator: BoundEstimator | None = "steps"

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return the steps, 64 by default."""
        return steps or DEFAULT_NFE

    def fit(self, rows: Callable[[], Tensor]) -> None:
        """Fit the process to the training data before the first step; nothing by default."""

    def renew(self, held_out: Batch, draw: Draw) -> None:
        """Do nothing: the loss depends on the network alone."""

    def state(self) -> dict[str, Tensor]:
        """Return an empty state: all parameters are in the network."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore nothing."""
