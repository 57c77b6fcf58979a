"""Untrained models whose predictions depend on every input of their network."""

from __future__ import annotations

from typing import Any

import torch

from rdlm.api.language_model import LanguageModel
from rdlm.config import DenoiserConfig, ObjectiveConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.tokenizer import TEXT8_ALPHABET, Characters, Tokenizer
from rdlm.methods.rdlm import Rdlm

LENGTH = 16


def tiny(
    tokenizer: Tokenizer | None = None,
    kind: str = "text",
    classes: int = 0,
    signal: bool = False,
    network: dict[str, Any] | None = None,
    denoiser: DenoiserConfig | None = None,
    objective: ObjectiveConfig | None = None,
    length: int = LENGTH,
    std: float = 0.15,
    **process: Any,
) -> LanguageModel:
    """Return a small untrained model; keyword arguments without a name of their own configure the process."""
    tokenizer = tokenizer or Characters(TEXT8_ALPHABET)
    config = RunConfig(
        process=ProcessConfig(**process),
        denoiser=denoiser or DenoiserConfig(),
        model=TransformerConfig(**{"width": 16, "layers": 1, "heads": 2, "time_width": 8} | (network or {})),
        objective=objective or ObjectiveConfig(),
    )
    torch.manual_seed(0)
    method = Rdlm(config, tokenizer.size, classes, int(signal))
    for parameter in method.network.parameters():
        torch.nn.init.normal_(parameter, std=std)
    about = {"kind": kind, "length": length, "classes": [f"class {i}" for i in range(classes)], "signal": signal}
    return LanguageModel("tiny", method, tokenizer, config, about)
