"""Batches: the order is a pure function of seed and step, and ranks share it out."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.data.batch import Batches, permuted
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Bytes
from rdlm.errors import InputError


def corpus(tokens: np.ndarray, **more: object) -> Corpus:
    return Corpus(
        "toy",
        "toy",
        "text",
        4,
        Bytes(),
        "none",
        "made up",
        Path("nowhere"),
        {"train": tokens},
        more.get("labels", {}),
        more.get("signals", {}),
    )  # type: ignore[arg-type]


STREAM = corpus(np.arange(43, dtype=np.uint8))


@settings(deadline=None, max_examples=60)
@given(count=st.integers(1, 3000), seed=st.integers(-5, 2**63), epoch=st.integers(0, 9))
def test_permuted_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    assert sorted(permuted(np.arange(count), count, seed, epoch)) == list(range(count))


def test_permutations_differ_by_seed_and_epoch_and_look_random() -> None:
    orders = [permuted(np.arange(5000), 5000, s, e) for s in (0, 1) for e in (0, 1)]
    for first, second in itertools.combinations([np.arange(5000), *orders], 2):
        # The correlation of two random orders has standard error 1/sqrt(5000) = 0.014.
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.06
    stays = (np.diff(orders[0]) == 1).mean()
    assert stays < 0.005  # neighbours stay neighbours with probability 1/5000


def test_an_epoch_has_every_row_once_and_drops_the_remainder() -> None:
    batches = Batches(STREAM, "train", batch_size=2)
    assert len(batches.rows) == 10
    seen = torch.cat([batches.batch(step).ids for step in range(5)])
    assert sorted(seen[:, 0].tolist()) == list(range(0, 40, 4))
    assert torch.equal(seen - seen[:, :1], torch.arange(4).expand(10, 4))


def test_a_batch_spans_epochs() -> None:
    batches = Batches(STREAM, "train", batch_size=7)
    rows = np.concatenate([batches.order(step) for step in range(10)])
    for epoch in range(7):
        assert sorted(rows[epoch * 10 : epoch * 10 + 10]) == list(range(10))


def test_resume_needs_only_the_step() -> None:
    first, second = (Batches(STREAM, "train", batch_size=3, seed=5) for _ in range(2))
    whole = [b.ids for b in itertools.islice(first.stream(), 12)]
    rest = [b.ids for b in itertools.islice(second.stream(step=7), 5)]
    assert all(torch.equal(a, b) for a, b in zip(whole[7:], rest, strict=True))


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_prefetching_changes_nothing(ahead: int) -> None:
    batches = Batches(STREAM, "train", batch_size=3)
    for step, batch in enumerate(itertools.islice(batches.stream(ahead=ahead), 9)):
        assert torch.equal(batch.ids, batches.batch(step).ids)


@pytest.mark.parametrize("world", [2, 3, 6])
def test_ranks_share_out_the_same_batch(world: int) -> None:
    batches = Batches(STREAM, "train", batch_size=6, seed=2)
    whole = batches.batch(4).ids
    parts = [batches.batch(4, rank, world).ids for rank in range(world)]
    assert torch.equal(torch.stack(parts, 1).reshape(6, 4), whole)


def test_labels_and_signals_follow_their_rows() -> None:
    rows = np.arange(12, dtype=np.uint8).reshape(6, 2)
    labels = {"train": np.arange(6, dtype=np.uint8)}
    signals = {"train": (np.arange(12, dtype="<f4") / 2).reshape(6, 2)}
    batch = Batches(corpus(rows, labels=labels, signals=signals), "train", batch_size=4, length=2).batch(3)
    assert batch.label is not None and batch.signal is not None
    assert torch.equal(batch.label, batch.ids[:, 0] // 2)
    assert torch.equal(batch.signal, batch.ids.float() / 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 44}, "43 tokens, fewer than a sequence of 44"),
        ({"length": 0}, "at least 1"),
        ({"batch_size": 0}, "at least 1"),
    ],
)
def test_bad_sizes_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Batches(STREAM, "train", **{"batch_size": 2, **options})  # type: ignore[arg-type]


def test_bad_requests_are_refused() -> None:
    batches = Batches(STREAM, "train", batch_size=3)
    with pytest.raises(InputError, match="not divisible"):
        batches.batch(0, 0, 2)
    with pytest.raises(InputError, match="rank"):
        batches.batch(0, 3, 3)
    with pytest.raises(InputError, match="no split 'test'"):
        Batches(STREAM, "test", batch_size=1)
    with pytest.raises(InputError, match="rows of 2 tokens"):
        Batches(corpus(np.zeros((3, 2), np.uint8)), "train", batch_size=1, length=4)
