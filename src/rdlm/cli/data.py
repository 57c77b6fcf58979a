"""`rdlm data`: list, download and verify the corpora."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rdlm.display.text_table import print_result, table
from rdlm.errors import InputError


@dataclass(frozen=True)
class Data:
    """List the corpora, get one (download, check, prepare), or verify the checksums of the prepared ones."""

    action: Annotated[Literal["list", "get", "verify"], tyro.conf.Positional]
    """List the corpora, get (download and prepare) one, or verify the checksums of prepared ones."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """Name of the corpus; `verify` without a name checks all prepared corpora."""

    file: Path | None = None
    """Your file or folder, for corpora that need one."""

    protocol: str | None = None
    """Protocol (splits and preprocessing), for corpora that have several."""

    tokenizer: str | None = None
    """Tokenizer, for corpora that support several: characters, bytes, wordpiece, bpe, a tokenizer.json or hf://NAME."""

    alphabet: str | None = None
    """Characters of the tokenizer `characters`, in the order of their ids."""

    unknown: Literal["error", "skip", "replace"] = "error"
    """Characters outside of the alphabet: an error, left out (skip), or replaced by a space."""

    vocabulary: int = 8192
    """Vocabulary size of a BPE tokenizer that is trained on your text."""

    accept_licence: bool = False
    """Accept the licence of a corpus with restrictions."""

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Run the action and return 0."""
        logging.basicConfig(format="rdlm: %(message)s")
        rows = {"list": self._list, "get": self._get, "verify": self._verify}[self.action]()
        print_result({"rows": rows}, table(rows, _COLUMNS[self.action]), self.json)
        return 0

    def _list(self) -> list[dict[str, Any]]:
        from rdlm.data import corpus

        recipes = [corpus.recipe_of(self.name)] if self.name else list(corpus.RECIPES.values())
        rows = []
        for recipe in recipes:
            here = [_summary(folder, meta) for folder, meta in corpus.prepared(recipe.name).items()]
            rows.append(
                {
                    "name": recipe.name,
                    "kind": recipe.kind,
                    "length": recipe.length,
                    "summary": recipe.summary,
                    "protocols": recipe.protocols,
                    "licence": recipe.licence,
                    "origins": [archive.origin for archive in recipe.archives] or ["your file"],
                    "here": ", ".join(dict.fromkeys(row["protocol"] for row in here)) or "no",
                    "prepared": here,
                }
            )
        return rows

    def _get(self) -> list[dict[str, Any]]:
        from rdlm.data import corpus, store

        if not self.name:
            raise InputError(f"rdlm data get needs a name; known: {', '.join(corpus.RECIPES)}")
        found = corpus.load(
            self.name,
            protocol=self.protocol,
            file=self.file,
            tokenizer=self.tokenizer,
            alphabet=self.alphabet,
            unknown=self.unknown,
            vocabulary=self.vocabulary,
            accept_licence=self.accept_licence,
        )
        return [_summary(found.folder, store.describe(found.folder))]

    def _verify(self) -> list[dict[str, Any]]:
        from rdlm.data import corpus, store

        if self.name:
            corpus.recipe_of(self.name)
        found = corpus.prepared(self.name)
        if self.name and not found:
            raise InputError(f"{self.name} is not prepared; run rdlm data get {self.name}")
        return [{**_summary(folder, meta), "verified": store.verify(folder)} for folder, meta in found.items()]


_COLUMNS = {
    "list": ["name", "kind", "length", "here", "licence", "summary"],
    "get": ["name", "protocol", "vocabulary", "train", "validation", "test", "source", "licence", "folder"],
    "verify": ["name", "protocol", "verified", "folder"],
}


def _summary(folder: Path, meta: dict[str, Any]) -> dict[str, Any]:
    kept = {key: meta[key] for key in ("name", "protocol", "vocabulary", "source", "licence", "length")}
    shapes = {s: meta["files"].get(f"{s}.bin", {}).get("shape", [0]) for s in ("train", "validation", "test")}
    counts = {split: " x ".join(map(str, shape)) for split, shape in shapes.items()}
    size = sum(entry["bytes"] for entry in meta["files"].values())
    return {**kept, **counts, "bytes": size, "folder": str(folder)}
