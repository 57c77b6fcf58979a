"""Evaluations as files: read with suspicion, and known by the fingerprint of the weights that they measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rdlm.errors import DamagedFileError
from rdlm.storage.files import read_json

NAME = "evaluation.json"
MAIN = ("bits_per_character", "bits_per_dimension", "bits_per_base")
"""The metric of each kind of data by which models are compared."""


def fingerprint(network: nn.Module | Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all weights by name: two models have the same one if their numbers are the same."""
    tensors = dict(network.named_parameters()) if isinstance(network, nn.Module) else network
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read(path: Path) -> dict[str, Any]:
    """Return the evaluation that `rdlm evaluate` wrote into a file."""
    return checked(read_json(path), path)


def checked(found: Any, path: Path) -> dict[str, Any]:
    """Return an evaluation of which all that a reader needs is there and of its kind; else its file is damaged."""
    try:
        right = all(isinstance(found[key], str) for key in ("split", "protocol")) and isinstance(found["metrics"], dict)
        right = right and type(found["claims_bound"]) is bool and all(map(_is_metric, found["metrics"].values()))
    except (AttributeError, KeyError, TypeError):
        right = False
    if not right:
        raise DamagedFileError(f"{path} is damaged: it is no evaluation; run rdlm evaluate again")
    checked: dict[str, Any] = found
    return checked


def _is_metric(metric: dict[str, Any]) -> bool:
    numbers = [metric["value"], *(metric[end] for end in ("low", "high") if metric[end] is not None)]
    return all(type(number) in (int, float) for number in numbers) and all(
        isinstance(metric[key], str) for key in ("unit", "convention")
    )


def standing(evaluation: Mapping[str, Any], metric: Mapping[str, Any]) -> str:
    """Return what a number is: only what claims to be an upper bound, under a method that claims one, is called so."""
    claimed = evaluation["claims_bound"] and metric["convention"].startswith("upper bound")
    return "upper bound" if claimed else "not a bound"


def main_metric(evaluation: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the metric by which models of its kind are compared; None where it was not measured."""
    metrics = evaluation["metrics"]
    return next(((name, metrics[name]) for name in MAIN if name in metrics), None)


def interval(metric: Mapping[str, Any]) -> str:
    """Return a metric's value with its 95% interval, as text."""
    if metric["low"] is None or metric["high"] is None:
        return _digits(metric["value"])
    return f"{_digits(metric['value'])} [{_digits(metric['low'])}, {_digits(metric['high'])}]"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:#.4g}".removesuffix(".")
