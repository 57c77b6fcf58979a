"""The registry of corpora, and `load`, which prepares and returns a corpus by name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rdlm.data import dna, formats, image, own, store, text
from rdlm.data.recipe import CorpusRequest, Recipe, combined, log, open_regular
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Unknown
from rdlm.errors import DamagedFileError, InputError, unknown
from rdlm.storage.files import cache_dir, make_cache_dir

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (*text.RECIPES, *image.RECIPES, *dna.RECIPES, *own.RECIPES)
}
"""Name -> recipe of every corpus."""

MANY_FILES = 10_000


def load(
    name: str,
    *,
    protocol: str | None = None,
    file: Path | str | None = None,
    hub: str | None = None,
    limit: int | None = None,
    tokenizer: str | Path | None = None,
    column: str | None = None,
    alphabet: str | None = None,
    normalise: bool = False,
    unknown: Unknown | Literal["extend"] = "error",
    vocabulary: int = 8192,
    accept_licence: bool = False,
    prepare: bool = True,
) -> Corpus:
    """Return a corpus from the cache; if it is not there, it is first downloaded or read from `file`.

    Without `prepare`, one that is not in the cache is an error, and nothing is read.
    If the default protocol is unavailable, it may have another one (`text8-74m`), which is stated in `Corpus.protocol`.
    """
    path = Path(file).expanduser().resolve() if file is not None else None
    if tokenizer is not None and str(tokenizer).endswith(".json"):
        tokenizer = Path(tokenizer).expanduser().resolve()
    text_options = (tokenizer, column, alphabet, normalise, unknown, vocabulary)
    request = CorpusRequest("", path, hub, limit, *text_options, accept_licence)
    recipe = recipe_of(name)
    _check(recipe, request, protocol)
    if name == "textfile" and path is not None and prepare:
        formats.check_plain(path)
    if path is not None and not prepare and _has_many_files(path):
        raise _not_prepared(path)
    wanted = [
        dataclasses.replace(request, protocol=p)
        for p in ((protocol,) if protocol else (recipe.protocols[0], *recipe.fallback))
    ]
    for one in wanted:
        if (folder := folder_of(recipe, one)).exists():
            return store.read(folder)
    if not prepare:
        raise _not_prepared(path or tokenizer)
    return store.read(_prepare(recipe, wanted))


def recipe_of(name: str) -> Recipe:
    """Return the recipe of a corpus by name."""
    if name not in RECIPES:
        raise unknown("corpus", name, RECIPES)
    return RECIPES[name]


def folder_of(recipe: Recipe, request: CorpusRequest) -> Path:
    """Return the folder of a prepared corpus; its name contains a hash of everything that determines the content."""
    parts: dict[str, Any] = {"format": store.FORMAT, "protocol": request.protocol}
    for option in sorted(recipe.options):
        value = getattr(request, option)
        if option in ("hub", "limit") and value is None:
            continue  # the folders of corpora without them keep their names
        parts[option] = _identity(value) if isinstance(value, Path) else value
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    return cache_dir("data") / f"{recipe.name}-{key}"


def prepared(name: str | None = None) -> dict[Path, dict[str, Any]]:
    """Return folder -> meta.json of all prepared corpora, or of those with this name."""
    folders = sorted(cache_dir("data").glob("[!.]*/meta.json"))
    metas = {path.parent: store.describe(path.parent) for path in folders}
    return {folder: meta for folder, meta in metas.items() if name in (None, meta["name"])}


def _prepare(recipe: Recipe, wanted: list[CorpusRequest]) -> Path:
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
        folder = folder_of(recipe, request)
        with store.cache_errors(folder.parent):
            make_cache_dir("data")
        store.write(folder, draft, about)
        return folder
    raise combined(reasons)


def _check(recipe: Recipe, request: CorpusRequest, protocol: str | None) -> None:
    if protocol and protocol not in recipe.protocols:
        raise unknown(f"protocol of {recipe.name}", protocol, recipe.protocols)
    known = recipe.options | {"protocol", *(("accept_licence",) if recipe.must_accept else ())}
    for field in dataclasses.fields(CorpusRequest):
        if field.name not in known and getattr(request, field.name) != field.default:
            raise InputError(f"the corpus {recipe.name!r} has no option {field.name!r}")
    for path in (request.file, request.tokenizer):
        if isinstance(path, Path) and not path.exists():
            raise InputError(f"no such file or folder: {path}")
    if request.file and not request.file.is_dir():
        open_regular(request.file).close()


def _not_prepared(named: object) -> InputError:
    return InputError(
        f"the model names {named}, which was not prepared on this machine: if it is yours, name it (--file {named})"
    )


def _has_many_files(path: Path) -> bool:
    """Return whether a folder has more files than are listed because a model names it: it may name a whole disk."""
    try:
        return next(islice(path.rglob("*"), MANY_FILES, None), None) is not None
    except OSError:
        return True


def _identity(path: Path) -> list[Any]:
    """Return paths, sizes and modification times of files, which identify their content without reading them."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in files]
