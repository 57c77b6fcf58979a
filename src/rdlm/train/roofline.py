"""The expected cost of a run on given devices: parameters, FLOPs, memory, speed by the roofline model, dollars.

The network is built on torch's meta device, where nothing is computed: FLOPs of matrix products and the bytes that the
backward pass needs are counted, and the speed is the least of three limits.

| limit | seconds of a step |
|---|---|
| arithmetic | FLOPs / (peak FLOPs x utilisation) |
| memory | bytes of activations and parameters, each read and written / bandwidth |
| communication | gradients, reduced over all devices / bandwidth of the link; it overlaps with the others |
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rdlm.config import Interface, RunConfig
from rdlm.errors import InputError, unknown
from rdlm.methods.rdlm import Process
from rdlm.model.denoiser import Denoiser
from rdlm.model.network import build, parameter_count, without_belief

UTILISATION: Final = 0.4
"""Share of the peak arithmetic that training reaches, typical of well-tuned transformers."""

PASSES: Final = 4
"""Memory accesses per activation: written and read, forward and backward."""


@dataclass(frozen=True)
class Hardware:
    """A device by its data sheet; dense arithmetic, without sparsity."""

    bfloat16: float
    """Peak FLOPs per second of matrix products in bfloat16."""
    float32: float
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes per second from memory."""
    link: float
    """Bytes per second to another device."""
    price: float
    """Dollars per hour; an assumption, prices vary."""


HARDWARE: Final = {
    "h100": Hardware(989e12, 67e12, 80e9, 3.35e12, 450e9, 3.0),
    "a100": Hardware(312e12, 19.5e12, 80e9, 2.04e12, 300e9, 1.8),
    "l4": Hardware(121e12, 30.3e12, 24e9, 0.30e12, 32e9, 0.8),
    "rtx4090": Hardware(165e12, 82.6e12, 24e9, 1.01e12, 32e9, 0.5),
}


@dataclass(frozen=True)
class RunPlan:
    """The expected cost of a run; times and memory are estimates."""

    parameters: int
    tokens: int
    """Tokens of the whole run."""
    flops_per_token: float
    """Of a training step, forward and backward."""
    memory_per_device: float
    """Bytes."""
    fits: bool
    tokens_per_second: float
    """Of all devices together."""
    limit: str
    """The limit of the speed: arithmetic, memory or communication."""
    hours: float
    dollars: float
    assumptions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return asdict(self)


def parse_device(text: str) -> tuple[Hardware, str, int]:
    """Return the hardware, its name and the number of devices of a text such as h100:8."""
    name, _, count = text.lower().partition(":")
    if name not in HARDWARE:
        raise unknown("device", name, HARDWARE)
    if count and not (count.isdecimal() and int(count) > 0):
        raise InputError(f"--device takes a name and a number, such as h100:8, got {text!r}")
    return HARDWARE[name], name, int(count or 1)


@dataclass(frozen=True)
class DataSize:
    """The sizes of a corpus that determine a plan."""

    vocabulary: int
    length: int
    classes: int = 0
    signal: int = 0


def plan(config: RunConfig, data: DataSize, device: str = "h100", price: float | None = None) -> RunPlan:
    """Return the expected cost of a run on devices such as h100:8, for a price in dollars per device and hour."""
    hardware, name, devices = parse_device(device)
    training, rate = config.training, hardware.price if price is None else price
    if config.method != "rdlm":
        raise InputError(f"rdlm plan supports the method rdlm only, got {config.method}")
    if training.batch % (devices * training.accumulate):
        raise InputError(f"training.batch {training.batch} is not divisible by {devices} devices")
    count, flops, saved = network_cost(config, data)
    activations = saved * (2 if training.precision == "bfloat16" else 4) / 4  # bytes per sequence
    copies = count * _copies(config)
    memory = copies / (devices if training.parallel == "fsdp" else 1)
    memory += training.batch / devices / training.accumulate * activations
    share = training.batch / devices  # sequences per device and step
    limits = {
        "arithmetic": share * flops / (UTILISATION * getattr(hardware, training.precision)),
        "memory": (PASSES * share * activations + 2 * copies) / hardware.bandwidth,
        "communication": 2 * 4 * count * (devices - 1) / devices / hardware.link,
    }
    limit = max(limits, key=lambda key: limits[key])
    hours, tokens = training.steps * limits[limit] / 3600, training.batch * data.length
    return RunPlan(
        count,
        tokens * training.steps,
        flops / data.length,
        memory,
        memory < 0.9 * hardware.memory,
        tokens / limits[limit],
        limit,
        hours,
        hours * devices * rate,
        _assumptions(config, data, name, rate),
    )


def _copies(config: RunConfig) -> int:
    """Return the bytes per parameter: weights, gradients, moments (AdamW two, Muon one) and average, in float32."""
    return 4 * (4 if config.training.optimizer == "muon" else 5)


def _assumptions(config: RunConfig, data: DataSize, name: str, rate: float) -> tuple[str, ...]:
    training, hardware = config.training, HARDWARE[name]
    return (
        f"{name}: {getattr(hardware, training.precision) / 1e12:g} TFLOP/s in {training.precision}, "
        f"{hardware.bandwidth / 1e12:g} TB/s, {hardware.memory / 1e9:g} GB, link {hardware.link / 1e9:g} GB/s",
        f"{UTILISATION:.0%} of the peak arithmetic is reached; only matrix products are counted",
        f"every activation passes through memory {PASSES} times; none is recomputed",
        f"{_copies(config)} bytes per parameter: weights, gradients, moments, average ({training.parallel})",
        f"{data.vocabulary} tokens in the vocabulary, sequences of {data.length}, batches of {training.batch}, "
        f"{training.steps:,} steps",
        "not included: validation, samples, checkpoints, loading of data, the law of the states, the n-gram chain",
        f"{rate:g} dollars per device and hour",
    )


def network_cost(config: RunConfig, data: DataSize) -> tuple[int, float, float]:
    """Return parameters, FLOPs of a training step for one sequence, and float32 bytes kept for its backward pass.

    Sequences that are trained block by block are twice as long.
    """
    process = Process.of(config.process, data.vocabulary, config.denoiser.head)
    denoiser = Denoiser(config.denoiser, process.layout, process.bridge, process.schedule, config.model.belief)
    interface = denoiser.interface(data.classes, data.signal)
    with torch.device("meta"):
        network = build(config.model, interface)
    count = parameter_count(network) + (0 if process.codes is None else parameter_count(process.codes))
    inner = without_belief(network)  # the tables of the chain cannot be read on the meta device
    positions = data.length * process.layout.positions
    flops, saved = _measured(inner, interface, positions)
    if not config.objective.blockwise:
        return count, flops, saved
    twice, more = _measured(inner, interface, 2 * positions)
    share = config.objective.blockwise
    return count, (1 - share) * flops + share * twice, (1 - share) * saved + share * more


def _measured(network: nn.Module, interface: Interface, positions: int) -> tuple[float, float]:
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[id(tensor)] = tensor
        return tensor

    condition = torch.zeros(1, positions, interface.signal, device="meta") if interface.signal else None
    if interface.classes:
        condition = torch.zeros(1, dtype=torch.long, device="meta")
    inputs = torch.zeros(1, positions, interface.features, device="meta")
    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(inputs, torch.zeros(1, device="meta"), condition, None).sum().backward()
    return float(counter.get_total_flops()), float(sum(tensor.nbytes for tensor in kept.values()))
