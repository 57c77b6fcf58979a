"""Orders of generation on the command line: measured, stored, published and chosen, also by Python and over HTTP."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import rdlm
from rdlm.cli import main as cli
from rdlm.config import (
    DataConfig,
    MethodName,
    ObjectiveConfig,
    ProcessConfig,
    RunConfig,
    TrainingConfig,
    TransformerConfig,
)
from rdlm.methods import build
from rdlm.presets import PAPER_DENOISER, PAPER_PROCESS
from rdlm.train.loop import train

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))

from running import serving

TEXT = "the quick brown fox jumps over the lazy dog and runs away "
LENGTH = 12
QUICK = ("--sequences", "14", "--evaluations", "14", "--curve-nfe", "4,6")


def trained(folder: Path, method: MethodName = "rdlm", **sections: Any) -> Path:
    """A run of three steps on a short text."""
    (folder / "book.txt").write_text(TEXT * 60)
    config = RunConfig(
        method=method,
        data=DataConfig("textfile", length=LENGTH, file=folder / "book.txt"),
        model=TransformerConfig(width=16, layers=1, heads=2),
        training=TrainingConfig(steps=3, batch=4, validation_sequences=8, validation_nfe=16, device="cpu"),
        **{"process": ProcessConfig(levels=8, pairs=64), "objective": ObjectiveConfig(blockwise=0.5)} | sections,
    )
    train(config, folder / method, build)
    return folder / method


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def run(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with the bounds of its orders."""
    place = shutil.copytree(plain, tmp_path_factory.mktemp("measured") / "run")
    assert cli.main(["evaluate", str(place), "--orders", *QUICK]) == 0
    return Path(place)


