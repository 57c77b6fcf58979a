"""DNA designed for a cell type, evaluated by a classifier of real sequences, as in the paper's Table 4.

    python -m experiments.dna --accept-licence --out runs/dna --csv docs/data/dna.csv     # an hour on one core
    python -m experiments.dna --model dna --each 64 --out runs/dna-model --csv docs/data/dna-model.csv    # 10 minutes

Each row of the table is a method, trained at equal steps, batch, width and depth (autoregression has a transformer with
as many parameters), with the best of three learning rates: that with the lowest held-out loss after a shorter training.
Samples have the class that the classifier should find; weights of guidance other than 1 are measured for RDLM. The
reference is the test split, chromosome 1; `real` is the same number of sequences of the validation split, chromosome 2,
evaluated in the same way: the result of perfect samples. The corpus is for academic and non-profit use only, which the
flag accepts. An interrupted table continues with the rows that are missing. With `--model` a trained model is evaluated
in the same way, on the corpus and with the labels that it was trained on.

| column | meaning |
|---|---|
| right, low, high | share of samples for which the classifier predicts the requested cell type, with its 95% interval |
| mse | squared error of predicted activity between pairs of a generated and a real sequence; also has their variance |
| mse_means | the same of the mean activities of each cell type |
| kmer4, kmer6 | Jensen-Shannon divergence of k-mer frequencies from those of real sequences, bits |
| motifs | correlation with real sequences of how typical the motifs of JASPAR are of each cell type |
| distinct, distance | distinct 10-mers as a share of all, and differing positions as a share, for pairs of samples |
| copied | 20-mers that occur in the training data, as a share of all |
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments import judge as judging
from experiments.changes import changed
from experiments.row_cache import Row, RowCache
from experiments.trial import commit, write_csv
from rdlm import methods
from rdlm.api import language_model
from rdlm.api.language_model import LanguageModel
from rdlm.config import ConvolutionConfig, DataConfig, RunConfig, TransformerConfig
from rdlm.data.batch import Batches
from rdlm.data.store import Corpus
from rdlm.display.text_table import table
from rdlm.methods.base import Method
from rdlm.methods.rdlm import Rdlm
from rdlm.presets import NO_BLOCKS, PAPER_DENOISER, PAPER_OBJECTIVE, PAPER_PROCESS, SMALL, SYNCHRONOUS
from rdlm.process.order import TokenSchedule
from rdlm.random import Draw, generator_of
from rdlm.train.loop import train
from rdlm.train.run import load_corpus

BASE = RunConfig(
    data=DataConfig("regulatory"),
    process=SYNCHRONOUS,
    model=ConvolutionConfig(width=64, stacks=1),
    objective=NO_BLOCKS,
    training=replace(
        SMALL, steps=700, warmup=50, ema=0.995, save_every=350, validate_every=700, validation_sequences=64
    ),
)
PAPER: dict[str, Any] = {
    "process": vars(PAPER_PROCESS),
    "denoiser": {**vars(PAPER_DENOISER), "features": "coordinates"},
    "objective": vars(PAPER_OBJECTIVE),
}
METHODS: dict[str, dict[str, Any]] = {
    "rdlm": {},
    "rdlm, the paper's settings": PAPER,
    "fisher_flow": {"method": "fisher_flow"},
    "d3pm": {"method": "d3pm"},
    "dirichlet_flow": {"method": "dirichlet_flow"},
    "bit_diffusion": {"method": "bit_diffusion"},
    "autoregressive": {"method": "autoregressive"},
}
"""Name -> method and changes to the base; `d3pm` has uniform transitions."""

CAUSAL = TransformerConfig(width=72, layers=4, heads=4)
"""The network of autoregression: as many parameters as the convolutions with their time embedding."""

RATES, TRIAL = (1e-3, 2e-3, 4e-3), 200
"""Learning rates, and the steps of the training by which one is chosen."""

WEIGHTS = (0.0, 1.0, 2.0, 4.0)
CALLS = 32
SHOWN = ("row", "guidance", "order", "seeds", "right", "mse", "mse_means", "kmer4", "kmer6", "motifs", "distinct")
MEASURES = ("right", "mse", "mse_means", "kmer4", "kmer6", "motifs", "distinct", "distance", "copied")


@dataclass(frozen=True)
class Options:
    """The settings of the measurement, and the folder of the runs."""

    out: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = BASE.training.steps
    each: int = 128
    """Samples per class."""
    accept_licence: bool = False

    def config(self, name: str, seed: int, rate: float, steps: int) -> RunConfig:
        """Return the configuration of a row."""
        change = dict(METHODS[name])
        method: Any = change.pop("method", "rdlm")
        config = replace(changed(BASE, change), method=method)
        training = replace(config.training, seed=seed, lr=rate, steps=steps, validate_every=steps)
        data = replace(config.data, accept_licence=self.accept_licence)
        return replace(config, data=data, training=training, model=CAUSAL if method == "autoregressive" else BASE.model)


class Guided(nn.Module):
    """A network whose logits are those with the condition, weighted against those without it, Eq. (45)."""

    def __init__(self, network: nn.Module, weight: float) -> None:
        super().__init__()
        self.network, self.weight = network, weight

    def forward(self, inputs: Tensor, time: Tensor | float, condition: Tensor, *more: Any) -> Tensor:
        """Return the guided logits; both evaluations share a forward pass."""
        absent = torch.full_like(condition, -1)
        if self.weight == 0:
            logits: Tensor = self.network(inputs, time, absent, *more)
            return logits
        times = torch.cat([time] * 2) if isinstance(time, Tensor) and time.ndim else time
        both = self.network(torch.cat([inputs] * 2), times, torch.cat([condition, absent]), *more)
        present, without = both.chunk(2)
        return torch.lerp(without, present, self.weight)


@contextmanager
def guided(method: Method, weight: float) -> Iterator[Method]:
    """Guide the samples of a method inside the `with` block."""
    plain = method.network
    plain.eval()
    method.network = plain if weight == 1 else Guided(plain, weight)
    try:
        yield method
    finally:
        method.network = plain


def samples(method: Method, label: Tensor, length: int, seed: int, weight: float = 1.0, order: str = "") -> Tensor:
    """Return a sequence for each label, in batches of 64."""
    found = []
    options: dict[str, Any] = {}
    if isinstance(method, Rdlm) and order:
        options["token_schedule"] = TokenSchedule(1e-3, order)  # type: ignore[arg-type]
    with torch.no_grad(), guided(method, weight):
        for number, part in enumerate(label.split(64)):
            generator = generator_of("dna", seed, number)
            drawn: Any = method.generate
            found.append(drawn(len(part), length, CALLS, generator, condition=part, **options))
    return torch.cat(found)


class Reference:
    """Real sequences, the classifier, and the measures of generated sequences."""

    def __init__(self, corpus: Corpus, out: Path) -> None:
        self.corpus = corpus
        self.judge = judging.trained_judge(corpus, out / "judge.safetensors")
        self.ids, self.label = self.split("test")
        self.activity = self.judge.probabilities(self.ids)
        self.motifs = judging.motif_profile(self.ids, self.label)

    def split(self, name: str, each: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the sequences of a split with their labels, or the first `each` of every class."""
        ids, label = (torch.from_numpy(np.array(x)).long() for x in (self.corpus.split(name), self.corpus.labels[name]))
        if each is None:
            return ids, label
        chosen = torch.cat([(label == one).nonzero().flatten()[:each] for one in range(len(self.corpus.classes))])
        return ids[chosen], label[chosen]

    @cached_property
    def known(self) -> Any:
        """Return the 20-mers of the training data, sorted."""
        return np.unique(judging.kmers(self.split("train")[0], 20).numpy())

    def accuracy(self) -> Row:
        """Return the accuracy of the classifier on all test sequences."""
        return right(self.activity, self.label)

    def measure(self, made: Tensor, label: Tensor) -> Row:
        """Return the measures of sequences with their requested labels."""
        activity = self.judge.probabilities(made)
        mse, means = judging.activity_errors(activity, self.activity, label, self.label)
        found = right(activity, label) | {"mse": mse, "mse_means": means}
        sides = (made, self.ids, label, self.label)
        found |= {f"kmer{k}": judging.spectrum_divergence(*sides, k) for k in (4, 6)}
        profiles = torch.stack([judging.motif_profile(made, label), self.motifs]).flatten(1)
        return found | {"motifs": float(torch.corrcoef(profiles)[0, 1]), **judging.variety(made, self.known)}


