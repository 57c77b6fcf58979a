"""The documentation site, without building it: its pages exist, and every public name is on one of them."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import rdlm

DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def site() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "mkdocs.yml").read_text())
    return found


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    place = Path(__file__).parents[1] / "scripts" / "docs_site.py"
    spec = importlib.util.spec_from_file_location("docs_site", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages(nav: object) -> Iterator[str]:
    """Yield the pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:  # type: ignore[attr-defined]
            yield from pages(part)


def test_every_page_of_the_navigation_exists_and_no_page_is_left_out(
    site: dict[str, Any], hooks: ModuleType, root: Path
) -> None:
    named = list(pages(site["nav"]))
    assert len(named) == len(set(named))
    docs = {path.relative_to(root / "docs").as_posix() for path in (root / "docs").rglob("*.md")}
    assert set(named) <= docs | set(hooks.PAGES.values())
    apart = tuple(line.rstrip("*") for line in site["not_in_nav"].split())
    assert {page for page in docs | set(hooks.PAGES.values()) if not page.startswith(apart)} <= set(named)
    assert all((root / source).is_file() for source in hooks.PAGES)


def test_every_public_name_is_on_a_page(site: dict[str, Any], hooks: ModuleType, root: Path) -> None:
    """A directive renders what its module defines; `on_post_build` checks the rendered names."""
    on_site = [page for page in pages(site["nav"]) if page not in hooks.PAGES.values()]
    rendered = [name for page in on_site for name in DIRECTIVE.findall((root / "docs" / page).read_text())]
    assert len(rendered) == len(set(rendered))
    names = list(hooks.public_names())
    assert [name for name in names if not any(f"{name}.".startswith(f"{one}.") for one in rendered)] == []
    wanted = {"rdlm.api.language_model.LanguageModel.restore", "rdlm.methods.base.Method.bound", "rdlm.certify.certify"}
    assert wanted <= set(names)


def test_the_site_has_the_pictures_of_the_readme(hooks: ModuleType, root: Path) -> None:
    text = (root / "README.md").read_text()
    assert "![" in text
    resolved = hooks.LINK.sub(lambda match: hooks.resolved(match, "README.md", "index.md"), text)
    assert "githubusercontent" not in resolved and "![" in resolved and "(figures/denoising.gif)" in resolved


def test_the_first_page_of_the_reference_has_the_names_of_the_package(root: Path) -> None:
    text = (root / "docs" / "reference" / "index.md").read_text()
    assert [name for name in rdlm._HOME if f"`rdlm.{name}`" not in text] == []


def test_public_names_are_found(hooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rdlm").mkdir()
    (tmp_path / "rdlm" / "__init__.py").write_text("def forwarded(): ...\n")
    (tmp_path / "rdlm" / "one.py").write_text("class A:\n    def f(self): ...\n    def _g(self): ...\n_b = 1\n")
    monkeypatch.setattr(hooks, "SOURCE", tmp_path)
    assert list(hooks.public_names()) == ["rdlm.one", "rdlm.one.A", "rdlm.one.A.f"]


def test_links_out_of_the_docs_become_links_of_the_site(hooks: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    def link(text: str, source: str, here: str) -> str:
        return str(hooks.LINK.sub(lambda match: hooks.resolved(match, source, here), text))

    assert link("[t](docs/theory.md#a)", "README.md", "index.md") == "[t](theory.md#a)"
    assert link("[t](https://host/o/r/blob/main/docs/theory.md)", "README.md", "index.md") == "[t](theory.md)"
    assert link("[c](../../CHANGELOG.md)", "docs/log/README.md", "log/README.md") == "[c](../changelog.md)"
    assert link("[d](../data)", "docs/log/README.md", "log/README.md") == "d"
    assert link("[n](own_data.ipynb)", "examples/exact_law.ipynb", "notebooks/exact_law.md") == "[n](own_data.md)"
    assert link("[w](https://a.b/c)", "README.md", "index.md") == "[w](https://a.b/c)"
    assert not caplog.records
    assert link("[x](docs/nothing.md)", "README.md", "index.md") == "x"
    assert "does not exist" in caplog.text


def test_notebooks_become_markdown(hooks: ModuleType) -> None:
    cells = [{"cell_type": "markdown", "source": ["# T\n", "a"]}, {"cell_type": "code", "source": ["x = 1"]}]
    assert hooks.notebook(json.dumps({"cells": cells})) == "# T\na\n\n```python\nx = 1\n```"


def test_the_environment_of_the_site_is_pinned_and_apart(root: Path) -> None:
    pins = [line for line in (root / "docs" / "requirements.txt").read_text().splitlines() if line[:1] != "#"]
    assert pins and all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pins)
    assert "mkdocs" not in (root / "constraints.txt").read_text()
