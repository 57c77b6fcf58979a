"""`rdlm plan`: the FLOPs and bytes of a network, and the limits of a device."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rdlm.cli import main as cli
from rdlm.config import ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.errors import InputError
from rdlm.presets import preset
from rdlm.train.roofline import HARDWARE, UTILISATION, DataSize, network_cost, plan

DATA = DataSize(27, 64)
WIDE = TransformerConfig(width=64, layers=2, heads=2)


def run_config(**training: object) -> RunConfig:
    return RunConfig(model=WIDE, process=ProcessConfig(), training=TrainingConfig(**training))  # type: ignore[arg-type]


def test_flops_are_six_per_parameter_and_token_plus_attention() -> None:
    """The usual estimate: 6 N per token for the matrices, and 12 L width per layer for the products of attention."""
    config = run_config()
    parameters, flops, _ = network_cost(config, DATA)
    usual = DATA.length * (6 * parameters + 12 * DATA.length * WIDE.width * WIDE.layers)
    assert flops == pytest.approx(usual, rel=0.15)
    blockwise = replace(config, objective=replace(config.objective, blockwise=1.0))
    assert network_cost(blockwise, DATA)[1] > 2 * flops


def test_kept_bytes_grow_with_the_length() -> None:
    _, _, short = network_cost(run_config(), DataSize(27, 64))
    _, _, long = network_cost(run_config(), DataSize(27, 128))
    assert 1.8 * short < long < 4 * short
    assert short > 64 * WIDE.width * WIDE.layers * 4 * 4  # at least four activations of every layer


def test_devices_share_the_work() -> None:
    config = run_config(batch=64, precision="bfloat16")
    one, eight = (plan(config, DATA, device) for device in ("a100", "a100:8"))
    assert eight.tokens_per_second <= 8 * one.tokens_per_second * 1.0001
    assert eight.memory_per_device < one.memory_per_device
    sharded = replace(config, training=replace(config.training, parallel="fsdp"))
    assert plan(sharded, DATA, "a100:8").memory_per_device < eight.memory_per_device


def test_a_run_limited_by_arithmetic_reaches_the_assumed_utilisation() -> None:
    config = preset("text8")
    found = plan(config, DataSize(27, 256), "h100:8", price=2.0)
    assert found.limit == "arithmetic" and found.parameters == pytest.approx(92.4e6, rel=0.01)
    achieved = found.tokens_per_second * found.flops_per_token / 8
    assert achieved == pytest.approx(UTILISATION * HARDWARE["h100"].bfloat16)
    assert found.hours == pytest.approx(found.tokens / found.tokens_per_second / 3600)
    assert found.dollars == pytest.approx(found.hours * 8 * 2)


def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "text8", "--device", "l4", "--training.batch", "4096"]) == 0
    assert "DOES NOT FIT" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["demo", "lm1b", "lm1b-packed", "cifar10", "promoter", "digits", "own"])
def test_every_kind_of_preset_has_a_plan(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens_per_second"] > 0 and len(found["assumptions"]) >= 6


@pytest.mark.parametrize(
    ("device", "message"), [("tpu:8", "unknown device"), ("h100:x", "such as h100:8"), ("h100:7", "not divisible by 7")]
)
def test_wrong_devices_are_refused(device: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(run_config(), DATA, device)
