"""`make audit` says what pip-audit found, and does not take silence for safety."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FLAW = {"id": "PYSEC-1", "fix_versions": ["2.0"]}


@pytest.fixture
def audit(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", root / "scripts" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_pin(audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "constraints.txt").write_text(f"# pins\npytest=={pytest.__version__}\n")
    monkeypatch.setattr(audit, "PINS", tmp_path / "constraints.txt")


@pytest.mark.parametrize(
    ("entries", "code", "message"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "1 of 1 pinned packages looked up, 0 vulnerabilities"),
        ([{"name": "a", "version": "1", "vulns": [FLAW]}], 1, "a 1: PYSEC-1, fixed in 2.0"),
        ([{"name": "a", "skip_reason": "not found"}], 2, "0 of 1 pinned packages looked up"),
        (None, 2, "pip-audit failed: no network"),
    ],
)
def test_silence_is_not_safety(
    entries: list[dict[str, Any]] | None,
    code: int,
    message: str,
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[0] == "pip-audit" and command[-1].endswith("constraints.txt")
        said = "" if entries is None else json.dumps({"dependencies": entries})
        return subprocess.CompletedProcess(command, 0, said, "no network")

    monkeypatch.setattr(audit, "command", lambda: ["pip-audit"])
    monkeypatch.setattr(subprocess, "run", run)
    assert audit.main() == code
    captured = capsys.readouterr()
    assert message in captured.out + captured.err


def test_without_the_program_it_says_so(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "command", lambda: None)
    assert audit.main() == 2
    captured = capsys.readouterr()
    assert "pip-audit is not installed" in captured.err
    assert "NOT CHECKED, vulnerabilities of 1 (no pip-audit, or no database): pytest" in captured.err
    assert captured.out == "audit: MIT: pytest\n"  # licences need no network


def test_what_could_not_be_checked_is_named(
    audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "constraints.txt").write_text("nosuchpackage==1.0\npytest==0.1\n")
    monkeypatch.setattr(audit, "command", lambda: ["pip-audit"])
    monkeypatch.setattr(audit, "audit", lambda program: [])
    assert audit.main() == 2
    said = capsys.readouterr().err
    assert "licence or version of 2: nosuchpackage (not installed), pytest" in said and "not 0.1" in said


def test_every_pin_is_read(audit: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PINS", root / "constraints.txt")
    lines = [line for line in audit.PINS.read_text().splitlines() if line and not line.startswith("#")]
    assert len(audit.pins()) == len(lines) > 80
