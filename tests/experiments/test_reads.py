"""Simulated reads have the errors that their qualities state, and a chain that knows the genome corrects them."""

from __future__ import annotations

import pytest
import torch

from experiments import reads
from rdlm.data.evidence import from_fastq
from rdlm.model.belief import Ngram

GENOME = torch.randint(4, (1, 400), generator=torch.Generator().manual_seed(0))


def test_errors_are_as_frequent_as_the_qualities_state() -> None:
    text, truth = reads.simulated(GENOME, 200, (10,), 0)
    found = from_fastq(text)
    row = reads.row_of("none", torch.stack([read.evidence.exp() for read in found]), found, truth)
    assert row["before"] == pytest.approx(0.1, abs=4 * (0.09 / 200 / 150) ** 0.5)
    assert row["after"] == pytest.approx(row["before"])
    assert row["corrected"] == row["spoilt"] == 0
    entropy = -0.9 * torch.tensor(0.9).log2() - 0.1 * torch.tensor(0.1 / 3).log2()
    assert row["bits_before"] == pytest.approx(float(entropy), abs=0.05)
    assert row["bits_after"] == pytest.approx(row["bits_before"])


def test_a_chain_of_the_genome_corrects_the_reads() -> None:
    chain = Ngram(4, 7, 4**6)
    chain.fit(lambda: GENOME.repeat(50, 1))
    text, truth = reads.simulated(GENOME, 20, (5, 10, 30), 0)
    found = from_fastq(text)
    row = reads.row_of("chain", reads.posteriors(chain, found), found, truth)
    assert row["after"] < 0.3 * float(str(row["before"])) and row["bits_after"] < row["bits_before"]
    assert (float(str(row["before"])) - float(str(row["after"]))) * 20 * reads.LENGTH == pytest.approx(
        int(str(row["corrected"])) - int(str(row["spoilt"]))
    )
