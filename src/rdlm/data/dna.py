"""DNA corpora: rows of the bases A, C, G, T."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdlm.data import fetch
from rdlm.data.fetch import Archive
from rdlm.data.recipe import CorpusRequest, Recipe, open_file, open_regular
from rdlm.data.store import SPLITS, Draft
from rdlm.data.tokenizer import bases
from rdlm.errors import DamagedFileError, InputError
from rdlm.storage.files import most_bytes, too_large

CHR22 = Archive(
    "pypi",
    "snakealtpromoter",
    "1.0.5",
    "snakealtpromoter-1.0.5-py3-none-any.whl",
    "9e177a156609c3ddf4c9d2efdb21a29ebd30a5eadac0277f7e21d2d0c9f88226",
)
REGULATORY = Archive(
    "pypi",
    "dnadiffusion",
    "0.1.1",
    "dnadiffusion-0.1.1.tar.gz",
    "632c584659926ae1bd29cd6d47e3c7b476ce8ba6e82fbf3caccecea9b6fcea32",
)
WINDOW = 1024
REGION = 1_000_000
WINDOWS = ("promoter", "background")
TRIES = 10_000
"""Most random places that are tried for a window without a transcript start."""
PUBLISHED_COUNTS = (88_470, 3_933, 7_497)
CELLS = ("GM12878", "HepG2", "K562", "hESCT0")
_COMPLEMENT = bytes.maketrans(b"ACGT", b"TGCA")


def promoter_chr22(request: CorpusRequest) -> Draft:
    """Return the 1,024 bases around every GENCODE transcript start of chromosome 22, in reading direction.

    The chromosome is divided into regions of a million bases; of every ten, one is validation and one is test. Windows
    with an unknown base and windows across a region boundary are dropped, so that no two splits share a base.
    """
    windows = _by_split(*_chromosome_22(), background=False)
    tokens = {split: [_ids([row for row, _ in windows[split]], WINDOW)] for split in SPLITS}
    return Draft(request.protocol, bases(), tokens, CHR22.origin)


def chr22(request: CorpusRequest) -> Draft:
    """Return the windows of `promoter_chr22` and, for each, one of the same region without a transcript start.

    The latter have a random place and strand; both have a label, and the splits are the same.
    """
    windows = _by_split(*_chromosome_22(), background=True)
    tokens = {split: [_ids([row for row, _ in windows[split]], WINDOW)] for split in SPLITS}
    labels = {split: np.array([label for _, label in windows[split]], np.uint8) for split in SPLITS}
    return Draft(request.protocol, bases(), tokens, CHR22.origin, labels, classes=WINDOWS)


def _chromosome_22() -> tuple[bytes, list[tuple[int, str]]]:
    """Return the bases, and the transcript starts with their strands."""
    path = fetch.fetch(CHR22)
    with fetch.open_member(path, "snakealtpromoter/data/hg38.fa") as member:
        chromosome = b"".join(line.strip() for line in member if not line.startswith(b">")).upper()
    with fetch.open_member(path, "snakealtpromoter/data/hg38.gtf") as member:
        return chromosome, sorted(set(transcript_starts(io.TextIOWrapper(member, "utf-8"))))


def _by_split(chromosome: bytes, starts: list[tuple[int, str]], background: bool) -> dict[str, list[tuple[bytes, int]]]:
    """Return the windows of each split with their labels: 0 around a start, 1 for one without a start beside each."""
    rows: dict[str, list[tuple[bytes, int]]] = defaultdict(list)
    random, places = np.random.default_rng(0), np.array([start for start, _ in starts])
    for start, strand in starts:
        window = window_at(chromosome, start, strand)
        if window and start // REGION == (start - WINDOW // 2) // REGION == (start + WINDOW // 2) // REGION:
            split = {3: "validation", 7: "test"}.get(start // REGION % 10, "train")
            rows[split].append((window, 0))
            if background:
                rows[split].append((_without_a_start(chromosome, places, start // REGION * REGION, random), 1))
    return rows


def _without_a_start(chromosome: bytes, places: NDArray[Any], begin: int, random: np.random.Generator) -> bytes:
    """Return a random window of the region at `begin` that has no transcript start and no unknown base."""
    half = WINDOW // 2
    for _ in range(TRIES):
        middle = int(random.integers(begin + half, begin + REGION - half))
        window = window_at(chromosome, middle, "+-"[int(random.integers(2))])
        if window and np.abs(places - middle).min() > half:
            return window
    raise InputError(f"the region at base {begin:,} has no window of {WINDOW} known bases without a transcript start")


def transcript_starts(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield (0-based position, strand) of the first base of every transcript of a GTF file."""
    for line in lines:
        fields = line.split("\t")
        if len(fields) > 6 and fields[2] == "transcript":
            yield int(fields[3 if fields[6] == "+" else 4]) - 1, fields[6]


