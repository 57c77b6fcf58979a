"""User-defined networks, schedules and bridges: classes that a configuration names as `module:Class`.

Importing a module runs its code, so a name in a file is imported only if the user trusts it: `rdlm.train(network=...)`
trusts its argument, and `rdlm.load(run, trust=["my_module:MyNetwork"])` the given names.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TypeVar

from rdlm.config import RunConfig
from rdlm.errors import InputError

_TRUSTED: ContextVar[Mapping[str, type]] = ContextVar("trusted", default=MappingProxyType({}))

Base = TypeVar("Base")


class UntrustedClassError(InputError):
    """A configuration names a class that the user does not trust."""


def import_name(own: type) -> str:
    """Return the name `module:Class` by which a class is saved; a class inside of a function has none."""
    if not isinstance(own, type):
        raise InputError(f"a user-defined network, schedule or bridge must be a class, got {own!r}")
    if "<locals>" in own.__qualname__:
        raise InputError(f"{own.__qualname__} is defined inside of a function, where no import finds it")
    return f"{own.__module__}:{own.__qualname__}"


@contextmanager
def trusting(classes: Sequence[str | type]) -> Iterator[None]:
    """Context manager: trust these classes, which are given as classes or imported by name."""
    if isinstance(classes, str):
        raise InputError(f"trust is a list of names: write [{classes!r}]")
    trusted = {one if isinstance(one, str) else import_name(one): _imported(one) for one in classes}
    token = _TRUSTED.set({**_TRUSTED.get(), **trusted})
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def check_trusted(config: RunConfig) -> None:
    """Raise UntrustedClassError if a configuration names classes that the user does not trust."""
    names = (config.model.network_class, config.process.schedule_class, config.process.bridge_class)
    missing = [name for name in names if name is not None and name not in _TRUSTED.get()]
    if missing:
        raise UntrustedClassError(
            f"this model is built with {' and '.join(missing)}, not of rdlm: using it means running the code of that "
            f"module; if you trust it, pass trust={missing} to rdlm.load, or --trust {' '.join(missing)} to the command"
        )


def own_class(name: str, base: type[Base]) -> type[Base]:
    """Return the trusted class of this name, which must be derived from `base`."""
    found = _TRUSTED.get().get(name)
    if found is None:
        raise UntrustedClassError(f"{name} is not a class that the user has agreed to import")
    if not issubclass(found, base):
        raise InputError(f"{name} must be derived from {base.__module__}.{base.__qualname__}")
    return found


def _imported(own: str | type) -> type:
    if isinstance(own, type):
        return own
    module, _, name = own.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", own):
        raise InputError(f"{own!r} is not the name of a class: write module:Class")
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InputError(f"cannot import {own}: {error}; its folder must be in PYTHONPATH or installed") from None
    if not isinstance(found, type):
        raise InputError(f"{own} is not a class")
    return found
