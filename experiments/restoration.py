"""Restoration: quality of the posterior of a reading by kind of noise, compared with alternative methods.

    python -m experiments.restoration --rdlm RUN... --masked RUN... --autoregressive RUN... --csv FILE
    python -m experiments.restoration --corpus demo --rdlm RUN... --csv FILE   # rows are added
    python -m experiments.restoration --table --csv FILE                       # means over seeds
    python -m experiments.restoration --rdlm text8 --length 128 --sequences 160 --reliability FILE   # bins of certainty

Several runs of a kind are seeds. Every restorer gets the same evidence, the exact likelihoods of the channel, for
sequences of the test split. A row that the file has is not measured again, so an interrupted table continues. Columns:
bits per symbol of the truth under the marginals, symbols and words right, expected calibration error and that of a
calibrated restorer with as many positions, network calls per window, seconds of processor time per 1,000 symbols.

| restorer | marginals | calls |
|---|---|---|
| frequencies | evidence with the frequencies of symbols | 0 |
| n-gram | forward-backward with an n-gram model counted on the training data | 0 |
| layer alone | the same with the chain below the networks of the runs | 0 |
| rdlm | one call; or, with --passes, refined by a pass of the sampler | 1; passes x steps |
| rdlm, whole | those of one call; symbols and words of the likeliest whole text that is found | 8 |
| masked | Gibbs sampling: random positions are masked and drawn anew with the evidence; mean of their laws | 1 to 512 |
| autoregressive | beam search with the evidence; weights of the last hypotheses, smoothed by frequencies | length |

An inference layer below a masked network reads the evidence of masked positions. The share of positions that Gibbs
sampling draws anew, the share of its calls that are burn-in, and the weight of the frequencies beside a beam are chosen
for every corpus and noise, by bits on validation sequences with the first seed.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import rdlm
from experiments.calibration import calibration
from rdlm.api.decoding import WHOLE_CALLS, certain, likeliest_given, posterior_of, refined_posterior
from rdlm.api.language_model import LanguageModel
from rdlm.config import DataConfig, RunConfig
from rdlm.data.channels import keyboard, symmetric
from rdlm.data.tokenizer import TEXT8_ALPHABET
from rdlm.display.text_table import table
from rdlm.evaluate.evaluate import held_out_sequences
from rdlm.methods.autoregressive import Autoregressive
from rdlm.methods.mdlm import MDLM
from rdlm.model.belief import Belief, BeliefNetwork, Ngram
from rdlm.model.transformer import Cache
from rdlm.storage.files import write_atomic
from rdlm.train.run import load_corpus

Marginals = Callable[[Tensor], Tensor]
"""From evidence [n, length, V] to log-probabilities of every position."""
Row = dict[str, str]
Parameters = tuple[float, ...]
"""The parameters of a restorer."""

BATCH = 16
SHARES = tuple((share, burn) for share in (0.05, 0.2, 0.6) for burn in (0.25, 0.5))
"""Least shares of positions that a call of Gibbs sampling draws anew, and shares of its calls that are burn-in."""
TUNING_CALLS = 32
"""Calls of Gibbs sampling in that choice, at most."""
WEIGHTS = ((0.01,), (0.05,), (0.2,), (0.5,), (0.8,), (0.95,))
"""Weights of the frequencies beside the hypotheses of a beam."""
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


class Restorer(NamedTuple):
    """A way to the marginals, and to the most likely symbols where these are not those of the marginals."""

    name: str
    calls: int
    marginals: Marginals
    choice: Marginals | None = None
    """From evidence to symbols [n, length]."""
    choices: tuple[Parameters, ...] = ()
    """Parameters of which one choice is made on validation sequences."""
    tuning: Callable[..., Marginals] | None = None
    """The marginals by these parameters, as they are compared."""
    tuned: Callable[..., Marginals] | None = None
    """The marginals by these parameters, as they are measured."""
    seed: int = 0


def masked_law(method: MDLM, token: Tensor, masked: Tensor, evidence: Tensor) -> Tensor:
    """Return `p(symbol | other symbols, evidence)` of masked positions; a layer reads the evidence of all of them."""
    ids, network = torch.where(masked, method.mask, token), method.network
    if not isinstance(network, BeliefNetwork):
        return (method.log_probs(ids) + evidence).softmax(-1)
    context = network.belief(torch.where(masked[..., None], evidence, certain(token, evidence.shape[-1])))
    outputs = network.network(ids, torch.zeros(len(ids)), None)
    return (network.combined(outputs, context)[0] + evidence).softmax(-1)


def gibbs(method: MDLM, frequency: Tensor, calls: int, least: float, burn: float = 0.5) -> Marginals:
    """Return Gibbs sampling by a masked network: from all positions at first to a few of them after the burn-in.

    The law of a position is the mean of its conditional laws after the burn-in, or the last one before.
    """

    def run(evidence: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        last = (frequency.log() + evidence).softmax(-1)
        token = torch.multinomial(last.flatten(0, 1), 1, generator=generator).view(evidence.shape[:2])
        total, count = torch.zeros_like(evidence), torch.zeros(*evidence.shape[:2], 1)
        for call in range(calls):
            masked = torch.rand(token.shape, generator=generator) < max(least, 1 - call / (burn * calls))
            law = masked_law(method, token, masked, evidence)
            drawn = torch.multinomial(law.flatten(0, 1), 1, generator=generator).view_as(token)
            token, last = torch.where(masked, drawn, token), torch.where(masked[..., None], law, last)
            if call >= burn * calls:
                total, count = total + masked[..., None] * law, count + masked[..., None]
        return torch.where(count > 0, total / count.clamp_min(1), last).log()

    return run


def beam_search(method: Autoregressive, frequency: Tensor, beam: int, smoothing: float) -> Marginals:
    """Return beam search for the likeliest sequence given the evidence, and the weights of the final hypotheses."""

    def run(evidence: Tensor) -> Tensor:
        rows, length, size = evidence.shape
        cache, value = Cache(method.layers), torch.zeros(rows, 1)
        token = torch.full((rows, 1, 1), method.mask)  # [rows, hypotheses, positions]
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
        return ((1 - smoothing) * found + smoothing * smooth).log()

    return run


def ngram(order: int, states: int, train: Tensor) -> Ngram:
    """Return an n-gram model of the training data."""
    chain = Ngram(len(TEXT8_ALPHABET), order, states)
    chain.fit(lambda: train, f"restoration {len(train)}")
    return chain


def posterior_under(chain: Belief) -> Marginals:
    """Return forward-backward with a chain."""
    return lambda evidence: (chain(evidence) + evidence).log_softmax(-1)


def restorers(options: argparse.Namespace, train: Tensor) -> Iterator[Restorer]:
    """Yield the restorers; seeds share a name."""
    counts = torch.bincount(train[:256].flatten().long(), minlength=len(TEXT8_ALPHABET)) + 1.0
    frequency = counts / counts.sum()
    yield Restorer("frequencies", 0, lambda evidence: (frequency.log() + evidence).log_softmax(-1))
    chains = {name: ngram(order, states, train) for name, (order, states) in NGRAMS.items()}
    for name, chain in chains.items():
        yield Restorer(name, 0, posterior_under(chain))
    for folder in options.rdlm:
        yield from of_rdlm(with_layer(rdlm.load(folder), chains.get(options.layer)), options.passes)
    for folder in options.masked:
        yield from of_masked(with_layer(rdlm.load(folder), chains.get(options.layer)), frequency, options.gibbs)
    for folder in options.autoregressive:
        yield from of_autoregressive(rdlm.load(folder), frequency, options.beams, options.length)


def with_layer(model: LanguageModel, chain: Ngram | None) -> LanguageModel:
    """Return a model with another chain below its network, if one is given; it is not trained for it."""
    network = model.method.network
    if chain is not None and isinstance(network, BeliefNetwork):
        network.belief = chain
    return model


def layer_of(model: LanguageModel) -> str:
    """Return the name of the layer below a network, after a comma; nothing without one."""
    network = model.method.network
    layer = network.belief if isinstance(network, BeliefNetwork) else None
    return f", {layer.order}-gram of {layer.states:,}" if isinstance(layer, Ngram) else ""


def of_rdlm(model: LanguageModel, passes: bool) -> Iterator[Restorer]:
    """Yield the restorers of an RDLM, with passes if requested, and its inference layer alone, which has no seed."""
    seed, method, about = model.config.training.seed, model.rdlm, layer_of(model)
    posterior: Marginals = partial(posterior_of, method)
    if isinstance(method.network, BeliefNetwork):
        yield Restorer(f"layer alone{about}", 0, posterior_under(method.network.belief))
    yield Restorer(f"rdlm{about}", 1, posterior, seed=seed)
    yield Restorer(f"rdlm{about}, whole", WHOLE_CALLS, posterior, partial(likeliest_given, method), seed=seed)
    if not passes:
        return

    def refined(evidence: Tensor) -> Tensor:
        return refined_posterior(method, evidence, 1, 8, "synchronous", torch.Generator().manual_seed(0)).log()

    yield Restorer(f"rdlm{about}, 1 pass of 8 calls", 8, refined, seed=seed)


def of_masked(model: LanguageModel, frequency: Tensor, numbers: Sequence[int]) -> Iterator[Restorer]:
    """Yield Gibbs sampling by a masked network."""
    method, about = model.method, layer_of(model)
    assert isinstance(method, MDLM)
    for calls in numbers:
        by_share = partial(gibbs, method, frequency, calls)
        tuning = partial(gibbs, method, frequency, min(calls, TUNING_CALLS))
        choices = SHARES if calls > 2 else SHARES[-1:]  # the first call draws all positions
        seed = model.config.training.seed
        yield Restorer(f"masked{about}, Gibbs", calls, by_share(*SHARES[0]), None, choices, tuning, by_share, seed)


def of_autoregressive(model: LanguageModel, frequency: Tensor, beams: Sequence[int], length: int) -> Iterator[Restorer]:
    """Yield beam search by an autoregressive network."""
    method, about = model.method, layer_of(model)
    assert isinstance(method, Autoregressive)
    for beam in beams:
        by_weight, seed = partial(beam_search, method, frequency, beam), model.config.training.seed
        tuning = partial(beam_search, method, frequency, min(beam, 8))
        name = f"autoregressive{about}, beam {beam}"
        yield Restorer(name, length, by_weight(*WEIGHTS[0]), None, WEIGHTS, tuning, by_weight, seed)


# -- measures ---------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """A noise and its evidence for sequences, with the truth and the positions that count."""

    noise: str
    ids: Tensor
    evidence: Tensor
    counted: Tensor


def bits_of(law: Tensor, reading: Reading) -> float:
    """Return the bits per symbol of the truth."""
    found = law.gather(-1, reading.ids[..., None])[..., 0][reading.counted]
    return float(-found.mean() / math.log(2))


def measures(law: Tensor, best: Tensor, reading: Reading) -> dict[str, float]:
    """Return bits per symbol, shares of symbols and words right, and the calibration of the marginals."""
    right, counted = best == reading.ids, reading.counted
    calibrated = calibration(law[counted].exp(), reading.ids[counted])
    return {
        "bits": bits_of(law, reading),
        "symbols": float(right[counted].float().mean()),
        "words": words_right(reading.ids, right, counted),
        "calibration": calibrated.error,
        "calibration_floor": calibrated.floor,
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


def run(function: Marginals, evidence: Tensor) -> Tensor:
    """Return what a function gives for evidence, some sequences at a time."""
    return torch.cat([function(part) for part in evidence.split(BATCH)])


def chosen(restorer: Restorer, validation: Reading) -> Parameters:
    """Return the restorer's parameters with the fewest bits on validation sequences; nothing if it has none."""
    if restorer.tuning is None or len(restorer.choices) < 2:
        return restorer.choices[0] if restorer.choices else ()
    found = {one: bits_of(run(restorer.tuning(*one), validation.evidence), validation) for one in restorer.choices}
    return min(found, key=lambda one: found[one])


