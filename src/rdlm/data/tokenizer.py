"""Tokenizers: text to token ids and back. Checkpoints and published models store each as a tokenizer.json.

Characters, bytes and pixel levels are implemented here; WordPiece and byte-level BPE use the `tokenizers` library.
The files are in the format of that library, whose `Tokenizer.from_file` reads them: `to_standard` writes it,
`from_json` reads it, and `foreign` reads files that others have written.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from rdlm.errors import DamagedFileError, InputError, unknown

Ids = NDArray[np.unsignedinteger[Any]]
Unknown = Literal["error", "skip", "replace"]
SubwordKind = Literal["wordpiece", "bpe"]

ENCODED_AT_ONCE = 1 << 22
"""Characters that are encoded at a time: code points take four bytes each."""

LONGEST_TOKEN = 1024
"""Characters of the longest token of a vocabulary: a sequence of tokens cannot become a text of any size."""

TEXT8_ALPHABET = " abcdefghijklmnopqrstuvwxyz"


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = {str(digit): word for digit, word in enumerate(NUMBERS)}
_SPACES = re.compile(" +")


class Tokenizer(Protocol):
    """A map between text and ids 0 .. size - 1."""

    @property
    def size(self) -> int:
        """The number of tokens V."""

    def encode(self, text: str) -> Ids:
        """Return the ids of a text, in the smallest unsigned type that holds them."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; InputError for an id outside the vocabulary."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object from which `from_json` restores this tokenizer."""


def id_type(size: int) -> np.dtype[Any]:
    """Return the smallest little-endian unsigned type for ids below `size`."""
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class Characters:
    """One token per character of an alphabet, in the alphabet's order."""

    alphabet: str
    unknown: Unknown = "error"
    """Whether a character outside the alphabet raises InputError, is dropped, or becomes a space."""

    def __post_init__(self) -> None:
        if not self.alphabet or len(set(self.alphabet)) != len(self.alphabet):
            raise InputError(f"an alphabet needs distinct characters, got {self.alphabet!r}")
        if self.unknown not in get_args(Unknown):
            raise unknown("treatment of unknown characters", self.unknown, get_args(Unknown))
        if self.unknown == "replace" and " " not in self.alphabet:
            raise InputError("unknown='replace' inserts a space, which is not in this alphabet")

    @property
    def size(self) -> int:
        """The number of characters."""
        return len(self.alphabet)

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        # The last entry, one past the largest code point, is for all larger code points.
        points = np.array([ord(c) for c in self.alphabet])
        table = np.full(int(points.max()) + 2, -1)
        table[points] = np.arange(points.size)
        return table

    def encode(self, text: str) -> Ids:
        """Return one id per character; see `unknown` for characters outside the alphabet."""
        parts = (self._encode(text, first) for first in range(0, len(text), ENCODED_AT_ONCE))
        empty: Ids = np.empty(0, id_type(self.size))
        return np.concatenate([empty, *parts])

    def _encode(self, text: str, first: int) -> Ids:
        points = np.frombuffer(text[first : first + ENCODED_AT_ONCE].encode("utf-32-le", "surrogatepass"), "<u4")
        ids = self._table[np.minimum(points, self._table.size - 1)]
        if (ids < 0).any():
            ids = self._handle_unknown(text, first, ids)
        found: Ids = ids.astype(id_type(self.size))
        return found

    def _handle_unknown(self, text: str, first: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.unknown == "skip":
            return ids[ids >= 0]
        if self.unknown == "replace":
            return np.where(ids < 0, self.alphabet.index(" "), ids)
        at = first + int(np.argmax(ids < 0))
        rule = normalisation_rule(self)
        ways = [f"normalise (--normalise): {rule}"] if rule else []
        ways += ["unknown='skip' (--unknown skip) drops such characters"]
        ways += ["unknown='replace' replaces them by spaces"] if " " in self.alphabet else []
        raise InputError(
            f"character {text[at]!r} at position {at} is outside the alphabet {self.alphabet!r}; {', '.join(ways)}"
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Return the characters of the ids."""
        return "".join(self.alphabet[i] for i in within(ids, self.size))

    def to_json(self) -> dict[str, Any]:
        """Return the alphabet and the treatment of other characters."""
        return {"kind": "characters", "alphabet": self.alphabet, "unknown": self.unknown}


@dataclass(frozen=True)
class Bytes:
    """One token per byte of the text's UTF-8 form."""

    @property
    def size(self) -> int:
        """256."""
        return 256

    def encode(self, text: str) -> Ids:
        """Return the UTF-8 bytes."""
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text; bytes that are not UTF-8 become U+FFFD."""
        return bytes(within(ids, 256)).decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "bytes"}


@dataclass(frozen=True)
class Levels:
    """One token per pixel level; the text is the levels as numbers separated by spaces."""

    size: int

    def encode(self, text: str) -> Ids:
        """Return the ids of numbers in 0 .. size - 1."""
        try:
            ids = [int(word) for word in text.split()]
        except ValueError as error:
            raise InputError(f"levels must be whole numbers separated by spaces: {error}") from None
        return np.array(list(within(ids, self.size)), id_type(self.size))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the numbers separated by spaces."""
        return " ".join(str(i) for i in within(ids, self.size))

    def to_json(self) -> dict[str, Any]:
        """Return the number of levels."""
        return {"kind": "levels", "size": self.size}


BASES = frozenset("ACGT")


def bases() -> Characters:
    """Return the tokenizer of DNA, with the alphabet ACGT."""
    return Characters("ACGT")


@contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """Turn an error of the `tokenizers` library, which raises Exception or panics, into a DamagedFileError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a panic of Rust code is not an Exception
        raise DamagedFileError(f"{what}: {error}") from None


class Subwords:
    """WordPiece or byte-level BPE, by the `tokenizers` library."""

    def __init__(self, kind: SubwordKind, inner: tokenizers.Tokenizer) -> None:
        self.kind = kind
        self.inner = inner

    @property
    def size(self) -> int:
        """The number of tokens, special ones included."""
        return int(self.inner.get_vocab_size())

    def special(self, token: str) -> int:
        """Return the id of a token such as `[SEP]`."""
        found = self.inner.token_to_id(token)
        if found is None:
            raise InputError(f"this {self.kind} vocabulary has no token {token!r}")
        return int(found)

    def encode(self, text: str) -> Ids:
        """Return the ids; no special token is added."""
        with _library_errors(f"a {self.kind} tokenizer failed to encode a text"):
            return np.array(self.inner.encode(text, add_special_tokens=False).ids, id_type(self.size))

    def encode_many(self, texts: Sequence[str]) -> Iterator[Ids]:
        """Return the ids of many texts, encoded in one batch."""
        kind = id_type(self.size)
        return (np.array(e.ids, kind) for e in self.inner.encode_batch(list(texts), add_special_tokens=False))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text, special tokens included: exact for BPE, up to case and spacing for WordPiece."""
        checked = list(within(ids, self.size))
        with _library_errors(f"a {self.kind} tokenizer failed to decode tokens"):
            return str(self.inner.decode(checked, skip_special_tokens=False))

    def to_json(self) -> dict[str, Any]:
        """Return the serialization of the library."""
        return {"kind": self.kind, "model": json.loads(self.inner.to_str())}


def wordpiece(vocabulary: Sequence[str], normalizer: normalizers.BertNormalizer | None = None) -> Subwords:
    """Return the WordPiece tokenizer of BERT over the given vocabulary, lower-casing unless a normalizer is given.

    Ids are positions in the vocabulary.
    """
    if missing := {"[PAD]", "[UNK]", "[CLS]", "[SEP]"} - set(vocabulary):
        raise InputError(f"a WordPiece vocabulary needs {', '.join(sorted(missing))}")
    inner = tokenizers.Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    inner.normalizer = normalizer or normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    return Subwords("wordpiece", inner)


def train_bpe(texts: Iterable[str], size: int) -> Subwords:
    """Return a byte-level BPE of at most `size` tokens trained on `texts`; it can encode any text."""
    if size < 257:
        raise InputError(f"a byte-level BPE needs at least 257 tokens, got {size}")
    found = _byte_level(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.inner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return found


def _byte_level(model: models.BPE, split: str = "", prefix: bool = False, nfc: bool = False) -> Subwords:
    """Return a byte-level BPE; words are those of GPT-2, or of the regular expression `split`."""
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not split)
    if split:
        words = pre_tokenizers.Split(tokenizers.Regex(split), "isolated")
        inner.pre_tokenizer = pre_tokenizers.Sequence([words, inner.pre_tokenizer])
    if nfc:
        inner.normalizer = normalizers.NFC()
    inner.decoder = decoders.ByteLevel()
    return Subwords("bpe", inner)


def _restore_subwords(kind: SubwordKind, description: object) -> Subwords:
    """Return the tokenizer that `Subwords.to_json` serialized, rebuilt from its vocabulary and merges alone.

    The library's format also has normalizers, regular expressions and templates, with which a few kilobytes can take
    any time and memory. A description with other steps than those of `wordpiece` and `_byte_level` is refused.
    """
    parts = description if isinstance(description, dict) else {}
    model = parts.get("model")
    if not isinstance(model, dict):
        raise DamagedFileError(f"a {kind} tokenizer without a vocabulary")
    vocabulary = _vocabulary(model.get("vocab"))
    with _library_errors(f"a {kind} tokenizer that cannot be read"):
        if kind == "wordpiece":
            found = wordpiece(vocabulary, _bert_normalizer(parts.get("normalizer")))
        else:
            ids = {token: i for i, token in enumerate(vocabulary)}
            whole_words = {"ignore_merges": True} if model.get("ignore_merges") is True else {}
            found = _byte_level(models.BPE(ids, _merges(model.get("merges")), **whole_words), *_words(parts))
    rebuilt = found.to_json()["model"]
    content = ("vocab", "merges")  # the library compares them itself; older versions write merges otherwise
    own = {key: value for key, value in rebuilt["model"].items() if key not in content}
    given = {key: value for key, value in model.items() if key not in content}
    if {**rebuilt, **parts, "model": {**own, **given}} != {**rebuilt, "model": own}:
        raise DamagedFileError(f"a {kind} tokenizer with other steps than those of this package, or other tokens")
    return found


def _bert_normalizer(found: object) -> normalizers.BertNormalizer | None:
    """Return the normalizer with the four switches of a description."""
    names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    given = {name: found[name] for name in names if name in found} if isinstance(found, dict) else {}
    return normalizers.BertNormalizer(**given) if set(given) == set(names) else None


def _words(parts: dict[str, Any]) -> tuple[str, bool, bool]:
    """Return the word splitting of a byte-level BPE: a known expression, with a space before the first word, after
    NFC."""
    steps = parts.get("pre_tokenizer") or {}
    first = (steps.get("pretokenizers") or [{}])[0]
    split = (first.get("pattern") or {}).get("Regex", "")
    return split if split in WORDS else "", steps.get("add_prefix_space") is True, bool(parts.get("normalizer"))


def _vocabulary(found: object) -> list[str]:
    """Return the tokens in the order of their ids."""
    if not isinstance(found, dict) or not all(type(i) is int for i in found.values()):
        raise DamagedFileError("the vocabulary of a tokenizer must be an object {token: id}")
    tokens = sorted(found, key=found.__getitem__)
    if [found[token] for token in tokens] != list(range(len(tokens))):
        raise DamagedFileError("the ids of a tokenizer must be 0, 1, ..., each once")
    if (longest := max(map(len, tokens), default=0)) > LONGEST_TOKEN:
        raise DamagedFileError(f"a tokenizer has a token of {longest} characters, more than {LONGEST_TOKEN}")
    return tokens


def _merges(found: object) -> list[tuple[str, str]]:
    """Return the merges of a BPE, which are pairs or, in older versions of the library, texts with a space."""
    merges: list[tuple[str, str]] = []
    for one in found if isinstance(found, list) else [found]:
        pair = one.split(" ") if isinstance(one, str) else one
        if not isinstance(pair, list) or [type(part) for part in pair] != [str, str]:
            raise DamagedFileError("the merges of a tokenizer must be pairs of tokens")
        merges.append((pair[0], pair[1]))
    return merges


def from_json(description: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer that `to_json` or `to_standard` serialized; DamagedFileError if the object is invalid."""
    try:
        if "kind" not in description and isinstance(description.get("model"), dict):
            return _from_standard(description)
        match description["kind"]:
            case "characters":
                return Characters(_text(description["alphabet"]), description["unknown"])
            case "bytes":
                return Bytes()
            case "levels":
                return Levels(_level_count(description["size"]))
            case "wordpiece" | "bpe" as kind:
                return _restore_subwords(kind, description["model"])
            case kind:
                raise DamagedFileError(f"a tokenizer of unknown kind {kind!r}")
    except KeyError as error:
        raise DamagedFileError(f"the description of a tokenizer has no {error}") from None
    except (InputError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"the description of a tokenizer is invalid: {error}") from None


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise DamagedFileError(f"the alphabet of a tokenizer must be text, not {found!r:.80}")
    return found


def _level_count(found: object) -> int:
    if type(found) is not int or not 1 <= found <= 1 << 16:
        raise DamagedFileError(f"the number of levels of a tokenizer must lie in 1 .. {1 << 16}, not {found!r:.80}")
    return found


def within(ids: Iterable[int], size: int) -> Iterator[int]:
    """Yield the ids as int; InputError for one outside 0 .. size - 1."""
    for i in ids:
        if not 0 <= i < size:
            raise InputError(f"id {i} is outside the vocabulary 0 .. {size - 1}")
        yield int(i)


# -- the format of the library ----------------------------------------------------------------------

WORDS = tuple(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    + digits
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in ("", "{1,3}")
)
"""Word-splitting expressions of published BPEs (Qwen 2; GPT-4 and Llama 3); they take linear time."""

LARGEST_FILE = 1 << 26
"""Bytes of the largest tokenizer.json of others that is read; that of Llama 3 has 9 MB."""

_CHARACTER = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_NO_STEPS: dict[str, Any] = {"truncation": None, "padding": None, "added_tokens": [], "post_processor": None}


def to_standard(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the JSON object of a tokenizer.json, which `tokenizers.Tokenizer.from_file` reads."""
    match tokenizer:
        case Characters():
            return _characters(tokenizer)
        case Bytes():
            vocabulary = {character: i for i, character in enumerate(_byte_characters())}
            model = {"type": "BPE", "vocab": vocabulary, "merges": []}
            return _standard(_BYTE_LEVEL, {"type": "ByteLevel", **_decoder_options()}, model)
        case Levels():
            levels = {str(i): i for i in range(tokenizer.size)}
            return _standard({"type": "WhitespaceSplit"}, None, _word_level(levels, "<unk>"))
    content: dict[str, Any] = tokenizer.to_json()["model"]
    return content


def _standard(
    pre_tokenizer: dict[str, Any], decoder: object, model: dict[str, Any], normalizer: object = None
) -> dict[str, Any]:
    steps = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder}
    return {"version": "1.0", **_NO_STEPS, **steps, "model": model}


def _word_level(vocabulary: dict[str, int], unknown_token: str) -> dict[str, Any]:
    return {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown_token}


def _decoder_options() -> dict[str, bool]:
    return {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def _characters(tokenizer: Characters) -> dict[str, Any]:
    """Return one word per character. The library refuses others without a token for them, as unknown='error' does."""
    vocabulary = {character: i for i, character in enumerate(tokenizer.alphabet)}
    normalizer = None
    if tokenizer.unknown == "skip":
        known = "".join(f"\\x{{{ord(character):x}}}" for character in tokenizer.alphabet)
        normalizer = {"type": "Replace", "pattern": {"Regex": f"[^{known}]"}, "content": ""}
    model = _word_level(vocabulary, " " if tokenizer.unknown == "replace" else "<unk>")
    return _standard(_CHARACTER, {"type": "Fuse"}, model, normalizer)


def _byte_characters() -> list[str]:
    """Return the character of each byte in a byte-level BPE: itself if visible, else one from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte if byte in visible else 256 + hidden.index(byte)) for byte in range(256)]


def _from_standard(description: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of a file that `to_standard` wrote; one with other steps is refused."""
    model, steps = description["model"], description.get("pre_tokenizer") or {}
    found: Tokenizer
    match model.get("type"), steps.get("type"):
        case "WordLevel", "Split":
            replaces = "replace" if model.get("unk_token") == " " else "error"
            skips = description.get("normalizer") is not None
            found = Characters("".join(_vocabulary(model.get("vocab"))), "skip" if skips else replaces)  # type: ignore[arg-type]
        case "WordLevel", "WhitespaceSplit":
            found = Levels(_level_count(len(_vocabulary(model.get("vocab")))))
        case "BPE", "ByteLevel" if not model.get("merges"):
            found = Bytes()
        case "BPE", _:
            return _restore_subwords("bpe", description)
        case "WordPiece", _:
            return _restore_subwords("wordpiece", description)
        case kind, _:
            raise DamagedFileError(f"a tokenizer of the unknown kind {kind!r}")
    if to_standard(found) != description:
        raise DamagedFileError("a tokenizer with other steps than those of this package, or other tokens")
    return found


def foreign(description: dict[str, Any], name: str) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json of others: byte-level BPE or WordPiece, without its special steps.

    No special token is added to a text, and none is recognised in it: special tokens are plain entries of the
    vocabulary. InputError, which names the file, for any other tokenizer.
    """
    with suppress(DamagedFileError):
        return from_json(description)  # a file of ours
    try:
        return from_json(_simplified(description))
    except (DamagedFileError, TypeError, AttributeError, KeyError) as error:
        steps = [(key, description.get(key)) for key in ("model", "normalizer", "pre_tokenizer")]
        listed = ", ".join(f"{key} {step.get('type')}" for key, step in steps if isinstance(step, dict))
        reason = error if isinstance(error, DamagedFileError) else "it is not a tokenizer.json"
        raise InputError(
            f"{name} ({listed}) cannot be used: {reason}. Byte-level BPE, as of GPT-2, Llama 3 and Qwen 2, and "
            "WordPiece, as of BERT, can be read; --data.tokenizer bpe trains one on your text"
        ) from None


def _simplified(parts: dict[str, Any]) -> dict[str, Any]:
    """Return a description without what does not change the ids of plain text, special tokens in the vocabulary."""
    model: dict[str, Any] = {key: None if value == "" else value for key, value in parts["model"].items()}
    vocabulary = dict(model["vocab"])
    for token in parts.get("added_tokens") or []:
        vocabulary.setdefault(token["content"], token["id"])
    model["vocab"] = vocabulary
    if model.get("type", "BPE" if "merges" in model else None) == "BPE":
        if missing := set(_byte_characters()) - set(vocabulary):
            raise DamagedFileError(f"its vocabulary has no token for {len(missing)} of the 256 bytes")
        # Dropout is for training; without unknown bytes neither `fuse_unk` nor `unk_token` has an effect.
        model |= {"type": "BPE", "dropout": None, "fuse_unk": False, "unk_token": None}
    steps = json.loads(json.dumps(parts.get("pre_tokenizer")))
    for step in [steps, *((steps or {}).get("pretokenizers") or [])]:
        if step and "trim_offsets" in step:
            step["trim_offsets"] = True  # no offsets are used
    kept = {"version": "1.0", **_NO_STEPS, "normalizer": parts.get("normalizer"), "pre_tokenizer": steps}
    decoder = {"type": "ByteLevel", **_decoder_options()} if model["type"] == "BPE" else parts.get("decoder")
    return {**kept, "decoder": decoder, "model": model}


# -- normalisation ----------------------------------------------------------------------------------


def normalisation_rule(tokenizer: Tokenizer) -> str:
    """Return what `normalised` does to a text before this tokenizer; "" if it changes nothing."""
    if not isinstance(tokenizer, Characters):
        return ""
    known = set(tokenizer.alphabet)
    lower, upper = (any(case(c) for c in known) for case in (str.islower, str.isupper))
    parts = ["lower case"] if lower and not upper else ["upper case"] if upper and not lower else []
    parts += ["U to T"] if known == BASES else []
    parts += ["digits spelled"] if _spells_digits(known) else []
    parts += ["other characters to spaces"] if " " in known else []
    return ", ".join(parts)


def check_rule(tokenizer: Tokenizer) -> str:
    """Return `normalisation_rule`; InputError where there is none."""
    if rule := normalisation_rule(tokenizer):
        return rule
    raise InputError("normalise needs a model with a small alphabet; the tokenizer of this one has none")


def normalised(tokenizer: Tokenizer, text: str, keep: str = "") -> tuple[str, str]:
    """Return a text in the characters of a tokenizer, and what was changed; "" if nothing was. `keep` is left as it is.

    A character outside the alphabet becomes the same letter in the other case, the word of a digit, or a space, and U
    of RNA the base T; where the alphabet has none of them, it stays. With the alphabet of text8, this is its rule: runs
    of spaces become one.
    """
    if not isinstance(tokenizer, Characters):
        return text, ""
    known, done = set(tokenizer.alphabet), Counter[str]()
    table = {character: _normalised(character, known) for character in set(text) - known - set(keep)}
    for character, count in Counter(text).items():
        if character in table:
            done[table[character][1]] += count
    found = "".join(table[character][0] if character in table else character for character in text)
    if tokenizer.alphabet == TEXT8_ALPHABET:
        found = _SPACES.sub(" ", found)
    counts = [f"{done[how]:,} {how}" for how in ("case changed", "U to T", "digits spelled", "to spaces") if done[how]]
    return found, ", ".join(counts)


def _spells_digits(known: set[str]) -> bool:
    return known.isdisjoint(DIGITS) and known.issuperset(" efghinorstuvwxz")


def _normalised(character: str, known: set[str]) -> tuple[str, str]:
    """Return what a character outside of the alphabet becomes, and how it is reported."""
    other = character.swapcase()
    if other in known and character.isascii() == other.isascii():
        return other, "case changed"
    if character in "Uu" and known == BASES:
        return "T", "U to T"
    if character in DIGITS and _spells_digits(known):
        return f" {DIGITS[character]} ", "digits spelled"
    return (" ", "to spaces") if " " in known else (character, "left")