def right(activity: Tensor, label: Tensor) -> Row:
    """Return the share of sequences whose most likely class is the label, with its interval."""
    hits = int((activity.argmax(-1) == label).sum())
    low, high = judging.wilson(hits, len(label))
    return {"right": hits / len(label), "low": low, "high": high, "samples": len(label)}


def held_out_loss(config: RunConfig, folder: Path, corpus: Corpus) -> float:
    """Return the loss of a trained network on 1,024 validation sequences, at uniform times and with fixed noise."""
    method = methods.build(replace(config, objective=replace(config.objective, proposal="uniform")), corpus)
    method.network.load_state_dict(language_model.load(folder).method.network.state_dict())
    method.network.eval()
    batches = Batches(corpus, "validation", batch_size=128, seed=0)
    with torch.no_grad():
        return statistics.mean(float(method.loss(batches.batch(step), Draw(0, step))) for step in range(8))


def best_rate(options: Options, name: str, corpus: Corpus, rows: RowCache) -> float:
    """Return the learning rate with the lowest held-out loss after a short training with another seed."""
    losses = {}
    for rate in RATES:
        config = options.config(name, 100, rate, min(TRIAL, options.steps))
        folder = options.out / f"rate-{slug(name)}-{rate:g}-{config.training.steps}"

        def work(config: RunConfig = config, folder: Path = folder) -> Row:
            train(config, folder, methods.build)
            return {"loss": held_out_loss(config, folder, corpus)}

        losses[rate] = float(str(rows(("rate", name, rate, config.training.steps), work)["loss"]))
    print(f"{name}: held-out loss by learning rate {losses}", flush=True)
    return min(losses, key=lambda rate: losses[rate])


