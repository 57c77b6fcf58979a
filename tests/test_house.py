"""The rules of the code that a test can check; CONTRIBUTING.md gives their reasons."""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rdlm.cli.main import COMMANDS
from rdlm.presets import PRESETS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rdlm"
THEORY = ROOT / "docs" / "theory.md"
FILES = sorted(SOURCE.rglob("*.py"))
FOLDERS = ("src", "benchmarks", "experiments", "torture", "tests", "scripts", "examples")

FUNCTION_LINES, LONGEST_FUNCTION = 25, 80
"""Lines of a function: the 95th percentile and the maximum."""
FILE_LINES, MOST_FILES, MOST_ROOT_MODULES = 600, 136, 8

LAYERS = ["errors", "deprecated", "method_config", "config", "random", "presets", "storage", "pretrained", "display"]
LAYERS += ["geometry", "process", "model", "data", "likelihood", "certify", "sampling", "methods", "train", "api"]
LAYERS += ["evaluate", "serve", "cli"]
"""Folders and root modules from bottom to top; each imports only those before it. This rules out cycles."""

SHARED_FILES = {
    **dict.fromkeys(
        ["generate", "score", "restore", "publish", "evaluate", "compare"], "the command cli/NAME.py runs NAME.py"
    ),
}
"""File names that occur twice, and why."""

SHARED_NAMES = {
    **dict.fromkeys(["build", "load", "read", "write", "verify", "describe"], "used with their module: store.read"),
    **dict.fromkeys([function.__name__ for function in PRESETS.values()], "a preset and its corpus have one name"),
    "uniform": "the distribution, on tokens, on the sphere and as a start",
    "score": "the function, its route in the service, and its display in notebooks",
}
"""Public names that are defined in several modules, and why."""

CITATION = re.compile(r"Eqs?\. ((?:\(\d+\)(?:, | and | or | to |-)?)+)")
NUMBERED = re.compile(r"^\| \((\d+)\)|\\tag\{(\d+)\}", re.MULTILINE)
THOUGHTLESS = {"util", "utils", "misc", "common", "helper", "helpers"}
LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
PICKLING = {"torch.load", "torch.save"}
NATIVE = {"CDLL", "PyDLL", "LoadLibrary", "load_library", "load_inline", "dlopen", "exec", "eval"}
"""Functions that run code; `CDLL(None)` is the process itself, and `network.eval()` has no argument."""

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))


# -- structure -------------------------------------------------------------------------------------------------------


def module_of(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of the package that a syntax tree imports, in functions and for type checkers, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "rdlm")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rdlm":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner != "rdlm.__version__":
                    yield inner if inner in MODULES else str(node.module)


def component_of(module: str) -> str:
    """Return the component of a module; `import rdlm`, which gives `rdlm.load`, counts as an import of api."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "api"


@every_file
def test_imports_only_go_down(path: Path) -> None:
    if path.parent == SOURCE and path.stem in ("__init__", "__main__"):
        return  # the public names, and the entry point
    component = component_of(module_of(path))
    below = set(LAYERS[: LAYERS.index(component) + 1])
    assert [name for name in imported(ast.parse(path.read_text())) if component_of(name) not in below] == []


def at_import(tree: ast.Module) -> ast.Module:
    """Return the statements of a module that run when it is imported and that import something."""
    found = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom | ast.If | ast.Try)]
    return ast.Module([node for node in found if not ast.unparse(node).startswith("if TYPE_CHECKING:")], [])


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {name: set(imported(at_import(ast.parse(path.read_text())))) - {name} for name, path in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_every_component_has_a_layer() -> None:
    components = {component_of(name) for name in MODULES if name not in ("rdlm", "rdlm.__main__")}
    assert components == set(LAYERS)


def repeated(found: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return the names with several places."""
    return {name: sorted(places) for name, places in found.items() if len(places) > 1}


def test_a_public_name_has_one_definition() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                found[node.name].add(name)
    assert {name: places for name, places in repeated(found).items() if name not in SHARED_NAMES} == {}


def test_a_file_name_is_used_once() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        found[path.stem].add(str(path.relative_to(SOURCE)))
    assert repeated(found).keys() <= {"__init__", *SHARED_FILES}


