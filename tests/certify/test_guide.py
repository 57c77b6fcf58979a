"""The guide's examples run as they stand."""

from __future__ import annotations

import re

import pytest


@pytest.mark.parametrize("number", range(5))
def test_the_example_runs(root, number: int) -> None:
    text = (root / "docs" / "guides" / "certify.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    space: dict[str, object] = {}
    exec(compile(blocks[number], "certify.md", "exec"), space)
    for name, found in list(space.items()):
        if name.startswith("test_"):
            found()  # type: ignore[operator]
