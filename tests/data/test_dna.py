"""The DNA corpora on fixtures: windows, splits that share no base, formats of the user's files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from rdlm.data import Batches, dna, load
from rdlm.errors import DamagedFileError, InputError

from .conftest import Planter

RANDOM = np.random.default_rng(0)


def gtf(*starts: tuple[int, str]) -> bytes:
    lines = [f"chr22\tX\ttranscript\t{p + 1}\t{p + 1}\t.\t{strand}\t.\tgene" for p, strand in starts]
    return "\n".join(["# comment", *lines, "chr22\tX\texon\t5\t9\t.\t+\t.\tgene"]).encode()


def test_windows_put_the_start_in_the_middle_in_reading_direction() -> None:
    chromosome = bytearray(b"A" * 3000)
    chromosome[1500:1503] = b"GTC"
    plus, minus = (dna.window_at(bytes(chromosome), p, s) for p, s in ((1500, "+"), (1502, "-")))
    assert plus is not None and minus is not None and len(plus) == len(minus) == 1024
    assert plus[510:516] == b"AAGTCA"
    assert minus[510:516] == b"TTGACT"  # complemented and reversed


def test_windows_with_unknown_bases_or_over_the_end_are_left_out() -> None:
    assert dna.window_at(b"A" * 511 + b"N" + b"A" * 1000, 700, "+") is None
    assert dna.window_at(b"A" * 2000, 100, "+") is None
    assert dna.window_at(b"A" * 2000, 1800, "-") is None


def test_transcript_starts_depend_on_the_strand() -> None:
    lines = ["chr22\tX\ttranscript\t101\t200\t.\t+\t.\tg", "chr22\tX\ttranscript\t101\t200\t.\t-\t.\tg"]
    assert list(dna.transcript_starts(lines)) == [(100, "+"), (199, "-")]


@pytest.fixture
def chromosome(plant: Planter, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[tuple[int, str]]]:
    """A small chromosome with its transcript starts, in the archive of chromosome 22."""
    monkeypatch.setattr(dna, "REGION", 6000)
    length = 120_000
    bases = RANDOM.choice(np.frombuffer(b"acgt", np.uint8), length).tobytes()
    regions = np.arange(20) * 6000
    starts = [(int(b + p), "+-"[i % 2]) for b in regions for i, p in enumerate(RANDOM.integers(0, 3000, 15))]
    fasta = b">chr22\n" + b"\n".join(bases[i : i + 60] for i in range(0, length, 60)) + b"\n"
    folder = "snakealtpromoter/data"
    plant(dna, "CHR22", {f"{folder}/hg38.fa": fasta, f"{folder}/hg38.gtf": gtf(*starts, starts[0])})
    return bases.upper().decode(), starts


def place_of(text: str, forward: str) -> int:
    """Return where a window begins on the forward strand."""
    backward = forward.translate(str.maketrans("ACGT", "TGCA"))[::-1]
    return forward.find(text) if text in forward else len(forward) - 1024 - backward.find(text)


@pytest.mark.parametrize("name", ["promoter-chr22", "chr22"])
def test_chr22_splits_share_no_base(chromosome: tuple[str, list[tuple[int, str]]], name: str) -> None:
    corpus = load(name)
    assert corpus.length == 1024 and corpus.tokenizer.size == 4
    covered = {}
    for split in ("train", "validation", "test"):
        texts = [corpus.tokenizer.decode(row) for row in corpus.split(split)]
        assert len(texts) == len(set(texts)) > 10
        places = [place_of(text, chromosome[0]) for text in texts]
        covered[split] = {base for place in places for base in range(place, place + 1024)}
    assert not covered["train"] & covered["validation"]
    assert not covered["train"] & covered["test"]
    assert not covered["validation"] & covered["test"]


def test_chr22_labels_windows_with_and_without_a_transcript_start(
    chromosome: tuple[str, list[tuple[int, str]]],
) -> None:
    forward, starts = chromosome
    corpus, promoters = load("chr22"), load("promoter-chr22")
    assert corpus.classes == ("promoter", "background")
    for split in ("train", "validation", "test"):
        rows, labels = np.array(corpus.split(split)), np.array(corpus.labels[split])
        assert np.array_equal(rows[labels == 0], promoters.split(split))
        assert (labels == 0).sum() == (labels == 1).sum()
        for row in rows[labels == 1]:
            at = place_of(corpus.tokenizer.decode(row), forward)
            assert at >= 0 and not [start for start, _ in starts if at <= start < at + 1024]


def test_regulatory_needs_its_licence_accepted_and_splits_by_chromosome(plant: Planter) -> None:
    header = "chr\tsequence\tTAG\n"
    cells = ("GM12878_E1", "HepG2_E2", "K562_E3", "hESCT0_E4")
    chromosomes = ["chr1", "chr2", "chr3", "chrX", "chr11"]
    lines = [f"{c}\t{'ACGTa' * 40}\t{cells[i % 4]}\n" for i, c in enumerate(chromosomes)]
    name = "d-1/data/K562_hESCT0_HepG2_GM12878_12k_sequences_per_group.txt"
    plant(dna, "REGULATORY", {name: (header + "".join(lines)).encode()})
    with pytest.raises(InputError, match=r"academic.*--accept-licence"):
        load("regulatory")
    corpus = load("regulatory", accept_licence=True)
    assert [len(s) for s in (corpus.train, corpus.validation, corpus.test)] == [3, 1, 1]
    assert corpus.labels["train"].tolist() == [2, 3, 0] and corpus.classes[2] == "K562"
    assert corpus.tokenizer.decode(corpus.test[0]) == "ACGTA" * 40
    assert load("regulatory").folder == corpus.folder  # accepted once
    with pytest.raises(InputError, match="no option 'accept_licence'"):
        load("demo", accept_licence=True)


COUNTS = {"train": 4, "validation": 2, "test": 3}
IDS = {split: RANDOM.integers(0, 4, (n, 1024)) for split, n in COUNTS.items()}
SIGNAL = {split: RANDOM.random((n, 1024)).round(3).astype("f4") for split, n in COUNTS.items()}


def as_npz(path: Path, ids: dict[str, np.ndarray]) -> Path:
    arrays = {f"{s}_sequence": ids[s] for s in ids} | {f"{s}_signal": SIGNAL[s] for s in ids}
    np.savez(path, **arrays)
    return path


def as_tables(folder: Path) -> Path:
    folder.mkdir()
    for split, ids in IDS.items():
        lines = (
            "".join("ACGT"[i] for i in row) + "\t" + ",".join(f"{v:.3f}" for v in signal)
            for row, signal in zip(ids, SIGNAL[split], strict=True)
        )
        text = "\n".join(lines).encode()
        is_test = split == "test"
        (folder / f"{split}.tsv{'.gz' * is_test}").write_bytes(gzip.compress(text) if is_test else text)
    return folder


@pytest.mark.parametrize("form", ["ids", "one-hot", "tables"])
def test_promoter_formats(cache: Path, tmp_path: Path, form: str) -> None:
    if form == "tables":
        path = as_tables(tmp_path / "tables")
    else:
        one_hot = {s: np.eye(4, dtype="f4")[ids] for s, ids in IDS.items()}
        path = as_npz(tmp_path / "p.npz", IDS if form == "ids" else one_hot)
    corpus = load("promoter", file=path)
    assert corpus.protocol == "promoter-custom"
    for split in COUNTS:
        assert np.array_equal(corpus.split(split), IDS[split])
        assert np.array_equal(corpus.signals[split], SIGNAL[split])
    batch = Batches(corpus, "train", batch_size=2).batch(0)
    assert batch.signal is not None and batch.signal.shape == (2, 1024)


def test_published_counts_have_the_published_name(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dna, "PUBLISHED_COUNTS", (4, 2, 3))
    assert load("promoter", file=as_npz(tmp_path / "p.npz", IDS)).protocol == "promoter"


def test_bad_promoter_files_are_refused(cache: Path, tmp_path: Path) -> None:
    short = {s: ids[:, :1000] for s, ids in IDS.items()}
    high = {s: ids + 1 for s, ids in IDS.items()}
    soft = {s: np.full((n, 1024, 4), 0.25) for s, n in COUNTS.items()}
    for ids, message in ((short, "not both"), (high, "bases must be 0 to 3"), (soft, "exactly one 1")):
        with pytest.raises(InputError, match=message):
            load("promoter", file=as_npz(tmp_path / "p.npz", ids))
    np.savez(tmp_path / "p.npz", train_sequence=IDS["train"])
    with pytest.raises(InputError, match="lacks the arrays test_sequence"):
        load("promoter", file=tmp_path / "p.npz")
    np.savez(tmp_path / "p.npz", train_sequence=np.array([{}], dtype=object))
    with pytest.raises(DamagedFileError, match="plain arrays"):
        load("promoter", file=tmp_path / "p.npz")
    (tmp_path / "p.npz").write_bytes(b"nothing")
    with pytest.raises(DamagedFileError, match=r"p\.npz"):
        load("promoter", file=tmp_path / "p.npz")
    folder = as_tables(tmp_path / "tables")
    (folder / "train.tsv").write_text("ACGT\t1,2,3\n")
    with pytest.raises(InputError, match=r"sequence 0 is not 1024 letters"):
        load("promoter", file=folder)
    (folder / "train.tsv").write_text("ACGT 1,2,3\n")
    with pytest.raises(InputError, match="a tab and 1024 numbers"):
        load("promoter", file=folder)
    (folder / "train.tsv").unlink()
    with pytest.raises(InputError, match=r"no train\.tsv"):
        load("promoter", file=folder)
    with pytest.raises(InputError, match=r"needs a \.npz"):
        load("promoter")