def window_at(chromosome: bytes, start: int, strand: str) -> bytes | None:
    """Return the window with the transcript start at index 512 in reading direction; None if a base is unknown."""
    half = WINDOW // 2
    first = start - half if strand == "+" else start - half + 1
    if first < 0:
        return None
    window = chromosome[first : first + WINDOW]
    if len(window) < WINDOW or window.translate(None, b"ACGT"):
        return None
    return window if strand == "+" else window.translate(_COMPLEMENT)[::-1]


def regulatory(request: CorpusRequest) -> Draft:
    """Return 47,872 sequences of 200 bases labelled with the cell type of their open chromatin, split by chromosome."""
    pattern = "*/data/K562_hESCT0_HepG2_GM12878_12k_sequences_per_group.txt"
    rows: dict[str, list[bytes]] = defaultdict(list)
    labels: dict[str, list[int]] = defaultdict(list)
    with fetch.open_member(fetch.fetch(REGULATORY), pattern) as member:
        for entry in csv.DictReader(io.TextIOWrapper(member, "utf-8"), delimiter="\t"):
            split = {"chr1": "test", "chr2": "validation"}.get(entry["chr"], "train")
            rows[split].append(entry["sequence"].upper().encode())
            labels[split].append(CELLS.index(entry["TAG"].partition("_")[0]))
    tokens = {split: [_ids(rows[split], 200)] for split in SPLITS}
    arrays = {split: np.array(labels[split], np.uint8) for split in SPLITS}
    return Draft(request.protocol, bases(), tokens, REGULATORY.origin, arrays, classes=CELLS)


def promoter(request: CorpusRequest) -> Draft:
    """Return the promoter-design set from a file of the user: sequences with a signal per position.

    Either an .npz file with `train_sequence` [N, 1024] (0 to 3 for A, C, G, T; or one-hot [N, 1024, 4]) and
    `train_signal` [N, 1024], and the same for validation and test; or a folder with train, validation and test .tsv
    (or .tsv.gz) files, each line a sequence, a tab, and 1,024 numbers separated by commas. The protocol is
    `promoter-custom` if the number of sequences differs from the published ones.
    """
    if not request.file:
        raise InputError("the corpus 'promoter' needs a .npz file or a folder of .tsv files")
    parts = _from_npz(request.file) if request.file.suffix == ".npz" else _from_tables(request.file)
    for split, (ids, signal) in parts.items():
        if ids.shape != signal.shape or ids.ndim != 2 or ids.shape[1] != WINDOW:
            raise InputError(f"{split}: shapes {ids.shape} and {signal.shape}, not both [N, {WINDOW}]")
    counts = tuple(len(parts[split][0]) for split in SPLITS)
    protocol = request.protocol if counts == PUBLISHED_COUNTS else "promoter-custom"
    tokens = {split: [ids] for split, (ids, _) in parts.items()}
    signals = {split: signal for split, (_, signal) in parts.items()}
    return Draft(protocol, bases(), tokens, f"file {request.file.name}", signals=signals)


