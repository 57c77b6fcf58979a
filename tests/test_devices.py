"""Training, bounds, samples and restoration on another device: no mix of devices, no reads in hot loops."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rdlm import random as numbers
from rdlm.api.language_model import LanguageModel
from rdlm.config import ObjectiveConfig, RunConfig, TrainingConfig
from rdlm.data.batch import Batch
from rdlm.methods import METHODS
from rdlm.methods.rdlm import Rdlm
from rdlm.model.denoiser import Denoiser, Prediction
from rdlm.random import Draw, generator_of
from rdlm.train.optimizer import Optimizer
from tests.device import META, Accelerator, DeviceError, MetaGenerator
from tests.methods.small import SMALL, method
from tests.sampling.untrained import tiny

SETTINGS: dict[str, dict[str, Any]] = {
    "one sphere per token": {},
    "switch": {"path": "switch"},
    "mixture": {"path": "constant"},
    "gaussian": {"bridge": "gaussian"},
    "packed digits": {"base": 2},
    "serial digits": {"base": 2, "layout": "serial", "head": "digit"},
    "learned codes": {"codes": "learned", "dimension": 6},
    "per token": {"asynchronous": 0.5, "mixed": 0.5, "prefix": 0.5},
    "blocks": {"blockwise": 0.5, "block_sizes": (1, 2)},
    "paper": {"law": "normal", "bridge": "logarithm", "loss": "drift_error"},
    "n-gram": {"belief": "ngram", "states": 8},
    "hidden Markov": {"belief": "hmm", "states": 4},
    "adaptive": {"proposal": "adaptive"},
}
every_setting = pytest.mark.parametrize("setting", SETTINGS)


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the meta device have generators and autocast, which torch has for real devices only."""
    autocast = torch.autocast

    def pretended_autocast(kind: str, *arguments: Any, **options: Any) -> Any:
        return nullcontext() if kind == "meta" else autocast(kind, *arguments, **options)

    monkeypatch.setattr(torch, "autocast", pretended_autocast)
    monkeypatch.setattr(numbers, "generator_on", lambda device: MetaGenerator())


def on_meta(**settings: Any) -> Rdlm:
    made = method(6, **settings)
    made.network.to(META)
    return made


def batch(rows: int = 4, length: int = 8) -> Batch:
    return Batch(torch.zeros(rows, length, dtype=torch.long, device=META))


def reads_of(work: Callable[[], object]) -> list[str]:
    with Accelerator() as device:
        work()  # makes tables
        device.reads.clear()
        work()
    return device.reads


@every_setting
def test_a_training_step(setting: str) -> None:
    made = on_meta(**SETTINGS[setting])
    optimizer = Optimizer(made.network, TrainingConfig())

    def step() -> None:
        optimizer.zero_grad()
        made.loss(batch(), Draw(0, 1)).backward()
        optimizer.update(1, optimizer.norm())

    # The adaptive proposal, which is no default, learns from the losses of every step.
    assert reads_of(step) == (["cpu"] if setting == "adaptive" else [])


@every_setting
def test_the_bound(setting: str) -> None:
    made = on_meta(**SETTINGS[setting])
    # How many pairs to simulate is read once for each bridge, as in a score; the Gaussian channel simulates none.
    expected = [] if setting == "gaussian" else ["cpu"]
    if setting == "switch":  # no default: two bridges, and which positions switch decides what is computed
        expected = ["cpu", "cpu", "item"]
    assert reads_of(lambda: made.bound(batch(), 4, generator_of("bound"))) == expected


@every_setting
def test_a_sampler(setting: str) -> None:
    made = on_meta(**SETTINGS[setting])
    found: list[Tensor] = []
    assert reads_of(lambda: found.append(made.generate(2, 8, 4, generator_of("sample")))) == []
    assert found[0].device == META


def model_on_meta(**settings: Any) -> LanguageModel:
    model = tiny(length=8, **settings)
    model.method.network.to(META)
    return model


@pytest.mark.parametrize("order", ["synchronous", "random", "left-to-right"])
def test_generated_text_is_read_once(order: str) -> None:
    model = model_on_meta(objective=ObjectiveConfig(asynchronous=0.5, blockwise=0.5))
    for steps in (4, 8):
        reads = reads_of(lambda steps=steps: model.generate(num=2, steps=steps, order=order, prompt="ab"))
        assert reads == ["cpu"], steps


@pytest.mark.parametrize("estimator", ["path", "steps"])
@pytest.mark.parametrize("order", ["synchronous", "strided"])
def test_a_score_is_not_read_in_every_step(order: str, estimator: str) -> None:
    model = model_on_meta(objective=ObjectiveConfig(asynchronous=0.5))
    for nfe, draws in ((4, 3), (8, 5)):
        work = partial(model.score, ["abcd", "bcde"], nfe=nfe, order=order, estimator=estimator, draws=draws)
        # The weights are checked; random steps read how many pairs to simulate; terms are checked and read.
        expected = ["item", *["cpu"] * (draws if estimator == "steps" else 0), "cpu", "cpu"]
        assert reads_of(work) == expected


def test_continuations_have_scores_on_the_device() -> None:
    model = model_on_meta(objective=ObjectiveConfig(asynchronous=0.5, blockwise=0.5))
    for order in ("left-to-right", "random"):
        assert len(reads_of(partial(model.score, ["cd"], ["ab"], nfe=4, order=order))) <= 24


@pytest.mark.parametrize("options", [{}, {"samples": 2}, {"passes": 2}, {"whole": True}], ids=str)
def test_a_restoration_is_read_once_per_window(options: dict[str, Any]) -> None:
    model = model_on_meta()
    found = [reads_of(partial(model.restore, "ab?d", steps=steps, **options)) for steps in (2, 6)]
    assert found[0] == found[1] and len(found[0]) <= 3


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_on_the_device(name: str) -> None:
    made = METHODS[name](RunConfig(method=name, model=SMALL), 6, 0, 0)  # type: ignore[arg-type]
    made.network.to(META)

    def step() -> None:
        made.loss(batch(), Draw(0, 1)).backward()

    reads_of(step)
    reads_of(lambda: made.bound(batch(), 4, generator_of("bound")))
    reads_of(lambda: made.generate(2, 8, 4, generator_of("sample")))


# -- the tests fail when they should ------------------------------------------------------------------


MUTATIONS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda logits: float(logits.detach().sum()),
    "cpu": lambda logits: logits.detach().cpu(),
    "mix": lambda logits: logits + torch.zeros(logits.shape[-1]),
    "generator": lambda logits: torch.rand(3, generator=torch.Generator(), device=logits.device),
    "mask": lambda logits: logits[logits > 0],
}


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("work", ["train", "bound", "sample", "restore"])
def test_a_mistake_in_a_hot_path_is_found(work: str, mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake is put into the denoiser, through which every network call goes."""
    predict = Denoiser.predict

    def mistaken(self: Denoiser, *arguments: Any, **options: Any) -> Prediction:
        found = predict(self, *arguments, **options)
        MUTATIONS[mutation](found.logits)
        return found

    monkeypatch.setattr(Denoiser, "predict", mistaken)
    tests: dict[str, Callable[[], None]] = {
        "train": partial(test_a_training_step, "one sphere per token"),
        "bound": partial(test_the_bound, "one sphere per token"),
        "sample": partial(test_generated_text_is_read_once, "synchronous"),
        "restore": partial(test_a_restoration_is_read_once_per_window, {"samples": 2}),
    }
    with pytest.raises((AssertionError, DeviceError, NotImplementedError)):
        tests[work]()
