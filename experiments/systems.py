"""All methods under the same conditions: bounds at two numbers of calls, samples at matched entropy, cost.

    python -m experiments.systems text8 --steps 200 --csv docs/data/systems-text8.csv

All methods have one network, corpus, batch, number of steps and three seeds, and train in turn; the learning rate of
each is the best of short trials, extended to smaller ones until it lies inside of those tried (`rdlm compare`), or the
middle one if the differences are not significant. Every method is measured in each of its orders. An interrupted table
continues with the runs and rows that are missing.

| column | meaning |
|---|---|
| kind | kind of the method's likelihood: exact, bound or estimate (`rdlm methods`) |
| calls | evaluations of the network in a sample; `bits` is the likelihood of this sampler, per token |
| best | whether the order is the method's best one with these calls; samples are drawn in it |
| stderr | standard error over sequences and noise; the sequences are the same for all rows of a kind |
| perplexity, entropy | of samples of the first seed under the scorer, and nats per token within a sample |
| matched | perplexity at the entropy of data, interpolated between temperatures; empty if none comes near it |
| cost | processor time of a training step, relative to autoregression or, without it, to the first method |

Temperatures divide the network's logits, for all methods; evidence that a method adds to them is not divided. The
scorer is autoregressive, of another seed and more steps, and with an n-gram chain where the bench has one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import torch
from jaxtyping import Int
from torch import Tensor, nn

from experiments.row_cache import Row, RowCache
from experiments.trial import commit, write_csv
from rdlm.api import language_model
from rdlm.config import MethodName, NetworkConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batch
from rdlm.display.text_table import table
from rdlm.evaluate.compare import REFERENCE, Comparison, OpenRun, Session, trained_runs
from rdlm.evaluate.evaluate import OrderedMethod, orders_of
from rdlm.evaluate.metrics import sample_entropy
from rdlm.likelihood.estimate import student
from rdlm.methods import METHODS, build
from rdlm.methods.autoregressive import Autoregressive
from rdlm.methods.bound import repeated_bound
from rdlm.methods.gaussian_codes import GaussianCodes
from rdlm.presets import NO_BLOCKS, preset
from rdlm.random import generator_of
from rdlm.train.fit import best_lr
from rdlm.train.interruption import Interruption
from rdlm.train.loop import accumulate, train, update
from rdlm.train.parallel import team
from rdlm.train.run import held_out, load_corpus, unit_of

CALLS = (8, 64)
MANY = 1000
"""More calls, for Gaussian noise on vectors: its papers have 1,000 to 2,000 steps, and few steps cost it most."""

TEMPERATURES = (0.7, 1.0, 1.4)
ROUNDS = 5
"""Turns in which the cost of a step is measured, a step each after one of warm-up."""

NOISE = 0.02
"""Bits by which a learning rate has to be better than the middle one: short trials do not resolve less."""

LONGEST = 10_000
"""Steps in the configuration of every run: without a decay they change nothing, and a table can be continued."""

SHORT: dict[str, Any] = {"warmup": 5, "decay": "constant", "ema": 0.98, "save_every": 100, "optimizer": "muon"}
"""For a few hundred steps: a short warm-up, a fast weight average and no decay, so that a run can be continued."""

HALF: dict[str, Any] = {"precision": "bfloat16"}
"""Half of the time of a step where the processor has bfloat16; losses of nine methods agree to three digits."""


@dataclass(frozen=True)
class Bench(Comparison):
    """A comparison on one corpus, and the settings of what is measured."""

    lrs: tuple[float, ...] = (3e-3, 9e-3, 2.7e-2)
    seeds: int = 3
    nfe: int = CALLS[-1]
    sequences: int = 32
    """Validation sequences of a trial of a learning rate; `nfe` are its calls."""
    repeats: int = 16
    """Largest number of estimates of each sequence: single random steps vary much."""
    causal: NetworkConfig | None = None
    """The network of autoregression where the common one cannot be causal."""
    measured: int = 64
    """Validation sequences of a bound."""
    estimated: int = 8
    """Validation sequences of an estimate that takes the divergence along whole paths."""
    sampled: int = 1
    """Seeds whose runs draw samples."""
    scorer_steps: int = 300
    scorer_network: NetworkConfig | None = None

    def configuration(self, method: MethodName, steps: int, index: int = 0) -> RunConfig:
        """Return the configuration of the run of one method with one of the seeds."""
        config = super().configuration(method, LONGEST, index)
        other = method == REFERENCE and self.causal is not None
        return replace(config, model=self.causal) if other and self.causal else config

    def chosen_lr(self, bounds: Mapping[float, float]) -> float:
        """Return the middle one of the given rates, unless the best one is better by more than the noise of a trial.

        Not a rate above the given ones, although it was tried: what is best in a short trial may diverge later.
        """
        middle, best = self.lrs[len(self.lrs) // 2], best_lr({lr: bounds[lr] for lr in bounds if lr <= max(self.lrs)})
        return best if bounds[middle] - bounds[best] > NOISE else middle

    @property
    def scorer(self) -> RunConfig:
        """The configuration of the scorer."""
        config = self.configuration(REFERENCE, self.scorer_steps)
        training = replace(config.training, seed=1000, steps=self.scorer_steps)
        return replace(config, model=self.scorer_network or config.model, training=training)


def text8() -> Bench:
    """Return the bench of text8-74m: budget S of the results, 1.07M parameters, 64 characters."""
    config = preset("text8-small")
    network = replace(TransformerConfig(width=128, layers=5, heads=4), time_scale=10.0)
    config = replace(
        config,
        data=replace(config.data, length=64),
        model=network,
        objective=NO_BLOCKS,
        d3pm=replace(config.d3pm, matrix="absorbing"),  # uniform transitions are those of multinomial
        training=replace(config.training, batch=16, **SHORT, **HALF),
    )
    return Bench(
        config,
        get_args(MethodName),
        lrs=(1e-3, 3e-3, 9e-3),
        trial=100,
        samples=8,
        scorer_network=replace(network, width=32, layers=1, belief="ngram"),
        scorer_steps=30,
    )


def digits() -> Bench:
    """Return the bench of 8x8 digits: systems for ordered levels, 0.4M parameters."""
    config = preset("digits")
    config = replace(
        config,
        model=TransformerConfig(width=96, layers=3, heads=4, places=64),
        d3pm=replace(config.d3pm, matrix="gauss", head="logistic"),
        tau_ldr=replace(config.tau_ldr, rates="gauss"),
        training=replace(config.training, batch=16, **SHORT, **HALF),
    )
    methods: tuple[MethodName, ...] = ("rdlm", "mdlm", "autoregressive", "d3pm", "tau_ldr", "bit_diffusion")
    return Bench(config, methods, lrs=(1e-3, 3e-3, 9e-3), trial=100, samples=32, measured=180)


def dna() -> Bench:
    """Return the bench of promoters of chromosome 22: 0.2M parameters of convolutions over 1,024 bases."""
    config = preset("promoter-chr22")
    network = replace(config.model, width=64)
    config = replace(config, model=network, training=replace(config.training, batch=4, **SHORT))
    methods: tuple[MethodName, ...] = ("rdlm", "mdlm", "autoregressive", "d3pm", "bit_diffusion")
    flows: tuple[MethodName, ...] = ("fisher_flow", "dirichlet_flow", "ddsm")
    causal = TransformerConfig(width=72, layers=4, heads=4)
    chain = replace(causal, width=16, layers=1, heads=2, belief="ngram")
    few: dict[str, Any] = {
        "trial": 40,
        "sequences": 8,
        "nfe": 32,
        "samples": 2,
        "measured": 48,
        "estimated": 2,
        "repeats": 8,
    }
    return Bench(config, (*methods, *flows), causal=causal, scorer_network=chain, scorer_steps=30, **few)


BENCHES = {"text8": text8, "digits": digits, "dna": dna}


# -- bounds ----------------------------------------------------------------------------------------------------------


def kind_of(name: MethodName) -> str:
    """Return what the number of a method is."""
    card: Any = getattr(METHODS[name], "card", None)
    return str(card.number)


def bound_rows(bench: Bench, compared: OpenRun, rows: RowCache, where: Row) -> Iterator[Row]:
    """Yield the number of a trained run with each number of calls in each order."""
    run, kind = compared.run, kind_of(compared.name)
    paths = kind == "estimate" and run.method.bound_estimator == "path"
    count = bench.estimated if paths else bench.measured
    batch = held_out(run.corpus, bench.config.data.length, count, bench.config.training.seed)
    for calls in (*CALLS, MANY) if isinstance(run.method, GaussianCodes) else CALLS:
        for ordered in orders_of(run.method, calls, run.length):
            about = {**where, "order": ordered.order, "kind": kind, "asked": calls, "calls": ordered.nfe}
            work = partial(bound_row, bench, compared, ordered, batch)
            row = {**about, **rows((about, count, bench.repeats), work)}
            print({key: row[key] for key in ("method", "order", "seed", "calls", "bits")}, flush=True)
            yield row


def bound_row(bench: Bench, compared: OpenRun, ordered: OrderedMethod, batch: Batch) -> Row:
    """Return the number of a trained run in one order."""
    run = compared.run
    with run.averaged():
        found = repeated_bound(ordered.method, batch, ordered.nfe, run.config.training.seed, bench.repeats)
    row: Row = {"bits": found.bits, "stderr": found.margin / 1.96, "commit": commit()}
    return {**row, "parameters": run.parameter_count, "sequences": len(batch.ids)}


def best_orders(rows: Sequence[Row]) -> dict[tuple[object, object], object]:
    """Return the order with the lowest mean number over seeds, by method and calls asked for."""
    found: dict[tuple[object, object], dict[object, list[float]]] = {}
    for row in rows:
        by_order = found.setdefault((row["method"], row["asked"]), {})
        by_order.setdefault(row["order"], []).append(float(str(row["bits"])))
    return {key: min(orders, key=lambda name: statistics.fmean(orders[name])) for key, orders in found.items()}


# -- samples ---------------------------------------------------------------------------------------------------------


@contextmanager
def tempered(network: nn.Module, temperature: float) -> Iterator[None]:
    """Divide the network's logits by a temperature inside the `with` block."""
    handle = network.register_forward_hook(lambda module, inputs, logits: logits / temperature)
    try:
        yield
    finally:
        handle.remove()


