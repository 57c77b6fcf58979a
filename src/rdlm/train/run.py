"""A run: a method with optimizer, moving average, batches and counters; it resumes bit for bit."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rdlm import data
from rdlm.config import DataConfig, RunConfig
from rdlm.data.batch import Batch, Batches
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Unknown, from_json, to_standard
from rdlm.display.text_table import say
from rdlm.errors import DamagedFileError, InputError
from rdlm.methods.base import Method
from rdlm.methods.bound import Bound
from rdlm.model.network import MovingAverage, parameter_count
from rdlm.random import generator_of
from rdlm.storage import checkpoint, config_file, run_folder
from rdlm.storage.files import read_json
from rdlm.train.fit import OWN, fit_kind, fit_vocabulary
from rdlm.train.optimizer import Optimizer
from rdlm.train.parallel import Team, assign, check_equal_passes, local_rows, local_shard, unsharded
from rdlm.train.record import Counters, read_counters

VALIDATION_BATCH = 16
"""Sequences evaluated at once; fixed, so that the result does not depend on the number of processes."""

UNITS = {"image": "bits per dimension", "dna": "bits per base", "text": "bits per character"}

Build = Callable[[RunConfig, Corpus], Method]
"""Builds the method of a configuration; the weights are initialized from torch's global seed."""


class Run:
    """A method with its optimizer, moving average, batches and counters, in a folder."""

    def __init__(
        self, config: RunConfig, method: Method, corpus: Corpus, batches: Batches, folder: Path, team: Team
    ) -> None:
        training = config.training
        self.config, self.method, self.corpus, self.batches = config, method, corpus, batches
        self.folder, self.team = folder, team
        self.shards = team.world * training.accumulate
        self.length = batches.rows.shape[1]
        self.held_out = held_out(corpus, config.data.length, training.validation_sequences, training.seed)
        self.network = method.network.to(team.device)
        self.parameter_count = parameter_count(self.network)
        method.network = team.share(self.network, training)
        # After `share`, which may shard the parameters.
        self.optimizer = Optimizer(self.network, training)
        self.average = MovingAverage(self.network, training.ema)
        self.counters = Counters()
        self.state_before: dict[str, Tensor] = {}
        """State of the method before the current step; restored if the step is skipped."""
        self.saved = 0

    @property
    def alone(self) -> bool:
        """Whether this is the only process: with several, the others would wait for one that abandons a step."""
        return self.team.world == 1

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Context manager: use the averaged weights without dropout."""
        self.network.eval()
        with self.average.swap(self.network):
            yield
        self.network.train()

    def save(self) -> None:
        """Write a checkpoint of the current step; all processes must call this."""
        if self.saved == self.counters.step:
            return
        if any(isinstance(parameter, DTensor) for parameter in self.network.parameters()):
            self._save_shards()
        else:
            parts = {part: {k: unsharded(t) for k, t in found.items()} for part, found in self._parts().items()}
            self.team.decide(lambda: self._write(parts))
        self.saved = self.counters.step

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        """Return all tensors of a checkpoint, sharded or not."""
        state = {"network": self.network.state_dict(), "ema": self.average.tensors}
        return {**state, "optimizer": self.optimizer.state(), "method": self.method.state()}

    def _save_shards(self) -> None:
        """Write this process's rows of the sharded tensors; the first process also writes what is not sharded."""
        step, team = self.counters.step, self.team
        shards = {
            part: {name: local_shard(t) for name, t in tensors.items() if team.leads or isinstance(t, DTensor)}
            for part, tensors in self._parts().items()
        }

        def begin() -> int:
            checkpoint.begin(self.folder, step, to_standard(self.corpus.tokenizer))
            return 0

        def finish() -> int:
            checkpoint.finish(self.folder, step, self._about(), team.world)
            run_folder.update_pointers(self.folder, step, self.counters.best)
            return 0

        try:
            team.decide(begin)
            team.together(lambda: checkpoint.write_parts(self.folder, step, shards, (team.rank, team.world)))
            team.decide(finish)
        finally:
            if team.leads:
                checkpoint.discard(self.folder, step)

    def _write(self, parts: dict[str, dict[str, Tensor]]) -> int:
        tokenizer = to_standard(self.corpus.tokenizer)
        checkpoint.save(self.folder, self.counters.step, parts, self._about(), tokenizer)
        run_folder.update_pointers(self.folder, self.counters.step, self.counters.best)
        return 0

    def _about(self) -> dict[str, Any]:
        corpus = self.corpus
        return {
            "counters": asdict(self.counters),
            "config": config_file.to_dict(self.config),
            "corpus": {
                "name": corpus.name,
                "protocol": corpus.protocol,
                "kind": corpus.kind,
                "length": self.length,
                "classes": list(corpus.classes),
                "image": corpus.image,
                "signal": bool(corpus.signals),
                "licence": corpus.licence,
                "digest": corpus.digest,
            },
        }

    def resume(self, accept_changes: bool = False, accepted: Collection[str] = ()) -> None:
        """Restore the newest intact checkpoint, if any; all processes must call this."""
        step = self.team.decide(lambda: run_folder.newest(self.folder))
        if step == 0:
            return
        path = self.folder / checkpoint.name_of(step)
        state = checkpoint.describe(path)
        check_tokens(path, self.corpus)
        run_folder.check_origin(path, state, self.config, self.corpus.digest, accept_changes, accepted)
        self.counters = read_counters(path, state)
        own = self.network.state_dict()
        for part, tensors in (("network", own), ("ema", self.average.tensors)):
            for name, tensor in checkpoint.read_part(path, part, tensors, local_rows(tensors)).items():
                assign(tensors[name], tensor)
        self.average.updates = self.counters.updates
        template = self.optimizer.template(self.counters.updates)
        self.optimizer.load(checkpoint.read_part(path, "optimizer", template, self.optimizer.rows()))
        self.method.load_state(checkpoint.read_part(path, "method", self.method.state()))
        self.saved = step
        if self.team.leads:
            run_folder.update_pointers(self.folder, step, self.counters.best)


