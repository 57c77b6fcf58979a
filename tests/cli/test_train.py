"""`rdlm train`: presets, files, overrides, mistakes, and a small run of the real method."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from rdlm.cli import main as cli
from rdlm.cli.train import Train
from rdlm.config import ConvolutionConfig
from rdlm.errors import DivergedError, InterruptedRunError, LeaderFailedError
from rdlm.presets import preset
from rdlm.storage import config_file as configfile

TINY = [
    "--data.length",
    "8",
    "--model.width",
    "8",
    "--model.layers",
    "1",
    "--model.heads",
    "1",
    "--process.levels",
    "16",
    "--process.pairs",
    "64",
    "--training.steps",
    "3",
    "--training.batch",
    "4",
    "--training.device",
    "cpu",
    "--training.validation-sequences",
    "4",
    "--training.validation-nfe",
    "4",
]


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("some text of mine " * 60)
    return tmp_path / "book.txt"


def parsed(*options: str) -> Train:
    command = cli.parse("train", list(options))
    assert isinstance(command, Train)
    return command


def test_options_change_a_preset() -> None:
    command = parsed(
        "text8-paper", "--model.width", "512", "--model.heads", "8", "--denoiser.evidence", "--minutes", "2"
    )
    assert command.config.model.width == 512 and command.config.denoiser.evidence
    assert command.config.objective == preset("text8-paper").objective
    assert (command.source, command.minutes) == ("text8-paper", 2.0)
    assert parsed("promoter", "--model.stacks", "1").config.model == ConvolutionConfig(stacks=1)


def test_a_file_is_a_configuration_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    configfile.write(path, preset("digits"))
    assert parsed(str(path), "--training.seed", "3").config.training.seed == 3
    assert parsed(str(path)).config == preset("digits")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "needs a preset or a YAML file as its first argument, or --data PATH; presets: demo"),
        (["--json"], "needs a preset or a YAML file"),
        (["txt8"], "unknown preset 'txt8': did you mean 'text8'"),
        (["none.yaml"], "cannot read the configuration none.yaml"),
        (["demo", "--modl.width", "3"], "--model.width"),
        (["demo", "--training.batch", "0"], "training.batch must be at least 1, got 0"),
        (["demo", "--minutes", "-1"], "--minutes must be positive, got -1"),
    ],
)
def test_mistakes_are_named(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_compare_names_the_way_for_own_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "--data", "letters.txt"]) == 2
    assert "such as own --data.file PATH for your own data" in " ".join(capsys.readouterr().err.split())


def _refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(command) == 2
    message = capsys.readouterr().err
    assert "rdlm train runs/textfile/config.yaml --out runs/textfile" in message
    return message


def test_a_run_of_the_real_method(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "textfile", "--data.file", str(book), *TINY]
    assert cli.main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["run"], result["steps"], result["unit"]) == ("runs/textfile", 3, "bits per character")
    assert result["bound"]["low"] < result["bound"]["value"] < result["bound"]["high"]
    assert cli.main(command) == 0
    out = capsys.readouterr()
    assert "textfile-characters" in out.out and "runs/textfile/report.html" in out.err
    page = Path("runs/textfile/report.html").read_text()
    assert "<svg" in page and "total: 0.0375" in page
    assert cli.main([*command, "--training.lr", "0.5"]) == 2
    assert "training.lr was 0.002, is 0.5" in capsys.readouterr().err
    assert "--accept-changes" not in _refused([*command, "--model.width", "16"], capsys)
    again = ["train", "runs/textfile/config.yaml", "--out", "runs/textfile", "--training.steps", "4"]
    assert cli.main([*again, "--accept-changes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 4


def test_a_short_corpus_is_refused_before_a_folder_is_made(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "textfile", "--data.file", str(book), *TINY, "--data.length", "500"]) == 2
    assert "fewer than a sequence of 500" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InterruptedRunError(signal.SIGINT, 7), 130, "rdlm: interrupted after step 7, which is saved"),
        (InterruptedRunError(signal.SIGTERM, 7), 143, "rdlm: interrupted after step 7, which is saved"),
        (DivergedError("step 3: loss nan"), 1, "rdlm: error: step 3: loss nan"),
        (LeaderFailedError("elsewhere"), 1, ""),
    ],
)
def test_exit_codes(
    error: Exception, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("rdlm.train.loop.train", ended)
    assert cli.main(["train", "demo"]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(message) and captured.out == ""
    assert bool(captured.err) == bool(message)