def measure(restorer: Restorer, reading: Reading, validation: Reading, parameters: Parameters | None = None) -> Row:
    """Return the measures of a restorer for one noise, with given parameters or those chosen on validation
    sequences."""
    parameters = chosen(restorer, validation) if parameters is None else parameters
    marginals = restorer.tuned(*parameters) if parameters and restorer.tuned is not None else restorer.marginals
    begin = time.process_time()
    law = run(marginals, reading.evidence)
    best = law.argmax(-1)
    if restorer.choice is not None:
        begin, best = time.process_time(), run(restorer.choice, reading.evidence)
    seconds = 1000 * (time.process_time() - begin) / reading.ids.numel()
    found = {name: f"{value:.4g}" for name, value in measures(law, best, reading).items()}
    text = " ".join(f"{one:g}" for one in parameters)
    return {**found, "seconds": f"{seconds:.4g}", "parameters": text, "positions": str(reading.ids.numel())}


# -- tables -----------------------------------------------------------------------------------------------

KEYS = ("corpus", "noise", "restorer", "calls", "seed")
MEANS = ("bits", "symbols", "words", "calibration", "calibration_floor", "seconds")
STDERRS = ("bits", "symbols")
"""Means with a standard error over seeds."""


def rows_of(path: Path | None) -> list[Row]:
    """Return the rows that a file has."""
    if path is None or not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write a table."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, file.getvalue())


