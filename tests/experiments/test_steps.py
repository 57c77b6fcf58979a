"""The table of bound and sample quality against network calls."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.row_cache import Row, RowCache, Work
from experiments.steps import Setting, Steps, bound, matched, measure, plot, samples
from rdlm.api.generate import generate
from rdlm.api.language_model import LanguageModel
from rdlm.cli import main as cli
from rdlm.config import DataConfig, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.data.tokenizer import Characters
from rdlm.errors import InputError
from rdlm.likelihood.estimators import stratified_bound
from rdlm.methods import build
from rdlm.methods.rdlm import Rdlm
from rdlm.process.order import TokenSchedule
from rdlm.train.loop import train

NETWORK = TransformerConfig(width=16, layers=1, heads=2, time_width=8)


class UDLM:
    """A scorer to whom all letters are alike."""

    name, rule = "uniform", "all tokens"

    def log_likelihood(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        sizes = torch.tensor([len(text) for text in texts])
        return -sizes * torch.log(torch.tensor(3.0)), sizes


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    config = RunConfig(model=NETWORK, process=ProcessConfig(levels=8, pairs=64))
    return LanguageModel("tiny", Rdlm(config, 3), Characters("abc"), config, {"kind": "text", "length": 8})


def even(count: int) -> Batch:
    return Batch(torch.randint(3, (count, 8), generator=torch.Generator().manual_seed(0)))


def test_rows_have_equally_many_network_calls(model: LanguageModel) -> None:
    wanted = list(Steps((7, 8), grids=("time", "log"), widths=(0.5, 0.125, 0.0)).settings())
    assert len(wanted) == 2 * (6 * 2 + 2 * 3)  # an eighth of 8 calls is one step, and comes once
    for setting in wanted:
        made = generate(
            model,
            num=1,
            steps=setting.steps,
            solver=setting.solver,
            grid=setting.grid,
            window=setting.window.width,
            order=setting.order,
        )
        fewest = 1 if setting.width < 1 else setting.nfe - 1
        assert fewest <= made.network_calls <= setting.nfe
    assert Setting(8, width=0.5, order="left_to_right").clock == "left_to_right 0.5"
    assert Setting(8, width=0.0).window.discretize(8).steps == 1


def test_blocks_are_measured_if_there_are_enough_calls(model: LanguageModel) -> None:
    table = Steps((3, 4, 8), ("mixture",), ("time",), (), block=1, length=8, samples=4, evaluations=40)
    rows = list(measure(model, even(40), None, table))
    assert [(row["calls"], row["clock"]) for row in rows[1:]] == [
        (3, "synchronous"),
        (4, "synchronous"),
        (4, "blocks of 1"),
        (8, "synchronous"),
        (8, "blocks of 1"),
    ]
    (made,) = (row for row in rows[1:] if row["calls"] == 8 and row["clock"] == "blocks of 1")
    problem = model.rdlm.problem(even(40), 8, token_schedule=TokenSchedule(1 / 8, "strided", 1))
    found = stratified_bound(problem, 40, torch.Generator().manual_seed(0)).total
    assert made["bound"] == pytest.approx(found.value / 8 / math.log(2), abs=0.05) and made["network_calls"] == 8


def test_windows_are_shares_of_the_time_and_grids_have_names() -> None:
    with pytest.raises(InputError, match=r"widths of windows must lie in \[0, 1\), got 0.5, 1.0"):
        Steps(widths=(0.5, 1.0))
    with pytest.raises(InputError, match="unknown grid 'tme': did you mean 'time'"):
        Steps(grids=("tme",))


def test_every_row_has_what_is_known_of_it(model: LanguageModel, tmp_path: Path) -> None:
    table = Steps((3,), ("mixture", "drift", "heun"), ("log",), (0.0,), ("strided",), (0.5,), samples=4, evaluations=40)
    seen: list[int] = []
    rows = list(measure(model, even(40), UDLM(), table, seen.append))
    assert sum(seen) == table.cost
    assert [row["solver"] for row in rows] == ["data", "mixture", "drift", "heun", "mixture"]
    assert [("bound" in row) for row in rows] == [False, True, True, False, True]
    for row in rows:
        assert row["perplexity"] == pytest.approx(3.0, rel=1e-5)
        assert 0 <= row["unigram"] <= row["bigram"] <= 1  # type: ignore[operator]
    for row in rows[1:]:
        assert row["matched"] == pytest.approx(3.0, rel=1e-5)
    pytest.importorskip("matplotlib")
    plot(rows, tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_that_was_stopped_goes_on(model: LanguageModel, tmp_path: Path) -> None:
    table = Steps((2,), ("mixture", "heun"), ("log",), (0.0,), ("strided",), (0.5,), samples=2, evaluations=8)
    path, made = tmp_path / "table" / "rows.jsonl", []

    def counted(key: object, work: Work) -> Row:
        return RowCache(path)(key, lambda: (made.append(key), work())[1])

    first = list(islice(measure(model, even(8), None, table, cache=counted), 2))
    with path.open("a") as file:
        file.write('{"of": "torn')
    rows = list(measure(model, even(8), None, table, cache=counted))
    assert rows[:2] == first and len(made) == 3 == len(rows) - 1
    assert rows == list(measure(model, even(8), None, table))
    list(measure(model, even(8), UDLM(), table, cache=counted))
    list(measure(model, even(8), None, replace(table, seed=1), cache=counted))
    assert len(made) == 9  # another judge, another seed: other rows


def test_an_untrained_network_has_the_bound_of_its_prior(model: LanguageModel) -> None:
    """It takes all letters for about equally likely: log2 3 bits, whatever the grid and the window."""
    for setting in (Setting(4), Setting(4, grid="log"), Setting(4, width=0.5), Setting(4, width=0.0, order="random")):
        found = bound(model, setting, even(60), 600)
        assert found["bound_low"] - 0.02 < math.log2(3) < found["bound_high"] + 0.02  # type: ignore[operator]
    assert bound(model, Setting(4, "euler"), even(4), 40) == {}


def test_perplexity_is_read_at_the_entropy_of_data() -> None:
    points = [{"entropy": x, "perplexity": math.exp(1 + 2 * x)} for x in (1.0, 1.5, 2.5)]
    assert matched(points, 2.0) == pytest.approx(math.exp(5))
    assert matched([{"entropy": 1.0, "perplexity": 4.0}] * 2, 2.0) == pytest.approx(4.0)


def test_a_wrong_law_is_farther_from_the_data(model: LanguageModel) -> None:
    """The untrained network takes all letters for equally likely, which only one of two corpora is."""
    from rdlm.evaluate.metrics import divergences

    ids = even(400).ids
    skewed = torch.where(torch.rand(400, 8, generator=torch.Generator().manual_seed(1)) < 0.8, 0, ids)
    made = samples(model, Setting(4), Steps(samples=100)).tokens
    near, far = (divergences(made, data, 3)["unigram_divergence"].value for data in (ids, skewed))
    assert far > 5 * near


def test_what_has_no_table() -> None:
    with pytest.raises(InputError, match="2 samples"):
        Steps(samples=1)
    with pytest.raises(InputError, match="at least 1"):
        Steps(nfe=(0,))
    with pytest.raises(InputError, match="unknown solver"):
        Steps(solvers=("heum",))


def test_one_command_writes_table_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog and runs away " * 40)
    config = RunConfig(
        data=DataConfig("textfile", length=12, file=tmp_path / "book.txt"),
        process=ProcessConfig(levels=8, pairs=64),
        model=NETWORK,
        training=TrainingConfig(steps=1, batch=4, validation_sequences=4, validation_nfe=4, device="cpu"),
    )
    train(config, tmp_path / "run", build)
    capsys.readouterr()
    options = ["--temperatures", "1", "--sampler-steps", "4", "--solvers", "mixture,euler", "--samples", "4"]
    options += ["--widths", "0.5,0", "--grids", "time,log"]
    out = tmp_path / "out"
    assert cli.main(["analyze", "steps", str(tmp_path / "run"), *options, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 1 + 2 * 2 + 2 * 3  # data; solvers on two grids; half and one step in three orders
    assert json.loads((out / "steps.json").read_text()) == found
    assert (out / "steps.png").exists() and "bound: bits" in (out / "steps.txt").read_text()
    assert cli.main(["analyze", "steps"]) != 0
    assert "rdlm analyze steps RUN" in capsys.readouterr().err
