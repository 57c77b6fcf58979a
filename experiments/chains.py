"""Chains of the inference layer: likelihood of an n-gram model alone, and the cost of exact inference under it.

    python -m experiments.chains --corpus text8 --orders 4 5 6 7 --states 8192 16384 32768

Bits per symbol of validation rows from left to right, which are exact; processor seconds of forward-backward for
10 sequences of 32 positions, one thread, and of counting.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

import torch

from rdlm import data
from rdlm.data.store import Corpus
from rdlm.display.text_table import table
from rdlm.model.belief import Ngram
from rdlm.model.ngram import Contexts

ROWS, LENGTH, FIRST = 256, 512, 8
"""Validation rows, their length, and the first position that counts."""


def row(corpus: Corpus, order: int, states: int) -> dict[str, object]:
    """Return quality and cost of one chain."""
    vocabulary = corpus.tokenizer.size
    chain = Ngram(vocabulary, order, states)
    began = time.process_time()
    chain.fit(corpus.rows)
    counted = time.process_time() - began
    held_out = torch.from_numpy(corpus.validation[: ROWS * LENGTH].astype("int64")).view(ROWS, LENGTH)
    nats = -chain.predicted(held_out).gather(-1, held_out[..., None])[:, FIRST:].mean()
    evidence = torch.randn(10, 32, vocabulary)
    chain(evidence)
    began = time.process_time()
    chain(evidence)
    spent = time.process_time() - began
    lengths = Contexts.of(chain.suffix.long(), chain.oldest.long(), chain.weight).length
    contexts = [int((lengths == length).sum()) for length in range(1, order)]
    found: dict[str, object] = {"order": order, "states": states, "bits": round(float(nats) / math.log(2), 4)}
    found |= {"arcs": len(chain.arcs.by_target.index), "inference_seconds": round(spent, 3)}
    return found | {"counting_seconds": round(counted, 1), "contexts_by_length": " ".join(map(str, contexts))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="text8")
    parser.add_argument("--orders", nargs="*", type=int, default=[4, 5, 6, 7])
    parser.add_argument("--states", nargs="*", type=int, default=[8192, 16384, 32768])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    corpus = data.load(options.corpus)
    rows = [row(corpus, order, states) for order in options.orders for states in options.states]
    print(table(rows, list(rows[0])))


if __name__ == "__main__":
    main()
