"""The guide's example runs as it stands, and takes part in a comparison."""

from __future__ import annotations

import re
import types

from rdlm.evaluate.compare import Comparison, compare
from rdlm.methods import METHODS
from rdlm.methods.base import Baseline, Method


def blocks(root) -> list[str]:
    text = (root / "docs" / "guides" / "new-method.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_example_passes_its_own_test_and_can_be_compared(root, tmp_path, monkeypatch, toy):
    file, test = blocks(root)
    module = types.ModuleType("independent")
    exec(compile(file, "new-method.md", "exec"), module.__dict__)
    exec(compile(test, "new-method.md", "exec"), module.__dict__)
    module.test_comes_within_three_percent_of_the_entropy_and_not_below()

    monkeypatch.setitem(METHODS, "independent", module.Independent)
    comparison = Comparison(toy.config, ("independent", "autoregressive"), nfe=2, sequences=8, samples=4)
    rows = compare(comparison, tmp_path, steps=2, load=toy.corpus)
    assert [row["method"] for row in rows] == ["independent", "autoregressive"]


def test_the_example_defines_what_is_asked_for_and_nothing_else(root):
    file, _ = blocks(root)
    assert {"loss", "bound", "generate"} <= Method.__abstractmethods__
    assert set(re.findall(r"    def ([a-z]\w+)\(", file)) == Baseline.__abstractmethods__
