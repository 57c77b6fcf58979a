"""Network calls shared by rows, of one request or of several, each row answered as if it had been asked alone.

Company can change the last bits of a row in two ways, and rows share a call where neither does.

- A matrix product may add up in another order when it has another number of rows. That is tried out, for every length
  and every number of rows, the first time that it comes up: random rows together must equal, to the last bit, the same
  rows one by one. (On the processors tried they do, except at lengths of 1 to 3.)
- The last elements of an array that do not fill a vector register are computed by other instructions, and of all
  functions in the network SiLU then rounds differently, for few arguments, so that a trial may miss it. Where a row of
  its array is not a whole number of registers, rows go one by one. (With AVX2: where the length times the width of the
  time's embedding is no multiple of 16.)

Measured with 1.1M parameters at length 64 on one thread: 5.3 ms for one row, 26 ms for eight together, 42 one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rdlm.methods.rdlm import Rdlm
from rdlm.model.denoiser import BlockMask
from rdlm.model.layers import TimeEmbedding
from rdlm.random import generator_of
from rdlm.sampling.recall import Recall

ROWS = 8
"""Most rows of one network call: more of them are no faster each."""

REGISTERS = {"AVX2": 16, "AVX512": 32}.get(torch.backends.cpu.get_cpu_capability(), 32)
"""Numbers that an operation on a whole array takes at a time."""


class Query(NamedTuple):
    """What is asked of the network for some rows."""

    state: Float[Tensor, "rows positions *spheres d"]
    remaining: Float[Tensor, "rows positions"]
    previous: Float[Tensor, "rows length f"] | None = None
    """The last answer, for networks that see it."""
    condition: Tensor | None = None
    """Classes, -1 for a row without one, or signals; none for a network that knows neither."""
    block_mask: BlockMask | None = None
    """What positions see of each other; none: everything."""
    recall: Recall | None = None
    """What is asked of a model that remembers the rest: then each row goes by itself."""

    @property
    def shape(self) -> tuple[object, ...]:
        """Return what rows must have in common to share a call: a row's shape, and what its positions see."""
        block_mask = self.block_mask
        return self.state.shape[1:], block_mask and (block_mask.block, block_mask.finished is None)

    def part(self, rows: slice) -> Query:
        """Return some of the rows."""
        previous = None if self.previous is None else self.previous[rows]
        condition = None if self.condition is None else self.condition[rows]
        block_mask = None if self.block_mask is None else self.block_mask.part(rows)
        recall = None if self.recall is None else self.recall.rows(rows)
        return Query(self.state[rows], self.remaining[rows], previous, condition, block_mask, recall)

    def twice(self) -> Query:
        """Return all rows with their conditions, and all once more without."""
        assert self.condition is not None
        absent = torch.full_like(self.condition, float("nan") if self.condition.is_floating_point() else -1)
        previous = None if self.previous is None else torch.cat([self.previous] * 2)
        both = torch.cat([self.condition, absent])
        return Query(torch.cat([self.state] * 2), torch.cat([self.remaining] * 2), previous, both, self.block_mask)

    def answer(self, method: Rdlm) -> Float[Tensor, "rows positions v"]:
        """Return what the network says, asked about all rows at once."""
        with torch.no_grad():
            if self.recall is not None:
                return self.recall.law(method, self.state, self.remaining, self.condition)
            return method.denoiser(
                method.network, self.state, self.remaining, self.condition, self.previous, self.block_mask
            )

    def parts(self, size: int = 1) -> list[Query]:
        """Return queries of so many rows each."""
        return [self.part(slice(at, at + size)) for at in range(0, len(self.state), size)]

    def whole(self, parts: Sequence[Query], laws: Sequence[Tensor]) -> Float[Tensor, "rows positions v"]:
        """Return the answer from those to the parts, and remember what they do."""
        if self.recall is not None:
            self.recall.remember([part.recall for part in parts if part.recall is not None])
        return laws[0] if len(laws) == 1 else torch.cat(list(laws))


