"""Subword tokenizers: WordPiece with BERT's rules, and byte-level BPE learnt from a text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rdlm.data.tokenizer import Ids, id_type, within
from rdlm.errors import DamagedFileError, InputError

Kind = Literal["wordpiece", "bpe"]


class Subwords:
    """A tokenizer of the `tokenizers` library: WordPiece, or byte-level BPE."""

    def __init__(self, kind: Kind, inner: Tokenizer) -> None:
        self.kind = kind
        self.inner = inner

    @property
    def size(self) -> int:
        """Return the number of tokens, special ones included."""
        return int(self.inner.get_vocab_size())

    def special(self, token: str) -> int:
        """Return the id of a token such as `[SEP]`."""
        found = self.inner.token_to_id(token)
        if found is None:
            raise InputError(f"this {self.kind} vocabulary has no token {token!r}")
        return int(found)

    def encode(self, text: str) -> Ids:
        """Return the ids; no special token is added."""
        return np.array(self.inner.encode(text, add_special_tokens=False).ids, id_type(self.size))

    def encode_many(self, texts: Sequence[str]) -> Iterator[Ids]:
        """Return the ids of many texts, encoded together."""
        kind = id_type(self.size)
        return (np.array(e.ids, kind) for e in self.inner.encode_batch(list(texts), add_special_tokens=False))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text: exact for BPE, up to case and spacing for WordPiece; special tokens are shown."""
        return str(self.inner.decode(list(within(ids, self.size)), skip_special_tokens=False))

    def to_json(self) -> dict[str, Any]:
        """Return the library's own description."""
        return {"kind": self.kind, "model": json.loads(self.inner.to_str())}


def wordpiece(vocabulary: Sequence[str]) -> Subwords:
    """Return the lower-casing WordPiece tokenizer of BERT over the given vocabulary, in its order."""
    if missing := {"[PAD]", "[UNK]", "[CLS]", "[SEP]"} - set(vocabulary):
        raise InputError(f"a WordPiece vocabulary needs {', '.join(sorted(missing))}")
    inner = Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    return Subwords("wordpiece", inner)


def train_bpe(texts: Iterable[str], size: int) -> Subwords:
    """Return a byte-level BPE of at most `size` tokens learnt from `texts`; it can encode any text."""
    if size < 257:
        raise InputError(f"a byte-level BPE needs at least 257 tokens, got {size}")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return Subwords("bpe", inner)


def restored(kind: Kind, model: dict[str, Any]) -> Subwords:
    """Return the tokenizer that `Subwords.to_json` described."""
    try:
        found = Subwords(kind, Tokenizer.from_str(json.dumps(model)))
        found.decode(found.encode("a").tolist())  # what is read may still fail at its first use
        return found
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises bare Exception for what it cannot read, or panics
        raise DamagedFileError(f"a {kind} tokenizer that cannot be read: {error}") from None
