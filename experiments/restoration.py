"""Restoration by one network call: bits per symbol of the truth and symbols right, by kind and amount of noise.

    python -m experiments.restoration RUN --sequences 64

Rows: Gaussian evidence of a strength at every position, symbols replaced at random, erased symbols (of which only the
erased ones count). Beside the model: its chain alone, if it has one, and the evidence with the frequencies of symbols.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

import rdlm
from rdlm.api.restore import certain, posterior_of
from rdlm.data.evidence import symmetric
from rdlm.display.text_table import table
from rdlm.methods.rdlm import Rdlm
from rdlm.model.belief import BeliefNetwork
from rdlm.train.run import load_corpus
from rdlm.train.validation import held_out

BATCH = 16


def readings(ids: Tensor, size: int, generator: torch.Generator) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the name of a noise, its evidence [n, length, V], and the positions that count."""
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    for strength in (1, 2, 4):
        code = functional.one_hot(ids, size).float()
        noise = torch.randn(code.shape, generator=generator)
        yield f"Gaussian {strength}", strength * code + math.sqrt(strength) * noise, everywhere
    for error in (0.05, 0.1, 0.2, 0.4):
        channel = symmetric(" " * size, error).float()
        read = torch.multinomial(channel[ids.flatten()], 1, generator=generator).view_as(ids)
        yield f"symmetric {error:.0%}", channel.log()[:, read].permute(1, 2, 0), everywhere
    for share in (0.15, 0.5):
        erased = torch.rand(ids.shape, generator=generator) < share
        yield f"erased {share:.0%}", torch.where(erased[..., None], 0.0, certain(ids, size)), erased


def posteriors(method: Rdlm, frequency: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return functions from evidence to log-probabilities, by name."""
    found: dict[str, Callable[[Tensor], Tensor]] = {
        "model": lambda evidence: posterior_of(method, evidence),
        "frequencies": lambda evidence: (frequency.log() + evidence).log_softmax(-1),
    }
    network = method.network
    if isinstance(network, BeliefNetwork):
        found["chain"] = lambda evidence: (network.belief(evidence) + evidence).log_softmax(-1)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--sequences", type=int, default=64)
    options = parser.parse_args(arguments)
    model = rdlm.load(options.run)
    corpus, size = load_corpus(model.config), model.tokenizer.size
    ids = held_out(corpus, model.length, options.sequences, 1).ids
    counts = torch.bincount(torch.from_numpy(corpus.train[:1_000_000].reshape(-1).astype("int64")), minlength=size)
    rows = []
    for name, evidence, counted in readings(ids, size, torch.Generator().manual_seed(0)):
        row: dict[str, object] = {"noise": name}
        for who, posterior in posteriors(model.rdlm, (counts + 1) / (counts + 1).sum()).items():
            with torch.no_grad():
                law = torch.cat([posterior(part) for part in evidence.split(BATCH)])
            bits = -law.gather(-1, ids[..., None])[..., 0][counted].mean() / math.log(2)
            row |= {f"{who}, bits": round(float(bits), 3)}
            row |= {f"{who}, right": f"{float((law.argmax(-1) == ids)[counted].float().mean()):.1%}"}
        rows.append(row)
    print(table(rows, list(rows[0])))


if __name__ == "__main__":
    main()
