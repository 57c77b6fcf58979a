"""Evaluation files: validation, the fingerprint that ties them to weights, and how metrics are displayed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rdlm.storage.files import damaged, read_json

NAME = "evaluation.json"
CURVE = "curve.json"
"""The measured information beside a checkpoint: `{"noise": [S, ..., 0], "nats": [0, ..., total]}`, the nats gained down
to each level of remaining noise."""
MAIN = ("bits_per_character", "bits_per_dimension", "bits_per_base")
"""The metrics by which models are compared, one for each kind of data."""


def fingerprint(network: nn.Module | Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over names, types, shapes and values of all weights."""
    tensors = network.state_dict() if isinstance(network, nn.Module) else network
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


LONGEST_LABEL = 1024
"""Characters of the longest unit, protocol or convention."""


def is_label(found: object) -> bool:
    """Return whether a value is a text that a table or a message can show in one line."""
    return isinstance(found, str) and len(found) <= LONGEST_LABEL and found.isprintable()


def read(path: Path) -> dict[str, Any]:
    """Return the evaluation in a file that `rdlm evaluate` wrote."""
    return checked(read_json(path), path)


def checked(evaluation: Any, path: Path) -> dict[str, Any]:
    """Return an evaluation after checking its keys and types; DamagedFileError names the file `path`."""
    if not _is_evaluation(evaluation):
        raise damaged(path, "it is not an evaluation", "run rdlm evaluate again")
    found: dict[str, Any] = evaluation
    return found


def _is_evaluation(found: Any) -> bool:
    try:
        return (
            all(is_label(found[key]) for key in ("split", "protocol"))
            and all(map(is_label, found["metrics"]))
            and isinstance(found["metrics"], dict)
            and type(found["claims_bound"]) is bool
            and all(map(_is_metric, found["metrics"].values()))
        )
    except (AttributeError, KeyError, TypeError):
        return False


def _is_metric(metric: dict[str, Any]) -> bool:
    numbers = [metric["value"], *(metric[end] for end in ("low", "high") if metric[end] is not None)]
    return all(type(number) in (int, float) and abs(number) <= sys.float_info.max for number in numbers) and all(
        is_label(metric[key]) for key in ("unit", "convention")
    )


def bound_label(evaluation: Mapping[str, Any], metric: Mapping[str, Any]) -> str:
    """Return "upper bound" if both the evaluation and the convention of the metric claim one, else "not a bound"."""
    claimed = evaluation["claims_bound"] and metric["convention"].startswith("upper bound")
    return "upper bound" if claimed else "not a bound"


def main_metric(evaluation: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return name and metric by which models of this kind of data are compared; None if it was not measured."""
    metrics = evaluation["metrics"]
    return next(((name, metrics[name]) for name in MAIN if name in metrics), None)


def interval(metric: Mapping[str, Any]) -> str:
    """Return a metric's value with its 95% interval, as text."""
    if metric["low"] is None or metric["high"] is None:
        return _digits(metric["value"])
    return f"{_digits(metric['value'])} [{_digits(metric['low'])}, {_digits(metric['high'])}]"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:#.4g}".removesuffix(".")
