"""Queries to the network, and the denoiser with guidance, temperature and self-conditioning.

A sampler is a generator. It yields a `Query` for every network evaluation, and receives log-probabilities. The caller
evaluates queries one by one, or together with those of other samplers (`Batcher`).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.model.denoiser import BlockMask, Denoiser
from rdlm.model.layers import TimeEmbedding
from rdlm.model.transformer import Cache
from rdlm.random import check_numbers, generator_of


class CachedPrefix(NamedTuple):
    """The part of a sequence that a query covers when the blocks before it are in a KV cache.

    A finished block attends to itself and to finished blocks before it, so its keys and values never change.
    """

    cache: Cache
    block: int
    """Tokens of a block."""
    finished: int
    """Tokens of finished blocks; their keys and values are kept after this query."""
    end: int
    """End of the tokens on which the network is evaluated."""


class Query(NamedTuple):
    """Network inputs of some rows."""

    state: Float[Tensor, "rows positions *spheres d"]
    remaining: Float[Tensor, "rows positions"]
    """Remaining noise of each position."""
    previous: Float[Tensor, "rows length f"] | None = None
    """The last prediction, for self-conditioned networks."""
    condition: Tensor | None = None
    """Classes, -1 for a row without one, or signals."""
    block_mask: BlockMask | None = None
    prefix: CachedPrefix | None = None
    given: Float[Tensor, "rows positions v"] | None = None
    """Evidence from another source than the states."""

    @property
    def batching_key(self) -> tuple[object, ...]:
        """Batching key: rows with equal shape and attention mask, all with evidence or none, share a forward pass."""
        mask = self.block_mask
        return self.state.shape[1:], mask and (mask.block, mask.finished is None), self.given is None

    def rows(self, rows: slice) -> Query:
        """Return some of the rows."""
        previous = None if self.previous is None else self.previous[rows]
        condition = None if self.condition is None else self.condition[rows]
        mask = None if self.block_mask is None else self.block_mask.part(rows)
        prefix = self.prefix and self.prefix._replace(cache=self.prefix.cache.rows(rows))
        given = None if self.given is None else self.given[rows]
        return Query(self.state[rows], self.remaining[rows], previous, condition, mask, prefix, given)

    def split(self, size: int = 1) -> list[Query]:
        """Return queries of at most `size` rows."""
        return [self.rows(slice(at, at + size)) for at in range(0, len(self.state), size)]

    def join(self, parts: Sequence[Query], log_probs: Sequence[Tensor]) -> Float[Tensor, "rows positions v"]:
        """Return the log-probabilities of the parts as one tensor, and merge their caches."""
        if self.prefix is not None:
            self.prefix.cache.take([part.prefix.cache for part in parts if part.prefix is not None])
        return log_probs[0] if len(log_probs) == 1 else torch.cat(list(log_probs))

    def with_unconditional(self) -> Query:
        """Return all rows with their condition, then all rows without it."""
        assert self.condition is not None
        absent = torch.full_like(self.condition, float("nan") if self.condition.is_floating_point() else -1)
        previous = None if self.previous is None else torch.cat([self.previous] * 2)
        both = torch.cat([self.condition, absent])
        return Query(torch.cat([self.state] * 2), torch.cat([self.remaining] * 2), previous, both, self.block_mask)

    @torch.no_grad()
    def evaluate(self, denoiser: Denoiser, network: nn.Module) -> Float[Tensor, "rows positions v"]:
        """Return the log-probabilities of all rows from one forward pass."""
        if self.prefix is not None:
            log_probs = self._evaluate_behind(self.prefix, denoiser, network)
        else:
            inputs = (self.state, self.remaining, self.condition, self.previous, self.block_mask, self.given)
            log_probs = denoiser(network, *inputs)
        if log_probs.device.type == "cpu":  # on other devices, reading a result would synchronise
            check_numbers(log_probs)
        return log_probs

    def _evaluate_behind(self, prefix: CachedPrefix, denoiser: Denoiser, network: nn.Module) -> Tensor:
        """Return log-probabilities of the positions behind the cache, uniform elsewhere; the cache grows."""
        symbols, positions = denoiser.layout.symbols_per_token, denoiser.layout.positions
        part = slice(prefix.cache.length // positions * symbols, prefix.end * symbols)
        mask = BlockMask(prefix.block, cache=prefix.cache)
        found = denoiser(network, self.state[:, part], self.remaining[:, part], self.condition, block_mask=mask)
        prefix.cache.keep(prefix.finished * positions)
        log_probs = found.new_full((*self.remaining.shape, found.shape[-1]), -math.log(found.shape[-1]))
        log_probs[:, part] = found
        return log_probs


def evaluated(log_probs: Float[Tensor, "... v"]) -> Bool[Tensor, "..."]:
    """Return which positions were evaluated: at the others, all tokens have exactly the same probability."""
    return log_probs.amax(-1) > log_probs.amin(-1)


# -- guidance, temperature, self-conditioning ------------------------------------------------------

Denoising = Generator[Query, Tensor, Tensor]
"""Yields queries, receives their log-probabilities, and returns the log-probabilities to sample from."""


class GuidedDenoiser:
    """Log-probabilities of tokens with guidance, temperature and self-conditioning.

    A condition with one row applies to all sequences. Self-conditioning keeps the last prediction between calls.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        condition: Tensor | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
        block_mask: BlockMask | None = None,
        self_condition: bool = False,
    ) -> None:
        self.denoiser, self.condition, self.guidance, self.temperature = denoiser, condition, guidance, temperature
        self.block_mask, self.self_condition = block_mask, self_condition
        self._previous: Tensor | None = None

    def __call__(
        self,
        state: Float[Tensor, "rows positions *spheres d"],
        remaining: Float[Tensor, "rows positions"],
        prefix: CachedPrefix | None = None,
    ) -> Denoising:
        """Return guided and tempered log-probabilities; one query, or one of twice the rows where guidance is used."""
        condition = self.condition
        if condition is not None and len(condition) == 1:
            condition = condition.expand(len(state), *condition.shape[1:])
        query = Query(state, remaining, self._previous, condition, self.block_mask, prefix)
        if self.guidance == 1 or query.condition is None:
            log_probs = yield query
        else:
            log_probs = guide(self.guidance, *(yield query.with_unconditional()).chunk(2))
        if self.self_condition:
            self._previous = self.denoiser.previous(log_probs)
        return log_probs if self.temperature == 1 else self._tempered(log_probs, state, remaining)

    def _tempered(self, log_probs: Tensor, state: Tensor, remaining: Tensor) -> Tensor:
        """Return log-probabilities with the context's part divided by the temperature, the evidence as it is, Eq. (27).

        For independent tokens this samples from `p^(1/T)`. If the evidence were divided as well, the first noise would
        determine the sample. Without evidence the two parts cannot be separated, and the sum is divided.
        """
        evidence = self.denoiser.evidence(state, remaining)
        if evidence is None:
            return torch.log_softmax(log_probs / self.temperature, -1)
        return torch.log_softmax(evidence + (log_probs - evidence) / self.temperature, -1)


