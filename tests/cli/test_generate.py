"""`rdlm generate` on small runs in a folder: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rdlm
from rdlm import pretrained as box
from rdlm.api import output as animation
from rdlm.api.output import Frame, Trace
from rdlm.cli import main as cli
from rdlm.config import PAPER_TOTAL_NOISE, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.image import decode_png, encode_png
from rdlm.data.tokenizer import TEXT8_ALPHABET, Characters, Levels, Tokenizer, bases
from rdlm.methods.rdlm import Rdlm
from rdlm.storage import checkpoint
from rdlm.storage import config_file as configfile
from rdlm.storage import run_folder as folder
from rdlm.storage.manifest import with_checksum


def save(run: Path, tokenizer: Tokenizer, **corpus: Any) -> Path:
    """Write the folder of a run whose network nobody trained."""
    config = RunConfig(process=ProcessConfig(), model=TransformerConfig(width=16, layers=1, heads=2, time_width=8))
    about = {"name": "toy", "protocol": "toy", "classes": [], "image": None, "signal": False, **corpus}
    torch.manual_seed(0)
    method = Rdlm(config, tokenizer.size, len(about["classes"]))
    for parameter in method.network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    weights = {name: parameter.detach() for name, parameter in method.network.named_parameters()}
    parts = {"network": method.network.state_dict(), "ema": weights, "optimizer": {}, "method": method.state()}
    described = {"counters": {}, "config": configfile.to_dict(config), "corpus": about}
    run.mkdir()
    checkpoint.save(run, 7, parts, described, tokenizer.to_json())
    folder.update_pointers(run, 7, None)
    return run


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("runs")
    return str(save(place / "text", Characters(TEXT8_ALPHABET), kind="text", length=12))


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["generate", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_what_the_door_promises(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, text, "--num", "2", "--steps", "4", "--seed", "5", "--prompt", "ab", "--solver", "heun")
    assert [sample["seed"] for sample in found["samples"]] == [5, 6]
    assert all(re.fullmatch("ab.{10}", sample["text"]) for sample in found["samples"])
    assert (found["steps"], found["solver"], found["grid"], found["invalid_codes"]) == (4, "heun", "time", 0)
    assert found["network_calls"] == 7 and found["claims_bound"] is False


def test_two_runs_make_what_one_makes(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--steps", "3", "--window", "0.5")
    whole = asked(capsys, text, "--num", "4", *options)["samples"]
    first = asked(capsys, text, "--num", "3", "--batch", "2", *options)["samples"]
    assert whole == first + asked(capsys, text, "--num", "1", "--seed", "3", *options)["samples"]


def test_text_goes_to_standard_output_or_to_a_file(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", text, "--num", "2", "--steps", "2", "--infill", "the ____ of", "--top-p", "0.9"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert re.fullmatch("(the .... of\n){2}", printed)
    assert cli.main([*arguments, "--out", str(tmp_path / "a" / "samples.txt")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "a" / "samples.txt").read_text() == printed
    for flag in ("--out", "--trace"):
        (tmp_path / "letter.html").write_text("mine")
        assert cli.main([*arguments, flag, str(tmp_path / "letter.html")]) == 2
        assert "exists: give another name, or --overwrite" in capsys.readouterr().err
        assert (tmp_path / "letter.html").read_text() == "mine"
        assert cli.main([*arguments, flag, str(tmp_path / "letter.html"), "--overwrite"]) == 0
        assert (tmp_path / "letter.html").read_text() != "mine"


def test_conditions_reach_the_sampler(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(
        capsys,
        text,
        "--num",
        "3",
        "--steps",
        "2",
        "--regex",
        "[a-d ]*z",
        "--ban",
        "a",
        "--length",
        "30",
        "--suffix",
        "bz",
        "--top-k",
        "4",
        "--temperature",
        "0.7",
        "--block",
        "4",
        "--greedy",
    )
    assert all(re.fullmatch("[b-d ]{28}bz", sample["text"]) for sample in found["samples"])


def test_dna_is_fasta(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save(tmp_path / "dna", bases(), kind="dna", length=80)
    out = tmp_path / "samples.fasta"
    found = asked(capsys, str(run), "--num", "2", "--steps", "2", "--seed", "9", "--out", str(out))
    first, second = re.fullmatch(
        ">sample seed=9 length=80\n(.*?)>sample seed=10 length=80\n(.*)", out.read_text(), re.DOTALL
    ).groups()  # type: ignore[union-attr]
    assert [len(line) for line in first.splitlines()] == [70, 10]
    assert [part.replace("\n", "") for part in (first, second)] == [sample["text"] for sample in found["samples"]]


def test_images_are_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save(tmp_path / "image", Levels(5), kind="image", length=12, image=[2, 2, 3], classes=["cat", "dog"])
    out = tmp_path / "samples.png"
    options = ["--num", "3", "--steps", "2", "--label", "dog", "--guidance", "2"]
    found = asked(capsys, str(run), *options, "--out", str(out))
    assert found["samples"][2] == {"seed": 2, "file": str(out)}
    picture = decode_png(out.read_bytes())  # 2 x 2 images of 2 x 2 pixels with a line between, enlarged
    factor = 256 // 5
    assert picture.shape == (5 * factor, 5 * factor, 3)
    assert set(np.unique(picture)) <= {0, 63, 127, 128, 191, 255}
    assert cli.main(["generate", str(run), *options]) == 2
    assert "images need a file" in capsys.readouterr().err


def test_a_grey_picture_is_read_by_others() -> None:
    image = pytest.importorskip("PIL.Image")
    import io

    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4, 1)
    assert np.array_equal(np.asarray(image.open(io.BytesIO(encode_png(pixels)))), pixels[..., 0])


def test_traces_are_moving_pictures(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "trace.html"
    assert cli.main(["generate", text, "--steps", "5", "--trace", str(page)]) == 0
    sample = capsys.readouterr().out.strip("\n")
    content = page.read_text()
    assert not re.search(r"https?:|src=|@import|url\(", content)  # it asks nothing of anybody
    (data,) = re.findall('<script type="application/json" id="frames">(.*?)</script>', content)
    frames = json.loads(data)
    assert len(frames) == 6 and "".join(frames[-1]["tokens"]) == sample
    assert all(abs(sum(v * v for v in point) - 1) < 1e-3 for frame in frames for point in frame["points"])
    assert frames[0]["points"][0] == [0, 1, 0]  # the mask's vertex
    image = pytest.importorskip("PIL.Image")
    assert cli.main(["generate", text, "--steps", "5", "--trace", str(tmp_path / "trace.gif")]) == 0
    with image.open(tmp_path / "trace.gif") as moving:
        assert moving.n_frames == 6


def test_a_hostile_token_stays_text(text: str) -> None:
    trace = Trace(rdlm.load(text), [Frame(("</script><b>",), (0.5,), ((1.0, 0.0, 0.0),))])
    page = animation.html(trace)
    assert page.count("</script>") == 2 and "<b>" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "steps must be at least 1"),
        (["--prompt", "a" * 12], "leave nothing open"),
        (["--prompt", "UPPER"], "outside the model's alphabet"),
        (["--infill", "a__ b_C"], "infill: the character 'C' at position 6 is outside the model's alphabet"),
        (["--infill", "no gap"], "has no gap"),
        (["--regex", "abc"], "no sequence of 12 tokens matches"),
        (["--label", "cat"], "trained without classes"),
        (["--trace", "film.mp4"], "written as .html or .gif"),
        (["--grid", "information"], "run rdlm evaluate"),
        (["--solver", "rk4"], "rk4"),
    ],
)
def test_mistakes_exit_with_2(
    text: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["generate", text, *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def test_what_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(box, "FOLDER", tmp_path)
    assert cli.main(["generate"]) == 2
    assert "rdlm demo" in capsys.readouterr().err
    assert cli.main(["generate", "nowhere"]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err
    run = save(tmp_path / "newer", Characters("ab"), kind="text", length=4)
    state = run / "checkpoint-00000007" / "state.json"
    found = json.loads(state.read_text()) | {"format": 99}
    del found["sha256"]
    state.write_text(json.dumps(with_checksum(found)))
    assert cli.main(["generate", str(run)]) == 2
    assert "checkpoint format 99" in capsys.readouterr().err


def test_an_evaluated_run_has_an_information_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save(tmp_path / "measured", Characters("abc"), kind="text", length=6)
    total = PAPER_TOTAL_NOISE
    curve = {"noise": [total, total / 2, 0.0], "nats": [0.0, 3.0, 4.0]}
    (run / "checkpoint-00000007" / "curve.json").write_text(json.dumps(curve))
    assert asked(capsys, str(run), "--grid", "information", "--steps", "4")["grid"] == "information"
