"""Models with an inference layer: trained, stored, published, loaded, resumed, sampled in every order, scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import rdlm
from rdlm import methods
from rdlm.api.language_model import LanguageModel
from rdlm.config import DataConfig, MethodName, ObjectiveConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.errors import DamagedFileError, InputError
from rdlm.model.belief import BeliefNetwork, Ngram
from rdlm.storage import checkpoint
from rdlm.storage.manifest import Manifest, with_checksum
from rdlm.train.loop import train
from tests.train.toy import TEXT, toy_corpus


def config(method: MethodName = "rdlm", belief: str = "ngram", steps: int = 4) -> RunConfig:
    return RunConfig(
        method,
        DataConfig("toy", length=16),
        model=TransformerConfig(width=16, layers=1, heads=2, belief=belief, order=4, states=64),
        objective=ObjectiveConfig(asynchronous=0.3, mixed=0.3, blockwise=0.4),
        training=TrainingConfig(steps=steps, batch=8, validate_every=4, validation_sequences=4, validation_nfe=4),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("belief") / "run"
    train(config(), folder, methods.build, load=toy_corpus)
    return folder


@pytest.mark.parametrize("method", ["rdlm", "mdlm", "autoregressive"])
@pytest.mark.parametrize("belief", ["ngram", "hmm"])
def test_every_method_that_reads_evidence_trains_and_loads(method: MethodName, belief: str, tmp_path: Path) -> None:
    result = train(config(method, belief), tmp_path / "run", methods.build, load=toy_corpus)
    assert result.bound is not None and result.bound.bits < (4.0 if belief == "ngram" else 8.0)
    model = rdlm.load(tmp_path / "run")
    first, second = (model.generate(num=2, steps=4, seed=1).samples for _ in range(2))
    assert first == second
    again = rdlm.load(tmp_path / "run", averaged=False)
    assert isinstance(again.method.network, BeliefNetwork)


@pytest.mark.parametrize("order", ["synchronous", "random", "strided", "left-to-right"])
def test_the_chain_spells_words_in_every_order(run: Path, order: str) -> None:
    """Four steps train no network: what the samples know of the text is the chain's."""
    samples = rdlm.load(run).generate(num=8, steps=16, order=order, seed=0).samples
    words = [word for sample in samples for word in sample.text.split(" ")[1:-1] if word]
    assert sum(word in TEXT.split() for word in words) > 0.6 * len(words)


def test_a_cached_prefix_gives_the_samples_of_whole_evaluations(run: Path) -> None:
    model = rdlm.load(run)
    cached = model.generate(num=3, steps=8, order="left-to-right", block=2, seed=3)
    whole = model.generate(num=3, steps=8, order="left-to-right", block=2, seed=3, regex=".*")
    assert [one.text for one in cached.samples] == [one.text for one in whole.samples]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_published_models_have_the_tables(run: Path, tmp_path: Path, dtype: str) -> None:
    model = rdlm.load(run)
    model.save(tmp_path / "published", dtype=dtype)
    again = rdlm.load(tmp_path / "published")
    for name in ("suffix", "oldest"):
        assert torch.equal(table(model, name), table(again, name))
    exact = dtype == "float32"
    assert torch.allclose(table(model, "weight"), table(again, "weight"), rtol=0, atol=0 if exact else 1e-3)
    scores = [one.score(["the quick brown fox "])[0].nats.value for one in (model, again)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-9 if exact else 0.5)


def table(model: LanguageModel, name: str) -> torch.Tensor:
    assert isinstance(model.method.network, BeliefNetwork)
    return getattr(model.method.network.belief, name)


def test_a_run_continues_bit_for_bit(tmp_path: Path) -> None:
    train(config(steps=6), tmp_path / "whole", methods.build, load=toy_corpus)
    partly = config(steps=6)
    shorter = replace(partly, training=replace(partly.training, steps=3))
    train(shorter, tmp_path / "parts", methods.build, load=toy_corpus)
    train(partly, tmp_path / "parts", methods.build, load=toy_corpus, accept_changes=True)
    file = "checkpoint-00000006/network.safetensors"
    whole, parts = (load_file(tmp_path / one / file) for one in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    ("name", "row", "value", "message"),
    [
        ("suffix", 5, 10**6, "not numbered in order"),
        ("suffix", 5, -7, "not numbered in order"),
        ("suffix", 3, 1, "single symbols"),
        ("suffix", -1, 0, "sorted by length"),
        ("oldest", 5, 10**6, "not numbered in order"),
        ("oldest", 5, -1, "not numbered in order"),
        ("oldest", 3, 0, "single symbols"),
        ("weight", 5, 0.9, "do not sum to 1"),
        ("weight", 5, -0.1, "do not sum to 1"),
        ("weight", 0, 0.0, "do not sum to 1"),
        ("weight", 5, float("nan"), "do not sum to 1"),
    ],
)
def test_tables_of_a_foreign_file_are_checked(name: str, row: int, value: float, message: str) -> None:
    method = methods.build(config(), toy_corpus(config()))
    assert isinstance(method.network, BeliefNetwork) and isinstance(method.network.belief, Ngram)
    belief = method.network.belief
    belief.check()
    used = int((belief.suffix >= 0).sum())
    getattr(belief, name)[row % used] = value
    with pytest.raises(ValueError, match=message):
        belief.check()


def test_a_damaged_table_is_a_damaged_file(run: Path, tmp_path: Path) -> None:
    rdlm.load(run).save(tmp_path / "published")
    file = tmp_path / "published" / "model.safetensors"
    tensors = load_file(file)
    tensors["belief.suffix"][3] = 10**6
    save_file(tensors, file)
    reseal(tmp_path / "published")
    with pytest.raises(DamagedFileError, match="not numbered in order"):
        rdlm.load(tmp_path / "published")


def reseal(folder: Path) -> None:
    """Write the checksums anew, as an attacker would."""
    state = json.loads((folder / "config.json").read_text())
    state.pop("sha256")
    state["files"] = {name: entry for name, entry in Manifest.of(folder).files.items() if name in state["files"]}
    (folder / "config.json").write_text(json.dumps(with_checksum(state)))


@pytest.mark.parametrize("method", ["udlm", "sedd", "fisher_flow"])
def test_methods_without_evidence_refuse_the_layer(method: MethodName) -> None:
    with pytest.raises(InputError, match=r"model\.belief needs a method that reads evidence"):
        config(method)


def test_features_other_than_evidence_are_refused() -> None:
    changed = config()
    changed = replace(changed, denoiser=replace(changed.denoiser, features="tokens"))
    with pytest.raises(InputError, match=r"denoiser\.features evidence"):
        methods.build(changed, toy_corpus(changed))


def test_checkpoints_name_the_tables(run: Path) -> None:
    path = next(run.glob("checkpoint-*"))
    assert checkpoint.verify(path)
    assert {"belief.weight", "belief.suffix"} <= load_file(path / "network.safetensors").keys()
