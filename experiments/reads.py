"""Restoration of DNA reads with qualities: errors before and after, by several models of the genome.

    python -m experiments.reads --csv docs/data/reads.csv           # the packaged model; two minutes
    python -m experiments.reads RUN ... --csv docs/data/reads.csv    # runs of chr22

Reads are simulated from the test split of chr22, regions that are in no training data: a base of quality Q is wrong
with probability 10^(-Q/10), as FASTQ defines it, and any other base is as likely. They are restored as in `rdlm restore
dna reads.fastq`. A posterior without a model of the genome changes nothing; the 8-mers are a chain counted on the
training split, with exact inference.

| column | meaning |
|---|---|
| before, after | wrong bases as a share of all, with one standard error over reads |
| corrected, spoilt | wrong bases that became right, and right ones that became wrong |
| bits_before, bits_after | bits per base of the truth under the qualities, and under the posterior |
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import rdlm
from experiments.row_cache import Row
from experiments.trial import commit, write_csv
from rdlm import data
from rdlm.api.language_model import LanguageModel
from rdlm.api.restore import restore_reads
from rdlm.data.evidence import Reading, from_fastq
from rdlm.display.text_table import table
from rdlm.model.belief import Ngram

LENGTH = 150
"""Bases of a read."""

PROFILES: dict[str, tuple[int, ...]] = {
    "Illumina (Q 20 to 40)": (20, 25, 30, 35, 37, 40),
    "nanopore (Q 7 to 15)": (7, 9, 11, 13, 15),
    "poor (Q 2 to 40)": (2, 5, 10, 20, 30, 40),
}
"""Qualities, each base having one of them with equal probability."""

COLUMNS = ("restorer", "qualities", "before", "after", "stderr", "corrected", "spoilt", "bits_before", "bits_after")


def simulated(rows: Tensor, count: int, qualities: Sequence[int], seed: int) -> tuple[str, Tensor]:
    """Return reads in the format FASTQ, and the true bases [count, LENGTH]."""
    random = np.random.default_rng(seed)
    lines, truth = [], []
    for number in range(count):
        row = rows[int(random.integers(len(rows)))].numpy()
        begin = int(random.integers(len(row) - LENGTH + 1))
        true, level = row[begin : begin + LENGTH], random.choice(qualities, LENGTH)
        wrong = random.random(LENGTH) < 10.0 ** (-level / 10)
        read = np.where(wrong, (true + random.integers(1, 4, LENGTH)) % 4, true)
        bases, marks = "".join("ACGT"[base] for base in read), "".join(chr(33 + one) for one in level)
        lines.append(f"@read{number}\n{bases}\n+\n{marks}\n")
        truth.append(torch.from_numpy(true))
    return "".join(lines), torch.stack(truth)


def chain_posteriors(chain: Ngram, reads: Sequence[Reading]) -> Tensor:
    """Return the exact posteriors [reads, LENGTH, 4] under a chain."""
    evidence = torch.stack([read.evidence.float() for read in reads])
    with torch.no_grad():
        return torch.cat([(chain(part) + part).softmax(-1) for part in evidence.split(16)])


def posteriors(restorer: LanguageModel | Ngram, reads: Sequence[Reading]) -> Tensor:
    """Return the posteriors of all reads, [reads, LENGTH, 4]."""
    if isinstance(restorer, Ngram):
        return chain_posteriors(restorer, reads)
    return torch.stack([found.posterior for found in restore_reads(restorer, reads)])


def row_of(name: str, posterior: Tensor, reads: Sequence[Reading], truth: Tensor) -> Row:
    """Return the errors and bits before and after a restoration."""
    given = torch.stack([read.evidence for read in reads]).log_softmax(-1)
    wrong, still = given.argmax(-1) != truth, posterior.argmax(-1) != truth
    bits = [-law.double().gather(-1, truth[..., None]).mean() / math.log(2) for law in (given, posterior.log())]
    share = still.double().mean(-1)
    found: Row = {"restorer": name, "reads": len(reads), "before": float(wrong.double().mean())}
    found |= {"after": float(share.mean()), "stderr": float(share.std() / len(reads) ** 0.5)}
    found |= {"corrected": int((wrong & ~still).sum()), "spoilt": int((still & ~wrong).sum())}
    return found | {"bits_before": float(bits[0]), "bits_after": float(bits[1])}


def measured(restorers: dict[str, LanguageModel | Ngram], rows: Tensor, count: int, seeds: int) -> Iterator[Row]:
    """Yield a row for each restorer, kind of qualities and seed."""
    for qualities, levels in PROFILES.items():
        for seed in range(seeds):
            text, truth = simulated(rows, count, levels, seed)
            reads = from_fastq(text)
            for name, restorer in restorers.items():
                row = row_of(name, posteriors(restorer, reads), reads, truth.long())
                yield {**row, "qualities": qualities, "seed": seed, "commit": commit()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, restore, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["dna"], help="models that restore; by default the packaged one")
    parser.add_argument("--reads", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3, help="sets of reads; models have the seed of their training")
    parser.add_argument("--order", type=int, default=8, help="order of the chain")
    parser.add_argument("--csv", type=Path, default=None, help="also write the table to this file")
    options = parser.parse_args(arguments)
    corpus = data.load("chr22")
    chain = Ngram(4, options.order, 4 ** (options.order - 1))
    chain.fit(corpus.rows)
    restorers: dict[str, LanguageModel | Ngram] = {f"{options.order}-mers": chain}
    restorers |= {model.name: model for model in map(rdlm.load, options.models)}
    rows = list(measured(restorers, torch.from_numpy(np.array(corpus.test)), options.reads, options.seeds))
    print(table(rows, COLUMNS))
    if options.csv is not None:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
