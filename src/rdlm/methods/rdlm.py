"""RDLM: diffusion on spheres from an uninformative start to the points of tokens.

`Process` is the diffusion of a configuration; `Rdlm` combines it with a denoiser, a network and an objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rdlm.config import PAPER_TOTAL_NOISE, Head, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.likelihood.estimators import Problem
from rdlm.likelihood.terms import Posterior, step_terms
from rdlm.methods.base import DEFAULT_NFE, Card, Method
from rdlm.methods.objective import Proposal, block_loss, codes_loss, measured_information, sequence_loss
from rdlm.model.denoiser import BlockMask, Denoiser, Prediction
from rdlm.model.network import build as build_network
from rdlm.process.bridge import Bridge, default_total
from rdlm.process.channel import Channel
from rdlm.process.exact import ExactLaw, GaussianLaw, fresh_law
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.law import cached_law
from rdlm.process.layout import Layout
from rdlm.process.order import STARTS, TokenSchedule, TokenSteps
from rdlm.process.path import Law, Mixture, Path, PathLaw, constant_mixture, masked_path, switching_path, uniform_path
from rdlm.process.schedule import Grid, Schedule, check_inverse, schedule, uniform_in_time
from rdlm.process.tokens import Codes
from rdlm.random import Draw, Rng, generator_of
from rdlm.sampling.sampler import sample_chain
from rdlm.storage.own_classes import own_class

CHAIN_PAIRS = 8192
"""Draws per level in the table from which a sampler draws states after a switch."""

KEPT_LAWS = 8
"""Tables of chains kept in memory: requests to a service can have any number of steps."""


def total_noise(config: ProcessConfig, vocabulary: int) -> float:
    """Return the total noise of a configuration; by default from the number of coordinates."""
    if config.total is not None:
        return config.total
    coordinates = config.dimension if config.codes in ("learned", "arc") else config.base or vocabulary
    return PAPER_TOTAL_NOISE if config.bridge == "gaussian" else default_total(coordinates + 1)


def own_schedule(name: str | None, total: float) -> Schedule | None:
    """Return the user-defined schedule, scaled to the total noise `S`; None without one."""
    if name is None:
        return None
    found = own_class(name, Schedule)(total)  # type: ignore[call-arg, type-abstract]
    if abs(found.total - total) > 1e-6 * total:
        raise InputError(f"{name}({total:g}) must be a schedule of that total noise, but its total is {found.total:g}")
    check_inverse(found)
    return found


def _codes(config: ProcessConfig, vocabulary: int) -> Codes | None:
    """Return the points of the tokens; None for one coordinate each."""
    if config.codes == "arc":
        return Codes.arc(vocabulary, config.dimension)
    return Codes(vocabulary, config.dimension) if config.codes == "learned" else None


@dataclass(frozen=True, eq=False)
class Process:
    """The diffusion of a configuration, for one vocabulary."""

    config: ProcessConfig
    layout: Layout
    schedule: Schedule
    mixture: Mixture

    @staticmethod
    def of(config: ProcessConfig, vocabulary: int, head: Head = "token") -> Process:
        """Return the process over `vocabulary` tokens, split into digits where the configuration has a base."""
        layout = Layout(vocabulary, config.base or vocabulary, config.layout, head)
        total = total_noise(config, vocabulary)
        noise = own_schedule(config.schedule_class, total) or schedule(config.schedule, total)
        family = Bridge if config.bridge_class is None else own_class(config.bridge_class, Bridge)
        common = (layout.base, total)
        if config.path == "masked" or config.bridge == "gaussian":
            path = masked_path(*common, config.bridge, _codes(config, vocabulary), family)
        elif config.path == "constant":
            return Process(config, layout, noise, constant_mixture(*common, config.weight, config.bridge, family))
        elif config.path == "switch":
            path = switching_path(*common, float(noise.remaining(config.switch)), config.bridge, family)
        else:
            path = uniform_path(*common, config.bridge, family)
        return Process(config, layout, noise, Mixture((path,)))

    @property
    def bridge(self) -> Channel:
        """A channel of the process; pull and evidence are the same for all of them."""
        return self.mixture.paths[0].bridge

    @property
    def codes(self) -> Codes | None:
        """The learned codes of the tokens, if any."""
        tokens = self.bridge.tokens
        return tokens if isinstance(tokens, Codes) and tokens.learned else None

    def grid(self, steps: int) -> Grid:
        """Return the grid of a chain with this number of steps, uniform in time."""
        return uniform_in_time(self.schedule, steps)


class Rdlm(Method):
    """The method: a process, a denoiser with its network, and an objective."""

    card = Card("bridges of a sphere to tokens", "bound", "the paper (RDLM)", 1.0, "series of the heat kernel")
    bound_estimator = None

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.config = config
        self.check_blocks(config.process.block or config.objective.blockwise)
        self.process = Process.of(config.process, vocabulary, config.denoiser.head)
        parts = (self.layout, self.process.bridge, self.process.schedule)
        self.denoiser = Denoiser(config.denoiser, *parts, config.model.belief)
        if config.objective.readings:
            self.denoiser.check_given()
        self.network: nn.Module = build_network(config.model, self.denoiser.interface(classes, signal))
        if self.process.codes is not None:
            self.network.add_module("codes", self.process.codes)  # part of checkpoints, averages and gradients
        self.proposal = Proposal(config.objective, self.process.schedule, self.layout.base)
        self.training_grid = self.process.grid(config.process.levels)
        self._laws: dict[tuple[Channel, torch.device], Law] = {}
        self._chain_laws: dict[tuple[Path, tuple[float, ...]], PathLaw] = {}

    @property
    def layout(self) -> Layout:
        """The layout of tokens on spheres and network positions."""
        return self.process.layout

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        parameter = next(self.network.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    @property
    def token_schedule(self) -> TokenSchedule:
        """The token schedule of bounds and samples unless another one is given."""
        process = self.config.process
        return TokenSchedule(process.window, STARTS[process.order], process.block)

    def sampling_nfe(self, length: int, steps: int | None = None) -> int:
        """Return the network evaluations of a sample, at most: the steps, by default 64, or one per block."""
        block = self.config.process.block
        return steps or (max(DEFAULT_NFE, -(-length // block)) if block else DEFAULT_NFE)

    # -- training ---------------------------------------------------------------------------------

    def renew(self, held_out: Batch, draw: Draw) -> None:
        """Set the density of training levels to the information at each level, Eq. (50), where it is due and used."""
        objective = self.config.objective
        if self.proposal.due(draw.step) and objective.asynchronous < 1 and objective.blockwise < 1:
            held_out = held_out.to(self.device)
            nats = measured_information(self, held_out, generator_of("information", draw.seed, draw.step))
            self.proposal.set_information(nats)

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the training loss of a shard, Eq. (36), (37) and (49), averaged over its tokens."""
        generator = draw.generator()  # on the CPU for times and weights; states are drawn on the device of the tokens
        objective = self.config.objective
        token, condition = self.layout.symbols(batch.ids), self.condition(batch)
        count = len(token)
        quantile = draw.quantiles(count) if objective.low_discrepancy else torch.rand(count, generator=generator)
        self.proposal.advance(draw.step)
        codes = None
        if self.process.codes is not None:
            codes = codes_loss(self, self.process.codes, token, condition, draw.step, generator)
        blockwise = 0
        if objective.blockwise:
            blockwise = int(objective.blockwise * count + float(torch.rand((), generator=generator)))
        values = []
        first, rest = slice(0, count - blockwise), slice(count - blockwise, count)
        for rows, loss in ((first, sequence_loss), (rest, block_loss)):
            if rows.stop > rows.start:
                given = None if condition is None else condition[rows]
                values.append(loss(self, token[rows], given, quantile[rows], draw.step, generator))
        mean = torch.cat(values).mean()
        return mean if codes is None else mean + codes

    def noisy(
        self, token: Tensor, time: Float[Tensor, "batch length"], generator: Rng
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "batch positions"]]:
        """Return states drawn from the law of the bridge at the tokens' times, and their remaining noise."""
        remaining = self.process.schedule.remaining(self.layout.per_symbol(time)).to(token.device)
        digit = self.layout.split(token)
        level = remaining if digit.ndim == 2 else remaining[..., None]
        return self.draw(digit, level.expand(digit.shape), generator), remaining

    def finished(self, token: Int[Tensor, "batch positions"]) -> Float[Tensor, "..."]:
        """Return the states of finished symbols, the vertices."""
        digit, bridge = self.layout.split(token), self.process.bridge
        return bridge.tokens.at(digit, torch.empty(*digit.shape, bridge.dimension, device=digit.device))

    def draw(self, digit: Tensor, remaining: Tensor, generator: Rng) -> Tensor:
        """Return states from the law of the sequence's path at each position's remaining noise."""
        paths, weights = self.process.mixture.paths, self.process.mixture.weights
        laws = [PathLaw.of(path, partial(self._law, digit.device)) for path in paths]
        states = [law.draw(digit, remaining, generator) for law in laws]
        if len(states) == 1:
            return states[0]
        masked = torch.rand(len(digit), generator=generator, device=digit.device) < weights[0]
        return torch.where(masked.view(-1, *[1] * (states[0].ndim - 1)), states[0], states[1])

    def predict(
        self,
        state: Tensor,
        remaining: Tensor,
        condition: Tensor | None,
        generator: Rng,
        block_mask: BlockMask | None = None,
        given: Tensor | None = None,
    ) -> Prediction:
        """Return the denoiser's output; with self-conditioning, its own first output is the second input half of the
        time."""
        previous = None
        if self.config.model.self_condition and float(torch.rand((), generator=generator)) < 0.5:
            with torch.no_grad():
                first = self.denoiser(self.network, state, remaining, condition, block_mask=block_mask, given=given)
                previous = self.denoiser.previous(first)
        return self.denoiser.predict(self.network, state, remaining, condition, previous, block_mask, given)

    # -- likelihood and samples --------------------------------------------------------------------

    def bound(
        self,
        batch: Batch,
        nfe: int,
        generator: Rng = None,
        kernel: Kernel = "mixture",
        token_schedule: TokenSchedule | None = None,
    ) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of its bound, Eq. (28)-(32), from one random step.

        The steps of a batch are distributed evenly. A mixture draws one of its paths for each batch.
        """
        path = self._draw_a_path(generator)
        token = self.layout.symbols(batch.ids)
        chain = self.chain(path, nfe, kernel, token_schedule, length=batch.ids.shape[1]).side_by_side()
        comb = (torch.arange(len(token)) + torch.rand((), generator=generator)) / len(token)
        comb = comb[torch.randperm(len(token), generator=generator)]
        step = (comb * chain.nfe).long().clamp_max(chain.nfe - 1).to(token.device)
        posterior = self.posterior(self.condition(batch), self.block_mask(chain, token))
        terms = step_terms(posterior, chain, fresh_law(chain.path, chain.grid), token, step, generator)
        return chain.nfe * terms.double().sum(-1)

    def problem(
        self, batch: Batch, nfe: int, kernel: Kernel = "mixture", token_schedule: TokenSchedule | None = None
    ) -> Problem:
        """Return the inputs of a bound's estimators: symbols, the mixture's chains, the posterior for some rows.

        Blocks that are generated one after the other are evaluated together, each given the clean ones before it, Eq.
        (49).
        """
        batch = batch.to(self.device)
        mixture, condition, token = self.process.mixture, self.condition(batch), self.layout.symbols(batch.ids)
        length = batch.ids.shape[1]
        chains = tuple(
            self.chain(path, nfe, kernel, token_schedule, length=length).side_by_side() for path in mixture.paths
        )

        def log_probs(row: Int[Tensor, " rows"], state: Tensor, remaining: Tensor) -> Tensor:
            given = None if condition is None else condition[row]
            return self.posterior(given, self.block_mask(chains[0], token[row]))(state, remaining)

        return Problem(token, chains, mixture.weights, log_probs)

    def generate(
        self,
        count: int,
        length: int,
        nfe: int,
        generator: Rng = None,
        kernel: Kernel = "mixture",
        token_schedule: TokenSchedule | None = None,
        condition: Tensor | None = None,
    ) -> Int[Tensor, "count length"]:
        """Return token ids sampled by the chain whose likelihood `bound` measures; -1 for the code of no token."""
        chain = self.chain(self._draw_a_path(generator), nfe, kernel, token_schedule, length=length)
        condition = None if condition is None else self.laid_out(condition).to(self.device)
        posterior = self.posterior(condition, self.block_mask(chain))
        positions = length * self.layout.symbols_per_token
        symbols = sample_chain(posterior, chain, count, positions, generator, device=self.device)
        return self.layout.ids(symbols)

    def posterior(
        self, condition: Tensor | None = None, block_mask: BlockMask | None = None, given: Tensor | None = None
    ) -> Posterior:
        """Return `log p(token | states)` as a function of states and remaining noise; `given` is evidence, Eq. (57)."""

        @torch.no_grad()
        def log_probs(state: Tensor, remaining: Tensor) -> Tensor:
            return self.denoiser(self.network, state, remaining, condition, block_mask=block_mask, given=given)

        return log_probs

    def block_mask(self, chain: Chain, token: Int[Tensor, "batch positions"] | None = None) -> BlockMask | None:
        """Return the attention mask of a chain's blocks, Eq. (49); None without blocks.

        Given the tokens, all blocks are evaluated together, each given the clean ones before it.
        """
        if not chain.token_steps.block:
            return None
        return BlockMask(chain.token_steps.block, None if token is None else self.finished(token))

    # -- chains --------------------------------------------------------------------------------------

    def chain(
        self,
        path: Path,
        nfe: int,
        kernel: Kernel = "mixture",
        token_schedule: TokenSchedule | None = None,
        grid: Callable[[int], Grid] | None = None,
        length: int = 0,
    ) -> Chain:
        """Return the chain of `nfe` network evaluations on a path, by default with the method's schedule and grid.

        Blocks share the evaluations of a sequence of `length` tokens; without a length there are no blocks.
        """
        order = token_schedule or self.token_schedule
        self.check_blocks(order.block)
        synchronous = order.width == 1 and not order.block
        steps = None if synchronous else order.discretize(nfe, length)
        return self.on_grid(path, (grid or self.process.grid)(steps.steps if steps else nfe), kernel, steps)

    @property
    def takes_blocks(self) -> bool:
        """Whether the network's attention can be masked by blocks."""
        model = self.config.model
        return isinstance(model, TransformerConfig) and not model.causal and model.network_class is None

    def check_blocks(self, block: float) -> None:
        """Raise InputError for blocks with a network whose attention cannot be masked."""
        if block and not self.takes_blocks:
            raise InputError(
                "blocks need a transformer that is not causal: other networks have no block mask; "
                "set objective.blockwise and process.block to 0, and leave out block"
            )

    def on_grid(self, path: Path, grid: Grid, kernel: Kernel, token_steps: TokenSteps | None = None) -> Chain:
        """Return the chain on a local grid."""
        return Chain(path, grid, kernel, token_steps, self.layout)

    def chain_law(self, chain: Chain) -> PathLaw:
        """Return the exact law of a chain's states, tabulated once per path and grid; the last few are kept."""
        key = (chain.path, tuple(chain.grid.remaining.tolist()))
        law = self._chain_laws.get(key)
        if law is None:
            law = self._chain_laws[key] = chain.law(CHAIN_PAIRS, generator_of("chain", chain.grid.steps))
            for old in list(self._chain_laws)[:-KEPT_LAWS]:
                self._chain_laws.pop(old, None)
        return law

    def _draw_a_path(self, generator: Rng) -> Path:
        mixture = self.process.mixture
        if len(mixture.paths) == 1:
            return mixture.paths[0]
        return mixture.paths[0 if float(torch.rand((), generator=generator)) < mixture.weights[0] else 1]

    def _law(self, device: torch.device, bridge: Channel) -> Law:
        key = (bridge, device)
        if key not in self._laws:
            config = self.config.process
            self._laws[key] = cached_law(config.law, bridge, self.training_grid, config.pairs).to(device)
        return self._laws[key]

    def law_to(self, bridge: Channel, device: torch.device) -> Law:
        """Return the law of training states for a bridge with other points of the tokens, from the same table."""
        law = self._law(device, self.process.bridge)  # equal bridges may have other points
        assert isinstance(law, ExactLaw | GaussianLaw)
        return replace(law, bridge=bridge)  # type: ignore[arg-type]

    # -- conditions and checkpoints --------------------------------------------------------------------

    def condition(self, batch: Batch) -> Tensor | None:
        """Return the labels of a batch, or its signal at the network's positions; None without either."""
        return batch.label if batch.signal is None else self.laid_out(batch.signal)

    def laid_out(self, condition: Tensor) -> Tensor:
        """Return labels unchanged, and a signal [batch, length] or [batch, length, s] at the network's positions."""
        return self.layout.per_position(condition) if condition.is_floating_point() else condition

    def state(self) -> dict[str, Tensor]:
        """Return the learned state outside of the network: the time proposal."""
        return self.proposal.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.proposal.load_state(state)
