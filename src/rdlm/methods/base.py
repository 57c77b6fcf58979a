"""The interface of a method, which the trainer, the evaluator and the command line use, and the base of baselines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rdlm.config import RunConfig
from rdlm.data.batch import Batch
from rdlm.methods import discrete
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


class Method(ABC):
    """A way to model sequences of tokens with one network."""

    card: Card
    order_name: str | None = None
    """Name of the order in which tokens are generated, if it is fixed."""
    claims_bound: bool = True
    """Whether the mean of `bound` is an upper bound on `-log p` of what `generate` samples from."""
    bound_estimator: BoundEstimator | None = "steps"
    """The estimator of `bound`: single random steps, or whole paths; None: selected by the caller."""
    network: nn.Module
    """The network; the trainer may replace it by a wrapper with the same call (DDP, compiled)."""

    @property
    def token_schedule(self) -> TokenSchedule | None:
        """The token schedule of samples and bounds unless another one is given.

        None: the method samples whole sequences in its own order, without prompts, constraints or guidance.
        """
        return None

    @abstractmethod
    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the training loss of a shard, averaged over its tokens."""

    @abstractmethod
    def bound(self, batch: Batch, nfe: int, generator: Rng = None) -> Float[Tensor, " batch"]:
        """Return for each sequence an unbiased estimate in nats of an upper bound on `-log p` of `nfe`-step samples."""

    @abstractmethod
    def generate(self, count: int, length: int, nfe: int, generator: Rng = None) -> Int[Tensor, "count length"]:
        """Return sampled token ids."""

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return the network evaluations of a sample in `steps` steps, by default the method's own number."""
        return steps or DEFAULT_NFE

    def fit(self, rows: Callable[[], Tensor]) -> None:
        """Fit the process to the training data before the first step; nothing by default."""
        return None

    def renew(self, held_out: Batch, draw: Draw) -> None:
        """Update the statistics of the loss on held-out sequences, before every step; none by default."""
        return None

    def state(self) -> dict[str, Tensor]:
        """Return the learned state outside of the network (such as a time proposal), for a checkpoint."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        return None


class Baseline(Method):
    """A method of three functions of token ids and their condition: `token_loss`, `nll` and `sample`."""

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.config, self.vocabulary = config, vocabulary
        self.network = self.new_network(classes, signal)

    def new_network(self, classes: int, signal: int) -> nn.Module:
        """Return the untrained network: by default from token ids and the mask to logits of tokens."""
        return discrete.token_network(self.config.model, self.vocabulary, classes, signal)

    @property
    def mask(self) -> int:
        """The id after the tokens: the mask, or the start of a sequence."""
        return self.vocabulary

    @abstractmethod
    def token_loss(
        self,
        token: Int[Tensor, "batch length"],
        quantile: Float[Tensor, " batch"],
        condition: Tensor | None,
        generator: Rng,
    ) -> Float[Tensor, ""]:
        """Return the training loss, averaged over tokens, with stratified uniform numbers (on the CPU) for times."""

    @abstractmethod
    def nll(
        self, token: Int[Tensor, "batch length"], nfe: int, condition: Tensor | None, generator: Rng
    ) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of a bound on `-log p` of `nfe`-step samples."""

    @abstractmethod
    def sample(
        self, count: int, length: int, nfe: int, condition: Tensor | None, generator: Rng
    ) -> Int[Tensor, "count length"]:
        """Return token ids sampled with `nfe` network evaluations."""

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the training loss of a shard, averaged over its tokens."""
        generator = draw.generator()
        condition = discrete.training_condition(batch, self.config, generator)
        return self.token_loss(batch.ids, draw.quantiles(len(batch.ids)), condition, generator)

    @torch.no_grad()
    def bound(self, batch: Batch, nfe: int, generator: Rng = None) -> Float[Tensor, " batch"]:
        """Return for each sequence an unbiased estimate in nats of an upper bound on `-log p` of `nfe`-step samples."""
        discrete.check_nfe(nfe)
        return self.nll(batch.ids, nfe, discrete.condition_of(batch), generator)

    @torch.no_grad()
    def generate(
        self, count: int, length: int, nfe: int, generator: Rng = None, condition: Tensor | None = None
    ) -> Int[Tensor, "count length"]:
        """Return sampled token ids."""
        discrete.check_nfe(nfe)
        return self.sample(count, length, nfe, condition, generator)


class DiscreteDiffusion(Baseline):
    """A discrete diffusion that is trained on the integrand of its continuous-time bound at random times."""

    @property
    def schedule(self) -> str:
        """Name of the schedule of `discrete.alpha`."""
        return self.config.discrete.schedule

    def token_loss(self, token: Tensor, quantile: Tensor, condition: Tensor | None, generator: Rng) -> Tensor:
        """Return the continuous-time bound in nats per token, at stratified times."""
        return self.integrand(token, quantile, condition, generator).mean() / token.shape[1]

    @torch.no_grad()
    def limit(self, batch: Batch, generator: Rng = None) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of the bound for M to infinity, from one time."""
        time = discrete.stratified_times(len(batch.ids), generator)
        return self.integrand(batch.ids, time, discrete.condition_of(batch), generator)

    @abstractmethod
    def integrand(
        self,
        token: Int[Tensor, "batch length"],
        time: Float[Tensor, " batch"],
        condition: Tensor | None,
        generator: Rng,
    ) -> Float[Tensor, " batch"]:
        """Return the integrand of the continuous-time bound in nats, at one time per sequence."""
