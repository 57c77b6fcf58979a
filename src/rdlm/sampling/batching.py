"""Batched network evaluations for one or many samplers, bit-identical to those of single rows.

On a CPU, batching can change the last bits of a row in two ways. Rows share a forward pass only where neither occurs.

- A matrix product may sum in another order for another number of rows. This is tested once for each length and number
  of rows: random rows together must equal the same rows one by one, bit for bit. (On the processors tried they do,
  except at lengths of 1 to 3.)
- The last elements of an array that do not fill a vector register go through other instructions, and SiLU then rounds
  differently for a few arguments, which a random test may miss. Where a row is not a whole number of registers, rows
  are evaluated one by one. (With AVX2: where the length times the width of the time embedding is no multiple of 16.)

With 1.1M parameters, length 64, one thread: 5.3 ms for one row, 26 ms for eight together, 42 ms one by one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rdlm.model.denoiser import BlockMask, Denoiser
from rdlm.model.layers import TimeEmbedding
from rdlm.random import generator_of
from rdlm.sampling.denoisers import Query

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
    """Log-probabilities for the queries of any number of samplers, in few forward passes.

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
