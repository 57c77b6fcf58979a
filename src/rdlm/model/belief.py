"""The inference layer: exact posteriors of every symbol under a small Markov chain, below the network, Eq. (54).

Given the evidence `l_j` of all positions and a chain prior, the context

    c_i(k) = log p(k_i = k | evidence of the other positions)

is exact by forward-backward, in time linear in the length. It is combined with the network's output `s` by weights that
the network outputs for each position: `log p = log_softmax(u s + v c + l)`. The bound holds for any posterior.

| kind | states | learned |
|---|---|---|
| `ngram` | kept contexts of up to `order - 1` symbols | counted in the training data |
| `bigram` (`model/bigram.py`) | symbols, of a large vocabulary | counted in the training data |
| `hmm` | hidden states | with the network, through forward-backward |

Messages are [states, batch]: rows are states. B is the batch, L the length, V the vocabulary, N the states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from rdlm.errors import InputError
from rdlm.model.layers import from_evidence
from rdlm.model.ngram import Arcs, Contexts, check_ngram, count_contexts
from rdlm.model.transformer import Cache
from rdlm.storage.tables import cached

SMALLEST = 1e-9
"""Added to probabilities, so that rounding excludes no symbol or state: a reading or a prompt may contain strings that
the n-gram model has never seen."""

WEIGHTS = 2
"""Additional outputs of the network: the weights of its logits and of the chain's context."""

ALONE = 0.5
"""Share of positions at which the network is trained without the chain."""

TABLES = ("suffix", "oldest", "weight")
"""The tables of an n-gram model: fields of `Contexts` and buffers of `Ngram`."""

FORMAT = 2
"""Version of cached tables, increased whenever the tables of the same data change."""

MESSAGES = 1 << 27
"""Largest number of values in the forward messages of sequences that are evaluated together."""


