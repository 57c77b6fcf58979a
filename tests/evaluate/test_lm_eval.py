"""The model class for lm-evaluation-harness, with the real package where it is installed, else with a stand-in."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import rdlm
from rdlm.api.score import Effort, Score, order_for, score
from rdlm.config import ObjectiveConfig
from rdlm.data.tokenizer import TEXT8_ALPHABET
from rdlm.errors import InputError
from tests.serve.running import LENGTH, save

REAL = importlib.util.find_spec("lm_eval") is not None
pytestmark = pytest.mark.filterwarnings("ignore")  # of the harness and what it imports
with_harness = pytest.mark.skipif(not REAL, reason="the harness is not installed: pip install '.[lm-eval]'")


@pytest.fixture(scope="module", autouse=True)
def harness() -> Iterator[None]:
    """Provide the two names that the model class takes from the harness where that is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        if not REAL:
            for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry"):
                patch.setitem(sys.modules, name, ModuleType(name))
            models: dict[str, type] = {}
            patch.setattr(sys.modules["lm_eval.api.model"], "LM", object, raising=False)
            registry = sys.modules["lm_eval.api.registry"]
            patch.setattr(registry, "register_model", lambda name: partial(models.setdefault, name), raising=False)
            patch.setattr(registry, "get_model", models.__getitem__, raising=False)
        yield
    if not REAL:
        sys.modules.pop("rdlm.evaluate.lm_eval", None)


def harness_model(run: Path, **options: Any) -> Any:
    from rdlm.evaluate.lm_eval import HarnessModel

    return HarnessModel(str(run), **options)


def asked(*arguments: Any) -> list[Any]:
    return [SimpleNamespace(args=one) for one in arguments]