def guide(guidance: float, conditional: Tensor, unconditional: Tensor) -> Tensor:
    """Return log-probabilities with the condition weighted by the guidance, Eq. (45)."""
    return torch.log_softmax(unconditional + guidance * (conditional - unconditional), -1)


# -- batching --------------------------------------------------------------------------------------

MOST_ROWS: Final = 8
"""Rows of the largest forward pass: more are no faster per row."""

REGISTERS: Final = {"AVX2": 16, "AVX512": 32}.get(torch.backends.cpu.get_cpu_capability(), 32)
"""Values per vector register of elementwise operations."""

Result = TypeVar("Result")


def drive(sampling: Generator[Query, Tensor, Result], batcher: Batcher) -> Result:
    """Return the result of one sampler, whose queries are evaluated one after the other."""
    try:
        query = next(sampling)
        while True:
            query = sampling.send(batcher.evaluate(query))
    except StopIteration as stop:
        result: Result = stop.value
        return result


class Batcher:
    """Log-probabilities for the queries of any number of samplers, in few forward passes, bit-identical to single rows.

    On a CPU, batching can change the last bits of a row in two ways. Rows share a forward pass only where neither
    occurs.

    - A matrix product may sum in another order for another number of rows. This is tested once for each length and
      number of rows: random rows together must equal the same rows one by one, bit for bit. (On the processors tried
      they do, except at lengths of 1 to 3.)
    - The last elements of an array that do not fill a vector register go through other instructions, and SiLU then
      rounds differently for a few arguments, which a random test may miss. Where a row is not a whole number of
      registers, rows are evaluated one by one. (With AVX2: where the length times the width of the time embedding is no
      multiple of 16.)

    With 1.1M parameters, length 64, one thread: 5.3 ms for one row, 26 ms for eight together, 42 ms one by one.

    Passes are distributed over threads. Each pass uses one thread, so that neither their number nor the load of the
    machine changes a bit. With `rows`, passes have at most that many rows instead, and bits may depend on the batch.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        network: nn.Module,
        self_condition: bool = False,
        threads: int = 1,
        rows: int | None = None,
    ) -> None:
        self.denoiser, self.network, self.self_condition = denoiser, network, self_condition
        self.threads, self.rows = max(1, threads), rows
        self.nfe = 0
        """Forward passes so far."""
        self._exact: dict[tuple[object, ...], bool] = {}
        embeddings = [one for one in network.modules() if isinstance(one, TimeEmbedding) and one.constant is None]
        self._widths = {layer.out_features for one in embeddings for layer in (one.inner, one.outer)}
        self._pool = ThreadPoolExecutor(self.threads, "rdlm-batcher", partial(torch.set_num_threads, 1))

    def evaluate(self, query: Query) -> Float[Tensor, "rows positions v"]:
        """Return the log-probabilities of one query."""
        if self.rows is None:
            return self([query])[0]
        parts = query.split(self.rows)
        return query.join(parts, [part.evaluate(self.denoiser, self.network) for part in parts])

    def __call__(self, queries: Sequence[Query]) -> list[Float[Tensor, "rows positions v"]]:
        """Return the log-probabilities of each query; queries with equal batching keys share forward passes."""
        answers: list[Tensor] = [torch.empty(0)] * len(queries)
        # With a KV cache, queries have few positions, and batched rows would round differently.
        cached = {index: query.split() for index, query in enumerate(queries) if query.prefix is not None}
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, query in enumerate(queries):
            if index not in cached:
                groups.setdefault(query.batching_key, []).append(index)
        passes = [row for rows in cached.values() for row in rows]
        passes += [one for group in groups.values() for one in self._passes([queries[i] for i in group])]
        self.nfe += len(passes)
        found = iter(self._run(passes))
        for index, rows in cached.items():
            answers[index] = queries[index].join(rows, [next(found) for _ in rows])
        for group in groups.values():
            counts = [len(queries[i].state) for i in group]
            whole = torch.cat([next(found) for _ in range(self._pass_count(sum(counts)))])
            for index, part in zip(group, whole.split(counts), strict=True):
                answers[index] = part
        return answers

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()

    def _pass_count(self, rows: int) -> int:
        """Return the number of forward passes for rows with one batching key: at least one per thread."""
        return min(rows, max(self.threads, -(-rows // MOST_ROWS)))

    def _passes(self, queries: Sequence[Query]) -> list[Query]:
        """Return queries with one batching key as forward passes of nearly equal size."""
        whole = queries[0] if len(queries) == 1 and not self.self_condition else self._joined(queries)
        places = torch.arange(len(whole.state)).tensor_split(self._pass_count(len(whole.state)))
        return [whole.rows(slice(int(place[0]), int(place[-1]) + 1)) for place in places]

    def _joined(self, queries: Sequence[Query]) -> Query:
        """Return the rows of several queries as one."""
        state, remaining = torch.cat([one.state for one in queries]), torch.cat([one.remaining for one in queries])
        previous = torch.cat([self._previous_of(one) for one in queries]) if self.self_condition else None
        condition = _joined_conditions([(one.condition, len(one.state)) for one in queries])
        masks, given = _joined_masks([one.block_mask for one in queries]), [one.given for one in queries]
        evidence = torch.cat([one for one in given if one is not None]) if given[0] is not None else None
        return Query(state, remaining, previous, condition, masks, None, evidence)

    def _previous_of(self, query: Query) -> Tensor:
        """Return the last prediction, or zeros, which mean no prediction."""
        if query.previous is not None:
            return query.previous
        return query.state.new_zeros(len(query.state), self._length(query), self.denoiser.interface().features)

    def _length(self, query: Query) -> int:
        """Return the number of positions of the network."""
        return query.state.shape[1] // (1 if query.state.ndim == 4 else self.denoiser.layout.spheres)

    def _run(self, passes: Sequence[Query]) -> list[Tensor]:
        if len(passes) == 1 or self.threads == 1:
            return [self._evaluate_pass(one) for one in passes]
        return list(self._pool.map(self._evaluate_pass, passes))

    def _evaluate_pass(self, query: Query) -> Tensor:
        if len(query.state) == 1 or self._is_exact(query):
            return query.evaluate(self.denoiser, self.network)
        return self._one_by_one(query)

    def _is_exact(self, query: Query) -> bool:
        """Return whether this number of rows of this shape can share a pass without a change of bits; tested once."""
        key = *query.batching_key, len(query.state), query.condition is None
        if query.state.device.type != "cpu":
            return True  # on other devices bits depend on the batch, and a test would synchronise
        if any(self._length(query) * width % REGISTERS for width in self._widths):
            return False
        if key not in self._exact:
            generator = generator_of("trial", *query.state.shape)
            state = functional.normalize(torch.rand(query.state.shape, generator=generator), dim=-1)
            remaining = torch.rand(query.remaining.shape, generator=generator) * self.denoiser.schedule.total
            previous = None if query.previous is None else torch.rand(query.previous.shape, generator=generator)
            given = None if query.given is None else -3 * torch.rand(query.given.shape, generator=generator)
            trial = Query(state, remaining, previous, query.condition, query.block_mask, None, given)
            self._exact[key] = torch.equal(trial.evaluate(self.denoiser, self.network), self._one_by_one(trial))
        return self._exact[key]

    def _one_by_one(self, query: Query) -> Tensor:
        rows = query.split()
        return query.join(rows, [row.evaluate(self.denoiser, self.network) for row in rows])


def _joined_masks(masks: Sequence[BlockMask | None]) -> BlockMask | None:
    first = masks[0]
    if first is None or first.finished is None:
        return first
    return BlockMask(first.block, torch.cat([one.finished for one in masks if one and one.finished is not None]))


def _joined_conditions(parts: Sequence[tuple[Tensor | None, int]]) -> Int[Tensor, " rows"] | None:
    """Return the classes of all rows, -1 for those without; None where no row has one."""
    given = [condition for condition, _ in parts if condition is not None]
    if not given:
        return None
    none = partial(torch.full, fill_value=-1, device=given[0].device)
    return torch.cat([none((rows,)) if condition is None else condition for condition, rows in parts])
