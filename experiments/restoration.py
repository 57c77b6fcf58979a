"""Restoration: what a reading's posterior is worth, by kind of noise, against the alternatives that a user has.

    python -m experiments.restoration --rdlm RUN --masked RUN --autoregressive RUN --csv docs/data/restoration.csv

Several runs of a kind are seeds: the table has the mean over them. Every restorer gets the same evidence and the exact
likelihoods of the channel. Rows: bits per symbol of the truth under the marginals, symbols and words right, expected
calibration error, network calls per window, seconds per 1,000 symbols.

| restorer | marginals | calls |
|---|---|---|
| frequencies | evidence with the frequencies of symbols | 0 |
| n-gram | forward-backward with an n-gram model counted on the training data | 0 |
| rdlm | one call; or refined by passes of the sampler | 1; passes x steps |
| masked | Gibbs sampling: random positions are masked and drawn anew with the evidence; mean of their laws | 1 to 512 |
| autoregressive | beam search with the evidence; weights of the last hypotheses, smoothed by frequencies | length |
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

import rdlm
from rdlm.api.language_model import LanguageModel
from rdlm.api.restore import certain, posterior_of, refined_posterior
from rdlm.config import DataConfig, RunConfig
from rdlm.data.evidence import keyboard, symmetric
from rdlm.data.tokenizer import TEXT8_ALPHABET
from rdlm.display.text_table import table
from rdlm.evaluate.metrics import calibration
from rdlm.methods.autoregressive import Autoregressive
from rdlm.methods.mdlm import MDLM
from rdlm.model.belief import Ngram
from rdlm.model.transformer import Cache
from rdlm.storage.files import write_atomic
from rdlm.train.run import load_corpus
from rdlm.train.validation import held_out

Restorer = Callable[[Tensor], Tensor]
"""From evidence [n, length, V] to log-probabilities of every position."""

BATCH = 16
RESAMPLED = 0.15
"""Least share of positions that a call of Gibbs sampling draws anew."""
SMOOTHING = 0.05
"""Weight of the frequencies beside the hypotheses of a beam."""
NGRAMS = {"5-gram": (5, 1 << 17), "8-gram": (8, 1 << 17)}
"""Order and number of contexts."""


# -- readings ---------------------------------------------------------------------------------------------


def readings(ids: Tensor, size: int, generator: torch.Generator) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the name of a noise, its evidence [n, length, V], and the positions that count."""
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    kinds = {f"Gaussian {strength}": _gaussian(ids, size, strength, generator) for strength in (1, 2, 4)}
    for error in (0.05, 0.1, 0.2, 0.4):
        kinds[f"symmetric {error:.0%}"] = _through(ids, symmetric(TEXT8_ALPHABET, error), generator)
    kinds["keyboard 10%"] = _through(ids, keyboard(TEXT8_ALPHABET, 0.1), generator)
    erased = {share: torch.rand(ids.shape, generator=generator) < share for share in (0.15, 0.5)}
    kind = torch.randint(4, (len(ids), ids.shape[1] // 8 + 1), generator=generator)
    kind = kind.repeat_interleave(8, 1)[:, : ids.shape[1], None]  # runs of eight symbols
    some = torch.where(erased[0.5][..., None], 0.0, certain(ids, size))
    parts = (kinds["Gaussian 2"], kinds["symmetric 20%"], kinds["keyboard 10%"], some)
    for name, evidence in kinds.items():
        yield name, evidence, everywhere
    for share, gone in erased.items():
        yield f"erased {share:.0%}", torch.where(gone[..., None], 0.0, certain(ids, size)), gone
    mixed = torch.stack(parts).gather(0, kind.expand(*ids.shape, size)[None])[0]
    yield "mixed kinds", mixed, everywhere


def _gaussian(ids: Tensor, size: int, strength: float, generator: torch.Generator) -> Tensor:
    code = functional.one_hot(ids, size).float()
    return strength * code + math.sqrt(strength) * torch.randn(code.shape, generator=generator)


def _through(ids: Tensor, channel: Tensor, generator: torch.Generator) -> Tensor:
    read = torch.multinomial(channel[ids.flatten()], 1, generator=generator).view_as(ids)
    return channel.float().log().clamp_min(-1e4)[:, read].permute(1, 2, 0)


# -- restorers --------------------------------------------------------------------------------------------


def gibbs(method: MDLM, frequency: Tensor, calls: int, seed: int = 0) -> Restorer:
    """Return Gibbs sampling by a masked network: from all positions at first to a few of them in the second half.

    The law of a position is the mean of its conditional laws in the second half of the calls, or the last one before.
    """

    def run(evidence: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        token = torch.multinomial((frequency.log() + evidence).softmax(-1).flatten(0, 1), 1, generator=generator)
        token, last = token.view(evidence.shape[:2]), (frequency.log() + evidence).softmax(-1)
        total, count = torch.zeros_like(evidence), torch.zeros(*evidence.shape[:2], 1)
        for call in range(calls):
            share = max(RESAMPLED, 1 - 2 * call / calls)
            masked = torch.rand(token.shape, generator=generator) < share
            law = (method.log_probs(torch.where(masked, method.mask, token)) + evidence).softmax(-1)
            drawn = torch.multinomial(law.flatten(0, 1), 1, generator=generator).view_as(token)
            token, last = torch.where(masked, drawn, token), torch.where(masked[..., None], law, last)
            if 2 * call >= calls:
                total, count = total + masked[..., None] * law, count + masked[..., None]
        return torch.where(count > 0, total / count.clamp_min(1), last).log()

    return run


def beam_search(method: Autoregressive, frequency: Tensor, beam: int) -> Restorer:
    """Return beam search for the likeliest sequence given the evidence, and the weights of the final hypotheses."""

    def run(evidence: Tensor) -> Tensor:
        rows, length, size = evidence.shape
        cache, value = Cache(method.layers), torch.zeros(rows, 1)
        token = torch.full((rows, 1, 1), method.start_id)  # [rows, hypotheses, positions]
        for position in range(length):
            logits = method.network(token[:, :, -1].flatten()[:, None], 0.0, None, None, cache)
            law = logits.log_softmax(-1).view(rows, -1, size) + evidence[:, position, None]
            value, best = (value[..., None] + law).flatten(1).topk(min(beam, value.shape[1] * size))
            parent = best // size
            cache = cache.rows((parent + torch.arange(rows)[:, None] * token.shape[1]).flatten())
            past = token.gather(1, parent[..., None].expand(-1, -1, position + 1))
            token = torch.cat((past, (best % size)[..., None]), -1)
        weight = value.softmax(1)[..., None, None]
        found = (weight * functional.one_hot(token[..., 1:], size)).sum(1)
        smooth = (frequency.log() + evidence).softmax(-1)
        return ((1 - SMOOTHING) * found + SMOOTHING * smooth).log()

    return run


def ngram(order: int, states: int, train: Tensor) -> Restorer:
    """Return forward-backward with an n-gram model of the training data."""
    chain = Ngram(len(TEXT8_ALPHABET), order, states)
    chain.fit(lambda: train, f"restoration {len(train)}")
    return lambda evidence: (chain(evidence) + evidence).log_softmax(-1)


def of_rdlm(model: LanguageModel, passes: int, steps: int) -> Restorer:
    """Return the posterior of one network call, or refined by passes of the sampler."""
    if not passes:
        return lambda evidence: posterior_of(model.rdlm, evidence)
    generator = torch.Generator().manual_seed(0)
    return lambda evidence: refined_posterior(model.rdlm, evidence, passes, steps, "synchronous", generator).log()


def restorers(options: argparse.Namespace, train: Tensor) -> Iterator[tuple[str, int, Restorer]]:
    """Yield names, network calls and restorers; seeds share a name."""
    counts = torch.bincount(train[:256].flatten().long(), minlength=len(TEXT8_ALPHABET)) + 1.0
    frequency = counts / counts.sum()
    yield "frequencies", 0, lambda evidence: (frequency.log() + evidence).log_softmax(-1)
    for name, (order, states) in NGRAMS.items():
        yield name, 0, ngram(order, states, train)
    for folder in options.rdlm:
        model = rdlm.load(folder)
        yield "rdlm, 1 call", 1, of_rdlm(model, 0, 0)
        for passes, steps in ((1, 8), (2, 4), (8, 8)):
            yield f"rdlm, {passes} x {steps} calls", passes * steps, of_rdlm(model, passes, steps)
    for folder in options.masked:
        masked = rdlm.load(folder).method
        for calls in options.gibbs:
            yield f"masked, Gibbs, {calls} calls", calls, gibbs(masked, frequency, calls)  # type: ignore[arg-type]
    for folder in options.autoregressive:
        causal = rdlm.load(folder).method
        for beam in options.beams:
            yield f"autoregressive, beam {beam}", options.length, beam_search(causal, frequency, beam)  # type: ignore[arg-type]


# -- measures ---------------------------------------------------------------------------------------------


def measures(law: Tensor, ids: Tensor, counted: Tensor) -> dict[str, float]:
    """Return bits per symbol, shares of symbols and words right, and expected calibration error."""
    best = law.argmax(-1)
    right = best == ids
    bits = -law.gather(-1, ids[..., None])[..., 0][counted].mean() / math.log(2)
    return {
        "bits": float(bits),
        "symbols": float(right[counted].float().mean()),
        "words": words_right(ids, right, counted),
        "calibration": calibration(law[counted].exp(), ids[counted]).error,
    }


def words_right(ids: Tensor, right: Tensor, counted: Tensor) -> float:
    """Return the share of whole words of the truth, each with a position that counts, that are right."""
    good = total = 0
    for row, ok, count in zip(ids.tolist(), right.tolist(), counted.tolist(), strict=True):
        begin = None
        for at, symbol in enumerate(row):
            if symbol == 0:  # the blank
                if begin is not None and at > begin and any(count[begin:at]):
                    total, good = total + 1, good + all(ok[begin:at])
                begin = at + 1
    return good / max(total, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in ("--rdlm", "--masked", "--autoregressive"):
        parser.add_argument(kind, nargs="*", default=[], metavar="RUN")
    parser.add_argument("--corpus", default="text8", choices=("text8", "sotu"))
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--gibbs", type=int, nargs="*", default=[1, 8, 64, 512])
    parser.add_argument("--beams", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--noise", nargs="*", default=[], help="names begin so; default: all")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(arguments)
    text8 = load_corpus(RunConfig(data=DataConfig("text8", length=options.length, protocol="text8-74m")))
    sotu = RunConfig(data=DataConfig("sotu", length=options.length))
    corpus = text8 if options.corpus == "text8" else load_corpus(sotu)
    ids = held_out(corpus, options.length, options.sequences, 1).ids
    rows = measured(options, ids, torch.from_numpy(text8.train[: len(text8.train) // 4096 * 4096].reshape(-1, 4096)))
    print(table(rows, list(rows[0])))
    if options.csv:
        lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
        write_atomic(options.csv, "\n".join(lines) + "\n")


@torch.no_grad()
def measured(options: argparse.Namespace, ids: Tensor, train: Tensor) -> list[dict[str, object]]:
    """Return the rows of the table: the mean over the seeds of a restorer."""
    kinds = [
        kind
        for kind in readings(ids, len(TEXT8_ALPHABET), torch.Generator().manual_seed(0))
        if not options.noise or kind[0].startswith(tuple(options.noise))
    ]
    found: dict[tuple[str, str, int], list[dict[str, float]]] = defaultdict(list)
    for name, calls, restorer in restorers(options, train):
        for noise, evidence, counted in kinds:
            begin = time.perf_counter()
            law = torch.cat([restorer(part) for part in evidence.split(BATCH)])
            seconds = 1000 * (time.perf_counter() - begin) / ids.numel()
            found[noise, name, calls].append({**measures(law, ids, counted), "seconds": seconds})
            print(
                noise,
                "|",
                name,
                "|",
                {key: round(value, 4) for key, value in found[noise, name, calls][-1].items()},
                flush=True,
            )
    return [
        {"noise": noise, "restorer": name, "calls": calls, "seeds": len(seeds)}
        | {key: f"{sum(one[key] for one in seeds) / len(seeds):.4g}" for key in seeds[0]}
        for (noise, name, calls), seeds in sorted(found.items(), key=lambda item: item[0][0])
    ]


if __name__ == "__main__":
    main()
