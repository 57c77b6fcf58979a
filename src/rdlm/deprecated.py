"""Names of version 0.1.0 that are still accepted for one version: configuration keys, values and flags; no torch here.

One flag changed its meaning and is not translated: `rdlm generate --block` set the tokens that each window adds past
the model's length, which is now `--stride`; the new `--block` is what `--chunk` was.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

KEYS: Final[Mapping[str, str]] = {
    "flow": "fisher_flow",
    "process.chunk": "process.block",
    "objective.chunked": "objective.blockwise",
    "objective.chunks": "objective.block_sizes",
    "training.rate": "training.lr",
    "training.validation_calls": "training.validation_nfe",
}
"""Old configuration section or key -> new one."""

METHODS: Final[Mapping[str, str]] = {
    "masked": "mdlm",
    "uniform": "udlm",
    "score_entropy": "sedd",
    "flow": "fisher_flow",
}
"""Old name of a method -> new name."""

ORDERS: Final[Mapping[str, str]] = {"spread": "strided", "left_to_right": "left-to-right"}
"""Old name of a token order -> new name; in configurations and JSON the old ones stay."""

OLD_DENOISER: Final = {"features", "top", "evidence", "head"}
"""Keys of the denoiser in configurations stored before `denoiser.time` existed; those networks have a time input."""

FIGURES: Final[Mapping[str, str]] = {"chunks": "blocks", "recall": "kv-cache"}
"""Old name of a benchmark figure -> new name."""

VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "method": METHODS,
    "process.order": ORDERS,
    "discrete.order": ORDERS,
}
"""New configuration key -> old value -> new value."""

FLAGS: Final[Mapping[str, str]] = {
    "--chunk": "--block",
    "--calls": "--nfe",
    "--curve-calls": "--curve-nfe",
    "--rates": "--lrs",
    **{f"--{old}".replace("_", "-"): f"--{new}".replace("_", "-") for old, new in KEYS.items() if "." in old},
}
"""Old flag -> new flag, both with hyphens; the keys of a configuration are flags of `rdlm train` and `rdlm compare`."""

FLAG_VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "--order": ORDERS,
    "--methods": METHODS,
    "--only": FIGURES,
    **{f"--{key}": values for key, values in VALUES.items()},
}
"""New flag -> old value -> new value, for single values and for lists separated by commas."""


def renamed_configuration(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with its keys and values of version 0.1.0 replaced by the present ones."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        section = KEYS.get(name, name)
        found[section] = _section(section, value) if isinstance(value, Mapping) else _value(section, value)
    return found


def _section(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        key = KEYS.get(f"{section}.{name}", f"{section}.{name}")
        found[key.removeprefix(f"{section}.")] = _value(key, value)
    if section == "denoiser" and set(found) == OLD_DENOISER:
        found["time"] = True
    return found


def _value(key: str, value: Any) -> Any:
    return VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value


def renamed_flags(arguments: list[str]) -> list[str]:
    """Return command-line arguments with old flags and values replaced, and print a notice for each."""
    found: list[str] = []
    flag = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            flag = _new_flag(name)
            argument = flag + equals + _new_value(flag, value)
        else:
            argument = _new_value(flag, argument)
            flag = ""
        found.append(argument)
    return found


def _new_flag(flag: str) -> str:
    dashed = flag.replace("_", "-")
    new = FLAGS.get(dashed)
    if dashed.startswith("--flow."):
        new = dashed.replace("--flow.", "--fisher-flow.")
    if new is None:
        return flag
    _notice(flag, new)
    return new


def _new_value(flag: str, text: str) -> str:
    values = FLAG_VALUES.get(flag, {})
    new = ",".join(values.get(part, part) for part in text.split(","))
    if new != text:
        _notice(f"{flag} {text}", f"{flag} {new}")
    return new


def _notice(old: str, new: str) -> None:
    print(f"rdlm: {old} is deprecated and will be removed in the next version; use {new}", file=sys.stderr)