def slug(name: str) -> str:
    """Return the name of a row as part of a file name."""
    return name.replace(", ", "-").replace(" ", "-").replace("'", "")


def settings(name: str) -> list[tuple[float, str]]:
    """Return the guidance weights and orders that are measured: all for RDLM, the condition as it is for others."""
    if name == "rdlm":
        return [*((weight, "synchronous") for weight in WEIGHTS), (1.0, "strided")]
    return [(1.0, "synchronous" if name.startswith("rdlm") else "")]


def real_rows(reference: Reference, each: int, rows: RowCache) -> Iterator[Row]:
    """Yield the accuracy of the classifier, and the row of held-out real sequences."""
    held_out = reference.split("validation", each)
    about: Row = {"guidance": None, "order": "", "seed": None, "commit": commit()}
    yield rows("whole", lambda: {"row": "real, whole test split", **about, **reference.accuracy()})
    yield rows(("real", each), lambda: {"row": "real", **about, **reference.measure(*held_out)})


def measured(options: Options, reference: Reference, rows: RowCache) -> Iterator[Row]:
    """Yield all rows, which are trained and measured unless they are in the cache."""
    yield from real_rows(reference, options.each, rows)
    label = torch.arange(len(reference.corpus.classes)).repeat_interleave(options.each)
    for seed in options.seeds:
        for name in METHODS:
            rate = best_rate(options, name, reference.corpus, rows)
            config, key = options.config(name, seed, rate, options.steps), (name, seed, rate, options.steps)
            folder = options.out / f"{slug(name)}-{options.steps}-{seed}"
            for weight, order in settings(name):

                def work(
                    name: str = name, config: RunConfig = config, folder: Path = folder, to: Any = (weight, order)
                ) -> Row:
                    return row_of(name, config, folder, reference, label, *to)

                yield rows((key, options.each, weight, order), work)


