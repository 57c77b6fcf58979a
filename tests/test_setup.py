"""`make setup` with stand-ins for Python, pip and df: what it says, what it repairs, what it leaves alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = ["sh", "awk", "cat", "chmod", "cksum", "cp", "df", "dirname", "grep", "mkdir", "mv", "rm", "tail"]

# Answers the version check and the module check, makes a .venv with itself inside, and plays pip.
PYTHON = r"""#!/bin/sh
case "$*" in
    *version_info*) exit {old} ;;
    *ensurepip*) exit {bare} ;;
    -V) echo "Python 3.11.7" ;;
    "-m venv --clear .venv")
        echo venv >> calls
        rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    "-m pip install"*)
        echo pip >> calls
        if [ -f pip-trouble ]; then cat pip-trouble >&2; exit 1; fi ;;
esac
"""


class Place:
    """A copy of the project's setup in a folder with spaces, and a PATH that holds only what it needs."""

    def __init__(self, root: Path, tmp_path: Path) -> None:
        self.folder = tmp_path / "a new place"
        self.tools = tmp_path / "tools"
        (self.folder / "scripts").mkdir(parents=True)
        self.tools.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "scripts/setup.sh"):
            shutil.copy(root / name, self.folder / name)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found
            (self.tools / tool).symlink_to(found)

    def tool(self, name: str, text: str) -> None:
        (self.tools / name).unlink(missing_ok=True)
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def python(self, name: str = "python3", old: int = 0, bare: int = 0) -> None:
        self.tool(name, PYTHON.format(old=old, bare=bare))

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "calls").unlink(missing_ok=True)
        make = shutil.which("make")
        assert make
        command = [make, "-s", "setup"]
        environment = {"PATH": str(self.tools), "LC_ALL": "C", **environment}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def place(root: Path, tmp_path: Path) -> Place:
    return Place(root, tmp_path)


def test_first_run_installs_and_second_reuses(place: Place) -> None:
    place.python()
    assert place.setup().returncode == 0
    assert place.calls() == ["venv", "pip"]
    second = place.setup()
    assert (second.returncode, second.stderr, place.calls()) == (0, "", [])


def test_a_changed_pin_updates_in_place(place: Place) -> None:
    place.python()
    place.setup()
    with (place.folder / "constraints.txt").open("a") as file:
        file.write("extra==1\n")
    assert place.setup().returncode == 0
    assert place.calls() == ["pip"]


def test_an_interrupted_setup_is_made_anew(place: Place) -> None:
    place.python()
    (place.folder / ".venv").mkdir()
    assert place.setup().returncode == 0
    assert place.calls() == ["venv", "pip"]


def test_a_moved_folder_is_made_anew(place: Place) -> None:
    place.python()
    place.setup()
    place.folder = place.folder.rename(place.folder.with_name("another place"))
    assert place.setup().returncode == 0
    assert place.calls() == ["venv", "pip"]


def test_an_environment_whose_python_is_gone_is_made_anew(place: Place) -> None:
    place.python()
    place.setup()
    (place.folder / ".venv/bin/python").unlink()
    assert place.setup().returncode == 0
    assert place.calls() == ["venv", "pip"]


def test_an_old_python3_is_passed_over_for_a_newer_one(place: Place) -> None:
    place.python(old=1)
    place.python("python3.12")
    assert place.setup().returncode == 0


def test_no_python(place: Place) -> None:
    result = place.setup()
    assert result.returncode != 0
    assert "found no Python of version 3.11 or later" in result.stderr


def test_old_python(place: Place) -> None:
    place.python(old=1)
    assert "found no Python of version 3.11 or later" in place.setup().stderr
    assert "PYTHON=python3 is not a Python of version 3.11" in place.setup(PYTHON="python3").stderr


def test_no_venv_module(place: Place) -> None:
    place.python(bare=1)
    result = place.setup()
    assert result.returncode != 0
    assert "python3 has no venv module" in result.stderr
    assert place.calls() == []


def test_small_disk(place: Place) -> None:
    place.python()
    place.tool("df", "#!/bin/sh\necho header\necho /dev/x 9000000 8000000 1000000 89% /\n")
    result = place.setup()
    assert result.returncode != 0
    assert "only 1000 MB free here; the environment needs about 3000 MB" in result.stderr
    assert place.calls() == []


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("WARNING: Retrying after NewConnectionError(...)", "could not reach the package index"),
        ("ERROR: No matching distribution found for torch==2.13.0", "has no build for Python 3.11.7"),
        ("ERROR: something else", "pip failed: see above and .venv/setup.log"),
    ],
)
def test_pip_trouble_is_explained_and_the_next_run_repairs(place: Place, trouble: str, message: str) -> None:
    place.python()
    (place.folder / "pip-trouble").write_text(trouble)
    result = place.setup()
    assert result.returncode != 0
    assert message in result.stderr
    (place.folder / "pip-trouble").unlink()
    assert place.setup().returncode == 0
    assert place.calls() == ["venv", "pip"]
