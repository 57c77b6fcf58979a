"""The house rules that a machine can check; CONTRIBUTING.md gives their reasons."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rdlm"
THEORY = Path(__file__).parents[1] / "docs" / "theory.md"
FILES = sorted(SOURCE.rglob("*.py"))

CITATION = re.compile(r"Eqs?\. ((?:\(\d+\)(?:, | and | or | to |-)?)+)")
NUMBERED = re.compile(r"^\| \((\d+)\)|\\tag\{(\d+)\}", re.MULTILINE)
THOUGHTLESS = {"util", "utils", "misc", "common", "helper", "helpers"}
LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
PICKLING = {"torch.load", "torch.save"}

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))


@every_file
def test_file_is_short_and_named_for_what_it_holds(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 600
    assert not set(path.relative_to(SOURCE).with_suffix("").parts) & THOUGHTLESS


def undocumented(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Yield the public functions, classes and methods in `node` that have no docstring."""
    for child in node.body:
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if child.name.startswith("_"):
            continue
        overloaded = any("overload" in ast.unparse(decorator) for decorator in child.decorator_list)
        if ast.get_docstring(child) is None and not overloaded:
            yield child.name
        if isinstance(child, ast.ClassDef):
            yield from (f"{child.name}.{name}" for name in undocumented(child))


@every_file
def test_public_names_have_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert list(undocumented(tree)) == []
    assert ast.get_docstring(tree) or not tree.body


def cited(text: str) -> set[int]:
    """Return the equation numbers that `text` cites, as in `Eq. (3)` or `Eqs. (4) and (5)`."""
    return {int(number) for group in CITATION.findall(text) for number in re.findall(r"\d+", group)}


def test_cited_reads_lists() -> None:
    assert cited("Eq. (3); Eqs. (4), (5) and (6), see (7)") == {3, 4, 5, 6}


@every_file
def test_cited_equations_exist(path: Path) -> None:
    known = {int(match[1] or match[2]) for match in NUMBERED.finditer(THEORY.read_text())}
    assert cited(path.read_text()) <= known


def banned(tree: ast.Module) -> Iterator[str]:
    """Yield what in `tree` could run code that a file brings along."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in LOADERS)
        elif isinstance(node, ast.ImportFrom):
            home = node.module or ""
            taken = {f"{home}.{alias.name}" for alias in node.names}
            yield from [home] if home.split(".")[0] in LOADERS else taken & PICKLING
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in PICKLING:
            yield ast.unparse(node)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield from ["allow_pickle"] if ast.unparse(node.value) != "False" else []


def test_banned_finds_each_way() -> None:
    ways = ["import pickle", "from pickle import loads", "torch.load(f)", "from torch import save, nn"]
    ways += ["np.load(f, allow_pickle=True)"]
    assert [len(list(banned(ast.parse(way)))) for way in ways] == [1] * len(ways)
    assert not list(banned(ast.parse("np.load(f, allow_pickle=False); model.load(f)")))


@every_file
def test_no_file_is_unpickled(path: Path) -> None:
    assert list(banned(ast.parse(path.read_text()))) == []
