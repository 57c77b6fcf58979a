from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import rdlm


@pytest.fixture(scope="module")
def settings(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def project(settings: dict[str, Any]) -> dict[str, Any]:
    return settings["project"]


def test_one_version_everywhere(project: dict[str, Any], root: Path) -> None:
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    assert rdlm.__version__ == project["version"] == citation["version"]


def test_citation_names_the_paper(root: Path) -> None:
    (paper,) = yaml.safe_load((root / "CITATION.cff").read_text())["references"]
    assert paper["title"] == "Continuous Diffusion Model for Language Modeling"
    assert [author["family-names"] for author in paper["authors"]] == ["Jo", "Hwang"]


def test_import_is_light(root: Path) -> None:
    code = "import sys, rdlm; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    environment = {"PYTHONPATH": str(root / "src")}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=True)


def test_public_names_are_listed_and_load() -> None:
    for name in rdlm._HOME:
        assert name in dir(rdlm)
        assert getattr(rdlm, name).__module__.startswith("rdlm.")


def test_a_public_name_is_loaded_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rdlm._HOME, "unknown", "rdlm.errors")
    assert rdlm.unknown.__module__ == "rdlm.errors"
    assert "unknown" in dir(rdlm)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'rdlm' has no attribute 'nonsense'"):
        _ = rdlm.nonsense


def test_every_dependency_of_the_environment_is_pinned(project: dict[str, Any], root: Path) -> None:
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if not line.startswith("#"))
    wanted = list(project["dependencies"])
    for extra in ("viz", "train", "serve", "dev"):
        wanted += project["optional-dependencies"][extra]
    assert {name.lower().partition(">=")[0].replace("_", "-") for name in wanted} <= pins.keys()
    assert pins["torch"] == "2.13.0"


def test_the_wheel_has_the_package_alone(settings: dict[str, Any], root: Path) -> None:
    """Benchmarks, experiments and fault injection are in the repository and in the source distribution."""
    targets = settings["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"] == {"packages": ["src/rdlm"]}
    outside = {"benchmarks", "experiments", "torture"}
    assert outside <= set(targets["sdist"]["include"])
    assert all((root / name).is_dir() for name in outside)
    packaged = {path.name for path in (root / "src" / "rdlm").iterdir()}
    assert not packaged & (outside | {"bench", "analysis"})


def test_licence_is_whole(root: Path) -> None:
    text = (root / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_readme_names_only_what_exists(root: Path) -> None:
    text = (root / "README.md").read_text()
    (tree,) = re.findall(r"^## Repository\n\n((?:    .*\n)+)", text, re.MULTILINE)
    folder, named = root, 0
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent > 6:
            continue
        if indent == 4:
            folder = root
        for name in re.split(r"\s{2,}", line.strip())[0].split(", "):
            assert (folder / name).exists(), name
            named += 1
        if line.strip().endswith("rdlm/"):
            folder = root / "src" / "rdlm"
    assert named > 10


REPOSITORY = re.compile(
    r"https://(?:github\.com/rdlm-project/rdlm/blob|raw\.githubusercontent\.com/rdlm-project/rdlm)/main/"
)


def test_links_of_the_readme_hold_on_a_package_index(root: Path) -> None:
    """A package index shows the README without the files around it: links are absolute; ours name files that exist."""
    text = (root / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r"""(?:src|href)=["']([^"']+)""", text)
    assert len(links) > 8 and [link for link in links if not link.startswith("https://")] == []
    ours = [REPOSITORY.sub("", link) for link in links if REPOSITORY.match(link)]
    assert ours and [link for link in ours if not (root / link.partition("#")[0]).exists()] == []
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert images and all("raw.githubusercontent.com" in image for image in images)


def test_the_package_says_where_it_lives(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert {"Homepage", "Documentation", "Issues", "Changelog"} <= set(project["urls"])
    assert all(url.startswith("https://github.com/rdlm-project/rdlm") for url in project["urls"].values())
    bounded = [one for one in project["dependencies"] if ">=" not in one]
    assert bounded == [], "a dependency without a lower bound cannot be tested with its oldest version"
