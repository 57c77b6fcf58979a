"""A run in progress: the method and all that training adds to it, saved and resumed bit by bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from rdlm import data
from rdlm.config import RunConfig
from rdlm.data.batch import Batches
from rdlm.data.store import Corpus
from rdlm.errors import InputError
from rdlm.methods.base import Method
from rdlm.model.ema import MovingAverage
from rdlm.model.network import parameter_count
from rdlm.storage import checkpoint
from rdlm.storage import config_file as configfile
from rdlm.storage import run_folder as folder
from rdlm.train import record as counters
from rdlm.train.optimizer import Optimizer
from rdlm.train.parallel import Team, assign, whole
from rdlm.train.record import Counters
from rdlm.train.validation import held_out

Build = Callable[[RunConfig, Corpus], Method]
"""What makes the method of a configuration, its network with new weights from torch's global seed."""


class Run:
    """A method with its optimizer, moving average, batches and counters, in a folder."""

    def __init__(
        self, config: RunConfig, method: Method, corpus: Corpus, batches: Batches, place: Path, team: Team
    ) -> None:
        training = config.training
        self.config, self.method, self.corpus, self.batches = config, method, corpus, batches
        self.folder, self.team = place, team
        self.shards = team.world * training.accumulate
        self.length = batches.rows.shape[1]
        self.held_out = held_out(corpus, config.data.length, training.validation_sequences, training.seed)
        self.network = method.network.to(team.device)
        self.parameter_count = parameter_count(self.network)
        method.network = team.share(self.network, training)
        # After sharing, since that may shard the parameters.
        self.optimizer = Optimizer(self.network, training)
        self.average = MovingAverage(self.network, training.ema)
        self.counters = Counters()
        self.before: dict[str, Tensor] = {}
        """What the method had learned outside the network before the step that is being taken."""
        self.saved = 0

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the method use the average of the weights, without dropout, inside the `with` block."""
        self.network.eval()
        with self.average.swap(self.network):
            yield
        self.network.train()

    def save(self) -> None:
        """Write a checkpoint of this very step and point to it; every member must call this."""
        if self.saved == self.counters.step:
            return
        parts = self._parts()
        self.team.decide(lambda: self._write(parts))
        self.saved = self.counters.step

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        return {
            "network": {name: whole(t) for name, t in self.network.state_dict().items()},
            "ema": {name: whole(t) for name, t in self.average.state().items()},
            "optimizer": self.optimizer.state(),
            "method": {name: whole(t) for name, t in self.method.state().items()},
        }

    def _write(self, parts: dict[str, dict[str, Tensor]]) -> int:
        corpus = self.corpus
        about = {
            "counters": asdict(self.counters),
            "config": configfile.to_dict(self.config),
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
        checkpoint.save(self.folder, self.counters.step, parts, about, corpus.tokenizer.to_json())
        folder.point(self.folder, self.counters.step, self.counters.best)
        return 0

    def resume(self, accept_changes: bool = False) -> None:
        """Continue from the newest whole checkpoint, which must be this run's, if there is one; for every member."""
        step = self.team.decide(lambda: folder.newest(self.folder))
        if step == 0:
            return
        path = self.folder / checkpoint.name_of(step)
        state = checkpoint.describe(path)
        folder.check_origin(path, state, self.config, self.corpus.digest, accept_changes)
        self.counters = counters.read(path, state)
        own = self.network.state_dict()
        for name, tensor in checkpoint.read_part(path, "network", own).items():
            assign(own[name], tensor)
        for name, tensor in checkpoint.read_part(path, "ema", self.average.average).items():
            assign(self.average.average[name], tensor)
        self.average.updates = self.counters.updates
        wanted = self.optimizer.template(self.counters.updates)
        self.optimizer.load(checkpoint.read_part(path, "optimizer", wanted))
        self.method.load_state(checkpoint.read_part(path, "method", self.method.state()))
        self.saved = step
        if self.team.leads:
            folder.point(self.folder, step, self.counters.best)


def load_corpus(config: RunConfig) -> Corpus:
    """Return the corpus that a configuration names."""
    wanted = config.data
    return data.load(
        wanted.name,
        protocol=wanted.protocol,
        file=wanted.file,
        tokenizer=wanted.tokenizer,
        vocabulary=wanted.vocabulary,
        accept_licence=wanted.accept_licence,
    )


def training_batches(config: RunConfig, corpus: Corpus, world: int) -> Batches:
    """Return the training batches; a batch that does not divide among processes and parts is refused."""
    training = config.training
    if training.batch % (world * training.accumulate):
        raise InputError(
            f"training.batch {training.batch} does not divide among {world} processes with "
            f"training.accumulate {training.accumulate}"
        )
    length = config.data.length
    held_out(corpus, length, training.validation_sequences, training.seed)
    return Batches(corpus, "train", batch_size=training.batch, length=length, seed=training.seed)


def check_writable(place: Path) -> None:
    """Refuse a folder that could not be made or written, without making it."""
    standing = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
    if not standing.is_dir() or not os.access(standing, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to the run folder {place}: {standing} is not a folder that can be written")


@contextmanager
def opened(
    config: RunConfig,
    place: Path,
    team: Team,
    build: Build,
    accept_changes: bool = False,
    load: Callable[[RunConfig], Corpus] = load_corpus,
) -> Iterator[Run]:
    """Yield the run in a folder, resumed; every mistake in the configuration shows before anything is computed."""
    with ExitStack() as stack:

        def prepared() -> tuple[Method, Corpus, Batches]:
            if team.leads:
                check_writable(place)
                folder.check_same(place, config, accept_changes)
            corpus = load(config)
            batches = training_batches(config, corpus, team.world)
            torch.manual_seed(config.training.seed)
            method = build(config, corpus)
            if team.leads:
                stack.enter_context(folder.claimed(place))
                folder.tidy(place)
                configfile.write(place / "config.yaml", config)
            return method, corpus, batches

        method, corpus, batches = team.leader_first(prepared)
        run = Run(config, method, corpus, batches, place, team)
        try:
            run.resume(accept_changes)
            yield run
        finally:
            # What shares the network must go before the processes part: its end may wait for them.
            method.network = run.network
