"""Names of version 0.1.0 that still work for one version: configuration keys, values and flags; no torch here."""

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
"""Configuration key -> its new name."""

METHODS: Final[Mapping[str, str]] = {
    "masked": "mdlm",
    "uniform": "udlm",
    "score_entropy": "sedd",
    "flow": "fisher_flow",
}
"""Method -> its new name."""

ORDERS: Final[Mapping[str, str]] = {"spread": "strided"}
"""Order of tokens -> its new name."""

VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "method": METHODS,
    "process.order": ORDERS,
    "discrete.order": ORDERS,
}
"""Configuration key -> old value -> new value."""

FLAGS: Final[Mapping[str, str]] = {
    "--chunk": "--block",
    "--calls": "--nfe",
    "--curve-calls": "--curve-nfe",
    "--rates": "--lrs",
    **{f"--{old}": f"--{new}" for old, new in KEYS.items() if "." in old},
}
"""Flag -> its new name; keys of a configuration are flags, too."""

FLAG_VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "--order": ORDERS,
    "--methods": METHODS,
    **{f"--{key}": values for key, values in VALUES.items()},
}
"""Flag, by its new name -> old value -> new value; lists are separated by commas."""


def renamed_configuration(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with new keys and values where version 0.1.0 had others."""
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
    return found


def _value(key: str, value: Any) -> Any:
    return VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value


def renamed_flags(arguments: list[str]) -> list[str]:
    """Return command-line arguments with new flags and values; each one that changes is named on standard error."""
    found: list[str] = []
    flag = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument.startswith("--"):
            flag = _new_flag(name)
            argument = flag + equals + (_new_value(flag, value) if equals else "")
        else:
            argument = _new_value(flag, argument)
            flag = ""
        found.append(argument)
    return found


def _new_flag(flag: str) -> str:
    dashed = flag.replace("_", "-")
    new = {old.replace("_", "-"): new.replace("_", "-") for old, new in FLAGS.items()}.get(dashed)
    if new is None and dashed.startswith("--flow."):
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
    print(f"rdlm: {old} is now {new}; the old name goes with the next version", file=sys.stderr)