def trained_scorer(bench: Bench, folder: Path) -> Autoregressive:
    """Return the trained scorer."""
    train(bench.scorer, folder, build)
    method: object = language_model.load(folder).method
    assert isinstance(method, Autoregressive)
    method.network.eval()
    return method


def quality(tokens: Int[Tensor, "n length"], vocabulary: int, scorer: Autoregressive) -> dict[str, float]:
    """Return entropy and perplexity of sequences."""
    nats = -torch.cat([scorer.log_likelihood(part) for part in tokens.split(16)])
    perplexity = math.exp(float(nats.mean()) / tokens.shape[1])
    return {
        "entropy": sample_entropy(tokens, vocabulary)["entropy_per_sample_nats"].value,
        "perplexity": perplexity,
        "perplexity_stderr": perplexity * float(nats.std()) / tokens.shape[1] / math.sqrt(len(nats)),
    }


def sample_row(bench: Bench, compared: OpenRun, ordered: OrderedMethod, scorer: Autoregressive, entropy: float) -> Row:
    """Return the quality of samples at temperature 1 and at the entropy of data."""
    run, found = compared.run, {}
    for temperature in TEMPERATURES:
        generator = generator_of("systems", run.config.training.seed)
        with run.averaged(), torch.no_grad(), tempered(run.network, temperature):
            tokens = ordered.method.generate(bench.samples, run.length, ordered.nfe, generator)
        found[temperature] = quality(tokens, run.corpus.tokenizer.size, scorer)
    return {**found[1.0], "matched": matched(list(found.values()), entropy), "samples": bench.samples}


