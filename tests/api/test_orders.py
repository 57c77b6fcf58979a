"""Orders of generation: `auto` takes the best measured one, and what a user should know about an order is said."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rdlm.api.generate import generate, prepare
from rdlm.api.language_model import LanguageModel
from rdlm.api.orders import OrderBound, _measured, choose_order, is_trained_for, read_orders
from rdlm.api.score import Effort, effort_for, order_for, score
from rdlm.config import ConvolutionConfig, ObjectiveConfig, OrderName, ProcessConfig, RunConfig, SamplingOptions
from rdlm.data.tokenizer import bases
from rdlm.errors import DamagedFileError, InputError
from rdlm.methods.rdlm import Rdlm
from rdlm.presets import NO_BLOCKS, TEXT
from rdlm.process.order import ONE_STEP, TokenSchedule
from tests.sampling.untrained import LENGTH, tiny

ROWS = [
    ("synchronous", 0, 8, 3.5),
    ("synchronous", 0, 64, 3.1),
    ("strided", 0, 4, 3.2),
    ("strided", 0, 8, 2.9),
    ("random", 0, 16, 3.0),
    ("left-to-right", 4, 8, 3.3),
    ("left-to-right", 1, 16, 2.5),
]


def content(rows: Any = ROWS) -> dict[str, Any]:
    found = [
        {"order": order, "block": block, "calls": calls, "value": value, "low": value - 0.1, "high": value + 0.1}
        for order, block, calls, value in rows
    ]
    texts = {"weights": "0" * 64, "protocol": "toy", "split": "validation", "unit": "bits per character"}
    return {**texts, "sequences": 10, "evaluations": 10, "rows": found}


def measured(place: Path, found: object = None, **options: Any) -> LanguageModel:
    """Return an untrained model with bounds by order beside it."""
    (place / "orders.json").write_text(found if isinstance(found, str) else json.dumps(found or content()))
    return replace(tiny(**options), folder=place)


# -- auto ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "order", "block", "calls"),
    [(8, "strided", 0, 8), (15, "strided", 0, 8), (16, "left-to-right", 1, 16), (64, "left-to-right", 1, 16)],
)
def test_auto_takes_the_best_bound_within_the_calls(
    tmp_path: Path, steps: int, order: OrderName, block: int, calls: int
) -> None:
    model = measured(tmp_path)
    made = generate(model, steps=steps, num=2)
    assert made.order is not None and made.order.choice is not None
    assert (made.order.name, made.order.block, made.order.nfe) == (order, block, calls)
    assert made.samples == generate(model, steps=calls, num=2, order=order).samples
    assert f"order auto: {order}, {calls} calls (best bound of up to {steps} calls), bound 2." in made.order.choice
    assert "] bits per character" in made.order.choice and made.options.steps == calls


def test_auto_without_steps_may_take_the_models_own_number(tmp_path: Path) -> None:
    assert prepare(measured(tmp_path), SamplingOptions()).order.nfe == 16


def test_fewer_calls_than_measured_take_the_best_order_at_the_fewest(tmp_path: Path) -> None:
    rows = [("strided", 0, 8, 3.0), ("left-to-right", 4, 8, 2.9), ("synchronous", 0, 16, 2.0)]
    found = prepare(measured(tmp_path, content(rows)), SamplingOptions(steps=2)).order
    assert (found.name, found.nfe, found.block) == ("left-to-right", 2, 8)
    wanted = "best bound at the fewest calls measured, 8), its bound at 8 calls is"
    assert found.choice is not None and wanted in found.choice


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ""),
        ({"label": None, "num": 3, "seed": 5}, ""),
        ({"temperature": 0.5, "top_p": 0.9}, "; it does not apply to samples with temperature, top-p"),
        ({"prompt": "a", "solver": "heun"}, "; it does not apply to samples with prompt, solver heun"),
        ({"grid": "log", "length": 12}, "; it does not apply to samples with grid log, length 12"),
        ({"greedy": True, "regex": "a.*"}, "; it does not apply to samples with regex, greedy"),
    ],
)
def test_a_measured_bound_is_not_that_of_other_samplers(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    choice = prepare(measured(tmp_path), SamplingOptions(steps=16, **options)).order.choice
    assert choice is not None and choice.endswith(f"bits per character{said}")


def test_blocks_are_not_chosen_where_known_tokens_follow(tmp_path: Path) -> None:
    model = measured(tmp_path)
    assert prepare(model, SamplingOptions(steps=16, suffix="ab")).order.name == "strided"
    assert prepare(model, SamplingOptions(steps=16, prompt="ab")).order.name == "left-to-right"
    named = prepare(model, SamplingOptions(steps=16, suffix="ab", order="left-to-right")).order
    assert named.schedule == TokenSchedule(ONE_STEP, "left_to_right")


def test_a_window_or_a_block_means_the_models_own_order(tmp_path: Path) -> None:
    model = measured(tmp_path, window=0.25, order="random")
    for given, wanted in (
        ({"window": 0.5}, TokenSchedule(0.5, "random")),
        ({"block": 4}, TokenSchedule(0.25, "random", 4)),
    ):
        assert prepare(model, SamplingOptions(steps=16, **given)).order.schedule == wanted


@pytest.mark.parametrize(
    ("own", "name"),
    [
        ({}, "synchronous"),
        ({"window": 0.001}, "strided"),
        ({"window": 0.001, "block": 1}, "left-to-right"),
        ({"window": 0.25, "order": "left_to_right"}, "left-to-right"),
        ({"order": "synchronous"}, "synchronous"),
    ],
)
def test_auto_falls_back_to_the_models_own_order(own: dict[str, Any], name: str) -> None:
    model = tiny(**own)
    found = prepare(model, SamplingOptions(steps=LENGTH))
    assert found.order.schedule == model.rdlm.token_schedule and found.order.name == name
    assert found.order.choice is not None and not found.order.warnings
    assert f"no bounds by order are stored with the model (rdlm evaluate RUN --orders measures them); {name}, " in (
        found.order.choice
    )


def test_options_of_a_generation_make_it_again(tmp_path: Path) -> None:
    model = measured(tmp_path)
    for given in ({}, {"order": "random", "steps": 7}, {"order": "left-to-right", "steps": 6}, {"window": 0.3}):
        made = generate(model, num=2, **given)
        assert generate(model, made.options).samples == made.samples


def test_orders_differ_and_old_names_are_accepted() -> None:
    model = tiny()
    orders = ("synchronous", "random", "strided", "left-to-right")
    texts = [generate(model, steps=8, seed=3, order=order).samples[0].text for order in orders]
    assert len(set(texts)) == 4
    assert generate(model, steps=8, seed=3, order="left_to_right").samples[0].text == texts[3]
    assert generate(model, steps=8, seed=3, order="spread").samples[0].text == texts[2]
    assert generate(model, steps=8, seed=3, window=1.0).samples[0].text == texts[0]


def test_unknown_orders_are_suggested() -> None:
    with pytest.raises(InputError, match="unknown order 'left to right': did you mean 'left-to-right'"):
        SamplingOptions(order="left to right")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"unknown process\.order 'auto'"):
        ProcessConfig(order="auto")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"process\.order synchronous needs process\.window 1, got 0\.5"):
        ProcessConfig(order="synchronous", window=0.5)


# -- warnings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "steps", "message"),
    [
        ({"order": "random", "steps": 300}, 16, "order random uses at most 16 calls for 16 tokens: 300 requested"),
        ({"order": "strided", "steps": 17}, 16, "order strided uses at most 16 calls for 16 tokens: 17 requested"),
        ({"order": "left-to-right", "steps": 99}, 16, "order left-to-right uses at most 16 calls"),
        ({"order": "random", "length": 5, "steps": 9}, 5, "at most 5 calls for 5 tokens: 9 requested"),
        (
            {"order": "synchronous", "block": 4, "steps": 10},
            8,
            "8 calls for 16 tokens in blocks of 4: 10 requested",
        ),
        ({"order": "left-to-right", "block": 1, "steps": 5}, 5, "16 blocks of 1 need at least 16 calls: 5 requested"),
    ],
)
def test_calls_that_an_order_cannot_use_are_named(given: dict[str, Any], steps: int, message: str) -> None:
    made = generate(tiny(objective=ObjectiveConfig(asynchronous=0.5, blockwise=0.3)), **given)
    assert made.order is not None and made.order.nfe == made.options.steps == steps >= made.network_calls
    assert [warning for warning in made.order.warnings if message in warning]
    without = {name: value for name, value in given.items() if name != "steps"}
    assert not any("requested" in warning for warning in prepare(tiny(), SamplingOptions(**without)).order.warnings)


def test_left_to_right_has_one_call_per_token_unless_something_else_is_given() -> None:
    model = tiny(objective=ObjectiveConfig(asynchronous=0.5, blockwise=0.3))
    longer = model.nfe + 36
    assert choose_order(model, "left-to-right", None, longer).nfe == longer
    assert choose_order(model, "left-to-right", model.nfe, longer).nfe < longer
    assert choose_order(model, "left-to-right", None, longer, block=4).nfe < longer
    assert choose_order(model, "random", None, longer).nfe == model.nfe


@pytest.mark.parametrize(
    ("objective", "trained"),
    [
        (ObjectiveConfig(), {"synchronous"}),
        (ObjectiveConfig(asynchronous=1.0, order="random"), {"random", "strided"}),
        (NO_BLOCKS, {"synchronous", "random", "strided"}),
        (TEXT, {"synchronous", "random", "strided", "left-to-right"}),
        (ObjectiveConfig(asynchronous=0.5), {"synchronous", "random", "strided"}),
        (ObjectiveConfig(asynchronous=0.5, order="left_to_right"), {"synchronous"}),
        (ObjectiveConfig(blockwise=1.0), {"left-to-right"}),
    ],
)
def test_an_order_without_training_is_a_warning(objective: ObjectiveConfig, trained: set[str], tmp_path: Path) -> None:
    model = tiny(objective=objective)
    for order in ("synchronous", "random", "strided", "left-to-right"):
        warnings = prepare(model, SamplingOptions(order=order, steps=8)).order.warnings
        assert any("was not trained for" in warning for warning in warnings) == (order not in trained)
    named = prepare(measured(tmp_path, objective=objective), SamplingOptions(order="synchronous", steps=32)).order
    if "synchronous" not in trained:
        assert "its bound at 8 calls is 3.500 [3.400, 3.600] bits per character" in named.warnings[0]


def test_windows_from_left_to_right_need_such_training() -> None:
    ordered = TokenSchedule(0.5, "left_to_right")
    assert is_trained_for(RunConfig(objective=ObjectiveConfig(asynchronous=0.5, order="left_to_right")), ordered)
    assert not is_trained_for(RunConfig(objective=ObjectiveConfig(asynchronous=0.5, order="random")), ordered)


def test_python_logs_warnings_and_choices(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        measured(tmp_path).generate(steps=8)
        tiny().generate(steps=40, order="random")
    levels = [record.levelname for record in caplog.records if record.name == "rdlm.api.orders"]
    assert levels == ["INFO", "WARNING", "WARNING"]


@pytest.mark.parametrize("block", [LENGTH + 1, 4096])
def test_a_block_longer_than_the_sequence_is_refused(block: int) -> None:
    with pytest.raises(InputError, match=f"a block of {block} tokens is longer than the sequence of 16 tokens"):
        generate(tiny(), order="left-to-right", block=block)
    with pytest.raises(InputError, match="longer than the sequence of 5 tokens"):
        generate(tiny(), block=6, length=5)


def test_a_convolution_has_no_blocks(tmp_path: Path) -> None:
    config = RunConfig(model=ConvolutionConfig(width=8, stacks=1, dilations=(1,), kernel=3))
    torch.manual_seed(0)
    about = {"kind": "dna", "length": LENGTH, "classes": [], "signal": False}
    model = LanguageModel("tiny", Rdlm(config, 4), bases(), config, about, tmp_path)
    (tmp_path / "orders.json").write_text(json.dumps(content()))
    assert generate(model, steps=16).order.name == "strided"  # type: ignore[union-attr]
    with pytest.raises(InputError, match="blocks need a transformer"):
        generate(model, order="left-to-right")


# -- the file --------------------------------------------------------------------------------------------------------


def damaged(**changes: Any) -> str:
    found = content([("strided", 0, 8, 2.9)])
    found["rows"][0] |= {key: value for key, value in changes.items() if key in found["rows"][0]}
    return json.dumps(found | {key: value for key, value in changes.items() if key not in found["rows"][0]})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        damaged(rows={}),
        damaged(rows=[1]),
        damaged(rows=["strided"]),
        damaged(rows=[{}]),
        damaged(unit=3),
        damaged(unit="bits\nrdlm: error: run this"),
        damaged(unit="\x1b[2J"),
        damaged(protocol="x" * 100_000),
        damaged(weights=None),
        damaged(sequences=-1),
        damaged(evaluations=True),
        damaged(order="auto"),
        damaged(order=["strided"]),
        damaged(block=-1),
        damaged(block=1.0),
        damaged(calls=0),
        damaged(calls="8"),
        damaged(calls=True),
        damaged(value=-1.0),
        damaged(low=3.0),
        damaged(high=None),
        damaged(value="2.9"),
        damaged(high=10**400),
        damaged(high=1e308),
        damaged(calls=10**4000),
        damaged().replace("2.9,", "NaN,"),
        damaged().replace("2.9,", "Infinity,"),
    ],
)
def test_a_damaged_file_is_ignored_and_named(tmp_path: Path, text: str) -> None:
    model = measured(tmp_path, text)
    with pytest.raises(DamagedFileError, match=r"orders\.json"):
        read_orders(tmp_path / "orders.json")
    found = prepare(model, SamplingOptions(steps=8)).order
    assert found.schedule == model.rdlm.token_schedule
    assert "orders.json" in found.warnings[0] and "ignored" in found.warnings[0]
    assert generate(model, steps=4).samples == generate(tiny(), steps=4).samples


@pytest.mark.parametrize("changes", [{}, {"low": -0.5}], ids=["plain", "an interval of few evaluations"])
def test_the_undamaged_file_is_read(tmp_path: Path, changes: dict[str, float]) -> None:
    (tmp_path / "orders.json").write_text(damaged(**changes))
    assert read_orders(tmp_path / "orders.json")["rows"][0]["value"] == 2.9


# -- scores ----------------------------------------------------------------------------------------------------------


def test_a_score_is_that_of_the_chosen_order(tmp_path: Path) -> None:
    model = measured(tmp_path, std=0.5)
    text = "the quick brown "
    found = {}
    for order in ("synchronous", "strided", "left-to-right"):
        chosen = choose_order(model, order, 16, LENGTH)
        (found[order],) = score(model, [text], Effort(16, draws=20, order=chosen))
    assert order_for(model, nfe=16) == choose_order(model, "auto", 16, LENGTH)
    assert effort_for(model, 1, 16, order=order_for(model, nfe=16)).nfe == 16
    (auto,) = score(model, [text], Effort(16, draws=20, order=order_for(model, nfe=16)))
    assert auto.nats.value == found["left-to-right"].nats.value  # the best one in the table
    assert len({one.nats.value for one in found.values()}) == 3
    (plain,) = score(tiny(std=0.5), [text], Effort(16, draws=20))
    assert plain.nats.value == found["synchronous"].nats.value
    assert score(model, [text])[0].nats.value != score(tiny(std=0.5), [text])[0].nats.value


@pytest.mark.parametrize(("value", "order"), [(2.94, "left-to-right"), (2.96, "strided")])
def test_a_score_prefers_an_exact_order_that_is_as_good(tmp_path: Path, value: float, order: str) -> None:
    """The best bound, 2.9, has a standard error of 0.051; samples take the fewest calls all the same."""
    model = measured(tmp_path, content([*ROWS[:-1], ("left-to-right", 1, 16, value)]))
    chosen = order_for(model)
    assert chosen is not None and chosen.name == order
    assert (score(model, ["the quick brown "])[0].nats.stderr == 0) == (order == "left-to-right")
    assert choose_order(model, "auto", None, LENGTH).name == "strided"
    asked = order_for(model, nfe=64)
    assert asked is not None and asked.name == "strided"


def test_a_baseline_has_no_order() -> None:
    model = tiny()
    baseline = replace(model, method=type("M", (), {"token_schedule": None})(), config=RunConfig(method="mdlm"))
    assert order_for(baseline) is None
    with pytest.raises(InputError, match="leave out order and block"):
        order_for(baseline, "random")


def test_of_bounds_that_cannot_be_told_apart_the_fewest_calls_are_taken() -> None:
    def bound(order: OrderName, calls: int, value: float, error: float) -> OrderBound:
        return OrderBound(order, 0, calls, value, value - 1.96 * error, value + 1.96 * error, "bits per character")

    rows = [bound("synchronous", 64, 2.00, 0.05), bound("strided", 8, 2.04, 0.05), bound("random", 4, 2.06, 0.05)]
    found = _measured(rows, 64, 32)
    assert (found.order, found.nfe) == ("strided", 8)
    assert "fewest calls within one standard error of the best bound of up to 64 calls" in found.choice
    certain = [bound(row.order, row.calls, row.value, 0.001) for row in rows]
    assert _measured(certain, 64, 32).order == "synchronous"
