"""What the package leaves behind on a machine, and whom it talks to: nothing beyond runs and cache, and nobody."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "footprint.py"


def tree(folder: Path) -> dict[str, int]:
    """The size of every file."""
    return {str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, root: Path) -> tuple[Path, list[str]]:
    """A home in which everything was used once, and what was written outside of runs and cache."""
    home = tmp_path_factory.mktemp("home")
    (home / "book.txt").write_text("some text of mine " * 60)
    (home / "tmp").mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "PYTHONPATH": str(root / "src"),
        "RDLM_CACHE": str(home / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, str(SCRIPT), str(home)]
    ended = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return home, json.loads(ended.stdout)


def test_nothing_is_written_outside_of_runs_and_cache(lived: tuple[Path, list[str]]) -> None:
    home, outside = lived
    assert outside == []
    left = {name: size for name, size in tree(home).items() if not name.startswith(("runs/", "cache/"))}
    assert left == {"book.txt": 18 * 60}
    assert (home / "runs" / "textfile" / "report.html").is_file()
    assert (home / "runs" / "textfile" / "evaluation-validation" / "report.html").is_file()


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("2001:db8::1", 80)])
def test_tests_use_no_network(address: tuple[str, int]) -> None:
    kind = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(kind) as line, pytest.raises(RuntimeError, match="tests use no network"):
        line.connect(address)


def test_the_network_is_noticed(tmp_path: Path, root: Path) -> None:
    """The watch itself works: a connection ends the process that tries one."""
    (tmp_path / "rdlm").mkdir()
    (tmp_path / "rdlm" / "__init__.py").write_text(
        "import urllib.request; urllib.request.urlopen('http://localhost:9')"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 9 and "the network was used" in ended.stderr