def matched(points: Sequence[Mapping[str, float]], entropy: float) -> float | None:
    """Return the perplexity at an entropy, interpolated on a logarithmic scale; None if it is outside of the points."""
    points = sorted(points, key=lambda point: point["entropy"])
    for low, high in pairwise(points):
        if low["entropy"] <= entropy <= high["entropy"] and low["entropy"] < high["entropy"]:
            share = (entropy - low["entropy"]) / (high["entropy"] - low["entropy"])
            return float(low["perplexity"] ** (1 - share) * high["perplexity"] ** share)
    return None


def row_of_data(bench: Bench, session: Session, scorer: Autoregressive) -> Row:
    """Return the quality of held-out data."""
    batch = held_out(session.corpus, bench.config.data.length, bench.measured, bench.config.training.seed)
    found = quality(batch.ids, session.corpus.tokenizer.size, scorer)
    return {**found, "sequences": len(batch.ids), "commit": commit()}


# -- cost ------------------------------------------------------------------------------------------------------------


def step_costs(bench: Bench, session: Session) -> Row:
    """Return the processor time of a training step of each method in seconds: medians of steps in turn."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        compared_runs = [
            stack.enter_context(session.opened(bench.configuration(name, ROUNDS), place / name))
            for name in bench.methods
        ]
        spent: dict[str, list[float]] = {compared.name: [] for compared in compared_runs}
        for _ in range(1 + ROUNDS):
            for compared in compared_runs:
                began = time.process_time()
                update(compared.run, *accumulate(compared.run))
                compared.run.counters.step += 1
                spent[compared.name].append(time.process_time() - began)
        return {name: statistics.median(values[1:]) for name, values in spent.items()}


# -- the table -------------------------------------------------------------------------------------------------------


def measure(bench: Bench, folder: Path, steps: int, csv: Path | None) -> list[Row]:
    """Train all runs and return all rows, which are also written as they come."""
    rows, cache = list[Row](), RowCache(folder / "rows.jsonl")
    with ExitStack() as stack:
        members, interruption = stack.enter_context(team("cpu")), stack.enter_context(Interruption())
        session = Session(folder, members, load_corpus(bench.config), build)
        costs: Mapping[str, Any] = cache(("costs", bench.methods, ROUNDS), partial(step_costs, bench, session))
        compared_runs, trials = stack.enter_context(trained_runs(bench, session, steps, interruption))
        unit = cost_unit(costs)
        for compared in compared_runs:
            training = compared.run.config.training
            where: Row = {"method": compared.name, "seed": training.seed, "steps": steps, "lr": training.lr}
            tried = " ".join(f"{lr:g}:{bits:.4g}" for lr, bits in sorted(trials.get(compared.name, {}).items()))
            more = {"cost": costs[compared.name] / unit, "trials": tried, "unit": unit_of(session.corpus)}
            rows += [row | more for row in bound_rows(bench, compared, cache, where)]
            interruption.raise_if_received(steps)
            _write(csv, rows)
        scorer = trained_scorer(bench, folder / "scorer")
        data = cache(("data", bench.scorer, bench.measured), partial(row_of_data, bench, session, scorer))
        for compared in compared_runs[: bench.sampled * len(bench.methods)]:
            rows = with_samples(bench, compared, scorer, rows, cache, float(str(data["entropy"])))
            interruption.raise_if_received(steps)
            _write(csv, rows)
        rows.append({"method": "data", **data})
        _write(csv, rows)
    return rows


def cost_unit(costs: Mapping[str, Any]) -> float:
    """Return the cost to which those of all methods are relative."""
    return float(costs.get(REFERENCE, next(iter(costs.values()))))


def with_samples(
    bench: Bench, compared: OpenRun, scorer: Autoregressive, rows: Sequence[Row], cache: RowCache, entropy: float
) -> list[Row]:
    """Return all rows, those of a run in its best order with the most calls with the quality of its samples."""
    best, run, found = best_orders(rows), compared.run, []
    key = (compared.name, run.config.training.seed, run.counters.step, run.config.training.lr)
    for row in rows:
        chosen = row["order"] == best[row["method"], row["asked"]]
        row = {**row, "best": chosen}
        if chosen and row["asked"] == CALLS[-1] and (row["method"], row["seed"]) == key[:2]:
            options = orders_of(run.method, CALLS[-1], run.length)
            ordered = next(option for option in options if option.order == row["order"])
            work = partial(sample_row, bench, compared, ordered, scorer, entropy)
            row |= cache((*key, ordered.order, TEMPERATURES, bench.samples, bench.scorer), work)
        found.append(row)
    return found


def _write(csv: Path | None, rows: Sequence[Row]) -> None:
    if csv is not None:
        write_csv(csv, rows)


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each method and order: means over seeds with 95% intervals, at each number of calls."""
    groups: dict[tuple[object, object], list[Row]] = {}
    for row in rows:
        if row["method"] != "data":
            groups.setdefault((row["method"], row["order"]), []).append(row)
    return [_line(group) for group in groups.values()]


