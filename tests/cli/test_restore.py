"""`rdlm restore` as a command: inputs, channels, output and mistakes."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rdlm import methods
from rdlm.cli.main import main
from rdlm.cli.restore import _fastq
from rdlm.config import DataConfig, ObjectiveConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.data.image import decode_png, encode_png
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Levels
from rdlm.train.loop import train
from tests.train.toy import toy_corpus

ERRORS = "the quixk brown fox jumpa over the lszy dog and runs away the quick brown fox"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A chain of the toy text; its network is not trained."""
    folder = tmp_path_factory.mktemp("restore") / "run"
    config = RunConfig(
        data=DataConfig("toy", length=16),
        model=TransformerConfig(width=16, layers=1, heads=2, belief="ngram", order=5, states=128),
        objective=ObjectiveConfig(asynchronous=0.3, mixed=0.3),
        training=TrainingConfig(steps=2, batch=8, validate_every=2, validation_sequences=4, validation_nfe=4),
    )
    train(config, folder, methods.build, load=toy_corpus)
    return str(folder)


def command(*arguments: str) -> int:
    return main(["restore", *arguments])


def test_gaps_and_alternatives_are_filled(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the qu?ck bro[wz]n f_x jumps\n")
    assert command(run, str(file)) == 0
    assert capsys.readouterr().out == "the quick brown fox jumps\n"


@pytest.mark.parametrize("channel", ["symmetric", "keyboard"])
def test_errors_are_corrected(run: str, tmp_path: Path, channel: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text(ERRORS)
    assert (
        command(run, str(file), "--channel", channel, "--error", "0.1", "--json", "--samples", "2", "--steps", "8") == 0
    )
    found = json.loads(capsys.readouterr().out)
    row = found["rows"][0]
    assert row["text"].startswith("the quick brown fox jumps over the lazy dog")
    assert row["changed"] == 3 and len(row["samples"]) == 2 and found["error"] == 0.1
    wrong = row["positions"][ERRORS.index("xk")]
    assert wrong["symbol"] == "c" and wrong["read"] == "x" and wrong["probability"] > 0.5


def test_the_error_rate_is_estimated(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text(ERRORS)
    assert command(run, str(file), "--channel", "symmetric", "--error", "auto", "--json") == 0
    assert json.loads(capsys.readouterr().out)["error"] == pytest.approx(3 / len(ERRORS), abs=0.02)


def test_evidence_files(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sure = [json.dumps({letter: 0.9, "rest": 0.1}) for letter in "the quic"]
    lines = [*sure, json.dumps({"x": 0.5, "k": 0.4, "rest": 0.1})]
    (tmp_path / "reading.jsonl").write_text("\n".join(lines))
    assert command(run, str(tmp_path / "reading.jsonl")) == 0
    assert capsys.readouterr().out == "the quick\n"
    alphabet = "".join(sorted(set("the quick brown fox jumps over the lazy dog and runs away ")))
    array = np.full((3, len(alphabet)), -3.0)
    array[np.arange(3), [alphabet.index(letter) for letter in "fox"]] = 0
    np.save(tmp_path / "reading.npy", array)
    assert command(run, str(tmp_path / "reading.npy")) == 0
    assert capsys.readouterr().out == "fox\n"


def test_files_with_a_byte_order_mark_and_compressed_files(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "\n".join(json.dumps({letter: 0.9, "rest": 0.1}) for letter in "the quick")
    marked, packed = tmp_path / "marked.jsonl", tmp_path / "packed.jsonl.gz"
    marked.write_text(lines, "utf-8-sig")
    packed.write_bytes(gzip.compress(lines.encode()))
    for file in (marked, packed):
        assert command(run, str(file)) == 0
        assert capsys.readouterr().out == "the quick\n"
    packed.write_bytes(packed.read_bytes()[:-9])
    assert command(run, str(packed)) == 3
    assert "packed.jsonl.gz is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--channel", "symmetric", "--error", "much"], "--error must be a number"),
        (["--channel", "symmetric", "--error", "2"], "between 0 and 1"),
        (["--channel", "nosuch.csv"], "nosuch.csv"),
        (["--error", "0.1"], "--error needs --channel"),
        (["--noise", "0.1"], "--noise is for images"),
        (["--format", "png"], "read it by Tesseract"),
        (["--format", "hocr"], "not hOCR"),
        (["--format", "jsonl", "--channel", "symmetric"], "are for text"),
        (["--html", "nosuch/page.html"], "a folder that exists"),
        (["--out", "."], "a folder that exists"),
        (["--samples", "-1"], "samples must be at least 0"),
        (["--steps", "0"], "steps must be at least 1"),
        (["--format", "jsonl"], "not JSON"),
        (["--format", "npy"], "not an array"),
        (["--format", "fastq"], "four lines"),
    ],
)
def test_mistakes_are_named(
    run: str, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the quick")
    assert command(run, str(file), *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"t": 0.9}',
            "sum to 0.9, not to 1; if other symbols are possible, add",
        ),
        ("a.jsonl", '{"t": 1}\n{"t": 0.6, "h": 0.6}', "position 1: the probabilities sum to 1.2"),
        ("a.jsonl", '{"t": -0.1, "h": 1.1}', "must be a probability, got -0.1"),
        ("a.jsonl", '{"t": 0, "h": 0}', "position 0: the evidence excludes every symbol"),
        ("a.jsonl", '{"t": 1}\n{"%": 1}', "position 1: '%' is not a symbol"),
        ("a.txt", "t[a%]", "alternative '%' at position 1"),
        ("a.txt", "t[]", "'[' at position 1 has no alternatives"),
        ("a.txt", "t[ae", "'[' at position 1 is not closed"),
        ("a.txt", "t[a[ei]]", "'[' at position 1 is not closed"),
        ("a.fastq", "@one\nac\n+\n!!!\n", "read 'one' has 2 bases and 3 qualities"),
        ("matrix.csv", "true,a,b\na,1\n", "line 2: 1 numbers under a header of 2 symbols"),
        ("matrix.csv", "true,a,b\na,0,0\n", "the row of 'a' sums to 0, not to 1"),
        ("matrix.json", '{"a": {"a": 0.5}}', "the row of 'a' sums to 0.5, not to 1"),
        ("matrix.json", '{"a": {"a": 1.5, "b": -0.5}}', "must be a probability"),
    ],
)
def test_evidence_that_makes_no_sense_is_refused_and_nothing_is_written(
    run: str, tmp_path: Path, name: str, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, text, page, out = (tmp_path / one for one in (name, "text.txt", "page.html", "out.txt"))
    text.write_text("the quick")
    given.write_text(content)
    matrix = name.startswith("matrix")
    arguments = [str(text), "--channel", str(given)] if matrix else [str(given)]
    assert command(run, *arguments, "--html", str(page), "--out", str(out)) == 2
    shown = capsys.readouterr()
    assert message in shown.err and not shown.out
    assert not page.exists() and not out.exists()


def test_a_missing_file_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("nosuch.txt") == 2
    assert "there is no file or model named nosuch.txt" in capsys.readouterr().err


def test_an_array_with_objects_is_not_loaded(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "bad.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert command(run, str(tmp_path / "bad.npy")) == 2
    assert "not an array" in capsys.readouterr().err


def test_a_model_with_a_time_input_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("??")
    old = Path(__file__).parents[1] / "golden" / "published-0.1" / "rdlm"
    assert command(str(old), str(file)) == 2
    assert "without a time input" in capsys.readouterr().err


def test_ordinary_english_keeps_its_case_and_punctuation(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page, out = (tmp_path / name for name in ("text.txt", "page.html", "restored.txt"))
    file.write_text("The quixk Brown fox, 'jumpa' over\nthe lszy dog!\n")
    options = ("--channel", "keyboard", "--html", str(page))
    assert command(run, str(file), *options) == 0
    printed = capsys.readouterr()
    assert command(run, str(file), *options) == command(run, str(file), "--out", str(file)) == 2
    assert "exists: give another name, or --overwrite" in capsys.readouterr().err
    options = (*options, "--overwrite")
    assert printed.out == "The quick Brown fox, 'jumps' over\nthe lazy dog!\n"
    assert (
        "since the model's vocabulary lacks them: 4 characters" in printed.err
        and "3 of 47 characters changed" in printed.err
    )
    assert 'data-about="c ' in page.read_text() and "read x" in page.read_text()
    assert command(run, str(file), *options, "--out", str(out)) == 0
    assert out.read_text() == printed.out and capsys.readouterr().out == ""
    assert command(run, str(file), *options, "--color", "always") == 0
    assert "qui\033[" in capsys.readouterr().out


def test_question_marks_are_gaps_unless_literal(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("The lszy dog?")
    assert command(run, str(file), "--channel", "symmetric") == 0
    assert "1 of ? _ [] are read as gaps" in capsys.readouterr().err
    assert command(run, str(file), "--channel", "symmetric", "--literal") == 0
    assert capsys.readouterr().out == "The lazy dog?\n"


def test_a_page_of_tesseract(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[1] / "data" / "page.hocr"
    assert command(run, str(page), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    row = found["rows"][0]
    assert "The quick fox,\n1787 lazy dog" in row["text"] and row["kept"] == 7 and found["channel"] is None


def test_the_reading_itself_has_a_bound(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the qu?ck")
    assert command(run, str(file), "--bound", "--json") == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["nats"] > 0 and row["stderr"] >= 0 and row["claims_bound"]


def toy_images(config: RunConfig) -> Corpus:
    rows = (np.tile(4 * np.eye(4, dtype=np.int64), (40, 1, 1)).reshape(40, 16)) % 5
    tokens = {"train": rows[:32], "validation": rows[32:]}
    about = ("toy", "toy", "image", 16, Levels(5), "none", "made up", Path("."), tokens, {}, {})
    return replace(Corpus(*about), image=(4, 4, 1))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of images of 4 x 4 pixels in 5 levels, with a light diagonal; its network is hardly trained."""
    folder = tmp_path_factory.mktemp("images") / "run"
    config = RunConfig(
        data=DataConfig("toy", length=16),
        model=TransformerConfig(width=16, layers=1, heads=2, places=16),
        objective=ObjectiveConfig(asynchronous=0.3, mixed=0.3),
        training=TrainingConfig(steps=2, batch=8, validate_every=2, validation_sequences=4, validation_nfe=4),
    )
    train(config, folder, methods.build, load=toy_images)
    return str(folder)


def test_an_image_with_noise(images: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, levels = tmp_path / "restored.png", np.eye(4)
    np.save(tmp_path / "given.npy", levels)
    (tmp_path / "given.png").write_bytes(encode_png((255 * levels[..., None]).astype(np.uint8)))
    rows = []
    for name in ("given.npy", "given.png"):
        given = str(tmp_path / name)
        options = ("--noise", "0.05", "--json", "--out", str(out), "--overwrite", "--samples", "1", "--steps", "2")
        assert command(images, given, *options) == 0
        rows.append(json.loads(capsys.readouterr().out))
    assert rows[0] == rows[1] and np.array_equal(np.array(rows[0]["levels"])[..., 0], 4 * levels)
    assert np.array(rows[0]["probability"]).shape == (4, 4, 1) and len(rows[0]["samples"]) == 1
    picture = decode_png(out.read_bytes())[..., 0]  # two rows of two images with a line between, enlarged
    factor = len(picture) // 9
    small = picture[::factor, ::factor].astype(float) / 255
    assert np.allclose(small[:4, :4], levels) and np.abs(small[:4, 5:9] - levels).max() < 0.05


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("small.png", ["--noise", "0.1"], "images of 4 x 4 pixels; .*small.png has 3 x 2"),
        ("small.npy", ["--noise", "0.1"], "images of 4 x 4 pixels; this one has 3 x 2"),
        ("large.npy", ["--noise", "0.1"], "rescale"),
        ("objects.npy", ["--noise", "0.1"], "not an array"),
        ("small.png", [], "needs --noise"),
        ("small.npy", ["--noise", "0"], "images of|positive"),
        ("broken.png", ["--noise", "0.1"], "not a PNG file"),
        ("nosuch.png", ["--noise", "0.1"], "cannot read"),
    ],
)
def test_wrong_images_are_named_and_nothing_is_written(
    images: str, tmp_path: Path, name: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.png").write_bytes(encode_png(np.zeros((2, 3, 1), np.uint8)))
    (tmp_path / "broken.png").write_bytes(b"GIF89a")
    np.save(tmp_path / "small.npy", np.zeros((2, 3)))
    np.save(tmp_path / "large.npy", np.full((4, 4), 16.0))
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    out = tmp_path / "restored.png"
    assert command(images, str(tmp_path / name), *arguments, "--out", str(out)) == 2
    assert re.search(message, capsys.readouterr().err) and not out.exists()


def test_reads_are_written_with_the_qualities_of_the_posterior() -> None:
    row = {"name": "r", "text": "AC", "positions": [{"probability": 0.9995}, {"probability": 1.0}]}
    assert _fastq(row) == f"@r\nAC\n+\n{chr(33 + 33)}{chr(33 + 60)}\n"