class BeliefNetwork(nn.Module):
    """A network beside an inference layer: logits `u s(l) + v c(l)`, to which the caller adds the evidence, Eq. (54).

    The weights `u` and `v` of a position are outputs of the network. In training, the chain is omitted at half of the
    positions: with its context everywhere, the network receives too little training signal.
    With an `input_width` (the number of features), the chain's posterior is a second input of the network.
    """

    def __init__(
        self, network: nn.Module, belief: Belief, vocabulary: int, causal: bool = False, input_width: int = 0
    ) -> None:
        super().__init__()
        self.network, self.belief, self.vocabulary, self.causal = network, belief, vocabulary, causal
        self.input_width = input_width
        self.at_frequencies = False
        """Whether the output of the network started at the frequencies of symbols."""

    def forward(
        self,
        inputs: Shaped[Tensor, "batch length *features"],
        time: Tensor | float,
        condition: Tensor | None = None,
        previous: Tensor | None = None,
        cache: Cache | None = None,
        block: int | Tensor = 0,
        doubled: bool = False,
    ) -> Float[Tensor, "batch length v"]:
        """Return logits from evidence as features [B, L, V], or from ids [B, L] of which V is no symbol.

        The other arguments are those of `Transformer.forward`.
        """
        blockwise = not isinstance(block, int) or block > 0
        options = {"cache": cache, "block": block, "doubled": doubled} if blockwise or cache is not None else {}
        if self.training and self.belief.share < 1 and float(torch.rand(())) >= self.belief.share:
            alone: Tensor = self.network(inputs, time, condition, previous, **options)
            return alone[..., : self.vocabulary]
        with torch.autocast(inputs.device.type, enabled=False):
            context = self._context(inputs, cache, block, doubled)
        if self.input_width:
            previous = self._posterior(inputs, context)
        outputs: Tensor = self.network(inputs, time, condition, previous, **options)
        joint, logits = self.combined(outputs, context)
        if not self.training:
            return joint
        omitted = torch.rand(*logits.shape[:2], 1, device=logits.device) < ALONE
        return torch.where(omitted, logits, joint)

    @torch.no_grad()
    def start_at_frequencies(self, tokens: Int[Tensor, "n length"]) -> None:
        """Set the output bias of the network below to log-frequencies."""
        self.network.start_at_frequencies(tokens)  # type: ignore[operator]

    def combined(
        self, outputs: Float[Tensor, "batch length o"], context: Float[Tensor, "batch length v"]
    ) -> tuple[Float[Tensor, "batch length v"], Float[Tensor, "batch length v"]]:
        """Return `u s + v c` from the outputs of the network and the context, Eq. (54), and `s` alone.

        Of a network that started at the frequencies, `s` is relative to them: the chain has them already.
        """
        logits, weights = outputs.split((self.vocabulary, WEIGHTS), dim=-1)
        own, chain = weights.sigmoid().split(1, dim=-1)  # weights of 1/2 and 1 at initialisation
        relative = logits - self.belief.log_frequencies if self.at_frequencies else logits
        return own * relative + 2 * chain * context, logits

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _context(
        self, inputs: Tensor, cache: Cache | None, block: int | Tensor, doubled: bool
    ) -> Float[Tensor, "batch length v"]:
        """Return the context of the positions with an output."""
        length, likelihood = inputs.shape[1], self._likelihood(inputs)
        symbols = likelihood.argmax(-1) if inputs.is_floating_point() else inputs.clamp_max(self.vocabulary - 1)
        if cache is not None:
            symbols = _extended(cache, symbols)
        if self.causal:  # the input of a position is the symbol before it
            past: Tensor = self.belief.predicted(symbols.roll(-1, 1))
            return past[:, -length:]
        if doubled:
            clean, noisy = symbols[:, : length // 2], likelihood[:, length // 2 :]
            return self.belief.behind(clean, noisy.log(), block)
        if isinstance(block, int) and not block:
            context: Tensor = self.belief(likelihood.log())
            return context
        # The evidence of finished blocks is not used: their symbols are.
        evidence = functional.pad(likelihood.log(), (0, 0, symbols.shape[1] - length, 0))
        return self.belief.behind(symbols, evidence, block)[:, -length:]

    def _posterior(
        self, inputs: Shaped[Tensor, "batch inputs *features"], context: Float[Tensor, "batch length v"]
    ) -> Float[Tensor, "batch inputs f"]:
        """Return the chain's posterior of every position as features; the clean half of a doubled sequence is known."""
        evidence = context
        if not self.causal:  # the input of a causal network is the symbol before
            evidence = functional.pad(context, (0, 0, inputs.shape[1] - context.shape[1], 0))
            evidence = evidence + self._likelihood(inputs).log()
        return functional.pad(from_evidence(evidence), (0, self.input_width - self.vocabulary))

    def _likelihood(self, inputs: Shaped[Tensor, "batch length *features"]) -> Float[Tensor, "batch length v"]:
        """Return the normalised likelihoods of the symbols given the evidence of each position."""
        if inputs.is_floating_point():  # the inverse of `from_evidence`
            scaled: Tensor = inputs.float() * self.vocabulary**-0.5
            return (scaled + 1 / self.vocabulary).clamp_min(0)
        known = functional.one_hot(inputs, self.vocabulary + 1)[..., :-1].float()
        return torch.where((inputs == self.vocabulary)[..., None], 1 / self.vocabulary, known)


def _extended(cache: Cache, symbols: Int[Tensor, "batch length"]) -> Int[Tensor, "batch longer"]:
    """Append symbols to those of a cache, and return all of them."""
    past = cache.symbols[0]
    new = symbols[:, None, :, None]
    found = new if past is None else torch.cat((past, new), dim=2)
    cache.symbols[0] = found
    return found[:, 0, :, 0]


class Belief(nn.Module, ABC):
    """A chain prior over symbols, with exact inference from evidence."""

    states: int
    share: float = 1.0
    """Share of the training steps in which the chain is evaluated; in the others the network is trained alone."""

    @property
    def log_frequencies(self) -> Tensor | float:
        """The log-frequencies of symbols, if the chain has them."""
        return 0.0

    def fit(self, rows: Callable[[], Shaped[Tensor, "n length"]], digest: str = "") -> None:
        """Fit the parts that are not trained with the network to training data; none by default.

        The result for data with a `digest` is cached on disk.
        """

    def check(self) -> None:
        """Raise ValueError if tables that were read from a file are not those of a chain; nothing by default."""

    def forward(self, evidence: Float[Tensor, "batch length v"]) -> Float[Tensor, "batch length v"]:
        """Return the context of every position: the log-probabilities given the evidence of the others, Eq. (54)."""
        rows = max(1, MESSAGES // (self.states * evidence.shape[1]))
        with self._inference():
            return torch.cat([self._context(part, self._start(len(part))) for part in evidence.split(rows)])

    def behind(
        self,
        clean: Int[Tensor, "batch length"],
        evidence: Float[Tensor, "batch length v"],
        block: int | Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch length v"]:
        """Return the context of every position given its block's evidence and the clean symbols before its block."""
        with self._inference():
            if isinstance(block, int):
                return self._blocks(clean, evidence, block)
            found = torch.empty_like(evidence)
            for size in block.unique().tolist():
                rows = block == size
                found[rows] = self._blocks(clean[rows], evidence[rows], size)
            return found

    def _inference(self) -> AbstractContextManager[None]:
        """Context manager of inference: without gradients, unless the chain is trained."""
        return torch.no_grad()

    @abstractmethod
    def predicted(self, clean: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length v"]:
        """Return the log-probabilities of every symbol given the clean symbols before it."""

    # -- defined by each kind of chain ------------------------------------------------------------------

    @abstractmethod
    def _start(self, batch: int) -> Float[Tensor, "n batch"]:
        """Return the message before the first position."""

    @abstractmethod
    def _messages_before(self, clean: Int[Tensor, "batch length"]) -> Shaped[Tensor, "batch length ..."]:
        """Return the chain's state, or its distribution, before every position of clean symbols."""

    @abstractmethod
    def _message(self, before: Shaped[Tensor, "batch ..."]) -> Float[Tensor, "n batch"]:
        """Return entries of `_messages_before` as a message."""

    @abstractmethod
    def _ahead(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "n batch"]:
        """Return the distribution of the next state."""

    @abstractmethod
    def _back(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "n batch"]:
        """Return the expectation over the next state of a function of it: the transpose of `_ahead`."""

    @abstractmethod
    def _emitted(self, likelihood: Float[Tensor, "v batch"]) -> Float[Tensor, "n batch"]:
        """Return the likelihood of each state from that of each symbol."""

    @abstractmethod
    def _by_symbol(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "v batch"]:
        """Return the probability of each symbol from that of each state: the transpose of `_emitted`."""

    # -- forward-backward ---------------------------------------------------------------------------------

    def _context(
        self, evidence: Float[Tensor, "batch length v"], message: Float[Tensor, "n batch"]
    ) -> Float[Tensor, "batch length v"]:
        """Return the context of every position after the given forward message."""
        emitted, ahead = [], []
        for symbols in _likelihood(evidence):
            ahead.append(self._ahead(message))
            emitted.append(self._emitted(symbols))
            message = _normalised(ahead[-1] * emitted[-1])
        found: list[Tensor] = []
        message = torch.ones_like(message)
        for before, own in zip(reversed(ahead), reversed(emitted), strict=True):
            found.append(self._by_symbol(before * message))
            message = _normalised(self._back(own * message))
        return _log_context(found[::-1])

    def _blocks(self, clean: Tensor, evidence: Tensor, block: int) -> Float[Tensor, "batch length v"]:
        if block == 1:
            return self.predicted(clean)
        batch, length, symbols = evidence.shape
        before = self._messages_before(clean)[:, ::block]  # [B, blocks, ...]
        blocks = before.shape[1]
        # No evidence past the end of the sequence; there the context is not used.
        padded = functional.pad(evidence, (0, 0, 0, blocks * block - length))
        inside = padded.view(batch * blocks, block, symbols)
        rows = max(1, MESSAGES // (self.states * block))
        pairs = zip(inside.split(rows), before.flatten(0, 1).split(rows), strict=True)
        found = torch.cat([self._context(part, self._message(start)) for part, start in pairs])
        return found.view(batch, blocks * block, symbols)[:, :length]


def _likelihood(evidence: Float[Tensor, "batch length v"]) -> Float[Tensor, "length v batch"]:
    return (evidence - evidence.amax(-1, keepdim=True)).exp().permute(1, 2, 0).contiguous()


def _normalised(message: Float[Tensor, "n batch"]) -> Float[Tensor, "n batch"]:
    return message / message.sum(0, keepdim=True).clamp_min(torch.finfo(message.dtype).tiny)


def _normalise_(message: Float[Tensor, "n batch"]) -> Float[Tensor, "n batch"]:
    return message.div_(message.sum(0, keepdim=True).clamp_min_(torch.finfo(message.dtype).tiny))


def _log_context(found: list[Float[Tensor, "v batch"]]) -> Float[Tensor, "batch length v"]:
    context = torch.stack(found).permute(2, 0, 1)  # [L, V, B] -> [B, L, V]
    return (context / context.sum(-1, keepdim=True) + SMALLEST).log()


class Ngram(Belief):
    """A pruned n-gram model as a chain of contexts, Eq. (53); its tables are buffers, saved with the network.

    The products with the transition matrix are sums over its arcs, the weights `w(h, e)` that are not 0, and over the
    back-off from each context to the next shorter one.
    """

    suffix: Tensor
    oldest: Tensor
    weight: Tensor

    def __init__(self, vocabulary: int, order: int, states: int) -> None:
        super().__init__()
        check_ngram(vocabulary, order, states)
        self.vocabulary, self.order, self.states = vocabulary, order, states
        # Before contexts are counted: a chain without memory and with equally likely symbols.
        row = torch.arange(states, dtype=torch.int32)
        self.register_buffer("suffix", torch.where(row <= vocabulary, 0, -1).int())
        self.register_buffer("oldest", (row - 1) * ((row > 0) & (row <= vocabulary)))
        self.register_buffer("weight", torch.zeros(states, vocabulary).index_fill(0, torch.tensor(0), 1 / vocabulary))
        self._arcs: tuple[tuple[object, ...], Arcs] | None = None

    @property
    def log_frequencies(self) -> Tensor:
        """The log-probabilities of the root."""
        return self.weight[0].log()

    def fit(self, rows: Callable[[], Shaped[Tensor, "n length"]], digest: str = "") -> None:
        """Count the contexts of training data, or take them from the cache."""

        def make() -> dict[str, Tensor]:
            contexts = count_contexts(rows(), self.vocabulary, self.order, self.states)
            return {name: getattr(contexts, name) for name in TABLES}

        parameters = {"format": FORMAT, "table": "ngram", "data": digest, "vocabulary": self.vocabulary}
        parameters |= {"order": self.order, "states": self.states}
        tables = cached(parameters, make) if digest else make()
        for name in TABLES:
            getattr(self, name).copy_(tables[name])

    def check(self) -> None:
        """Raise ValueError unless the tables are those of an n-gram model; they may be from an untrusted file."""
        suffix, oldest, weight = self.suffix.long(), self.oldest.long(), self.weight.float()
        row, used = torch.arange(self.states, device=suffix.device), int((suffix >= 0).sum())
        inside = (suffix[:used] >= 0).all() and (suffix[1:used] < row[1:used]).all() and suffix[0] == 0
        if not bool(inside and (oldest >= 0).all() and (oldest < self.vocabulary).all()):
            raise ValueError("the states of its n-gram model are not numbered in order")
        symbols = row[: self.vocabulary]
        single = suffix[1 : 1 + self.vocabulary] == 0
        if not bool(used > self.vocabulary and single.all() and (oldest[1 : 1 + self.vocabulary] == symbols).all()):
            raise ValueError("the first contexts of its n-gram model are not the single symbols")
        length = Contexts.of(suffix, oldest, weight).length
        if not bool((torch.diff(length[:used]) >= 0).all() and int(length.max()) < self.order):
            raise ValueError("the contexts of its n-gram model are not sorted by length")
        total = weight.sum(1)
        positive = (weight >= 0).all() and (weight[0] > 0).all() and (total < 1.01).all() and total[0] > 0.99
        if not bool(positive):
            raise ValueError("the probabilities of its n-gram model do not sum to 1")

    @property
    def arcs(self) -> Arcs:
        """The tables in the form that inference needs, computed once after they change."""
        key = (self.weight._version, self.weight.data_ptr(), self.suffix._version, self.weight.device)
        if self._arcs is None or self._arcs[0] != key:
            # On the CPU, because the loop reads values in every iteration.
            tables = self.suffix.cpu().long(), self.oldest.cpu().long(), self.weight.cpu().float()
            self._arcs = (key, Arcs.of(Contexts.of(*tables)).to(self.weight.device))
        return self._arcs[1]

    def predicted(self, clean: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length v"]:
        """Return the log-probabilities of every symbol given the clean symbols before it."""
        return (self.arcs.probability[self._messages_before(clean)] + SMALLEST).log()

    def _messages_before(self, clean: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
        state = torch.zeros(len(clean), dtype=torch.long, device=clean.device)
        found = []
        for symbol in clean.unbind(1):
            found.append(state)
            state = self.arcs.following[state, symbol]
        return torch.stack(found, 1)

    def _message(self, before: Int[Tensor, " batch"]) -> Float[Tensor, "n batch"]:
        return functional.one_hot(before, self.states).t().float()

    def _start(self, batch: int) -> Float[Tensor, "n batch"]:
        return self._message(torch.zeros(batch, dtype=torch.long, device=self.weight.device))

    def _context(
        self, evidence: Float[Tensor, "batch length v"], message: Float[Tensor, "n batch"]
    ) -> Float[Tensor, "batch length v"]:
        """Return the context of every position without gradients, in half of the time by reusing memory."""
        likelihood = _likelihood(evidence)
        ahead, found, message = [], [], message.contiguous().clone()
        for symbols in likelihood:
            ahead.append(self._ahead(message))
            message = _normalise_(self._emitted(symbols).mul_(ahead[-1]))
        message = torch.ones_like(message)
        for symbols in likelihood.flip(0):
            found.append(self._by_symbol(ahead.pop().mul_(message)))
            message = self._backward(symbols, message)
        return _log_context(found[::-1])

    @torch.no_grad()
    def lookahead(self, evidence: Float[Tensor, "batch length v"]) -> list[Float[Tensor, "n batch"]]:
        """Return the probability, up to a factor, of the evidence ahead of each position given the state, Eq. (59)."""
        message = torch.ones(self.states, len(evidence), device=evidence.device)
        found = [message]
        for symbols in _likelihood(evidence).flip(0)[:-1]:
            found.append(message := self._backward(symbols, message))
        return found[::-1]

    def _backward(
        self, likelihood: Float[Tensor, "v batch"], message: Float[Tensor, "n batch"]
    ) -> Float[Tensor, "n batch"]:
        """Return the backward message before a position from that after it."""
        found = self._back(self._emitted(likelihood).mul_(message)).clamp_min_(0)
        return _normalise_(found).add_(SMALLEST / self.states)

    def _ahead(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "n batch"]:
        arcs = self.arcs
        for level, shorter, by_suffix in reversed(arcs.levels):  # the message is not needed any more
            message[shorter] += by_suffix(message[level])
        return arcs.by_target(message).clamp_min_(SMALLEST / self.states)  # differences can be negative by rounding

    def _back(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "n batch"]:
        arcs = self.arcs
        message = arcs.by_source(message)
        for level, _, _ in arcs.levels:
            message[level] += message.index_select(0, arcs.suffix[level]).mul_(arcs.backoff[level, None])
        return message

    def _emitted(self, likelihood: Float[Tensor, "v batch"]) -> Float[Tensor, "n batch"]:
        return likelihood.index_select(0, self.arcs.symbol)

    def _by_symbol(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "v batch"]:
        return self.arcs.by_symbol(message)


class HiddenMarkov(Belief):
    """A hidden Markov model whose transitions and emissions are parameters."""

    def __init__(self, vocabulary: int, states: int) -> None:
        super().__init__()
        if states < 2:
            raise InputError(f"a hidden Markov model needs at least 2 states, got {states}")
        self.states = states
        self.start = nn.Parameter(torch.zeros(states))
        self.transition = nn.Parameter(torch.randn(states, states))
        self.emission = nn.Parameter(torch.randn(states, vocabulary))

    def predicted(self, clean: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length v"]:
        """Return the log-probabilities of every symbol given the clean symbols before it."""
        with self._inference():
            before = self._messages_before(clean).flatten(0, 1)  # [B L, N]
            found = self._by_symbol(self._ahead(before.t()))
            probability: Tensor = found.t().unflatten(0, clean.shape)
            return (probability + SMALLEST).log()

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Context manager of inference: the probabilities of this call, in float32 also under autocast."""
        with torch.autocast(self.transition.device.type, enabled=False):
            self._next = self.transition.softmax(-1)  # [N, N]: rows are distributions of the next state
            self._symbol = self.emission.softmax(-1)  # [N, V]
            yield

    def _start(self, batch: int) -> Float[Tensor, "n batch"]:
        return self.start.softmax(0)[:, None].expand(-1, batch)

    def _messages_before(self, clean: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length n"]:
        message = self._start(len(clean))
        found = []
        for symbol in clean.unbind(1):
            found.append(message.t())
            message = _normalised(self._ahead(message) * self._symbol[:, symbol])
        return torch.stack(found, 1)

    def _message(self, before: Float[Tensor, "batch n"]) -> Float[Tensor, "n batch"]:
        return before.t()

    def _ahead(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "n batch"]:
        return self._next.t() @ message

    def _back(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "n batch"]:
        return self._next @ message

    def _emitted(self, likelihood: Float[Tensor, "v batch"]) -> Float[Tensor, "n batch"]:
        return self._symbol @ likelihood

    def _by_symbol(self, message: Float[Tensor, "n batch"]) -> Float[Tensor, "v batch"]:
        return self._symbol.t() @ message
