"""Progress where standard error is not a terminal: a line every few seconds, in every command that has a bar."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rdlm.display import progress
from rdlm.display.progress import bar, steps


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_is_printed_every_few_seconds(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with bar(8, "certify", "case") as shown:
        shown.update()
        assert capsys.readouterr().err == ""
        clock[0] += progress.SECONDS
        shown.set_postfix_str("skewed")
        shown.update()
        shown.update()
        assert capsys.readouterr().err == "rdlm: certify: 2 of 8 cases, 5 s, 15 s left, skewed\n"
        clock[0] += 5
        shown.update(5)
        assert capsys.readouterr().err == "rdlm: certify: 8 of 8 cases, 10 s, 0 s left, skewed\n"


def test_what_was_done_before_does_not_count_as_speed(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with bar(100, "run", "step", initial=90) as shown:
        clock[0] += 10
        shown.update(5)
    assert capsys.readouterr().err == "rdlm: run: 95 of 100 steps, 10 s, 10 s left\n"


def test_totals_may_be_unknown_or_bytes(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with bar(None, "generate", "step") as shown, bar(4_000_000, "corpus", "B") as loaded:
        clock[0] += 6
        shown.update(3)
        loaded.update(1_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["rdlm: generate: 3 steps, 6 s", "rdlm: corpus: 1 of 4 MB, 6 s, 18 s left"]


def test_steps_count_by_the_same_lines(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with steps(4, "restore", "windows") as count:
        clock[0] += 6
        count(2)
    assert capsys.readouterr().err == "rdlm: restore: 2 of 4 windows, 6 s, 6 s left\n"


def test_only_the_leader_prints(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with bar(4, "run", "step") as shown:
        clock[0] += 6
        shown.update(2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "name",
    ["src/rdlm/cli/certify.py", "src/rdlm/cli/evaluate.py", "src/rdlm/evaluate/compare.py", "benchmarks/command.py"],
)
def test_long_commands_have_progress(name: str, root: Path) -> None:
    tree = ast.parse((root / name).read_text())
    calls = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert {"bar", "steps"} & set(calls)
