"""The sizes of the networks and the paper's presets; this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rdlm.errors import InputError


@dataclass(frozen=True)
class Interface:
    """What the data and the codec dictate: the numbers that enter and leave a network at each position."""

    features: int
    """Width of the input features, or the number of ids where the input is ids."""
    outputs: int
    """Number of logits per position."""
    digits: int = 1
    """Digits per token in the serial layout, where position i holds digit i mod digits; 1: no digit index."""
    classes: int = 0
    """Number of class labels to condition on; 0: none."""
    signal: int = 0
    """Width of the per-position conditioning signal; 0: none."""
    scale: float = 1.0
    """Length of the feature vector of a position whose token is known; 1 for ids and one-hot vectors."""

    def __post_init__(self) -> None:
        _at_least(self, {"features": 1, "outputs": 1, "digits": 1, "classes": 0, "signal": 0})
        if self.classes and self.signal:
            raise InputError("a network is conditioned on classes or on a signal, not on both")


@dataclass(frozen=True)
class TransformerConfig:
    """The diffusion transformer; the defaults are the small network for two cores."""

    width: int = 256
    """Width of the residual stream."""
    layers: int = 6
    """Number of transformer blocks."""
    heads: int = 4
    """Number of attention heads; width / heads must be even for the rotary positions."""
    mlp_ratio: int = 4
    """Width of the hidden layer of each block's perceptron, in units of the width."""
    time_width: int = 16
    """Width of the time and class embedding from which every block's modulation is computed, at each position."""
    time_scale: float = 1000.0
    """Radians per unit of time of the fastest sinusoid of the time embedding, Eq. (44)."""
    dropout: float = 0.0
    """Probability of dropping an element of a block's output during training."""
    tie: bool = False
    """Use the input matrix as the output matrix too (needs outputs <= features)."""
    causal: bool = False
    """Let a position see itself and earlier positions only."""
    self_condition: bool = False
    """Accept a second feature tensor, the previous prediction."""
    places: int = 0
    """Positions with a learned vector of their own, all of an image's; 0 for text, which is alike everywhere."""

    def __post_init__(self) -> None:
        _at_least(self, {"width": 2, "layers": 1, "heads": 1, "mlp_ratio": 1, "time_width": 1, "places": 0})
        _positive_scale_and_probability(self.time_scale, self.dropout)
        if self.width % (2 * self.heads):
            raise InputError(
                f"width {self.width} is not a multiple of 2 * heads = {2 * self.heads}: "
                "rotary positions need heads of equal and even width"
            )


@dataclass(frozen=True)
class ConvolutionConfig:
    """The one-dimensional dilated convolution network of the promoter task; the defaults are the paper's."""

    width: int = 256
    """Number of channels."""
    stacks: int = 4
    """How often the cycle of dilations is repeated; layers = stacks * len(dilations)."""
    dilations: tuple[int, ...] = (1, 1, 4, 16, 64)
    """Dilations of one cycle of layers."""
    kernel: int = 9
    """Kernel size of the dilated convolutions, odd."""
    time_scale: float = 1000.0
    """Radians per unit of time of the fastest sinusoid of the time embedding, Eq. (44)."""
    dropout: float = 0.0
    """Probability of dropping an element of a layer's input during training."""
    self_condition: bool = False
    """Accept a second feature tensor, the previous prediction."""

    def __post_init__(self) -> None:
        _at_least(self, {"width": 1, "stacks": 1, "kernel": 1})
        _positive_scale_and_probability(self.time_scale, self.dropout)
        if self.kernel % 2 == 0:
            raise InputError(f"kernel {self.kernel} must be odd, so that input and output have equal length")
        if not self.dilations or min(self.dilations) < 1:
            raise InputError(f"dilations {self.dilations} must be one or more integers of at least 1")


NetworkConfig = TransformerConfig | ConvolutionConfig
Preset = tuple[NetworkConfig, Interface]


def _at_least(config: Interface | NetworkConfig, lowest: dict[str, int]) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in lowest and value < lowest[field.name]:
            raise InputError(f"{field.name} {value} must be at least {lowest[field.name]}")


def _positive_scale_and_probability(time_scale: float, dropout: float) -> None:
    if not time_scale > 0:
        raise InputError(f"time_scale {time_scale} must be positive")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout {dropout} must lie in [0, 1)")


def paper_text8() -> Preset:
    """Return the text8 network, 92.5M parameters (the paper: 92.4M): 27 characters and the mask."""
    return TransformerConfig(width=768, layers=12, heads=12, time_width=128), Interface(features=28, outputs=27)


def paper_lm1b() -> Preset:
    """Return the LM1B network, 107.8M parameters (the paper: 110M): ten base-3 digits in serial layout.

    The paper's text says 12 layers, which are 92.5M; 14 layers are what its count needs.
    """
    config = TransformerConfig(width=768, layers=14, heads=12, time_width=128)
    return config, Interface(features=4, outputs=3, digits=10)


def paper_cifar10() -> Preset:
    """Return the pixel network, 28.0M parameters (the paper: 28M in its table, 35M in its text)."""
    return TransformerConfig(width=448, layers=10, heads=7, time_width=128), Interface(features=257, outputs=256)


def paper_promoter() -> Preset:
    """Return the promoter network, 13.3M parameters (the paper: 13.3M): 4 bases, mask, one profile number."""
    return ConvolutionConfig(), Interface(features=5, outputs=4, signal=1)
