"""What the program answered before, it answers still: golden numbers, and models in the format of version 0.1."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rdlm

HERE = Path(__file__).parent


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", HERE.parents[1] / "scripts" / "golden.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


golden = load_script()
CASES = golden.cases()
RECORD = json.loads((HERE / "round1.json").read_text("utf-8"))
OLD = json.loads((HERE / "old_formats.json").read_text("utf-8"))

pytestmark = pytest.mark.skipif(RECORD["about"] != golden.about(), reason="recorded with another torch or processor")


@pytest.mark.parametrize("name", CASES)
def test_case_is_as_recorded(name: str) -> None:
    assert list(golden.differences(RECORD["cases"][name], CASES[name]())) == []


@pytest.mark.parametrize("name", OLD)
def test_old_model_loads_and_answers_as_before(name: str) -> None:
    def ask() -> dict[str, Any]:
        model, score = rdlm.load(HERE / name), OLD[name]["score"]["options"]
        samples = [golden.summary(model.generate(**one["options"])) for one in OLD[name]["generate"]]
        scored = golden.command("score", str(HERE / name), str(HERE / "old_formats.txt"), *score)
        return {"samples": samples, "score": json.loads(scored)}

    expected = {"samples": [one["answer"] for one in OLD[name]["generate"]], "score": OLD[name]["score"]["answer"]}
    assert list(golden.differences(expected, golden.asked_apart(ask))) == []