# -- size and form ---------------------------------------------------------------------------------------------------


def test_functions_are_short() -> None:
    lines = {}
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines[f"{name}:{node.name}:{node.lineno}"] = (node.end_lineno or node.lineno) - node.lineno + 1
    longest = sorted(lines, key=lambda name: -lines[name])
    assert lines[longest[0]] <= LONGEST_FUNCTION, longest[0]
    assert lines[longest[len(longest) // 20]] <= FUNCTION_LINES


def test_there_are_few_files() -> None:
    assert len([path for path in FILES if path.parent.name != "methods"]) <= MOST_FILES  # a method is a file
    assert len(list(SOURCE.glob("*.py"))) <= MOST_ROOT_MODULES


def test_the_formatter_is_never_switched_off() -> None:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    words = ["fmt: " + word for word in ("skip", "off")]
    assert [str(path) for path in paths if any(word in path.read_text() for word in words)] == []


@every_file
def test_file_is_short_and_named_after_its_content(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES
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


# -- documents -------------------------------------------------------------------------------------------------------


def table_column(text: str, head: str) -> Iterator[str]:
    """Yield the entries of all table columns with this head, which are separated by semicolons."""
    column = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)] if line.startswith("|") else []
        if not cells:
            column = None
        elif column is None:
            column = cells.index(head) if head in cells else -1
        elif column >= 0 and not set(cells[column]) <= set("-:"):
            yield from (entry.strip(" `") for entry in cells[column].split(";"))


def missing(entry: str) -> bool:
    """Return whether an entry such as `rdlm.process.exact:ExactLaw.draw` names nothing that exists."""
    module, _, names = entry.partition(":")
    if module not in MODULES:
        return True
    found: object = importlib.import_module(module)
    for name in filter(None, names.split(".")):
        fields = getattr(found, "__dataclass_fields__", {})
        if not hasattr(found, name) and name not in fields:
            return True
        found = getattr(found, name, None)
    return False


def test_code_columns_are_read() -> None:
    table = (
        "| Eq. | code |\n|---|---|\n| (1) | `rdlm.errors:unknown`; `rdlm.errors:none` |\n| (2) | - |\n\n| a |\n| b |"
    )
    assert list(table_column(table, "code")) == ["rdlm.errors:unknown", "rdlm.errors:none"]
    assert [missing(entry) for entry in table_column(table, "code")] == [False, True]
    assert missing("rdlm.nothing:at_all") and not missing("rdlm.config:RunConfig.method")


def test_the_index_of_the_theory_names_code_that_exists() -> None:
    assert [entry for entry in table_column(THEORY.read_text(), "code") if missing(entry)] == []


def test_the_symbols_of_the_theory_have_names_that_exist() -> None:
    names: set[str] = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names |= {
                value for key in ("id", "attr", "arg", "name") if isinstance(value := getattr(node, key, None), str)
            }
    symbols = THEORY.read_text().partition("## 1. Symbols")[2].partition("## 2.")[0]
    cells = [line.rsplit("|", 2)[1] for line in symbols.splitlines() if line.startswith("| $")]
    found = {
        name for cell in cells for code in re.findall("`(.+?)`", cell) for name in re.findall(r"[A-Za-z_]\w+", code)
    }
    assert "start_cosine" in found and sorted(found - names) == []


def test_the_index_of_the_theory_credits_works_that_have_a_reference() -> None:
    text = THEORY.read_text()
    works = {"classical", "ours", "the paper", *table_column(text.partition("## 14")[2], "name")}
    credits = list(table_column(text, "related work"))
    assert len(credits) >= text.partition("## 3")[0].count("\n| (")
    assert [credit for credit in credits if not any(work in credit for work in works)] == []
    assert {credit for credit in credits if credit.startswith("ours")}, "nothing is new"


COMMAND = re.compile(r"^\s*(?:\$ )?(?:\w+=\S+ )*(?:torchrun .* -m |(?:\S*/)?python -m |\S*/)?rdlm +([a-z][\w-]*)(.*)")
FLAG = re.compile(r"(?<![\w-])--[a-z][\w.-]*")


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands and flags of `rdlm` in the indented and fenced code blocks of a Markdown text."""
    fenced = False
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        fenced ^= line.lstrip().startswith("```")
        if fenced or line.startswith("    "):
            for part in re.split(r" [|;] | && ", line.partition(" #")[0]):
                if match := COMMAND.match(part):
                    yield match[1], FLAG.findall(match[2])


def test_commands_are_found() -> None:
    text = "rdlm prose --no\n    rdlm train x --a.b 3 \\\n        --c-d  # --e\n```\necho x | bin/rdlm score -\n```\n"
    assert list(commands(text)) == [("train", ["--a.b", "--c-d"]), ("score", [])]


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
DOCUMENTS += [path for path in sorted((ROOT / "docs").rglob("*.md")) if "log" not in path.relative_to(ROOT).parts]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_commands_and_flags_that_exist(path: Path, flags_of: Callable[[str], dict[str, object]]) -> None:
    wrong = []
    for command, flags in commands(path.read_text()):
        known = flags_of(command) if command in COMMANDS else {}
        wrong += [f"rdlm {command}"] if not known else [f"rdlm {command} {flag}" for flag in flags if flag not in known]
    assert wrong == []


def broken_links(path: Path) -> list[str]:
    """Return the links of a Markdown file to this repository whose file or heading does not exist."""
    wrong = []
    text = path.read_text().replace("](https://github.com/rdlm-project/rdlm/blob/main/", f"]({ROOT}/")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, heading = target.partition("#")
        found = (path.parent / place).resolve() if place else path
        headings = {slug(line) for line in found.read_text().splitlines() if line[:1] == "#"} if heading else set()
        wrong += [target] if not found.exists() or (heading and heading not in headings) else []
    return wrong


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).strip().replace(" ", "-")


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One, two\n[x](#one-two) [y](b.md) [z](a.md#three) [w](https://a.b/c)\n")
    assert broken_links(tmp_path / "a.md") == ["b.md", "a.md#three"]
    (tmp_path / "c.md").write_text("[r](https://github.com/rdlm-project/rdlm/blob/main/README.md#none)\n")
    assert broken_links(tmp_path / "c.md") == [f"{ROOT}/README.md#none"]


@pytest.mark.parametrize(
    "path", [*DOCUMENTS, ROOT / "experiments" / "README.md"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_lead_to_something(path: Path) -> None:
    assert broken_links(path) == []


def test_every_claim_of_the_paper_has_a_verdict_and_a_figure_with_its_source() -> None:
    verdicts = ("holds here", "holds", "does not hold here", "does not hold", "not testable here", "open")
    lines = [line for line in (ROOT / "docs" / "claims.md").read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if not line.startswith("| claim")]
    assert len(rows) > 20
    for claim, verdict, figure, source in rows:
        assert verdict.partition(",")[0].removesuffix(" in kind") in verdicts, claim
        if "hold" in verdict:
            assert re.search(r"\d|factor", figure) and "](" in source, claim


def test_every_experiment_is_listed() -> None:
    text = (ROOT / "experiments" / "README.md").read_text()
    scripts = [path.name for path in (ROOT / "experiments").glob("*.py") if path.name != "__init__.py"]
    assert [name for name in scripts if name not in text] == []


# -- safety ----------------------------------------------------------------------------------------------------------


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
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in NATIVE:
            yield from [ast.unparse(node)] if [ast.unparse(a) for a in node.args] not in ([], ["None"]) else []


def test_banned_finds_each_way() -> None:
    ways = ["import pickle", "from pickle import loads", "torch.load(f)", "from torch import save, nn"]
    ways += ["np.load(f, allow_pickle=True)", "ctypes.CDLL(path)", "torch.ops.load_library(path)", "eval(text)"]
    assert [len(list(banned(ast.parse(way)))) for way in ways] == [1] * len(ways)
    assert not list(banned(ast.parse("np.load(f, allow_pickle=False); model.load(f); CDLL(None); network.eval()")))


@every_file
def test_no_file_is_unpickled_or_loaded_as_code(path: Path) -> None:
    assert list(banned(ast.parse(path.read_text()))) == []