class Forward:
    """`log p(token | states)` for rows of any origin, in as few network calls as their lengths allow.

    The calls of one turn are spread over threads. Each runs its operations on one thread, so that neither the number
    of threads nor the machine's other work changes a bit of the answer.
    """

    def __init__(self, method: Rdlm, threads: int = 1) -> None:
        self.method, self.threads = method, max(1, threads)
        self.nfe = 0
        self._exact: dict[tuple[object, ...], bool] = {}
        embeddings = [module for module in method.network.modules() if isinstance(module, TimeEmbedding)]
        self._widths = {layer.out_features for one in embeddings for layer in (one.inner, one.outer)}
        self._pool = ThreadPoolExecutor(self.threads, "rdlm-forward", partial(torch.set_num_threads, 1))

    def __call__(self, queries: Sequence[Query]) -> list[Float[Tensor, "rows positions v"]]:
        """Return the answers to all queries; those of one shape share their calls, unless the model remembers."""
        answers: list[Tensor] = [torch.empty(0)] * len(queries)
        # About so few positions as are asked of a model that remembers, rows together would round apart.
        alone = {index: query.parts() for index, query in enumerate(queries) if query.recall is not None}
        shapes: dict[tuple[object, ...], list[int]] = {}
        for index, query in enumerate(queries):
            if index not in alone:
                shapes.setdefault(query.shape, []).append(index)
        nfe = [row for rows in alone.values() for row in rows]
        nfe += [block for places in shapes.values() for block in self._chunks([queries[i] for i in places])]
        self.nfe += len(nfe)
        parts = iter(self._run(nfe))
        for index, rows in alone.items():
            answers[index] = queries[index].whole(rows, [next(parts) for _ in rows])
        for places in shapes.values():
            counts = [len(queries[i].state) for i in places]
            whole = torch.cat([next(parts) for _ in range(self._pieces(sum(counts)))])
            for place, part in zip(places, whole.split(counts), strict=True):
                answers[place] = part
        return answers

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown()

    def _pieces(self, rows: int) -> int:
        """Return into how many calls rows of one shape are cut: one for each thread, none with more than `ROWS`."""
        return min(rows, max(self.threads, -(-rows // ROWS)))

    def _chunks(self, queries: Sequence[Query]) -> list[Query]:
        """Return rows of one shape as queries of nearly equal size."""
        memory = self.method.config.model.self_condition
        state, remaining = torch.cat([one.state for one in queries]), torch.cat([one.remaining for one in queries])
        previous = torch.cat([self._memory(one) for one in queries]) if memory else None
        given = conditions([(one.condition, len(one.state)) for one in queries])
        whole = Query(state, remaining, previous, given, joined([one.block_mask for one in queries]))
        places = torch.arange(len(state)).tensor_split(self._pieces(len(state)))
        return [whole.part(slice(int(place[0]), int(place[-1]) + 1)) for place in places]

    def _memory(self, query: Query) -> Tensor:
        """Return the last answer, or zeros where there is none: to the network that is the same."""
        if query.previous is not None:
            return query.previous
        return query.state.new_zeros(len(query.state), self._length(query), self.method.denoiser.interface().features)

    def _length(self, query: Query) -> int:
        """Return the number of positions that the network sees."""
        return query.state.shape[1] // (1 if query.state.ndim == 4 else self.method.denoiser.spheres)

    def _run(self, blocks: Sequence[Query]) -> list[Tensor]:
        if len(blocks) == 1 or self.threads == 1:
            return [self._answer(block) for block in blocks]
        return list(self._pool.map(self._answer, blocks))

    def _answer(self, query: Query) -> Tensor:
        rows = len(query.state)
        if rows == 1 or self._shareable(query):
            return query.answer(self.method)
        return self._one_by_one(query)

    def _shareable(self, query: Query) -> bool:
        """Return whether so many rows of this shape can share a call, by a trial that is made once."""
        key = *query.shape, len(query.state)
        if any(self._length(query) * width % REGISTERS for width in self._widths):
            return False
        if key not in self._exact:
            generator = generator_of("trial", *query.state.shape)
            state = functional.normalize(torch.rand(query.state.shape, generator=generator), dim=-1)
            remaining = torch.rand(query.remaining.shape, generator=generator) * self.method.process.schedule.total
            previous = None if query.previous is None else torch.rand(query.previous.shape, generator=generator)
            trial = Query(state, remaining, previous, None, query.block_mask)
            self._exact[key] = torch.equal(trial.answer(self.method), self._one_by_one(trial))
        return self._exact[key]

    def _one_by_one(self, query: Query) -> Tensor:
        rows = query.parts()
        return query.whole(rows, [row.answer(self.method) for row in rows])


def joined(parts: Sequence[BlockMask | None]) -> BlockMask | None:
    """Return what rows of one shape see, together."""
    first = parts[0]
    if first is None or first.finished is None:
        return first
    return BlockMask(first.block, torch.cat([one.finished for one in parts if one and one.finished is not None]))


def conditions(parts: Sequence[tuple[Tensor | None, int]]) -> Int[Tensor, " rows"] | None:
    """Return the classes of so many rows each, -1 for those without; None where no row has one."""
    if all(condition is None for condition, _ in parts):
        return None
    return torch.cat([torch.full((rows,), -1) if condition is None else condition for condition, rows in parts])