def _line(group: Sequence[Row]) -> Row:
    line: Row = {key: group[0][key] for key in ("method", "order", "kind", "lr", "cost", "parameters")}
    for calls in (*CALLS, MANY):
        bits = [float(str(row["bits"])) for row in group if row["asked"] == calls]
        if bits:
            line |= {f"bits, {calls} calls": f"{statistics.fmean(bits):.3f}", f"±, {calls} calls": margin(bits)}
    for name in ("entropy", "perplexity", "matched"):
        values = [float(str(row[name])) for row in group if row.get(name) is not None]
        if values:
            line |= {name: f"{statistics.fmean(values):.3f}", f"± {name}": margin(values)}
    return line


def margin(values: Sequence[float]) -> str:
    """Return half of the 95% interval over seeds, by Student's t; nothing for one value."""
    if len(values) < 2:
        return ""
    quantile = student(len(values) - 1)
    return f"{quantile * statistics.stdev(values) / math.sqrt(len(values)):.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", choices=list(BENCHES))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None, help="folder of the runs; default: runs/systems-BENCH")
    parser.add_argument("--csv", type=Path, default=None, help="also write all rows to this file")
    given = parser.parse_args(arguments)
    rows = measure(BENCHES[given.bench](), given.out or Path("runs") / f"systems-{given.bench}", given.steps, given.csv)
    lines = summary(rows)
    print(table(lines, tuple(dict.fromkeys(key for line in lines for key in line))))
    print(rows[-1])


if __name__ == "__main__":
    main()