def chosen_before(rows: list[Row], row: Row) -> Parameters | None:
    """Return the parameters that another seed has for the same corpus, noise, restorer and calls."""
    kind = [row[name] for name in KEYS[:-1]]
    same = (other["parameters"] for other in rows if [other[name] for name in KEYS[:-1]] == kind)
    return next((tuple(map(float, found.split())) for found in same), None)


def means(rows: list[Row]) -> list[dict[str, object]]:
    """Return the mean over seeds of every corpus, noise, restorer and number of calls, and its standard error."""
    keys, found = KEYS[:-1], []
    for key, group in groupby(
        sorted(rows, key=lambda row: [row[name] for name in keys]), lambda row: [row[name] for name in keys]
    ):
        seeds = list(group)
        mean: dict[str, object] = {}
        for name in MEANS:
            values = [float(row[name]) for row in seeds]
            mean[name] = f"{statistics.fmean(values):.4g}"
            if name in STDERRS:
                error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
                mean[f"{name} s.e."] = f"{error:.2g}"
        found.append({**dict(zip(keys, key, strict=True)), "seeds": len(seeds), **mean})
    return found


def commit() -> str:
    """Return the commit of the working directory; nothing where there is none."""
    command = ("git", "rev-parse", "--short", "HEAD")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def evidence_of(options: argparse.Namespace, split: str, count: int) -> dict[str, Reading]:
    """Return the readings of sequences of a split of the corpus, by noise."""
    speeches = RunConfig(data=DataConfig("demo", length=options.length))
    corpus = load_corpus(speeches if options.corpus == "demo" else text8_config(options.length))
    ids = held_out_sequences(corpus, split, options.length, count, 1).ids  # type: ignore[arg-type]
    kinds = readings(ids, len(TEXT8_ALPHABET), torch.Generator().manual_seed(0))
    wanted = tuple(options.noise)
    return {name: Reading(name, ids, *rest) for name, *rest in kinds if not wanted or name.startswith(wanted)}


