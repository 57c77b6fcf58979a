"""Restoration by a model of characters, a model of word pieces, and the mixture of both, in passages of WikiText-2.

    python -m experiments.mixed_words --split test --passages 24 --channel symmetric --error 0.1

Letters are misread, or are gaps with `--channel gaps`. Bits are per letter of the truth. The share of the mixture,
`SHARE`, was chosen on the validation split.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Sequence

import torch

import rdlm
from experiments.words import BASE, _right
from rdlm.api.restore import CHANNELS, Restoration
from rdlm.api.restore_words import mixed_with_words
from rdlm.data.evidence import from_text
from rdlm.data.tokenizer import TEXT8_ALPHABET
from rdlm.data.word_evidence import LETTERS
from rdlm.display.text_table import table
from rdlm.evaluate.evaluate import held_out_sequences
from rdlm.random import generator_of
from rdlm.train.run import load_corpus


def misread(text: str, channel: str, error: float, generator: torch.Generator) -> str:
    """Return a text with misread letters, or gaps."""
    if channel == "gaps":
        gone = (torch.rand(len(text), generator=generator) < error).tolist()
        return "".join("?" if lost and letter in LETTERS else letter for letter, lost in zip(text, gone, strict=True))
    drawn = torch.multinomial(
        CHANNELS[channel](LETTERS, error), len(text), replacement=True, generator=generator
    ).tolist()  # [true][place]
    pairs = enumerate(text)
    return "".join(LETTERS[drawn[LETTERS.index(one)][at]] if one in LETTERS else one for at, one in pairs)


def bits(text: str, found: Restoration) -> list[float]:
    """Return `-log2 p` of every letter of the truth."""
    assert found.rows is not None
    pairs = [(row, letter) for row, letter in zip(found.rows, text, strict=True) if row is not None and letter != " "]
    return [-math.log2(max(float(found.posterior[row, found.symbols.index(one)]), 1e-12)) for row, one in pairs]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    parser.add_argument("--passages", type=int, default=24)
    parser.add_argument("--channel", default="symmetric", choices=("symmetric", "keyboard", "gaps"))
    parser.add_argument("--error", type=float, default=0.1)
    options = parser.parse_args(arguments)
    corpus, generator = load_corpus(BASE), generator_of("misread")
    ids = held_out_sequences(corpus, options.split, BASE.data.length or 64, options.passages, 0).ids.tolist()
    # Brackets and question marks have a meaning in readings.
    texts = [re.sub("[^a-z0-9 .,;:'()-]", " ", corpus.tokenizer.decode(row)) for row in ids]
    letters, words = rdlm.load("text8"), rdlm.load("words")
    given = {} if options.channel == "gaps" else {"channel": options.channel, "error": options.error}
    matrix = CHANNELS[options.channel](TEXT8_ALPHABET, options.error) if given else None
    rows: dict[str, list[tuple[list[bool], list[float]]]] = {}
    seconds: dict[str, float] = {}
    for text in texts:
        read = misread(text, options.channel, options.error, generator)
        reading = from_text(read, TEXT8_ALPHABET, matrix)
        found: dict[str, Restoration] = {}
        for name in ("text8", "text8, whole", "text8 and words", "whole and words"):
            begin = time.process_time()
            if name == "text8":
                found[name] = letters.restore(reading)
            elif name == "text8, whole":
                found[name] = letters.restore(reading, whole=True)
            else:
                found[name] = mixed_with_words(found["text8, whole" if "whole" in name else "text8"], reading, words)
            seconds[name] = seconds.get(name, 0.0) + time.process_time() - begin
        rows.setdefault("as read", []).append((_right(text, read), []))
        rows.setdefault("words", []).append((_right(text, words.restore(read, **given).text), []))
        for name, one in found.items():
            rows.setdefault(name, []).append((_right(text, one.text), bits(text, one)))
    shown = []
    for name, passages in rows.items():
        share = torch.tensor([sum(right) / len(right) for right, _ in passages])
        law = [bit for _, each in passages for bit in each]
        shown.append(
            {
                "restorer": name,
                "words right": f"{float(share.mean()):.4f}",
                "margin": f"{1.96 * float(share.std()) / len(share) ** 0.5:.4f}",
                "bits per letter": f"{sum(law) / len(law):.4f}" if law else "",
                "seconds": f"{seconds[name]:.1f}" if name in seconds else "",
            }
        )
    print(table(shown, list(shown[0])))


if __name__ == "__main__":
    main()
