"""Commands that run packages of the repository say so where there is only the installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

import rdlm
from rdlm.cli.main import main


@pytest.mark.parametrize(
    ("options", "package"), [(["bench", "--only", "draw"], "benchmarks"), (["analyze", "radial"], "experiments")]
)
def test_an_installed_package_names_what_is_missing(
    options: list[str],
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(rdlm, "__file__", str(tmp_path / "lib" / "rdlm" / "__init__.py"))
    assert main(options) == 2
    message = capsys.readouterr().err
    assert f"rdlm {options[0]} needs a checkout of the repository" in message
    assert f"{package}/ is not part of the installed package" in message and "make setup" in message