def left_to_right(runs: Path, texts: list[str]) -> list[Score]:
    loaded = rdlm.load(runs / "taught")
    return score(loaded, texts, Effort(LENGTH, order=order_for(loaded, "left-to-right", LENGTH)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("harness")
    save(place / "taught", objective=ObjectiveConfig(prefix=0.5, blockwise=0.5))
    save(place / "together")
    save(place / "causal", method="autoregressive")
    return place


def test_it_is_registered_under_its_name() -> None:
    from lm_eval.api.registry import get_model

    import rdlm.evaluate.lm_eval as module

    assert get_model("rdlm") is module.HarnessModel


@pytest.mark.parametrize("name", ["taught", "causal"])
def test_log_likelihoods_are_exact_where_tokens_are_decoded_one_by_one(runs: Path, name: str) -> None:
    model = harness_model(runs / name)
    assert model.reason is None
    found = model.loglikelihood(asked(("the ", "quick"), ("", "fox"), ("a" * 40, "b" * 20)))
    prompts, texts = ["the ", "", "a" * 40], ["quick", "fox", "b" * 20]
    loaded = rdlm.load(runs / name)
    order = None if name == "causal" else order_for(loaded, "left-to-right", LENGTH)
    wanted = score(loaded, texts, Effort(LENGTH, "path", 3, order=order), prompts=prompts)
    assert [value for value, _ in found] == pytest.approx([-one.nats.value for one in wanted], abs=1e-4)
    assert all(likeliest is False for _, likeliest in found)


def test_the_likeliest_letter_is_recognised(runs: Path) -> None:
    model = harness_model(runs / "taught")
    letters = asked(*(("the ", letter) for letter in TEXT8_ALPHABET))
    assert sum(likeliest for _, likeliest in model.loglikelihood(letters)) == 1


def test_other_orders_give_bounds(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = harness_model(runs / "together", steps=4)
    assert "log-likelihoods are bounds: order synchronous" in caplog.text
    ((value, likeliest),) = model.loglikelihood(asked(("the ", "quick")))
    assert value < 0 and likeliest is False


def test_rolling_is_the_score_and_generation_stops(runs: Path) -> None:
    model = harness_model(runs / "taught", lowercase=True, unknown="replace")
    (value,) = model.loglikelihood_rolling(asked(("The quick brown fox, 1",)))
    loaded = rdlm.load(runs / "taught")
    (wanted,) = score(
        loaded, ["the quick brown fox   "], Effort(LENGTH, order=order_for(loaded, "left-to-right", LENGTH))
    )
    assert value == pytest.approx(-wanted.nats.value, abs=1e-4)
    (text,) = model.generate_until(asked(("the ", {"until": [], "max_gen_toks": 12})))
    assert len(text) == 12 and set(text) <= set(" abcdefghijklmnopqrstuvwxyz")
    stop = text[5]
    (cut,) = model.generate_until(asked(("the ", {"until": [stop, "#"], "max_gen_toks": 12})))
    assert cut == text[: text.index(stop)]


def test_normalisation_of_both_parts_of_a_text(runs: Path) -> None:
    """A full stop and the blank after it are one space, in the context."""
    model = harness_model(runs / "taught", normalise=True)
    plain = harness_model(runs / "taught")
    found = model.loglikelihood(asked(("The end.", " A fox 1"), ("A", " b")))
    wanted = plain.loglikelihood(asked(("the end ", "a fox one "), ("a", " b")))
    assert [value for value, _ in found] == pytest.approx([value for value, _ in wanted], abs=1e-5)


def test_mistakes(runs: Path) -> None:
    with pytest.raises(InputError, match="unknown treatment"):
        harness_model(runs / "taught", unknown="guess")
    with pytest.raises(InputError, match="outside the alphabet"):
        harness_model(runs / "taught").loglikelihood(asked(("The ", "end")))
    with pytest.raises(InputError, match="samples without prompts"):
        harness_model(runs / "causal").generate_until(asked(("the ", {})))


TASKS = {
    "choice": "output_type: multiple_choice\ndoc_to_text: '{{text}}'\ndoc_to_choice: ['quick', 'zzzzz']\n"
    "doc_to_target: 0\nmetric_list:\n  - metric: acc\n",
    "rolling": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
    "metric_list:\n  - metric: bits_per_byte\n",
    "until": "output_type: generate_until\ndoc_to_text: '{{text}}'\ndoc_to_target: 'x'\n"
    "generation_kwargs:\n  until: ['q']\n  max_gen_toks: 6\nmetric_list:\n  - metric: exact_match\n",
}


@with_harness
def test_the_harness_runs_three_kinds_of_tasks(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    import rdlm.evaluate.lm_eval  # noqa: F401

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    (tmp_path / "data.json").write_text('{"text": "the "}\n{"text": "a quick fox "}\n')
    for name, body in TASKS.items():
        data = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path}/data.json\n"
        (tmp_path / f"{name}.yaml").write_text(f"task: rdlm_{name}\n{data}test_split: test\n{body}")
    found = lm_eval.simple_evaluate(
        model="rdlm",
        model_args=f"run={runs / 'taught'}",
        tasks=[f"rdlm_{name}" for name in TASKS],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    results = found["results"]
    assert 0 <= results["rdlm_choice"]["acc,none"] <= 1
    wanted = sum(one.nats.value for one in left_to_right(runs, ["the ", "a quick fox "]))
    assert results["rdlm_rolling"]["bits_per_byte,none"] == pytest.approx(wanted / 16 / math.log(2), abs=1e-3)
    assert results["rdlm_until"]["exact_match,none"] == 0


@with_harness
def test_the_tasks_of_the_examples(root: Path, tmp_path: Path) -> None:
    """The command of examples/lm_eval/README.md; a model that knows nothing has 33% and 4.75 bits."""
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_DATASETS_OFFLINE": "1"}
    options = ["--model", "rdlm", "--model_args", "run=text8,normalise=True", "--include_path", "examples/lm_eval"]
    options += ["--tasks", "rdlm_endings,rdlm_speech,rdlm_words", "--output_path", str(tmp_path / "results")]
    command = [sys.executable, "-m", "rdlm.evaluate.lm_eval", *options]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "results").rglob("results*.json")
    results = json.loads(written.read_text())["results"]
    assert results["rdlm_endings"]["acc,none"] > 0.45
    assert results["rdlm_speech"]["bits_per_byte,none"] < 2
    assert results["rdlm_words"]["exact_match,none"] > 0.7


def test_the_harness_finds_the_model_by_its_entry_point() -> None:
    from rdlm.evaluate.lm_eval import HarnessModel

    (point,) = entry_points(group="lm_eval.models", name="rdlm")
    # The harness compares this with the name of the class that the import registers.
    assert point.value == f"{HarnessModel.__module__}:{HarnessModel.__name__}"
    assert point.load() is HarnessModel