def text8_config(length: int) -> RunConfig:
    """Return the configuration of the text on which networks and n-gram models are trained."""
    return RunConfig(data=DataConfig("text8", length=length, protocol="text8-74m"))


@torch.no_grad()
def measured(options: argparse.Namespace, rows: list[Row]) -> list[Row]:
    """Return the rows with those that were missing; each is written as soon as it is measured."""
    text = load_corpus(text8_config(options.length)).train
    train = torch.from_numpy(text[: len(text) // 4096 * 4096].reshape(-1, 4096).copy())
    test = evidence_of(options, "test", options.sequences)
    validation = evidence_of(options, "validation", options.validation)
    there = {tuple(row[name] for name in KEYS) for row in rows}
    for restorer in restorers(options, train):
        for noise, reading in test.items():
            key = (options.corpus, noise, restorer.name, str(restorer.calls), str(restorer.seed))
            if key in there or not any(re.match(one, restorer.name) for one in options.only):
                continue
            row = dict(zip(KEYS, key, strict=True))
            row |= measure(restorer, reading, validation[noise], chosen_before(rows, row))
            rows.append(row | {"commit": options.commit})
            there.add(key)
            print(" | ".join(row.values()), flush=True)
            if options.csv:
                write_rows(options.csv, rows)
    return rows


@torch.no_grad()
def reliability(options: argparse.Namespace) -> list[Row]:
    """Return how often the symbols of each certainty are right, in one call of the first RDLM, for every noise."""
    method, rows = rdlm.load(options.rdlm[0]).rdlm, []
    for noise, reading in evidence_of(options, "test", options.sequences).items():
        law = run(partial(posterior_of, method), reading.evidence)[reading.counted].exp()
        found = calibration(law, reading.ids[reading.counted])
        about = {"noise": noise, "error": f"{found.error:.4f}", "floor": f"{found.floor:.4f}", "commit": options.commit}
        for bin in zip(found.certainty, found.right, found.count, strict=True):
            rows.append(about | dict(zip(("certainty", "right", "count"), (f"{one:.6g}" for one in bin), strict=True)))
        print(" | ".join(about.values()), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in ("--rdlm", "--masked", "--autoregressive"):
        parser.add_argument(kind, nargs="*", default=[], metavar="RUN")
    parser.add_argument("--corpus", default="text8", choices=("text8", "demo"), help="demo: speeches")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--sequences", type=int, default=64, help="of the test split")
    parser.add_argument("--validation", type=int, default=8, help="sequences on which parameters are chosen")
    parser.add_argument("--gibbs", type=int, nargs="*", default=[1, 8, 64, 512])
    parser.add_argument("--beams", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--layer", choices=sorted(NGRAMS), help="put this n-gram model below rdlm and masked networks")
    parser.add_argument("--passes", action="store_true", help="also refine by a pass of the sampler")
    parser.add_argument("--noise", nargs="*", default=[], help="names begin so; default: all")
    parser.add_argument("--only", nargs="*", default=[""], help="names of restorers begin so (regex); default: all")
    parser.add_argument("--csv", type=Path, help="table to which rows are added")
    parser.add_argument("--commit", default=commit(), help="stored with every row; default: that of the directory")
    parser.add_argument("--table", action="store_true", help="print the means over seeds only")
    parser.add_argument(
        "--reliability", type=Path, help="table of the certainty of the first RDLM, in place of the rest"
    )
    options = parser.parse_args(arguments)
    if options.reliability:
        return write_rows(options.reliability, reliability(options))
    rows = rows_of(options.csv)
    rows = rows if options.table else measured(options, rows)
    shown = means(rows)
    print(table(shown, list(shown[0]) if shown else []))


if __name__ == "__main__":
    main()
