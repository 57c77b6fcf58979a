from __future__ import annotations

import ast
import dataclasses
import errno
import importlib
import inspect
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rdlm import __version__
from rdlm.cli import main as cli
from rdlm.errors import DamagedFileError, InputError


def rdlm(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), **environment}
    command = [sys.executable, "-m", "rdlm", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


ANSWERS = [("--help", 0), ("--version", 0), ("doctr", 2)]
for name in cli.COMMANDS:
    ANSWERS += [(f"{name} --help", 0), (f"{name} --no-such-flag", 2)]


@pytest.mark.parametrize(("arguments", "code"), ANSWERS)
def test_help_and_mistakes_answer_without_torch(arguments: str, code: int, root: Path) -> None:
    begin = time.monotonic()
    result = rdlm(root, *arguments.split(), PYTHONPROFILEIMPORTTIME="1")
    elapsed = time.monotonic() - begin
    assert result.returncode == code
    imported = {line.split("|")[-1].strip() for line in result.stderr.splitlines() if "import time:" in line}
    assert "rdlm.cli" in imported
    assert not imported & {"torch", "numpy", "matplotlib", "tokenizers", "huggingface_hub"}
    assert elapsed < 5  # about 0.2 s on an idle machine; torch alone takes seconds


def test_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, entry in cli.COMMANDS.items():
        assert f"  {name} " in out
        assert entry.summary in out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_a_frozen_dataclass_with_help_for_each_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = cli.COMMANDS[name]
    command = getattr(importlib.import_module(entry.module), entry.name)
    assert dataclasses.is_dataclass(command)
    assert command.__dataclass_params__.frozen
    assert callable(command.run)
    assert "json" in command.__dataclass_fields__
    (body,) = ast.parse(inspect.getsource(command)).body
    assert isinstance(body, ast.ClassDef)
    for field, following in itertools.pairwise(body.body):
        if isinstance(field, ast.AnnAssign):
            helped = isinstance(following, ast.Expr) or "help=" in ast.unparse(field)
            assert helped, f"{ast.unparse(field)} has no docstring"
    lines = inspect.cleandoc(command.__doc__ or "").splitlines()
    assert [line for line in lines if line and not line[0].isalpha()] == [], "the help breaks before such a line"
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"usage: rdlm {name}" in shown
    if "config" not in command.__dataclass_fields__:  # None is a value of a configuration, but no value of an option
        assert "None" not in shown and "default: )" not in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rdlm {__version__}\n"


def test_no_command_shows_the_help_as_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: rdlm COMMAND")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctr"], "rdlm: error: unknown command 'doctr': did you mean 'doctor'?\n"),
        (["--jsn"], "rdlm: error: unknown flag '--jsn' before a command; see rdlm --help\n"),
    ],
)
def test_a_wrong_command_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == message
    assert captured.out == ""


def test_a_wrong_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--jsn"]) == 2
    captured = capsys.readouterr()
    assert "--jsn" in captured.err
    assert captured.out == ""


@dataclasses.dataclass(frozen=True)
class Act:
    """A command that ends as `ending` says."""

    ending: str

    def run(self) -> int:
        endings = {
            "input": InputError("width -1 must be at least 1"),
            "damage": DamagedFileError("model.safetensors: checksum differs"),
            "interrupt": KeyboardInterrupt(),
            "full": OSError(errno.ENOSPC, "No space left on device", "table"),
            "denied": PermissionError(errno.EACCES, "Permission denied", "table"),
            "long": OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000),
            "command": InputError("no model \x1b[2J\x9b2J"),
            "defect": ZeroDivisionError("defect"),
        }
        if self.ending in endings:
            raise endings[self.ending]
        return int(self.ending)


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "act", cli.Entry(__name__, "Act", "end in some way"))


@pytest.mark.usefixtures("act")
@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        ("0", 0, ""),
        ("1", 1, ""),
        ("input", 2, "rdlm: error: width -1 must be at least 1\n"),
        ("damage", 3, "rdlm: error: model.safetensors: checksum differs\n"),
        ("interrupt", 130, "rdlm: interrupted\n"),
        ("full", 1, "rdlm: error: cannot write table: No space left on device\n"),
        ("denied", 1, "rdlm: error: no access to table: Permission denied\n"),
        ("long", 2, f"rdlm: error: cannot use the path {'x' * 199}: File name too long\n"),
        ("command", 2, "rdlm: error: no model \\x1b[2J\\x9b2J\n"),
    ],
)
def test_exit_codes(ending: str, code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["act", "--ending", ending]) == code
    assert capsys.readouterr().err == message


@pytest.mark.usefixtures("act")
def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError, match="defect"):
        cli.main(["act", "--ending", "defect"])


def test_a_broken_pipe_is_quiet(root: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "rdlm", "--help"],
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("command", "code"), [("presets", 0), ("score - --model text8", 2)])
def test_closed_standard_streams_are_no_defect(command: str, code: int, closed: str, root: Path) -> None:
    started = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "rdlm", *command.split()]
    found = subprocess.run(started, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert found.returncode == code and "Traceback" not in found.stderr, found.stderr
    if code and "2>" not in closed:
        assert "standard input is empty" in found.stderr


def test_json_is_one_object_and_nothing_else(root: Path) -> None:
    result = rdlm(root, "doctor", "--json")
    checks = json.loads(result.stdout)["checks"]
    assert {"name", "ok", "detail"} <= checks[0].keys()
    assert result.returncode == int(any(check["required"] and not check["ok"] for check in checks))


def test_waiting_threads_sleep_soon_unless_the_user_set_a_policy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What OpenMP says of itself when torch brings it in."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)

    def said(**environment: str) -> str:
        return rdlm(root, "generate", "text8", "--steps", "0", OMP_DISPLAY_ENV="verbose", **environment).stderr

    if "GOMP_SPINCOUNT" not in (plain := said()):
        pytest.skip("this OpenMP is not GNU's")
    assert "GOMP_SPINCOUNT = '2000'" in plain
    assert "GOMP_SPINCOUNT = '77'" in said(GOMP_SPINCOUNT="77")
    assert "GOMP_SPINCOUNT = '2000'" not in said(OMP_WAIT_POLICY="active")


def test_caches_of_libraries_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    for name in ("MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    cli.set_cache_folders()
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder == tmp_path / "cache" / "inductor" and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    with pytest.raises(InputError, match="other users can write"):
        cli.set_cache_folders()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_a_cache_that_others_can_write_to_ends_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    for name in ("MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert cli.main(["data", "list"]) == 2
    assert "other users can write to the cache folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate", "train"])
def test_help_has_no_line_breaks_of_docstrings(command: str) -> None:
    """At 80 columns, the line ends of the source were seen in the middle of sentences."""
    environment = {**os.environ, "COLUMNS": "80"}
    said = subprocess.run(
        [sys.executable, "-m", "rdlm", command, "--help"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    inner = [line[2:-2] for line in said.splitlines() if line.startswith("│")]
    for line, following in itertools.pairwise(inner):
        if line.startswith("    ") and following.startswith("    "):  # two lines of one help
            assert len(line.rstrip()) + 1 + len(following.split()[0]) > len(line), line


def test_the_end_of_a_command_does_not_collect_garbage() -> None:
    """The collector took seconds at the end of Python, and of a run after SIGTERM, on a busy machine."""
    code = (
        "import atexit, gc, sys, os\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "from rdlm.cli.main import main\n"
        "sys.argv = ['rdlm', '--version']\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "True"
