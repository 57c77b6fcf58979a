"""Configurations as YAML files; errors name every unknown key and wrong type. Does not import torch."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from rdlm.config import Convolution2DConfig, ConvolutionConfig, RunConfig, TransformerConfig
from rdlm.deprecated import renamed_configuration
from rdlm.errors import InputError, unknown
from rdlm.storage.files import open_plain, write_atomic

KINDS: dict[str, type] = {
    "transformer": TransformerConfig,
    "convolution": ConvolutionConfig,
    "convolution2d": Convolution2DConfig,
}
"""Value of `model.kind` -> configuration class of the network."""

LARGEST_FILE = 1 << 20
"""Bytes of the largest configuration file that is read."""

MOST_PARTS = 100_000
"""Largest number of keys and values of a configuration, with references expanded."""

LARGEST_NUMBER = 1 << 128
"""Largest whole number of a configuration."""

Config = TypeVar("Config")


class _Loader(yaml.SafeLoader):
    """YAML's safe loader; duplicate keys of a mapping are an error, as in JSON files.

    So are references that expand to too many parts: a kilobyte of text can expand to billions.
    """

    def get_single_node(self) -> yaml.Node | None:
        """Return the node of the text after counting its parts."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _count_parts(node, {})
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return the node of a mapping; here, merge keys (<<) have not added inherited keys yet."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in keys:
                    raise yaml.composer.ComposerError(None, None, f"duplicate key {key.value!r}", key.start_mark)
                keys.add((key.tag, key.value))
        return node


def _count_parts(node: yaml.Node, counted: dict[int, int]) -> int:
    """Return the nodes of a tree with references expanded; a cyclic reference, or too many nodes, is an error."""
    if (known := counted.get(id(node))) is not None:
        if known == 0:
            raise yaml.composer.ComposerError(None, None, "a reference within what it refers to", node.start_mark)
        return known
    counted[id(node)] = 0  # in progress
    inner = node.value if isinstance(node, yaml.CollectionNode) else []
    parts = [part for pair in inner for part in pair] if isinstance(node, yaml.MappingNode) else inner
    count = 1 + sum(_count_parts(part, counted) for part in parts)
    if count > MOST_PARTS:
        raise yaml.composer.ComposerError(None, None, f"more than {MOST_PARTS} parts", node.start_mark)
    counted[id(node)] = count
    return count


def to_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as nested dictionaries of plain values; that of a network has a key `kind`."""
    names = {kind: name for name, kind in KINDS.items()}
    tag = {"kind": names[type(config)]} if type(config) in names else {}
    return tag | {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with these values; missing keys keep their defaults.

    Keys and values of version 0.1.0 are translated.
    """
    return _dataclass(RunConfig, renamed_configuration(values) if isinstance(values, Mapping) else values, "")


def to_yaml(config: RunConfig) -> str:
    """Return a configuration as YAML with all keys."""
    text: str = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    return text


def from_yaml(text: str, source: str = "the configuration") -> RunConfig:
    """Return the configuration that a YAML text describes; `source` names it in errors."""
    try:
        values = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    try:
        return from_dict({} if values is None else values)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def write(path: Path, config: RunConfig) -> None:
    """Write a configuration as YAML, atomically."""
    write_atomic(path, to_yaml(config))


def read(path: Path) -> RunConfig:
    """Return the configuration in a YAML file."""
    try:
        with open_plain(path, follow=True) as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise InputError(f"{path} has more than {LARGEST_FILE} bytes, too many for a configuration")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the configuration {path}: {error}") from None
    return from_yaml(text, str(path))


def difference(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return dotted key -> (old, new) for all keys that differ; a missing key has the value None."""
    a, b = dict(_flat(to_dict(old))), dict(_flat(to_dict(new)))
    return {key: (a.get(key), b.get(key)) for key in (a | b) if a.get(key) != b.get(key)}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _dataclass(kind: type[Config], values: object, key: str) -> Config:
    """Return an instance of the dataclass `kind` with the `values` found under the dotted `key`."""
    if not isinstance(values, Mapping):
        raise InputError(f"{key or 'a configuration'} must be a mapping of names to values, got {values!r}")
    hints = get_type_hints(kind)
    prefix = f"{key}." if key else ""
    for name in values:
        if name not in hints:
            raise unknown("key", prefix + _named(name), [prefix + known for known in hints])
    return kind(**{name: _value(hints[name], value, prefix + name) for name, value in values.items()})


def _value(hint: Any, value: object, key: str) -> Any:
    """Return `value` converted to the type `hint`."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in choices:
            raise unknown(f"value of {key}", _named(value), choices)
        return value
    if origin in (Union, types.UnionType):
        return _union(choices, value, key)
    if origin is tuple:
        return _tuple(choices, value, key)
    if dataclasses.is_dataclass(hint):
        return _dataclass(cast(type, hint), value, key)
    return _scalar(hint, value, key)


def _union(choices: tuple[Any, ...], value: object, key: str) -> Any:
    if type(None) in choices:
        (inner,) = [choice for choice in choices if choice is not type(None)]
        return None if value is None else _value(inner, value, key)
    if not isinstance(value, Mapping):
        raise InputError(f"{key} must be a mapping of names to values, got {_shown(value)}")
    kind = value.get("kind", "transformer")
    if not isinstance(kind, str) or kind not in KINDS:
        raise unknown(f"value of {key}.kind", _named(kind), KINDS)
    return _dataclass(KINDS[kind], {name: item for name, item in value.items() if name != "kind"}, key)


def _tuple(choices: tuple[Any, ...], value: object, key: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{key} must be a list, got {_shown(value)}")
    hints = (choices[0],) * len(value) if choices[-1] is Ellipsis else choices
    if len(value) != len(hints):
        raise InputError(f"{key} must have {len(hints)} entries, got {len(value)}")
    return tuple(_value(hint, item, f"{key}[{i}]") for i, (hint, item) in enumerate(zip(hints, value, strict=True)))


def _scalar(hint: type, value: object, key: str) -> Any:
    if hint is float and isinstance(value, str):
        value = _number(value)  # YAML 1.1 parses 3e-4, which has no decimal point, as a string
    accepted: dict[type, tuple[type, ...]] = {float: (float, int), Path: (str, Path)}
    # bool is a subclass of int.
    if not isinstance(value, accepted.get(hint, (hint,))) or (isinstance(value, bool) and hint is not bool):
        kinds = {float: "a number", int: "a whole number", bool: "true or false"}
        raise InputError(f"{key} must be {kinds.get(hint, 'text')}, got {_shown(value)}")
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        raise InputError(f"{key} is too large a number")
    if isinstance(value, str) and "\0" in value:
        raise InputError(f"{key} must be text without null characters, got {value!r:.100}")
    try:
        return hint(value)
    except OverflowError:
        raise InputError(f"{key} is too large a number") from None


def _shown(value: object) -> str:
    """Return a value for a message; whole numbers of more than 4,300 digits cannot be written."""
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"


def _named(value: object) -> str:
    return value if isinstance(value, str) else _shown(value)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