def load_corpus_of_model(config: RunConfig, file: Path | None = None) -> Corpus:
    """Return the corpus of a model, read from `file` if one is given.

    A model from elsewhere could name any file of this machine: without `file`, the file that it names is used only if
    it was prepared here.
    """
    named = config.data.file is not None or str(config.data.tokenizer).endswith(".json")
    if file is not None:
        return load_corpus(replace(config, data=replace(config.data, file=file)))
    return load_corpus(config, prepare=not named)


def load_corpus(config: RunConfig, *, prepare: bool = True) -> Corpus:
    """Return the corpus of a configuration; unless `prepare`, only one that is in the cache."""
    options = {name: value for name, value in vars(config.data).items() if name not in ("name", "length")}
    return data.load(config.data.name, **{**options, "unknown": _unknown(config.data)}, prepare=prepare)


def _unknown(options: DataConfig) -> Unknown | Literal["extend"]:
    """Return what is done with characters outside of the alphabet; normalised text has no new ones."""
    chosen = None if options.normalise and options.unknown == "extend" else options.unknown
    default: Unknown = "error" if options.alphabet is None else "replace" if " " in options.alphabet else "skip"
    return chosen or default


def training_batches(config: RunConfig, corpus: Corpus, world: int) -> Batches:
    """Return the training batches; InputError if the batch size or the length does not fit."""
    training = config.training
    if training.batch % (world * training.accumulate):
        raise InputError(
            f"training.batch {training.batch} is not divisible by {world} processes with "
            f"training.accumulate {training.accumulate}"
        )
    if world > 1 and training.parallel == "fsdp":
        check_equal_passes(config, training.batch // (world * training.accumulate))
    length = config.data.length
    held_out(corpus, length, training.validation_sequences, training.seed)
    batches = Batches(corpus, "train", batch_size=training.batch, length=length, seed=training.seed)
    if config.process.block > batches.rows.shape[1]:
        raise InputError(
            f"process.block {config.process.block} is longer than the sequences of {batches.rows.shape[1]} tokens"
        )
    return batches


def check_writable(folder: Path) -> None:
    """Raise InputError if a folder could not be created or written; nothing is created."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to the run folder {folder}: {existing} is not a writable folder")


def check_tokens(path: Path, corpus: Corpus) -> None:
    """Raise InputError if a checkpoint has other tokens than the corpus: its weights would lose their meaning."""
    if from_json(read_json(path / checkpoint.TOKENIZER)).to_json() != corpus.tokenizer.to_json():
        raise InputError(
            f"{path} was trained on other tokens than the corpus {corpus.name!r} now has: restore the old data, "
            f"or choose another --out, where --init {path.parent} starts from the weights that fit"
        )


@contextmanager
def open_run(
    config: RunConfig,
    folder: Path,
    team: Team,
    build: Build,
    accept_changes: bool = False,
    load: Callable[[RunConfig], Corpus] = load_corpus,
    fit: Callable[[RunConfig, Corpus], RunConfig] = lambda config, corpus: config,
) -> Iterator[Run]:
    """Context manager: the run in a folder, resumed; errors in the configuration are raised before any computation.

    `fit` may change the configuration once the data are known; changes to `run_folder.FITTED` are always accepted.
    """
    with ExitStack() as stack:

        def prepare() -> tuple[RunConfig, Method, Corpus, Batches, bool]:
            if team.leads:
                check_writable(folder)
            corpus = load(config)
            if team.leads and corpus.name == OWN:
                say(f"{config.data.hub or config.data.file}: {corpus.source}")
            if team.leads and (path := run_folder.latest(folder)) is not None:
                with suppress(DamagedFileError):  # `Run.resume` takes the one before
                    check_tokens(path, corpus)
            suited, said = fit_vocabulary(fit_kind(config, corpus), corpus.tokenizer.size)
            training_batches(suited, corpus, team.world)  # checks the lengths
            if team.leads and said:
                say(said)
            fitted = fit(suited, corpus)
            if team.leads:
                run_folder.check_same(folder, fitted, accept_changes, () if fitted == suited else run_folder.FITTED)
            batches = training_batches(fitted, corpus, team.world)
            torch.manual_seed(fitted.training.seed)
            method = build(fitted, corpus)
            if team.leads:
                stack.enter_context(run_folder.locked(folder))
                run_folder.tidy(folder)
            return fitted, method, corpus, batches, fitted != suited

        fitted, method, corpus, batches, changed = team.leader_first(prepare)
        run = Run(fitted, method, corpus, batches, folder, team)
        try:
            run.resume(accept_changes, run_folder.FITTED if changed else ())
            if team.leads:  # not before: a configuration that does not fit the checkpoint is an error
                config_file.write(folder / "config.yaml", fitted)
            yield run
        finally:
            # DDP must be released before the process group: its destructor may communicate.
            method.network = run.network


# -- validation ------------------------------------------------------------------------------------------------------


def unit_of(corpus: Corpus) -> str:
    """Return the unit of a bound per token, such as `bits per character`."""
    kind = corpus.tokenizer.to_json()["kind"]
    if corpus.kind == "text" and kind != "characters":
        return f"bits per {'byte' if kind == 'bytes' else 'token'}"
    return UNITS[corpus.kind]


def held_out(corpus: Corpus, length: int | None, count: int, seed: int) -> Batch:
    """Return `count` validation sequences chosen by the seed, or all if there are fewer."""
    rows = len(Batches(corpus, "validation", batch_size=1, length=length, seed=seed).rows)
    return Batches(corpus, "validation", batch_size=min(count, rows), length=length, seed=seed).batch(0)


def validation_bound(method: Method, batch: Batch, nfe: int, seed: int, team: Team) -> Bound:
    """Return the mean bound of a method on the sequences of `batch`, which are divided among the processes.

    Sharded networks need the same number of forward passes in every process: a process without sequences left
    evaluates the last ones again and discards the result.
    """
    count = len(batch.ids)
    parts = math.ceil(count / VALIDATION_BATCH)
    values = torch.zeros(count, dtype=torch.float64)
    for turn in range(math.ceil(parts / team.world)):
        own = turn * team.world + team.rank
        part = min(own, parts - 1)
        rows = slice(part * VALIDATION_BATCH, (part + 1) * VALIDATION_BATCH)
        with torch.no_grad():
            found = method.bound(batch[rows].to(team.device), nfe, generator_of("validation", seed, part))
        if own == part:
            values[rows] = found.double().cpu()
    total = torch.tensor(team.add(values.tolist()), dtype=torch.float64)
    # One sequence gives no error; JSON has no infinity, so it is as large as the bound.
    stderr = float(total.std()) / math.sqrt(count) if count > 1 else abs(float(total.mean()))
    return Bound(float(total.mean()), stderr, batch.ids.shape[1])