def _from_npz(path: Path) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    try:
        with open_regular(path) as opened, np.load(opened, allow_pickle=False) as file:
            if (size := sum(entry.file_size for entry in file.zip.infolist())) > most_bytes():
                raise too_large(path, f"{size:,}")
            arrays = {name: file[name] for name in file.files}
    except InputError:
        raise
    except (ValueError, OSError, EOFError) as error:
        raise DamagedFileError(f"{path} is not an .npz file of plain arrays: {error}") from None
    if missing := {f"{s}_{part}" for s in SPLITS for part in ("sequence", "signal")} - set(arrays):
        raise InputError(f"{path} lacks the arrays {', '.join(sorted(missing))}")
    return {s: (_base_ids(path, arrays[f"{s}_sequence"]), arrays[f"{s}_signal"].astype("<f4")) for s in SPLITS}


def _base_ids(path: Path, sequence: NDArray[Any]) -> NDArray[np.uint8]:
    if sequence.ndim == 3:
        if sequence.shape[2] != 4 or not (np.sort(sequence, axis=2) == [0, 0, 0, 1]).all():
            raise InputError(f"{path}: a one-hot sequence must have exactly one 1 among the 4 bases at every position")
        sequence = sequence.argmax(axis=2)
    if sequence.size and not (sequence.min() >= 0 and sequence.max() <= 3):
        raise InputError(f"{path}: bases must be 0 to 3, found {sequence.min()} to {sequence.max()}")
    return sequence.astype(np.uint8)


def _from_tables(folder: Path) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    parts = {}
    for split in SPLITS:
        found = [p for name in (f"{split}.tsv", f"{split}.tsv.gz") if (p := folder / name).is_file()]
        if not found:
            raise InputError(f"{folder} has no {split}.tsv or {split}.tsv.gz")
        with open_file(found[0]) as file:
            lines = [line.rstrip(b"\r\n").split(b"\t") for line in file]
        try:
            signal = np.array([np.array(values.split(b","), "<f4") for _, values in lines])
            parts[split] = _ids([sequence.upper() for sequence, _ in lines], WINDOW), signal
        except ValueError as error:
            raise InputError(f"{found[0]}: a line must be a sequence, a tab and {WINDOW} numbers: {error}") from None
    return parts


def _ids(rows: list[bytes], length: int) -> NDArray[np.uint8]:
    """Return rows of bases as ids [N, length]; InputError names the first row of another length or alphabet."""
    for number, row in enumerate(rows):
        if len(row) != length or row.translate(None, b"ACGT"):
            raise InputError(f"sequence {number} is not {length} letters of ACGT: {row[:40]!r}")
    return bases().encode(b"".join(rows).decode()).astype(np.uint8).reshape(-1, length)


RECIPES = (
    Recipe(
        name="promoter",
        kind="dna",
        summary="promoter design: 1,024 bases, a signal per position, split 88,470/3,933/7,497",
        licence="of your copy",
        length=WINDOW,
        prepare=promoter,
        protocols=("promoter",),
        options=frozenset({"file"}),
    ),
    Recipe(
        name="promoter-chr22",
        kind="dna",
        summary="1,024 bases around starts of human chromosome 22's transcripts, split by region",
        licence="MIT (package)",
        length=WINDOW,
        prepare=promoter_chr22,
        protocols=("promoter-chr22",),
        archives=(CHR22,),
    ),
    Recipe(
        name="chr22",
        kind="dna",
        summary="1,024 bases of human chromosome 22, labelled promoter or background, split by region",
        licence="MIT (package)",
        length=WINDOW,
        prepare=chr22,
        protocols=("chr22",),
        archives=(CHR22,),
    ),
    Recipe(
        name="regulatory",
        kind="dna",
        summary="200 bases of open chromatin, 4 cell types, split by chromosome",
        licence="free for academic and non-profit use only (Apache-2.0 terms); others must ask its authors",
        length=200,
        prepare=regulatory,
        protocols=("regulatory",),
        archives=(REGULATORY,),
        must_accept=True,
    ),
)
