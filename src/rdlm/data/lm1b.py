"""Recipe of the One Billion Word benchmark, read from the user's copy of its official files.

Give the folder of the official archive, or one file of sentences, which is then the test split alone.
Training: every `news.en-000NN-of-00100`. Test: `news.en.heldout-00000-of-00050`, the official test shard of
6,075 sentences. Validation: `news.en.heldout-00001-of-00050`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rdlm.data.recipe import Recipe, Request, opened
from rdlm.data.store import Draft
from rdlm.data.vocabulary import bert, packed, padded
from rdlm.errors import InputError

LENGTH = 128
SHARDS = {
    "train": "**/news.en-*-of-00100",
    "validation": "**/news.en.heldout-00001-of-00050",
    "test": "**/news.en.heldout-00000-of-00050",
}


def lm1b(request: Request) -> Draft:
    """Return LM1B in bert-base-uncased's WordPiece, one padded sentence per row or packed into a stream."""
    if not request.file:
        raise InputError("the corpus 'lm1b' needs its official folder, or one file of sentences to test on")
    files = _files(request.file)
    tokenizer = bert()
    tokens: dict[str, Iterable[NDArray[Any]]] = {}
    for split, shards in files.items():
        if request.protocol == "lm1b-padded":
            tokens[split] = padded(tokenizer, _sentences(shards), LENGTH)
        else:
            tokens[split] = packed(tokenizer, _sentences(shards))
    return Draft(request.protocol, tokenizer, tokens, f"file {request.file.name}")


def _files(path: Path) -> dict[str, list[Path]]:
    if not path.is_dir():
        return {"test": [path]}
    files = {split: sorted(path.glob(pattern)) for split, pattern in SHARDS.items()}
    if missing := [split for split, found in files.items() if not found]:
        raise InputError(f"{path} has no file {SHARDS[missing[0]]} for the {missing[0]} split")
    return files


def _sentences(files: list[Path]) -> Iterator[str]:
    for path in files:
        with opened(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    yield line.decode()
                except UnicodeDecodeError:
                    raise InputError(f"{path} is not UTF-8 text at line {number}") from None


RECIPES = (
    Recipe(
        "lm1b", "text", "One Billion Words in WordPiece (V = 30522), a padded sentence per row, or packed",
        "of your copy", LENGTH, lm1b, ("lm1b-padded", "lm1b-packed"),
        options=frozenset({"file"}),
    ),
)  # fmt: skip