def answer(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], str]:
    assert cli.main([*options, "--json"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_every_order_is_measured_and_stored(run: Path) -> None:
    stored = json.loads((run / "checkpoint-00000003" / "orders.json").read_text())
    rows = {(row["order"], row["calls"]): row for row in stored["rows"]}
    assert set(rows) == {
        *(("synchronous", calls) for calls in (4, 6, 12)),
        *(("random", calls) for calls in (4, 6, 12)),
        *(("strided", calls) for calls in (4, 6, 12)),
        *(("left-to-right", calls) for calls in (4, 6, 12)),
    }
    assert [rows["left-to-right", calls]["block"] for calls in (4, 6, 12)] == [9, 4, 1]
    assert all(row["low"] < row["value"] < row["high"] for row in rows.values())
    same = ("value", "low", "high")  # with one call per token, both are a random permutation
    assert all(rows["random", 12][key] == rows["strided", 12][key] for key in same)
    assert stored["evaluations"] == 14 and stored["unit"] == "bits per character"


@pytest.mark.parametrize(("order", "block"), [("synchronous", ""), ("strided", ""), ("left-to-right", "4")])
def test_a_row_is_the_bound_of_evaluate(
    run: Path, order: str, block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = json.loads((run / "checkpoint-00000003" / "orders.json").read_text())
    (row,) = [row for row in stored["rows"] if (row["order"], row["calls"]) == (order, 6)]
    options = ("--nfe", "6", "--order", order, *(("--block", block) if block else ()), "--samples", "0")
    found, _ = answer(capsys, "evaluate", str(run), *options, "--evaluations", "400", "--out", str(tmp_path))
    bits = found["metrics"]["bits_per_character"]
    assert bits["value"] == pytest.approx(row["value"], abs=5 * math.hypot(bits["stderr"], row["stderr"]))
    assert (f"order {order}" in bits["convention"]) == (order != "synchronous")


def test_the_table_is_printed_and_the_test_split_is_not_stored(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["evaluate", str(plain), "--orders", "--split", "test", *QUICK, "--out", str(tmp_path)]
    assert cli.main(options) == 0
    captured = capsys.readouterr()
    assert "left-to-right" in captured.out and "14 evaluations each" in captured.out
    assert (tmp_path / "orders.json").is_file() and "of a checkpoint only" in captured.err
    assert not (plain / "checkpoint-00000003" / "orders.json").exists()


def test_a_published_model_has_the_table_in_its_card(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["publish", str(run), str(tmp_path / "model"), "--dtype", "bfloat16"]) == 0
    stored = json.loads((run / "checkpoint-00000003" / "orders.json").read_text())
    assert json.loads((tmp_path / "model" / "orders.json").read_text()) == stored
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| order | 4 calls | 6 calls | 12 calls |" in card and "| left-to-right | " in card
    assert f"{stored['rows'][0]['value']:.3f} [" in card and "before the weights were rounded" in card
    again = rdlm.load(tmp_path / "model").save(tmp_path / "again")
    assert json.loads((again / "orders.json").read_text()) == stored
    (tmp_path / "model" / "orders.json").write_text("{}")
    capsys.readouterr()
    assert cli.main(["generate", str(tmp_path / "model")]) == 3  # the manifest has its checksum
    assert "orders.json" in capsys.readouterr().err


def test_bounds_of_other_weights_are_not_published(run: Path, tmp_path: Path) -> None:
    other = rdlm.load(run, averaged=False).save(tmp_path / "other")
    assert not (other / "orders.json").exists() and "by order" not in (other / "README.md").read_text()


def test_auto_gives_the_same_samples_by_command_python_and_http(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = json.loads((run / "checkpoint-00000003" / "orders.json").read_text())
    best = min((row for row in stored["rows"] if row["calls"] <= 8), key=lambda row: (row["value"], row["calls"]))
    common = ("generate", str(run), "--seed", "5", "--num", "2")
    found, printed = answer(capsys, *common, "--steps", "8")
    assert (found["order"], found["block"], found["steps"]) == (best["order"], best["block"], best["calls"])
    (line,) = [line for line in printed.splitlines() if "order auto" in line]
    assert line.startswith(f"rdlm: order auto: {best['order']}") and f"bound {best['value']:.3f} [" in line
    texts = [sample["text"] for sample in found["samples"]]
    made = rdlm.load(run).generate(seed=5, num=2, steps=8)
    assert [sample.text for sample in made.samples] == texts
    blocks = ("--block", str(best["block"])) if best["block"] else ()
    named, _ = answer(capsys, *common, "--order", best["order"], "--steps", str(best["calls"]), *blocks)
    assert [sample["text"] for sample in named["samples"]] == texts
    with serving(str(run)) as served:
        body = {"prompt": "", "seed": 5, "n": 2, "steps": 8}
        completed = served.post("/v1/completions", body).json()
        assert [choice["text"] for choice in completed["choices"]] == texts
        own = completed["rdlm"]
        assert (own["order"], own["block"], own["steps"]) == (best["order"], best["block"], best["calls"])
        assert own["notices"] == [line.removeprefix("rdlm: ")]
        check_http_orders(served, run)


def check_http_orders(served: Any, run: Path) -> None:
    """Named orders, warnings and mistakes over HTTP, also of scores and trajectories."""
    model = rdlm.load(run)
    for order in ("synchronous", "random", "strided", "left-to-right", "left_to_right"):
        body = {"prompt": "", "seed": 3, "steps": 40, "order": order}
        found = served.post("/v1/completions", body).json()
        assert found["choices"][0]["text"] == model.generate(seed=3, steps=40, order=order).samples[0].text
        assert found["rdlm"]["order"] == order.replace("_", "-")
        expected = f"order {found['rdlm']['order']} uses at most 12 calls for 12 tokens: 40 requested"
        assert (expected in found["rdlm"]["notices"]) == (order != "synchronous")
    for body, message in (
        ({"order": "sorted"}, "left-to-right"),
        ({"order": "left-to-right", "block": 13}, "a block of 13 tokens is longer than the sequence of 12 tokens"),
    ):
        for path, more in (
            ("/v1/completions", {"prompt": ""}),
            ("/v1/trajectory", {}),
            ("/v1/score", {"input": "the fox"}),
        ):
            refused = served.post(path, body | more)
            assert refused.status_code == 400 and message in refused.json()["error"]["message"]
    scored = served.post("/v1/score", {"input": "the quick fo", "order": "strided", "steps": 40}).json()
    assert (scored["steps"], scored["order"]) == (12, "strided") and "note" in scored
    start = served.post("/v1/trajectory", {"order": "strided", "steps": 6}).text.split("data: ")[1].splitlines()[0]
    assert (json.loads(start)["order"], json.loads(start)["steps_per_token"]) == ("strided", 1)


def test_scores_name_their_order(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("the quick fox")
    options = ("score", str(run), str(tmp_path / "text.txt"), "--draws", "3")
    assert answer(capsys, *options, "--order", "synchronous", "--nfe", "4")[0]["order"] == "synchronous"
    found, printed = answer(capsys, *options, "--nfe", "12")
    assert f"order auto: {found['order']}" in printed and found["steps"] <= 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["evaluate", "--orders", "--order", "random"], "leave out --order"),
        (["evaluate", "--orders", "--nfe", "4"], "leave out --order"),
        (["evaluate", "--orders", "--curve-nfe", "4,inf"], "leave out inf"),
        (["evaluate", "--order", "strided", "--nfe", "inf"], "use --order synchronous"),
        (["evaluate", "--block", "13"], "a block of 13 tokens is longer than the sequence of 12 tokens"),
        (["generate", "--block", "13"], "a block of 13 tokens is longer than the sequence of 12 tokens"),
        (["score", "--block", "13"], "a block of 13 tokens is longer than the sequence of 12 tokens"),
        (["generate", "--order", "left"], "left-to-right"),
    ],
)
def test_mistakes_are_named(
    run: Path, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("the quick fox")
    places = [str(run), str(tmp_path / "text.txt")] if options[0] == "score" else [str(run)]
    assert cli.main([options[0], *places, *options[1:]]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_warnings_go_to_standard_error(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, printed = answer(capsys, "generate", str(plain), "--order", "random", "--steps", "300")
    assert "rdlm: order random uses at most 12 calls for 12 tokens: 300 requested" in printed
    assert "rdlm: the model was not trained for order random, and its bound was not measured" in printed
    found, printed = answer(capsys, "generate", str(plain), "--steps", "4")
    assert "no bounds by order are stored with the model" in printed and found["order"] == "synchronous"


def test_a_baseline_has_no_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(trained(tmp_path, "mdlm"))
    for options in (["generate", run, "--order", "random"], ["evaluate", run, "--orders"]):
        assert cli.main(options) == 2
        assert "'mdlm'" in capsys.readouterr().err
    assert answer(capsys, "generate", run, "--steps", "2")[0]["order"] is None


def test_a_run_refuses_blocks_longer_than_its_sequences(tmp_path: Path) -> None:
    with pytest.raises(rdlm.errors.InputError, match=r"process\.block 13 is longer than the sequences of 12 tokens"):
        trained(tmp_path, process=ProcessConfig(levels=8, pairs=64, block=13))


# -- bounds that are worse than the uniform code ---------------------------------------------------------------------

LATE = "without evidence, late steps are charged for what the network has not learned"


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        (
            {"process": PAPER_PROCESS, "denoiser": PAPER_DENOISER},
            f"worse than guessing (4.75 bits per character): {LATE}",
        ),
        (
            {"process": ProcessConfig(levels=8, pairs=64, window=0.001, block=1)},
            "no better than guessing (4.75 bits per character): the network is hardly trained",
        ),
    ],
    ids=["paper", "default"],
)
def test_a_bound_worse_than_the_uniform_code_says_so(
    sections: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = TrainingConfig(steps=1, batch=4, lr=1e-9, validation_sequences=32, validation_nfe=16, device="cpu")
    (tmp_path / "book.txt").write_text(TEXT * 60)
    data = DataConfig("textfile", length=LENGTH, file=tmp_path / "book.txt", tokenizer="characters")
    config = RunConfig(data=data, model=TransformerConfig(width=16, layers=1, heads=2), training=one, **sections)
    result = train(config, tmp_path / "run", build).to_json()
    assert result["note"] == reason
    assert reason in (tmp_path / "run" / "report.html").read_text()
    options = ("evaluate", str(tmp_path / "run"), "--nfe", "16", "--samples", "0")
    assert answer(capsys, *options)[0]["note"] == reason
    assert cli.main(list(options)) == 0
    assert f"note: {reason}" in capsys.readouterr().out
    (tmp_path / "text.txt").write_text("the quick fox jumps over the dog")
    options = ("score", str(tmp_path / "run"), str(tmp_path / "text.txt"), "--nfe", "16")
    assert answer(capsys, *options)[0]["note"].startswith(reason)
    assert cli.main(list(options)) == 0
    assert f"note: {reason}, or the text is unlike" in capsys.readouterr().out
