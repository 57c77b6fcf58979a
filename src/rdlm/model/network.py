"""The network of a configuration: transformer or convolution, with or without an inference layer; moving averages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from rdlm.config import Convolution2DConfig, Interface, NetworkConfig, TransformerConfig
from rdlm.errors import InputError, unknown
from rdlm.model.belief import WEIGHTS, Belief, BeliefNetwork, HiddenMarkov, Ngram
from rdlm.model.bigram import Bigram
from rdlm.model.cnn import Convolution, Convolution2D
from rdlm.model.transformer import Transformer
from rdlm.storage.files import use_compile_cache
from rdlm.storage.own_classes import own_class

Network = Transformer | Convolution | Convolution2D | BeliefNetwork


def build(config: NetworkConfig, interface: Interface) -> nn.Module:
    """Return the network with fresh parameters, on torch's default device and from its global seed.

    A user-defined class is constructed as `MyNetwork(config, interface)`, and called like the networks of rdlm:
    `forward(inputs [B, L, features], time [B] or [B, L], condition, previous)` returns logits [B, L, outputs].
    """
    if config.belief != "none":
        belief = belief_of(config, interface)
        own = replace(interface, outputs=interface.outputs + WEIGHTS, weights=WEIGHTS)
        causal = isinstance(config, TransformerConfig) and config.causal
        inner = build(replace(config, belief="none", self_condition=config.belief_input), own)
        width = interface.features if config.belief_input else 0
        joint = BeliefNetwork(inner, belief, interface.outputs, causal, width)
        joint.at_frequencies = isinstance(config, TransformerConfig) and config.frequencies
        return joint
    if config.network_class is not None:
        return _own(config, interface)
    if isinstance(config, TransformerConfig):
        return Transformer(config, interface)
    if isinstance(config, Convolution2DConfig):
        return Convolution2D(config, interface)
    return Convolution(config, interface)


def belief_of(config: NetworkConfig, interface: Interface) -> Belief:
    """Return the inference layer of a configuration, before it is fitted."""
    if interface.digits > 1 or interface.features not in (interface.outputs, interface.outputs + 1):
        raise InputError(
            f"model.belief {config.belief} needs tokens as they are and evidence as the network's input: "
            "use process.base null and denoiser.features evidence, or model.belief none"
        )
    if config.belief == "hmm":
        return HiddenMarkov(interface.outputs, config.chain_states)
    if config.belief == "bigram":
        return Bigram(interface.outputs, config.chain_states)
    return Ngram(interface.outputs, config.order, config.chain_states)


def _own(config: NetworkConfig, interface: Interface) -> nn.Module:
    """Return a network of a user-defined class."""
    assert config.network_class is not None
    if config.self_condition:
        raise InputError("model.self_condition is not supported with model.network_class")
    network: nn.Module = own_class(config.network_class, nn.Module)(config, interface)

    def check(module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        wanted = (*inputs[0].shape[:2], interface.outputs)
        if (shape := tuple(getattr(logits, "shape", ()))) != wanted:
            found = f"a tensor {list(shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise InputError(f"{config.network_class} returned {found}, not logits [B, L, outputs] = {list(wanted)}")

    network.register_forward_hook(check)
    return network


def parameter_count(network: nn.Module) -> int:
    """Return the number of trainable parameters; shared ones count once."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


# -- devices and precision -------------------------------------------------------------------------

Precision = Literal["float32", "bfloat16"]


def device_of(name: str, index: int = 0, flag: str = "device") -> torch.device:
    """Return the device of this name; `auto` selects cuda, mps or cpu, whichever is available first.

    `index` is that of a cuda device whose number is not given.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, here in available.items() if here)
    kind, _, number = name.partition(":")
    here = ", ".join(kind for kind, found in available.items() if found)
    if not available.get(kind, False):
        raise InputError(f"{flag} {name!r} is not available; this machine has: {here}")
    try:
        found = torch.device(f"cuda:{index}" if name == "cuda" else name)
    except RuntimeError as error:
        raise InputError(f"{flag} {name!r} is not a device: {error}") from None
    if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
        raise InputError(f"{flag} {name!r} is not available; this machine has {torch.cuda.device_count()} cuda devices")
    return found


def use_precision(network: nn.Module, precision: Precision) -> None:
    """Run a network under bfloat16 autocast from now on, or in float32; its parameters and logits are float32."""
    if precision not in get_args(Precision):
        raise unknown("precision", precision, get_args(Precision))
    vars(network).pop("forward", None)
    if precision == "bfloat16":
        plain = network.forward

        def forward(inputs: Tensor, *more: Any, **options: Any) -> Tensor:
            with torch.autocast(inputs.device.type, torch.bfloat16):
                logits: Tensor = plain(inputs, *more, **options)
            return logits.float()

        vars(network)["forward"] = forward


def compile_network(network: nn.Module, device: torch.device, flag: str = "--compile") -> None:
    """Compile a network with torch.compile in its first calls; raise InputError with `flag` where that would fail."""
    if device.type == "cpu" and " " in torch.__file__:
        raise InputError(
            f"{flag}: torch's compiler fails in a folder with a space in its name, {torch.__file__}: "
            f"install rdlm elsewhere, or omit {flag}"
        )
    use_compile_cache()
    network.compile()


def without_belief(network: nn.Module) -> nn.Module:
    """Return a network without its inference layer, if it has one."""
    return network.network if isinstance(network, BeliefNetwork) else network


def transformer_of(network: nn.Module) -> Transformer | None:
    """Return the transformer of a network, with or without an inference layer; None for another kind of network."""
    inner = without_belief(network)
    return inner if isinstance(inner, Transformer) else None


# -- moving average of the parameters --------------------------------------------------------------


class MovingAverage:
    """Moving average with decay min(d, (1 + n) / (10 + n)) after n updates, which discounts early weights."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise InputError(f"decay {decay} of the moving average must lie in [0, 1)")
        self.decay = decay
        self.updates = 0
        self.tensors = {name: _wide(p).clone() for name, p in _trainable(network).items()}

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Update the average with the parameters of the network."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        current = [_wide(p) for p in _trainable(network).values()]
        torch._foreach_lerp_(list(self.tensors.values()), current, 1 - decay)

    @contextmanager
    def swap(self, network: nn.Module) -> Iterator[None]:
        """Context manager: use the averaged parameters inside, and restore the parameters afterwards."""
        own = {name: p.clone() for name, p in _trainable(network).items()}
        _assign(network, self.tensors)
        try:
            yield
        finally:
            _assign(network, own)


def _trainable(network: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}


def _wide(parameter: Tensor) -> Tensor:
    # In half precision a decay of 0.9999 rounds to no movement at all.
    return parameter.to(torch.promote_types(parameter.dtype, torch.float32))


def _assign(network: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name, parameter in _trainable(network).items():
        parameter.copy_(tensors[name])
