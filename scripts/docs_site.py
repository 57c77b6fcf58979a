"""What mkdocs.yml needs beyond its plugins: pages made of other files, formulas, and a check of the reference.

| function | when | what |
|---|---|---|
| `on_files` | before the pages are read | README, CHANGELOG, ... and the notebooks become pages |
| `on_page_markdown` | for every page | links to files outside of docs/ become links to these pages, or their names |
| `on_page_content` | for every page | formulas become MathML, which needs no script; `Eq. (n)` links to its formula |
| `on_post_build` | at the end | every public name of the package must be in the inventory of the site |
"""

from __future__ import annotations

import ast
import html
import json
import logging
import posixpath
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PAGES |= {"SECURITY.md": "security.md"}
PAGES |= {f"examples/{path.name}": f"notebooks/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.ipynb"))}
"""Files outside of docs/ that are pages of the site."""

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
REPOSITORY = re.compile(r"^https://(?:raw\.githubusercontent\.com/[^/]+/[^/]+|[^)\s]*/(?:blob|raw|tree))/[^/]+/")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
FUNCTION = re.compile(r"(<mi>(?:log|exp|sin|cos|cot|tan|arcsin|arccos)</mi>)(?=<m(?:i|n|sub|sup|frac|sqrt|over)\b)")
TAG = re.compile(r"\\tag\{(\d+)\}")
CITATION = re.compile(r"(Eqs?\. )((?:\(\d+\)(?:, | and | or | to |-)?)+)")

log = logging.getLogger("mkdocs.hooks.docs_site")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made of files outside of docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, page, content=notebook(text) if source.endswith(".ipynb") else text))
    return files


def notebook(text: str) -> str:
    """Return a notebook as Markdown: its texts, and its code in fences."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    return "\n\n".join(body if kind == "markdown" else f"```python\n{body}\n```" for kind, body in cells)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Resolve the links of a page that lead out of docs/."""
    here = page.file.src_uri
    source = next((source for source, made in PAGES.items() if made == here), f"docs/{here}")
    return LINK.sub(lambda match: resolved(match, source, here), markdown)


def resolved(match: re.Match[str], source: str, here: str) -> str:
    """Return a link of the file `source` as one of the page `here`; the text alone if the site has no such page."""
    mark, text, target, anchor = match[1], match[2], REPOSITORY.sub("/", match[3]), match[4] or ""
    if "://" in target or target.startswith("mailto:"):
        return match[0]
    place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target)).lstrip("/")
    if place in PAGES:
        place = f"docs/{PAGES[place]}"
    elif not place.startswith("docs/") or not (ROOT / place).is_file():
        if not (ROOT / place).exists():
            log.warning("%s links to %s, which does not exist", source, target)
        return text
    return f"{mark}[{text}]({posixpath.relpath(place, posixpath.dirname(f'docs/{here}'))}{anchor})"


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Set the formulas of a page, and link citations of equations to the theory."""
    theory = posixpath.relpath("theory.html", posixpath.dirname(page.file.dest_uri))
    content = FORMULA.sub(lambda match: mathml(html.unescape(match[3]), match[2] == "["), content)
    return CITATION.sub(
        lambda match: match[1] + re.sub(r"\((\d+)\)", rf'<a href="{theory}#eq-\1">(\1)</a>', match[2]), content
    )


def mathml(latex: str, block: bool) -> str:
    """Return a formula in MathML; a numbered one has the anchor eq-NUMBER."""
    from latex2mathml.converter import convert

    number = TAG.search(latex)
    formula = convert(TAG.sub("", latex).strip(), display="block" if block else "inline")
    formula = FUNCTION.sub(r'\1<mspace width="thinmathspace" />', formula)
    formula = formula.replace('width="thinmathspace"', 'width="0.167em"')
    if not block:
        return formula
    label = f'<span class="number">({number[1]})</span>' if number else ""
    return f'<div class="equation"{f" id=eq-{number[1]}" if number else ""}>{formula}{label}</div>'


def public_names() -> Iterator[str]:
    """Yield the public modules, classes, functions and methods of the package."""
    for path in sorted((SOURCE / "rdlm").rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text("utf-8"))
        if tree.body and module not in ("rdlm", "rdlm.__main__"):  # `rdlm` forwards names of other modules
            yield module
            yield from defined(tree, module)


def defined(node: ast.Module | ast.ClassDef, place: str) -> Iterator[str]:
    """Yield the public names that a module or class defines."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name[0] != "_":
            yield f"{place}.{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from defined(child, f"{place}.{child.name}")


def on_post_build(config: Any) -> None:
    """Warn, which ends a strict build, of public names that are nowhere on the site."""
    inventory = (Path(config["site_dir"]) / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    if missing := [name for name in public_names() if name not in known]:
        log.warning("%d public names are not on the site: %s", len(missing), ", ".join(missing[:20]))
