"""The frontier of samples: points with intervals, temperatures that move along a curve, one command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from experiments.frontier import Frontier, measure, plot
from rdlm.api.language_model import LanguageModel
from rdlm.cli import main as cli
from rdlm.config import DataConfig, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.data.tokenizer import Characters
from rdlm.errors import InputError
from rdlm.evaluate.metrics import RunScorer
from rdlm.methods import build
from rdlm.methods.autoregressive import Autoregressive
from rdlm.methods.rdlm import Rdlm
from rdlm.train.loop import train

NETWORK = TransformerConfig(width=16, layers=1, heads=2)


def language_model(kind: str = "text") -> LanguageModel:
    torch.manual_seed(0)
    config = RunConfig(model=NETWORK, process=ProcessConfig(levels=8, pairs=64))
    method = Rdlm(config, 3)
    with torch.no_grad():  # a network that prefers one letter: cold samples hold little else
        dict(method.network.named_parameters())["head.bias"].copy_(torch.tensor([1.0, 0.0, 0.0]))
    return LanguageModel("toy", method, Characters("abc"), config, {"kind": kind, "length": 12})


def scorer() -> RunScorer:
    torch.manual_seed(1)
    config = RunConfig(method="autoregressive", model=NETWORK)
    return RunScorer("judge", Autoregressive(config, 3), Characters("abc"))


def test_every_setting_is_a_point_with_intervals(tmp_path: Path) -> None:
    data = torch.randint(3, (8, 12), generator=torch.Generator().manual_seed(0))
    wanted = Frontier((0.5, 1.0), (2, 4), ("mixture", "drift"), window=1.0, samples=6)
    seen: list[int] = []
    rows = list(measure(language_model(), data, scorer(), wanted, seen.append))
    assert sum(seen) == wanted.cost
    assert [row["solver"] for row in rows] == ["data", *["mixture"] * 4, *["drift"] * 4]
    for row in rows:
        for name in ("perplexity", "entropy"):
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]  # type: ignore[operator]
        assert 0 <= float(str(row["entropy"])) <= math.log(3)
    pytest.importorskip("matplotlib")
    plot(rows, "judge", tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_cold_samples_repeat_themselves() -> None:
    data = torch.randint(3, (4, 12), generator=torch.Generator().manual_seed(0))
    rows = list(measure(language_model(), data, scorer(), Frontier((0.2, 1.0), (4,), samples=24)))
    cold, warm = (float(str(row["entropy"])) for row in rows[1:])
    assert cold < warm - 0.1


def test_what_has_no_frontier() -> None:
    with pytest.raises(InputError, match="for text"):
        next(measure(language_model("dna"), torch.zeros(2, 12), scorer(), Frontier()))
    with pytest.raises(InputError, match="2 samples"):
        Frontier(samples=1)
    with pytest.raises(InputError, match="at least 1"):
        Frontier(steps=(0,))


def test_one_command_writes_table_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog and runs away " * 40)
    for name in ("rdlm", "autoregressive"):
        config = RunConfig(
            method=name,
            data=DataConfig("textfile", length=12, file=tmp_path / "book.txt"),  # type: ignore[arg-type]
            process=ProcessConfig(levels=8, pairs=64),
            model=NETWORK,
            training=TrainingConfig(steps=1, batch=4, validation_sequences=4, validation_nfe=4, device="cpu"),
        )
        train(config, tmp_path / name, build)
    capsys.readouterr()
    options = ["--temperatures", "0.8,1", "--sampler-steps", "3", "--samples", "4", "--out", str(tmp_path / "out")]
    run, judge = str(tmp_path / "rdlm"), str(tmp_path / "autoregressive")
    assert cli.main(["analyze", "frontier", run, "--scorer", judge, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 3 and "under autoregressive, all tokens" in found["conventions"]["perplexity"]
    assert json.loads((tmp_path / "out" / "frontier.json").read_text()) == found
    text = (tmp_path / "out" / "frontier.txt").read_text()
    assert "perplexity: exp(nats" in text and "mixture" in text
    assert (tmp_path / "out" / "frontier.png").exists()