def row_of(
    name: str, config: RunConfig, folder: Path, reference: Reference, label: Tensor, weight: float, order: str
) -> Row:
    """Return the measures of a method's samples, after training it unless it is trained."""
    result, seed = train(config, folder, methods.build), config.training.seed
    model = language_model.load(folder)
    began = time.process_time()
    schedule = order if order == "strided" else ""
    made = samples(model.method, label, reference.corpus.length, seed, weight, schedule)
    spent = time.process_time() - began
    row: Row = {"row": name, "guidance": weight, "order": order, "seed": seed, "commit": commit()}
    row |= {"calls": model.method.sampling_nfe(made.shape[1], CALLS), "parameters": result.parameters}
    row |= {"steps": result.steps, "lr": config.training.lr, "train_seconds": round(result.seconds, 1)}
    row |= {"sample_seconds": round(spent, 1), **reference.measure(made, label)}
    print(row, flush=True)
    return row


def judged(
    model: LanguageModel, reference: Reference, each: int, seeds: Sequence[int], rows: RowCache
) -> Iterator[Row]:
    """Yield the rows of a trained model by guidance, after those of real sequences."""
    yield from real_rows(reference, each, rows)
    label = torch.arange(len(reference.corpus.classes)).repeat_interleave(each)
    for seed in seeds:
        for weight in WEIGHTS:

            def work(seed: int = seed, weight: float = weight) -> Row:
                made = samples(model.method, label, model.length, seed, weight)
                own: Row = {"row": model.name, "guidance": weight, "order": "synchronous", "seed": seed}
                return {**own, "commit": commit(), "calls": CALLS, **reference.measure(made, label)}

            yield rows((model.name, model.parameters, each, seed, weight), work)


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the mean over seeds of every row, with its standard error over seeds where there are several."""
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["row"], row["guidance"], row["order"]].append(row)
    found = []
    for (name, weight, order), group in groups.items():
        line: Row = {"row": name, "guidance": weight, "order": order, "seeds": len(group)}
        for measure in MEASURES:
            values = [float(str(row[measure])) for row in group if measure in row]
            if not values:
                continue
            error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.4f}" if len(values) > 1 else ""
            line[measure] = f"{statistics.mean(values):.4f}{error}"
        found.append(line)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, sample, evaluate, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accept-licence", action="store_true", help="accept the licence of the corpus")
    parser.add_argument("--model", default=None, help="a trained model with labels, which is judged instead")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=BASE.training.steps)
    parser.add_argument("--each", type=int, default=128, help="samples per cell type")
    parser.add_argument("--out", type=Path, default=Path("runs/dna"))
    parser.add_argument("--csv", type=Path, default=None, help="also write all rows to this file")
    given = parser.parse_args(arguments)
    options = Options(given.out, tuple(given.seeds), given.steps, given.each, given.accept_licence)
    model = language_model.load(given.model) if given.model else None
    config = model.config if model else options.config("rdlm", 0, RATES[0], 1)
    reference, rows, cache = Reference(load_corpus(config), given.out), [], RowCache(given.out / "rows.jsonl")
    found = judged(model, reference, given.each, given.seeds, cache) if model else measured(options, reference, cache)
    for row in found:
        rows.append(row)
        if given.csv is not None:
            write_csv(given.csv, rows)
    print(table(summary(rows), SHOWN))


if __name__ == "__main__":
    main()
