"""Error rates estimated by `--error auto` in texts of 2,000 characters, against the true shares.

    python -m experiments.error_rates text8 --csv docs/data/error-intervals.csv
    python -m experiments.error_rates text8 --corpus demo --texts 4 --csv FILE    # rows are added

Texts are consecutive sequences of the test split. Columns: the rate of the channel, the share of characters that it
changed, the estimate, its 95% interval, and its seconds of processor time.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import rdlm
from experiments.restoration import Row, rows_of, text8_config, write_rows
from experiments.trial import commit
from rdlm.api.language_model import LanguageModel
from rdlm.api.restore import CHANNELS, read_text_through
from rdlm.config import DataConfig, RunConfig
from rdlm.data.tokenizer import TEXT8_ALPHABET
from rdlm.display.text_table import table
from rdlm.evaluate.evaluate import held_out_sequences
from rdlm.train.run import load_corpus

RATES = (0.02, 0.05, 0.1, 0.2, 0.4)
KEYS = ("corpus", "channel", "rate", "text")


def texts_of(corpus: str, count: int, length: int) -> list[str]:
    """Return texts of the test split."""
    config = text8_config(length) if corpus == "text8" else RunConfig(data=DataConfig(corpus, length=length))
    ids = held_out_sequences(load_corpus(config), "test", length, count, 1).ids
    return ["".join(TEXT8_ALPHABET[index] for index in row) for row in ids.tolist()]


def estimated(model: LanguageModel, text: str, channel: str, rate: float, seed: int) -> Row:
    """Return the estimate for a text that is read through a channel."""
    generator = torch.Generator().manual_seed(seed)
    law = CHANNELS[channel](TEXT8_ALPHABET, rate)[[TEXT8_ALPHABET.index(char) for char in text]]
    read = "".join(TEXT8_ALPHABET[int(index)] for index in torch.multinomial(law, 1, generator=generator))
    share = sum(new != old for new, old in zip(read, text, strict=True)) / len(text)
    begin = time.process_time()
    _, found = read_text_through(model, read, channel, "auto", literal=True)
    assert found is not None
    low, high = found.interval or (math.nan, math.nan)
    ends = {"low": f"{low:.5f}", "high": f"{high:.5f}"}
    return {
        "share": f"{share:.4f}",
        "found": f"{found.value:.5f}",
        **ends,
        "seconds": f"{time.process_time() - begin:.1f}",
    }


def summary(rows: list[Row]) -> list[dict[str, object]]:
    """Return, for every corpus, channel and rate, the errors of the estimates in percent of the share."""
    found = []
    for kind in dict.fromkeys(tuple(row[name] for name in KEYS[:3]) for row in rows):
        own = [row for row in rows if tuple(row[name] for name in KEYS[:3]) == kind]
        off = [100 * (float(row["found"]) / float(row["share"]) - 1) for row in own]
        within = sum(abs(value) <= 10 for value in off)
        inside = sum(float(row["low"]) <= float(row["share"]) <= float(row["high"]) for row in own)
        mean = f"{sum(off) / len(off):+.1f}"
        worst = f"{max(off, key=abs):+.1f}"
        about = dict(zip(KEYS, kind, strict=False))
        counts = {"texts": len(off), "within_10%": within, "in_interval": inside}
        found.append({**about, **counts, "mean_%": mean, "worst_%": worst})
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--corpus", default="text8", choices=("text8", "demo"))
    parser.add_argument("--texts", type=int, default=10)
    parser.add_argument("--length", type=int, default=2000)
    parser.add_argument("--rates", type=float, nargs="*", default=list(RATES))
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(arguments)
    model, rows = rdlm.load(options.model), rows_of(options.csv)
    there = {tuple(row[name] for name in KEYS) for row in rows}
    for number, text in enumerate(texts_of(options.corpus, options.texts, options.length)):
        for rate in options.rates:
            for channel in CHANNELS:
                key = dict(zip(KEYS, (options.corpus, channel, f"{rate:g}", str(number)), strict=True))
                if tuple(key.values()) in there:
                    continue
                row = estimated(model, text, channel, rate, number)
                rows.append({**key, **row, "model": model.name, "commit": commit()})
                print(" | ".join(rows[-1].values()), flush=True)
                if options.csv:
                    write_rows(options.csv, rows)
    shown = summary(rows)
    print(table(shown, list(shown[0])))


if __name__ == "__main__":
    main()
