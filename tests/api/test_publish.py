"""Published models: what is in the folder, what the card says, what is refused, and how a name is understood."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import rdlm
from rdlm import data, pretrained
from rdlm.api import publish
from rdlm.api.language_model import LanguageModel, find
from rdlm.cli import main as cli
from rdlm.config import PAPER_TOTAL_NOISE, DataConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.tokenizer import Characters
from rdlm.errors import DamagedFileError, InputError
from rdlm.methods.rdlm import Rdlm
from rdlm.storage import checkpoint, config_file, run_folder
from rdlm.storage.manifest import with_checksum
from rdlm.storage.measurements import fingerprint

ALPHABET = " abcdefg"


def save(run: Path, protocol: str = "toy | <b>corpus</b>") -> Path:
    """Write the folder of a run whose network nobody trained."""
    config = RunConfig(
        data=DataConfig("textfile", length=8, file=Path("/home/somebody/secret/book.txt")),
        process=ProcessConfig(levels=8, pairs=64),
        model=TransformerConfig(width=16, layers=1, heads=2, time_width=8),
    )
    torch.manual_seed(0)
    method = Rdlm(config, len(ALPHABET))
    weights = {name: 0.1 * torch.randn_like(parameter) for name, parameter in method.network.named_parameters()}
    parts = {"network": dict(method.network.state_dict()), "ema": weights, "optimizer": {}, "method": method.state()}
    corpus = {
        "name": "toy",
        "protocol": protocol,
        "kind": "text",
        "length": 8,
        "classes": [],
        "image": None,
        "signal": False,
        "licence": "none",
    }
    described = {"counters": {}, "config": config_file.to_dict(config), "corpus": corpus}
    run.mkdir(parents=True)
    checkpoint.save(run, 7, parts, described, Characters(ALPHABET).to_json())
    run_folder.update_pointers(run, 7, None)
    return run


def metric(value: float, convention: str, unit: str = "bits per character") -> dict[str, Any]:
    return {
        "value": value,
        "stderr": 0.01,
        "low": value - 0.02,
        "high": value + 0.02,
        "unit": unit,
        "convention": convention,
    }


def leave_evaluation(run: Path, weights: str, claims_bound: bool = True) -> None:
    """Write what `rdlm evaluate` would, with numbers that occur nowhere else."""
    metrics = {
        "bits_per_character": metric(2.3456, "upper bound at 64 network calls"),
        "paper_estimator": metric(1.9876, "not a bound: the paper's estimator"),
        "known_words": {**metric(0.4321, "whole words", "share"), "low": None, "high": None},
    }
    found = {
        "run": "run",
        "protocol": "toy",
        "split": "validation",
        "claims_bound": claims_bound,
        "sequences": 12,
        "weights": weights,
        "metrics": metrics,
    }
    (run / "evaluation-validation").mkdir(exist_ok=True)
    (run / "evaluation-validation" / "evaluation.json").write_text(json.dumps(found))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return save(tmp_path / "runs" / "toy")


@pytest.fixture
def model(run: Path) -> LanguageModel:
    return rdlm.load(run)


def same_weights(one: LanguageModel, other: LanguageModel) -> bool:
    return fingerprint(one.method.network) == fingerprint(other.method.network)


def test_what_is_saved_is_what_is_loaded(model: LanguageModel, tmp_path: Path) -> None:
    place = model.save(tmp_path / "published")
    names = {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert {path.name for path in place.iterdir()} == names
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o644}
    again = rdlm.load(place)
    assert same_weights(model, again) and again.name == "published"
    assert again.about == model.about and again.tokenizer == model.tokenizer
    assert again.generate(num=2, steps=3).samples == model.generate(num=2, steps=3).samples
    assert "secret" not in (place / "config.json").read_text()  # the folder of somebody's corpus is nobody's business


def test_the_optimizer_stays_behind(run: Path, model: LanguageModel, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in model.save(tmp_path / "out").iterdir())
    ema = (run / "checkpoint-00000007" / "ema.safetensors").stat().st_size
    assert ema < size < ema + 16_000


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_the_size_is_loaded_as_float32(model: LanguageModel, tmp_path: Path, dtype: str) -> None:
    whole, half = model.save(tmp_path / "whole"), model.save(tmp_path / "half", dtype=dtype)
    sizes = [(place / "model.safetensors").stat().st_size for place in (whole, half)]
    headers = 2500
    assert sizes[1] - headers < sizes[0] / 2 < sizes[1]
    again = dict(rdlm.load(half).method.network.named_parameters())
    for name, parameter in model.method.network.named_parameters():
        assert again[name].dtype == torch.float32
        assert torch.equal(again[name], parameter.to(getattr(torch, dtype)).float())
    assert f"rounded to {dtype}" in (half / "README.md").read_text()
    assert "rounded" not in (whole / "README.md").read_text()


def test_what_does_not_fit_is_not_published(model: LanguageModel, tmp_path: Path) -> None:
    next(iter(model.method.network.parameters())).data.flatten()[0] = 1e6
    with pytest.raises(InputError, match="does not fit into float16"):
        model.save(tmp_path / "out", dtype="float16")
    assert not (tmp_path / "out").exists()
    model.save(tmp_path / "out", dtype="bfloat16")


# -- the card ----------------------------------------------------------------------------------------


def test_a_card_without_an_evaluation_has_no_number(model: LanguageModel, tmp_path: Path) -> None:
    text = (model.save(tmp_path / "out") / "README.md").read_text()
    assert "have not been evaluated" in text and "bits per character" not in text
    assert text.startswith("---\nlibrary_name: rdlm\n") and "trained for 7 steps" in text
    assert "toy \\| &lt;b&gt;corpus&lt;/b&gt;" in text and "<b>" not in text


def test_a_card_quotes_the_evaluation(run: Path, model: LanguageModel, tmp_path: Path) -> None:
    leave_evaluation(run, fingerprint(model.method.network))
    place = model.save(tmp_path / "out")
    rows = {line.split(" | ")[0]: line for line in (place / "README.md").read_text().splitlines() if "|" in line}
    assert "2.346 [2.326, 2.366] | bits per character | upper bound |" in rows["| bits\\_per\\_character"]
    assert "1.988 [1.968, 2.008] | bits per character | not a bound |" in rows["| paper\\_estimator"]
    assert "0.4321 | share | not a bound |" in rows["| known\\_words"]
    again = rdlm.load(place)
    assert [found["metrics"] for found in publish.evaluations(again)] == [
        found["metrics"] for found in publish.evaluations(model)
    ]
    assert "2.346" in (again.save(tmp_path / "second") / "README.md").read_text()


def test_a_method_that_claims_no_bound_has_none_on_its_card(run: Path, model: LanguageModel, tmp_path: Path) -> None:
    leave_evaluation(run, fingerprint(model.method.network), claims_bound=False)
    assert "upper bound |" not in (model.save(tmp_path / "out") / "README.md").read_text()


def test_numbers_of_other_weights_are_left_out(run: Path, model: LanguageModel, tmp_path: Path) -> None:
    leave_evaluation(run, fingerprint(rdlm.load(run, averaged=False).method.network))
    assert "2.346" not in (model.save(tmp_path / "one") / "README.md").read_text()
    leave_evaluation(run, fingerprint(model.method.network))
    next(iter(model.method.network.parameters())).data.add_(1)
    assert "2.346" not in (model.save(tmp_path / "two") / "README.md").read_text()


def test_the_card_tells_that_weights_were_rounded_after_the_evaluation(
    run: Path, model: LanguageModel, tmp_path: Path
) -> None:
    leave_evaluation(run, fingerprint(model.method.network))
    half = model.save(tmp_path / "half", dtype="float16")
    for place in (half, rdlm.load(half).save(tmp_path / "again")):
        text = (place / "README.md").read_text()
        assert "2.346" in text and "before the weights were rounded" in text
    assert "before the weights were rounded" in rdlm.load(half)._repr_html_()
    assert "before" not in (model.save(tmp_path / "whole") / "README.md").read_text()
    assert "2.346 [2.326, 2.366] bits per character (upper bound)" in model._repr_html_()


def test_a_damaged_evaluation_is_named(run: Path, model: LanguageModel, tmp_path: Path) -> None:
    leave_evaluation(run, fingerprint(model.method.network))
    file = run / "evaluation-validation" / "evaluation.json"
    found = json.loads(file.read_text())
    for value in ("<script>", 10**400):
        found["metrics"]["known_words"]["value"] = value
        file.write_text(json.dumps(found))
        with pytest.raises(DamagedFileError, match=r"evaluation\.json is damaged"):
            model.save(tmp_path / "out")


# -- what is refused ---------------------------------------------------------------------------------


def test_a_published_folder_is_replaced_and_others_are_not(model: LanguageModel, tmp_path: Path) -> None:
    place = model.save(tmp_path / "out")
    next(iter(model.method.network.parameters())).data.add_(1)
    model.save(place)
    assert same_weights(rdlm.load(place), model)
    (place / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"such as thesis.tex"):
        model.save(place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(InputError, match=r"'\\udcff' is not valid Unicode"):
        model.save(tmp_path / os.fsdecode(b"\xff"))
    with pytest.raises(InputError, match="symbolic link"):
        model.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_changed_byte_is_found(model: LanguageModel, tmp_path: Path, name: str) -> None:
    file = model.save(tmp_path / "out") / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises((DamagedFileError, InputError), match=name):
        rdlm.load(tmp_path / "out")


def test_links_and_missing_files_are_damage(model: LanguageModel, tmp_path: Path) -> None:
    place = model.save(tmp_path / "out")
    shutil.move(place / "model.safetensors", tmp_path / "elsewhere")
    with pytest.raises(DamagedFileError, match="missing"):
        rdlm.load(place)
    (place / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedFileError, match="missing"):
        rdlm.load(place)


def test_other_libraries_and_formats_are_named(model: LanguageModel, tmp_path: Path) -> None:
    place = model.save(tmp_path / "out")
    found = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(InputError, match="another library's"):
        rdlm.load(place)
    (place / "config.json").write_text(json.dumps(found | {"format": 9}))
    with pytest.raises(InputError, match="format 9"):
        rdlm.load(place)
    with pytest.raises(InputError, match="averaged weights only"):
        rdlm.load(model.save(tmp_path / "good"), averaged=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": {"dtype": "float32"}}, "type or the fingerprint"),
        ({"weights": {"dtype": ["float32"], "fingerprint": "x"}}, "type or the fingerprint"),
        ({"files": {"model.safetensors": {"bytes": 1 << 43, "sha256": "x"}}}, "bytes of memory"),
    ],
)
def test_a_crafted_config_is_refused(
    model: LanguageModel, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """A hole of terabytes, too, that nobody could hash."""
    place = model.save(tmp_path / "out")
    found = json.loads((place / "config.json").read_text())
    if "files" in change:
        os.truncate(place / "model.safetensors", 1 << 43)
        change = {"files": found["files"] | change["files"]}
    content = {key: value for key, value in (found | change).items() if key != "sha256"}
    (place / "config.json").write_text(json.dumps(with_checksum(content)))
    with pytest.raises((DamagedFileError, InputError), match=message):
        rdlm.load(place)


# -- names -------------------------------------------------------------------------------------------


@pytest.fixture
def pretrained_folder(model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "box")
    model.save(tmp_path / "box" / "digits")
    return model.save(tmp_path / "box" / "text8")


def test_runs_checkpoints_and_pretrained_names_are_found(
    run: Path, pretrained_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find(run) == find(run / "checkpoint-00000007") == run / "checkpoint-00000007"
    assert find() == find("text8") == find(pretrained_folder) == pretrained_folder
    assert rdlm.load().name == "text8" and rdlm.load("digits").name == "digits"
    monkeypatch.chdir(run.parent)
    (run.parent / "text8").mkdir()
    assert find("text8") == pretrained_folder  # a folder without a model takes nobody's name
    shutil.copytree(run, run.parent / "digits")
    assert find("digits") == Path("digits/checkpoint-00000007")


def test_without_pretrained_models_the_error_names_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    with pytest.raises(InputError, match="rdlm demo"):
        rdlm.load()
    with pytest.raises(InputError, match="rdlm demo"):
        pretrained.path("dna")


def test_an_unknown_name_is_explained(pretrained_folder: Path) -> None:
    with pytest.raises(InputError, match=r"not a folder.*packaged model \(digits, text8\).*user/name"):
        rdlm.load("nonsense")
    with pytest.raises(InputError, match="did you mean 'digits'"):
        pretrained.path("digit")


def test_commands_default_to_a_pretrained_model(
    pretrained_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["generate", "--steps", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "text8"
    Path("words.txt").write_text("abc def\n")
    assert cli.main(["score", "words.txt", "--calls", "4", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["rows"]
    assert cli.main(["score", "text8", "words.txt", "--calls", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == alone and alone[0]["chars"] == 7
    assert cli.main(["evaluate"]) == 2  # the model is found, and its corpus is a file of the user
    assert "needs a file" in capsys.readouterr().err


def test_an_evaluation_leaves_a_published_model_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("abc def gab face bad bed cafe " * 40)
    place = rdlm.load(run).save(tmp_path / "out")
    config = json.loads((place / "config.json").read_text())
    quick = ["--calls", "3", "--evaluations", "20", "--sequences", "8", "--samples", "0", "--file", "book.txt"]
    config["corpus"]["protocol"] = data.load("textfile", file=tmp_path / "book.txt").protocol
    del config["sha256"]
    (place / "config.json").write_text(json.dumps(with_checksum(config)))
    files = {path.name: path.read_bytes() for path in place.iterdir()}
    assert cli.main(["evaluate", str(place), *quick]) == 0, capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in place.iterdir()} == files
    left = tmp_path / "runs" / "published-out" / "evaluation-validation" / "evaluation.json"
    assert json.loads(left.read_text())["weights"] == config["weights"]["fingerprint"]


def test_publish_from_the_command_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "new" / "out"
    assert cli.main(["publish", str(run), str(place), "--dtype", "float16"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(place) and "have not been evaluated" in captured.err
    leave_evaluation(run, fingerprint(rdlm.load(run).method.network))
    assert cli.main(["publish", str(run), str(place), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"model": "toy", "place": str(place), "dtype": "float32", "evaluations": ["validation"]}
    assert cli.main(["publish", str(run), str(place), "--private"]) == 2
    assert "--private is for the hub" in capsys.readouterr().err


def test_a_measured_curve_is_published(run: Path, tmp_path: Path) -> None:
    total = PAPER_TOTAL_NOISE
    curve = {"noise": [total, total / 2, 0.0], "nats": [0.0, 3.0, 4.0]}
    (run / "checkpoint-00000007" / "curve.json").write_text(json.dumps(curve))
    again = rdlm.load(rdlm.load(run).save(tmp_path / "out"))
    assert again.generate(steps=3, grid="information").options.grid == "information"
