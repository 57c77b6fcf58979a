"""The diffusion that a configuration describes: codec, clock and mixture of paths for one vocabulary.

RDLM: diffusion on spheres from an uninformative start to the vertices of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.config import ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.data.store import Corpus
from rdlm.errors import InputError
from rdlm.likelihood import Posterior, Problem, step_terms
from rdlm.methods.objective import Proposal, block_loss, together
from rdlm.model.denoiser import BlockMask, Denoiser, Scores
from rdlm.model.network import build as build_network
from rdlm.process.bridge import Bridge
from rdlm.process.grid import Grid, uniform_in_time
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.law import cached_law
from rdlm.process.layout import Codec
from rdlm.process.order import TokenSchedule, TokenSteps
from rdlm.process.path import (
    Law,
    Mixture,
    Path,
    PathLaw,
    constant_mixture,
    masked_path,
    switching_path,
    uniform_path,
)
from rdlm.process.schedule import Schedule, schedule
from rdlm.random import Draw, generator_of, on_device
from rdlm.sampling.walk import walk


@dataclass(frozen=True, eq=False)
class Process:
    """The diffusion that a configuration describes, for one vocabulary."""

    config: ProcessConfig
    codec: Codec
    schedule: Schedule
    mixture: Mixture

    @staticmethod
    def of(config: ProcessConfig, vocabulary: int) -> Process:
        """Return the process over `vocabulary` tokens, split into digits where the configuration says so."""
        codec = Codec(vocabulary, config.base or vocabulary, config.layout)
        noise = schedule(config.schedule, config.total)
        switch_remaining = float(noise.remaining(config.switch))
        base, total, kind = codec.base, config.total, config.bridge
        mixture = {
            "masked": Mixture((masked_path(base, total, kind),)),
            "uniform": Mixture((uniform_path(base, total, kind),)),
            "constant": constant_mixture(base, total, config.weight, kind),
            "switch": Mixture((switching_path(base, total, switch_remaining, kind),)),
        }[config.path]
        return Process(config, codec, noise, mixture)

    @property
    def bridge(self) -> Bridge:
        """Return a bridge of the process; pull and evidence are the same for all of them."""
        return self.mixture.paths[0].bridge

    def grid(self, steps: int) -> Grid:
        """Return the grid of a chain of so many steps."""
        return uniform_in_time(self.schedule, steps)


DEFAULT_NFE = 64
"""Network calls of a sample unless another number is asked for."""

CHAIN_PAIRS = 8192
"""Draws per level in the tables of the chains that bounds are measured on."""

KEPT_LAWS = 8
"""Tables of chains kept in memory: a service may be asked for any number of steps."""


class Rdlm:
    """The method: a process, a denoiser with its network, and an objective."""

    claims_bound = True

    def __init__(self, config: RunConfig, vocabulary: int, classes: int = 0, signal: int = 0) -> None:
        self.config = config
        self.check_blocks(config.process.block or config.objective.blockwise)
        self.process = Process.of(config.process, vocabulary)
        self.denoiser = Denoiser(config.denoiser, self.process.codec, self.process.bridge, self.process.schedule)
        self.network: nn.Module = build_network(config.model, self.denoiser.interface(classes, signal))
        self.proposal = Proposal(config.objective)
        self.training_grid = self.process.grid(config.process.levels)
        self._laws: dict[Bridge, Law] = {}
        self._chain_laws: dict[tuple[Path, tuple[float, ...]], PathLaw] = {}

    @staticmethod
    def build(config: RunConfig, corpus: Corpus) -> Rdlm:
        """Return the method for a corpus: its vocabulary, its classes or its per-position signal."""
        return Rdlm(config, corpus.tokenizer.size, len(corpus.classes), int(bool(corpus.signals)))

    # -- training ---------------------------------------------------------------------------------

    def loss(self, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
        """Return the training loss of a shard, Eq. (36), (37) and (49), averaged over its tokens."""
        generator = draw.generator()  # on the CPU, for what is decided there; states are drawn where the tokens are
        objective = self.config.objective
        token, condition = self.symbols(batch.ids), self._condition(batch)
        count = len(token)
        quantile = draw.quantiles(count) if objective.low_discrepancy else torch.rand(count, generator=generator)
        self.proposal.advance(draw.step)
        in_blocks = 0
        if objective.blockwise:
            in_blocks = int(objective.blockwise * count + float(torch.rand((), generator=generator)))
        values = []
        first, rest = slice(0, count - in_blocks), slice(count - in_blocks, count)
        for rows, lesson in ((first, together), (rest, block_loss)):
            if rows.stop > rows.start:
                given = None if condition is None else condition[rows]
                values.append(lesson(self, token[rows], given, quantile[rows], draw.step, generator))
        return torch.cat(values).mean()

    def noisy(
        self, token: Tensor, time: Float[Tensor, "batch length"], generator: torch.Generator | None
    ) -> tuple[Float[Tensor, ...], Float[Tensor, "batch positions"]]:
        """Return states of the right law at the tokens' times, and the noise still to come."""
        remaining = self.process.schedule.remaining(self.per_symbol(time)).to(token.device)
        digit = self.digits(token)
        level = remaining if digit.ndim == 2 else remaining[..., None]
        return self.draw(digit, level.expand(digit.shape), generator), remaining

    def finished(self, token: Int[Tensor, "batch positions"]) -> Float[Tensor, ...]:
        """Return the states of finished symbols, the vertices."""
        return functional.one_hot(self.digits(token), self.process.bridge.dimension).float()

    def draw(self, digit: Tensor, remaining: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return states from the law of the sequence's path at each position's noise."""
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
        generator: torch.Generator | None,
        block_mask: BlockMask | None = None,
    ) -> Scores:
        """Return the denoiser's answer; a self-conditioned network sees its own first one half of the time."""
        previous = None
        if self.config.model.self_condition and float(torch.rand((), generator=generator)) < 0.5:
            with torch.no_grad():
                previous = self.denoiser.previous(
                    self.denoiser(self.network, state, remaining, condition, block_mask=block_mask)
                )
        return self.denoiser.scores(self.network, state, remaining, condition, previous, block_mask)

    # -- likelihood and samples --------------------------------------------------------------------

    def bound(
        self,
        batch: Batch,
        nfe: int,
        generator: torch.Generator | None = None,
        kernel: Kernel = "mixture",
        window: TokenSchedule | None = None,
    ) -> Float[Tensor, " batch"]:
        """Return, for each sequence, an unbiased estimate in nats of its bound, Eq. (28)-(32), from one random step.

        The steps of a batch are spread evenly. A mixture draws one of its paths for each batch.
        """
        path = self._draw_a_path(generator)
        token = self.symbols(batch.ids)
        chain = self.chain(path, nfe, kernel, window, length=batch.ids.shape[1]).side_by_side()
        comb = (torch.arange(len(token)) + torch.rand((), generator=generator)) / len(token)
        comb = comb[torch.randperm(len(token), generator=generator)]
        step = (comb * chain.nfe).long().clamp_max(chain.nfe - 1).to(token.device)
        posterior = self.posterior(self._condition(batch), self.block_mask(chain, token))
        law = self.chain_law(chain).to(token.device)
        terms = step_terms(posterior, chain, law, token, step, on_device(generator, token.device))
        return chain.nfe * terms.double().sum(-1)

    def problem(
        self, batch: Batch, nfe: int, kernel: Kernel = "mixture", window: TokenSchedule | None = None
    ) -> Problem:
        """Return what a measurement of the bound asks for: symbols, the mixture's chains, the model for some rows.

        Where chunks run one after the other they are measured side by side, each behind finished ones, Eq. (49).
        """
        mixture, condition, token = self.process.mixture, self._condition(batch), self.symbols(batch.ids)
        length = batch.ids.shape[1]
        chains = tuple(self.chain(path, nfe, kernel, window, length=length).side_by_side() for path in mixture.paths)

        def log_probs(row: Int[Tensor, " rows"], state: Tensor, remaining: Tensor) -> Tensor:
            given = None if condition is None else condition[row]
            return self._log_probability(given, self.block_mask(chains[0], token[row]), state, remaining)

        return Problem(token, chains, mixture.weights, log_probs)

    def generate(
        self,
        count: int,
        length: int,
        nfe: int,
        generator: torch.Generator | None = None,
        kernel: Kernel = "mixture",
        window: TokenSchedule | None = None,
        condition: Tensor | None = None,
    ) -> Int[Tensor, "count length"]:
        """Return token ids sampled by the chain whose likelihood `bound` measures; -1 where digits spell no token."""
        chain = self.chain(self._draw_a_path(generator), nfe, kernel, window, length=length)
        condition = None if condition is None else self.laid_out(condition)
        posterior = self.posterior(condition, self.block_mask(chain))
        return self.spell(walk(posterior, chain, count, length * self.symbols_per_token, generator))

    def posterior(self, condition: Tensor | None = None, block_mask: BlockMask | None = None) -> Posterior:
        """Return `log p(token | states)` as the bound and the sampler want it."""
        return partial(self._log_probability, condition, block_mask)

    def _log_probability(
        self, condition: Tensor | None, block_mask: BlockMask | None, state: Tensor, remaining: Tensor
    ) -> Tensor:
        with torch.no_grad():
            return self.denoiser(self.network, state, remaining, condition, block_mask=block_mask)

    def block_mask(self, chain: Chain, token: Int[Tensor, "batch positions"] | None = None) -> BlockMask | None:
        """Return what positions see of each other on a chain, Eq. (49): everything, where it has no chunks.

        Given the tokens, all chunks are seen at once, each behind finished ones.
        """
        if not chain.token_steps.block:
            return None
        return BlockMask(chain.token_steps.block, None if token is None else self.finished(token))

    def chain(
        self,
        path: Path,
        nfe: int,
        kernel: Kernel = "mixture",
        window: TokenSchedule | None = None,
        grid: Callable[[int], Grid] | None = None,
        length: int = 0,
    ) -> Chain:
        """Return the chain of `nfe` network calls on a path, in other windows and on another grid where wanted.

        Chunks share the calls of a sequence of `length` tokens; where that is not given there are none.
        """
        window = window or self.window
        self.check_blocks(window.block)
        plain = window.width == 1 and not window.block
        token_steps = None if plain else window.discretize(nfe, length)
        return self.on_grid(
            path, (grid or self.process.grid)(token_steps.steps if token_steps else nfe), kernel, token_steps
        )

    def check_blocks(self, block: float) -> None:
        """Refuse chunks for a network that cannot look away from what comes after them."""
        if block and not (isinstance(self.config.model, TransformerConfig) and not self.config.model.causal):
            raise InputError("chunks need a transformer that is not causal: others cannot choose what positions see")

    @property
    def window(self) -> TokenSchedule:
        """Return the window in which positions run unless another one is asked for."""
        return TokenSchedule(self.config.process.window, self.config.process.order, self.config.process.block)

    def on_grid(self, path: Path, grid: Grid, kernel: Kernel, token_steps: TokenSteps | None = None) -> Chain:
        """Return the chain on a local grid."""
        codec = self.process.codec if self.denoiser.whole else None
        return Chain(path, grid, kernel, token_steps, codec, self.symbols_per_token)

    def chain_law(self, chain: Chain) -> PathLaw:
        """Return the exact law of a chain's states, tabulated once per path and grid; the last few are kept."""
        key = (chain.path, tuple(chain.grid.remaining.tolist()))
        law = self._chain_laws.get(key)
        if law is None:
            law = self._chain_laws[key] = chain.law(CHAIN_PAIRS, generator_of("chain", chain.grid.steps))
            for old in list(self._chain_laws)[:-KEPT_LAWS]:
                self._chain_laws.pop(old, None)
        return law

    def _draw_a_path(self, generator: torch.Generator | None) -> Path:
        mixture = self.process.mixture
        if len(mixture.paths) == 1:
            return mixture.paths[0]
        return mixture.paths[0 if float(torch.rand((), generator=generator)) < mixture.weights[0] else 1]

    # -- tokens and digits -------------------------------------------------------------------------

    @property
    def symbols_per_token(self) -> int:
        """Return how many positions of the process a token takes: its digits, unless they move together."""
        return 1 if self.denoiser.whole else self.process.codec.digits

    def symbols(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch positions"]:
        """Return what the process runs on: tokens, or all digits in a row."""
        codec = self.process.codec
        return ids if self.denoiser.whole or codec.digits == 1 else codec.encode(ids).flatten(1)

    def spell(self, symbols: Int[Tensor, "batch positions"]) -> Int[Tensor, "batch length"]:
        """Return the token ids that symbols spell; -1 where digits spell no token."""
        if self.symbols_per_token == 1:
            return symbols
        codec = self.process.codec
        digits = symbols if codec.layout == "serial" else symbols.unflatten(1, (-1, codec.digits))
        return codec.decode(digits).ids

    def digits(self, token: Tensor) -> Tensor:
        """Return the token that each sphere ends in: the symbols themselves, or the digits that share a position."""
        return self.process.codec.encode(token) if self.denoiser.whole else token

    def per_symbol(self, time: Float[Tensor, "batch length"]) -> Float[Tensor, "batch positions"]:
        """Return times of the process's positions: the digits of a token share its time."""
        return time if time.shape[1] == 1 else time.repeat_interleave(self.symbols_per_token, dim=1)

    def _condition(self, batch: Batch) -> Tensor | None:
        return batch.label if batch.signal is None else self.laid_out(batch.signal)

    def laid_out(self, condition: Tensor) -> Tensor:
        """Return labels as they are, and a signal [batch, length] or [batch, length, s] at the network's positions."""
        if not condition.is_floating_point():
            return condition
        signal = condition if condition.ndim == 3 else condition[..., None]
        return signal.repeat_interleave(self.process.codec.positions, dim=1)

    def _law(self, device: torch.device, bridge: Bridge) -> Law:
        if bridge not in self._laws:
            config = self.config.process
            self._laws[bridge] = cached_law(config.law, bridge, self.training_grid, config.pairs).to(device)
        return self._laws[bridge]

    # -- checkpoints -------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Return what was learned outside the network: the time proposal."""
        return self.proposal.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""
        self.proposal.load_state(state)
