from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rdlm.config import ConvolutionConfig, DataConfig, ObjectiveConfig, RunConfig, TrainingConfig
from rdlm.errors import InputError
from rdlm.presets import PRESETS, preset
from rdlm.storage import config_file


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_yaml(name: str, tmp_path: Path) -> None:
    config = preset(name)
    config_file.write(tmp_path / "run.yaml", config)
    assert config_file.read(tmp_path / "run.yaml") == config


def references(depth: int) -> str:
    """Return a list of lists, nine by references each: 9^(depth + 1) numbers."""
    inner = "[1,1,1,1,1,1,1,1,1]"
    for level in range(depth):
        inner = f"[&y{level} {inner}{f',*y{level}' * 8}]"
    return inner


def test_tuples_paths_and_absent_values_survive() -> None:
    config = RunConfig(
        data=DataConfig("textfile", file=Path("a b/ü.txt"), length=64),
        model=ConvolutionConfig(dilations=(1, 2, 4)),
        objective=ObjectiveConfig(interval=(0.1, 0.25)),
    )
    text = config_file.to_yaml(config)
    assert config_file.from_yaml(text) == config
    assert "kind: convolution" in text and "protocol: null" in text


def test_missing_keys_keep_their_defaults() -> None:
    assert config_file.from_yaml("") == RunConfig()
    config = config_file.from_yaml("model: {width: 128}\ntraining: {rate: 3e-4, betas: [0.9, 1e-1], steps: 7}\n")
    assert config.model.width == 128
    assert config.training == TrainingConfig(lr=3e-4, betas=(0.9, 0.1), steps=7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: {}", "x.yaml: unknown key 'modle': did you mean 'model'"),
        ("process: {brige: brownian}", "unknown key 'process.brige': did you mean 'process.bridge'"),
        ("process: {bridge: brownean}", "unknown value of process.bridge 'brownean': did you mean 'brownian'"),
        ("model: {kind: transformers}", "unknown value of model.kind 'transformers': did you mean 'transformer'"),
        ("model: {kind: convolution, heads: 4}", "unknown key 'model.heads'"),
        ("model: 3", "model must be a mapping of names to values, got 3"),
        ("training: {steps: 1.5}", "training.steps must be a whole number, got 1.5"),
        ("training: {steps: true}", "training.steps must be a whole number, got True"),
        ("training: {lr: fast}", "training.lr must be a number, got 'fast'"),
        ("training: {compile: 1}", "training.compile must be true or false, got 1"),
        ("training: {betas: [0.9]}", "training.betas must have 2 entries, got 1"),
        ("training: {betas: 0.9}", "training.betas must be a list, got 0.9"),
        ("objective: {interval: [0.3, x]}", r"objective.interval\[1\] must be a number, got 'x'"),
        ("data: {name: 3}", "data.name must be text, got 3"),
        ("data: {length: long}", "data.length must be a whole number, got 'long'"),
        ("training: {steps: 0}", "training.steps must be at least 1, got 0"),
        ("a: [", "x.yaml is not YAML"),
        ("method: mdlm\nmethod: rdlm", "x.yaml is not YAML: duplicate key 'method'"),
        ("training: {steps: 5, lr: 0.1, 'steps': 7}", "duplicate key 'steps'"),
        ("training: {<<: {steps: 5, steps: 7}}", "duplicate key 'steps'"),
        ("- a", "a configuration must be a mapping"),
        (f"training: {{seed: {references(9)}}}", "x.yaml is not YAML: more than 100000 parts"),
        (f"training: {{<<: [{', '.join(['&a {}', *['*a'] * 200_000])}]}}", "more than 100000 parts"),
        ("training: &a {seed: *a}", "a reference within what it refers to"),
        ("training: &a {<<: *a}", "a reference within what it refers to"),
        (f"training: {{seed: 0x{'f' * 50_000}}}", "training.seed is too large a number"),
        (f"method: 0x{'f' * 50_000}", "unknown value of method 'a number of thousands of digits'"),
        (f"? 0x{'f' * 50_000}\n: 1", "unknown key 'a number of thousands of digits'"),
        (f"model: 0x{'f' * 50_000}", "model must be a mapping of names to values, got a number of thousands"),
        ('data: {file: "a\\0b"}', "data.file must be text without null characters"),
        ("!!python/object/apply:os.system [ls]", "x.yaml is not YAML"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        config_file.from_yaml(text, "x.yaml")


def test_references_are_read(tmp_path: Path) -> None:
    text = "training: {betas: &both [0.5, 0.75]}\nobjective: {interval: *both}\n"
    found = config_file.from_yaml(text)
    assert found.training.betas == found.objective.interval == (0.5, 0.75)


def test_a_merged_key_may_be_overridden() -> None:
    text = "training: &own {<<: {steps: 5, warmup: 1}, steps: 7}\n"
    assert config_file.from_yaml(text).training.steps == 7


def test_a_missing_or_huge_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the configuration .*none\.yaml"):
        config_file.read(tmp_path / "none.yaml")
    (tmp_path / "huge.yaml").write_bytes(b" " * (config_file.LARGEST_FILE + 1))
    with pytest.raises(InputError, match="too many for a configuration"):
        config_file.read(tmp_path / "huge.yaml")
    with pytest.raises(InputError, match="cannot read the configuration /dev/zero: it is not a regular file"):
        config_file.read(Path("/dev/zero"))


def test_difference_names_every_key_that_differs() -> None:
    old = RunConfig()
    assert config_file.difference(old, old) == {}
    new = replace(old, training=replace(old.training, lr=1e-3, betas=(0.9, 0.95)), data=DataConfig("text8"))
    assert config_file.difference(old, new) == {
        "data.name": ("demo", "text8"),
        "training.lr": (3e-4, 1e-3),
        "training.betas": ([0.9, 0.999], [0.9, 0.95]),
    }
    other = config_file.difference(old, replace(old, model=ConvolutionConfig()))
    assert other["model.kind"] == ("transformer", "convolution")
    assert other["model.heads"] == (4, None)
