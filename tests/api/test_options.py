"""Sampling options are declared once: the command line, Python and the HTTP service derive theirs from it."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from inspect import signature
from typing import Any, get_type_hints

import numpy as np
import pytest
import tyro
from pydantic import BaseModel

from rdlm.api.generate import BASELINE_OPTIONS, generate
from rdlm.api.language_model import LanguageModel
from rdlm.cli.generate import Generate
from rdlm.config import SamplingOptions, attribute_docstrings
from rdlm.errors import InputError
from rdlm.serve.schema import LIMITS, TYPES, CompletionBody, TrajectoryBody, sampling_of
from tests.sampling.untrained import tiny

OPTIONS = {one.name: one for one in fields(SamplingOptions)}
HELP = attribute_docstrings(SamplingOptions)


def default_of(name: str) -> Any:
    one = OPTIONS[name]
    return one.default_factory() if one.default_factory is not MISSING else one.default


def test_every_option_is_documented() -> None:
    assert set(HELP) == set(OPTIONS) and all(HELP.values())


# -- the command line --------------------------------------------------------------------------------

VALUES: dict[str, tuple[list[str], Any]] = {
    "num": (["3"], 3),
    "length": (["9"], 9),
    "steps": (["7"], 7),
    "solver": (["heun"], "heun"),
    "grid": (["log"], "log"),
    "seed": (["5"], 5),
    "prompt": (["ab"], "ab"),
    "suffix": (["yz"], "yz"),
    "infill": (["a_b"], "a_b"),
    "gap": (["?"], "?"),
    "ban": (["e"], "e"),
    "forbid": (["0", "ab"], {0: "ab"}),
    "require": (["-1", "z"], {-1: "z"}),
    "regex": (["a+"], "a+"),
    "label": (["cat"], "cat"),
    "signal": (["0.5", "1"], (0.5, 1.0)),
    "guidance": (["2"], 2.0),
    "temperature": (["0.5"], 0.5),
    "top_k": (["4"], 4),
    "top_p": (["0.9"], 0.9),
    "greedy": ([], True),
    "window": (["0.25"], 0.25),
    "order": (["random"], "random"),
    "block": (["4"], 4),
    "stride": (["8"], 8),
    "clean": ([], False),
    "batch": (["2"], 2),
    "rows": (["1"], 1),
}
"""A value of each option that is not its default, as the command line takes it and as it is read."""


def test_the_command_inherits_the_sampling_options() -> None:
    """Redeclared ones, which gives them aliases, keep their types and defaults."""
    assert issubclass(Generate, SamplingOptions)
    assert set(VALUES) == set(OPTIONS)
    assert set(OPTIONS) & set(Generate.__annotations__) == {"num", "steps"}
    own, shared = get_type_hints(Generate), get_type_hints(SamplingOptions)
    assert {name: own[name] for name in OPTIONS} == shared
    assert all(getattr(Generate(), name) == default_of(name) for name in OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_a_flag(name: str) -> None:
    words, value = VALUES[name]
    flag = name.replace("_", "-")
    flag = f"--no-{flag}" if value is False else f"--{flag}"
    read = tyro.cli(Generate, args=[flag, *words])
    assert getattr(read, name) == value != default_of(name)
    others = [other for other in OPTIONS if other != name]
    assert all(getattr(read, other) == default_of(other) for other in others)


def test_the_help_of_a_flag_is_the_docstring_of_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tyro.cli(Generate, args=["--help"])
    shown = re.sub(r"[\s│]+", "", capsys.readouterr().out)
    for name, text in HELP.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert re.sub(r"\s+", "", text) in shown, name


# -- the HTTP service --------------------------------------------------------------------------------

OWN = {"prompt", "suffix", "length"}
"""Fields that bodies declare themselves: OpenAI's prompts and suffixes, and the length of a trajectory."""


@pytest.mark.parametrize("body", [CompletionBody, TrajectoryBody])
def test_sampling_fields_of_a_body_are_options_with_their_types_and_descriptions(body: type[BaseModel]) -> None:
    assert set(LIMITS) <= set(OPTIONS) and set(TYPES) <= set(LIMITS)
    assert set(body.model_fields) & set(OPTIONS) - OWN == set(LIMITS)
    hints = get_type_hints(SamplingOptions)
    for name in LIMITS:
        found = body.model_fields[name]
        assert found.default is None and not found.is_required()  # not given: the option's default
        assert found.description == HELP[name]
        wanted = TYPES.get(name, hints[name]) | None
        assert found.annotation == (wanted if name in TYPES else hints[name] | None), name


@pytest.mark.parametrize("name", LIMITS)
def test_a_field_of_a_body_sets_its_option(name: str) -> None:
    value = VALUES[name][1]
    read = CompletionBody.model_validate({name: value})
    assert sampling_of(read) == {name: value}
    assert getattr(SamplingOptions(**sampling_of(read)), name) == value
    assert sampling_of(CompletionBody.model_validate({})) == {}


# -- Python ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny()


def test_generate_names_no_sampling_option_of_its_own() -> None:
    assert not set(OPTIONS) & set(signature(generate).parameters)
    assert set(BASELINE_OPTIONS) <= set(OPTIONS)


def test_every_option_is_a_keyword(model: LanguageModel) -> None:
    plain = generate(model, SamplingOptions(steps=2))
    for name in OPTIONS:
        value = 2 if name == "steps" else default_of(name)
        made = generate(model, SamplingOptions(steps=2), **{name: value})
        assert made.samples == plain.samples and made.options == plain.options
    with pytest.raises(TypeError, match="stpes"):
        model.generate(stpes=3)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"num": 2.0}, "num must be an integer, got 2.0"),
        ({"num": "2"}, "num must be an integer, got '2'"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"steps": 8.5}, "steps must be an integer, got 8.5"),
        ({"top_k": "3"}, "top-k must be an integer, got '3'"),
        ({"temperature": "0.5"}, "temperature must be a number, got '0.5'"),
        ({"regex": 7}, "regex must be a text, got 7"),
        ({"infill": b"a_"}, "infill must be a text, got b'a_'"),
    ],
)
def test_options_of_a_wrong_type_are_named(option: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SamplingOptions(**option)


def test_numbers_of_numpy_are_numbers() -> None:
    found = SamplingOptions(num=np.int64(2), seed=np.int32(1), temperature=np.float32(0.5), steps=None)
    assert (found.num, found.seed, found.temperature, found.steps) == (2, 1, 0.5, None)
