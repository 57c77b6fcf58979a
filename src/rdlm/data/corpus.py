"""The catalogue of corpora, and the one function that gives a corpus by its name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from rdlm.data import dna, image, store, text
from rdlm.data.recipe import Recipe, Request, TokenizerName, combined, log
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Unknown
from rdlm.errors import DamagedFileError, InputError, unknown
from rdlm.storage.files import cache_dir

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (*text.RECIPES, *text.LM1B_RECIPES, *image.RECIPES, *dna.RECIPES)
}


def load(
    name: str,
    *,
    protocol: str | None = None,
    file: Path | str | None = None,
    tokenizer: TokenizerName | None = None,
    alphabet: str | None = None,
    unknown: Unknown = "error",
    vocabulary: int = 8192,
    accept_licence: bool = False,
) -> Corpus:
    """Return a corpus: from the cache if prepared before, else fetched or read from `file`, checked and kept.

    Where the default protocol cannot be had it may be another one (`text8-74m`): read `Corpus.protocol`.
    """
    path = Path(file).expanduser().resolve() if file is not None else None
    request = Request("", path, tokenizer, alphabet, unknown, vocabulary, accept_licence)
    recipe = find(name)
    _check(recipe, request, protocol)
    wanted = [
        dataclasses.replace(request, protocol=p)
        for p in ((protocol,) if protocol else (recipe.protocols[0], *recipe.fallback))
    ]
    for one in wanted:
        if (folder := place(recipe, one)).exists():
            return store.read(folder)
    return store.read(_prepare(recipe, wanted))


def find(name: str) -> Recipe:
    """Return a corpus's recipe by its name."""
    if name not in RECIPES:
        raise unknown("corpus", name, RECIPES)
    return RECIPES[name]


def place(recipe: Recipe, request: Request) -> Path:
    """Return the folder of a prepared corpus, which depends on all that decides its content."""
    parts: dict[str, Any] = {"format": store.FORMAT, "protocol": request.protocol}
    for option in sorted(recipe.options):
        value = getattr(request, option)
        parts[option] = _identity(value) if isinstance(value, Path) else value
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    return cache_dir() / "data" / f"{recipe.name}-{key}"


def prepared(name: str | None = None) -> dict[Path, dict[str, Any]]:
    """Return folder -> meta.json of every prepared corpus, or of those with one name."""
    folders = sorted((cache_dir() / "data").glob("[!.]*/meta.json"))
    metas = {path.parent: store.describe(path.parent) for path in folders}
    return {folder: meta for folder, meta in metas.items() if name in (None, meta["name"])}


def _prepare(recipe: Recipe, wanted: list[Request]) -> Path:
    if recipe.must_accept and not wanted[0].accept_licence:
        raise InputError(f"{recipe.name}: {recipe.licence}; accept it with --accept-licence")
    reasons: list[Exception] = []
    for request in wanted:
        try:
            draft = recipe.prepare(request)
        except (InputError, DamagedFileError) as error:
            reasons.append(error)
            continue
        if reasons:
            log.warning("%s instead of %s: %s", draft.protocol, recipe.protocols[0], reasons[-1])
        about = {"name": recipe.name, "kind": recipe.kind, "length": recipe.length, "licence": recipe.licence}
        folder = place(recipe, request)
        store.write(folder, draft, about)
        return folder
    raise combined(reasons)


def _check(recipe: Recipe, request: Request, protocol: str | None) -> None:
    if protocol and protocol not in recipe.protocols:
        raise unknown(f"protocol of {recipe.name}", protocol, recipe.protocols)
    known = recipe.options | {"protocol", *(("accept_licence",) if recipe.must_accept else ())}
    for field in dataclasses.fields(Request):
        if field.name not in known and getattr(request, field.name) != field.default:
            raise InputError(f"the corpus {recipe.name!r} has no option {field.name!r}")
    if request.file and not request.file.exists():
        raise InputError(f"no such file or folder: {request.file}")


def _identity(path: Path) -> list[Any]:
    """Return what tells one state of the user's files from another without reading them."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in files]
