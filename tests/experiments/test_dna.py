"""The judgement of generated DNA: measures with known values, guidance of every method, and the table end to end."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from experiments import dna, judge
from experiments.trial import commit, write_csv
from rdlm import methods
from rdlm.config import ConvolutionConfig, TransformerConfig
from rdlm.data import store
from rdlm.data.store import Corpus, Draft
from rdlm.data.tokenizer import bases


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Two classes of 24 bases: one of A and C, the other of G and T."""
    generator = np.random.default_rng(0)
    labels = {split: np.arange(64, dtype=np.uint8) % 2 for split in store.SPLITS}
    tokens = {split: [generator.integers(2, size=(64, 24)) + 2 * labels[split][:, None]] for split in store.SPLITS}
    arrays = {split: [rows[0].astype(np.uint8)] for split, rows in tokens.items()}
    draft = Draft("toy", bases(), arrays, "made here", labels, classes=("ac", "gt"))
    store.write(tmp_path / "toy", draft, {"name": "toy", "kind": "dna", "licence": "none", "length": 24})
    return store.read(tmp_path / "toy")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks."""
    base = replace(dna.BASE, model=ConvolutionConfig(width=8, stacks=1, dilations=(1,), kernel=3))
    process = replace(base.process, levels=8, pairs=64)
    training = replace(base.training, batch=4, validation_sequences=4, validation_nfe=2, device="cpu")
    monkeypatch.setattr(dna, "BASE", replace(base, process=process, training=training))
    monkeypatch.setitem(dna.PAPER, "process", {**dna.PAPER["process"], "levels": 8, "pairs": 64})
    monkeypatch.setattr(dna, "CAUSAL", TransformerConfig(width=8, layers=1, heads=1))
    monkeypatch.setattr(dna, "CALLS", 2)


class Constant(nn.Module):
    """Logits that are the number of the class, or -1 without one."""

    def forward(self, inputs: Tensor, time: Tensor | float, condition: Tensor) -> Tensor:
        return condition.view(-1, 1, 1).expand(-1, inputs.shape[1], 4).float()


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.0, 4.0])
def test_guidance_weights_the_condition_against_its_absence(weight: float) -> None:
    logits = dna.Guided(Constant(), weight)(torch.zeros(3, 5), torch.zeros(3), torch.tensor([0, 1, 2]))
    expected = -1 + weight * (torch.tensor([0.0, 1.0, 2.0]) + 1)
    torch.testing.assert_close(logits, expected.view(3, 1, 1).expand(3, 5, 4))


@pytest.mark.parametrize("name", dna.METHODS)
def test_every_method_samples_with_guidance(name: str, corpus: Corpus, tmp_path: Path) -> None:
    config = dna.Options(tmp_path).config(name, 0, 1e-3, 1)
    method = methods.METHODS[config.method](config, 4, 2, 0)
    with torch.no_grad():
        for parameter in method.network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    label = torch.tensor([0, 1, 1])
    found = {weight: dna.samples(method, label, 6, 0, weight) for weight in (0.0, 1.0, 4.0)}
    assert all(ids.shape == (3, 6) and int(ids.min()) >= 0 and int(ids.max()) < 4 for ids in found.values())
    swapped = dna.samples(method, 1 - label, 6, 0, 0.0)
    assert torch.equal(found[0.0], swapped), "guidance 0 ignores the label"


def test_reverse_complement() -> None:
    ids = torch.tensor(bases().encode("AACGT")).long()[None]
    assert bases().decode(judge.reverse_complement(ids)[0].tolist()) == "ACGTT"


def test_kmers_are_numbers_in_base_4() -> None:
    assert judge.kmers(torch.tensor([[0, 1, 2, 3]]), 3).tolist() == [[0 * 16 + 1 * 4 + 2, 1 * 16 + 2 * 4 + 3]]


def test_activity_errors_are_those_of_all_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    made, real = (torch.rand(count, 2, generator=generator) for count in (6, 8))
    label, of_real = torch.arange(6) % 2, torch.arange(8) % 2
    pairs = [
        (made[label == one][:, None] - real[of_real == one]).double().square().mean() for one in (0, 1)
    ]  # oracle: every pair
    mse, means = judge.activity_errors(made, real, label, of_real)
    assert mse == pytest.approx(float(sum(pairs)) / 2, rel=1e-5)
    assert judge.activity_errors(real, real, of_real, of_real)[1] == 0 < means < mse


def test_spectra_are_compared_by_class() -> None:
    a, c = torch.zeros(2, 9, dtype=torch.long), torch.ones(2, 9, dtype=torch.long)
    real, label = torch.cat([a, c]), torch.tensor([0, 0, 1, 1])
    assert judge.spectrum_divergence(real, real, label, label, 4) == 0
    assert judge.spectrum_divergence(real, real, 1 - label, label, 4) == pytest.approx(1)


def test_motifs_are_found_on_both_strands(monkeypatch: pytest.MonkeyPatch) -> None:
    odds = torch.full((1, 4, 3), -1.0)
    odds[0, [0, 0, 1], [0, 1, 2]] = 1.0  # AAC
    monkeypatch.setattr(judge, "motifs", lambda: (odds, torch.tensor([2.5])))
    rows = ["TTAACTT", "CCGTTCC", "CCCCCCC"]  # the motif, its reverse complement, neither
    ids = torch.stack([torch.tensor(bases().encode(row)).long() for row in rows])
    assert judge.motif_hits(ids)[:, 0].tolist() == [True, True, False]
    profile = judge.motif_profile(ids, torch.tensor([0, 0, 1]))
    assert profile[:, 0].tolist() == [0.5, -0.5]


def test_variety_of_equal_sequences_is_none() -> None:
    ids = torch.randint(4, (1, 40), generator=torch.Generator().manual_seed(0)).repeat(3, 1)
    known = np.unique(judge.kmers(ids[:, :30], 20).numpy())  # 11 of 21 long words
    found = judge.variety(ids, known)
    assert found["distance"] == 0 and found["copied"] == pytest.approx(11 / 21)
    assert found["distinct"] == pytest.approx(1 / 3)


def test_interval_of_a_share_contains_it_and_stays_within_bounds() -> None:
    assert judge.wilson(0, 10)[0] == pytest.approx(0) and judge.wilson(10, 10)[1] == pytest.approx(1)
    low, high = judge.wilson(50, 100)
    assert low < 0.5 < high and high - low == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 100), rel=0.03)


def test_table_end_to_end(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dna, "load_corpus", lambda config: corpus)
    monkeypatch.setattr(dna, "train", lambda config, out, build: _train(config, out, build, corpus))
    monkeypatch.setattr(dna, "METHODS", {"rdlm": {}, "d3pm": {"method": "d3pm"}})
    monkeypatch.setattr(judge, "motifs", lambda: (torch.eye(4)[:, :, None].repeat(1, 1, 3), torch.full((4,), 2.5)))
    monkeypatch.setattr(judge, "EPOCHS", 1)
    out = ["--out", str(tmp_path / "out"), "--csv", str(tmp_path / "dna.csv")]
    dna.main(["--seeds", "0", "--steps", "2", "--each", "3", *out])
    first = (tmp_path / "dna.csv").read_text()
    rows = list(csv.DictReader(first.splitlines()))
    assert [row["row"] for row in rows] == ["real, whole test split", "real", *["rdlm"] * 5, "d3pm"]
    assert [row["guidance"] for row in rows[2:6]] == ["0", "1", "2", "4"]
    assert {row["commit"] for row in rows} == {commit()}
    monkeypatch.setattr(dna, "train", None)  # all rows are cached
    dna.main(["--seeds", "0", "--steps", "2", "--each", "3", *out])
    assert (tmp_path / "dna.csv").read_text() == first


def test_a_trained_model_is_judged_on_its_own_labels(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dna, "load_corpus", lambda config: corpus)
    monkeypatch.setattr(judge, "motifs", lambda: (torch.eye(4)[:, :, None].repeat(1, 1, 3), torch.full((4,), 2.5)))
    config = dna.Options(tmp_path).config("rdlm", 0, 1e-3, 1)
    _train(config, tmp_path / "run", methods.build, corpus)
    out = ["--out", str(tmp_path / "out"), "--csv", str(tmp_path / "dna.csv")]
    dna.main(["--model", str(tmp_path / "run"), "--seeds", "3", "--each", "3", *out])
    rows = list(csv.DictReader((tmp_path / "dna.csv").read_text().splitlines()))
    assert [row["guidance"] for row in rows] == ["", "", "0", "1", "2", "4"]
    assert {row["seed"] for row in rows[2:]} == {"3"} and {row["samples"] for row in rows[1:]} == {"6"}


def _train(config: Any, out: Path, build: Any, corpus: Corpus) -> Any:
    from rdlm.train.loop import train

    return train(config, out, build, load=lambda _: corpus)


def test_csv_has_all_columns(tmp_path: Path) -> None:
    write_csv(tmp_path / "x.csv", [{"a": 1}, {"a": 0.1234567, "b": None}])
    assert (tmp_path / "x.csv").read_text() == "a,b\n1,\n0.12346,\n"


def test_rows_measured_elsewhere_stay_in_a_table(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    write_csv(path, [{"row": "a", "steps": 1, "bits": 3.0}, {"row": "b", "steps": 1, "bits": 2.0}])
    write_csv(path, [{"row": "b", "steps": 1, "bits": 1.5}, {"row": "c", "steps": 1, "bits": 1.0}], ("row", "steps"))
    assert path.read_text() == "row,steps,bits\na,1,3\nb,1,1.5\nc,1,1\n"
    write_csv(path, [{"row": "d"}])
    assert path.read_text() == "row\nd\n"
