"""Errors that a user can cause; messages name the wrong value and the remedy."""

from __future__ import annotations

import difflib
import importlib.util
import numbers
from collections.abc import Iterable

LONGEST_MESSAGE = 4000
"""Largest number of characters of a message, which may quote a file of megabytes."""


def _shortened(message: object) -> object:
    if not isinstance(message, str) or len(message) <= LONGEST_MESSAGE:
        return message
    return f"{message[: LONGEST_MESSAGE // 2]} [...] {message[-LONGEST_MESSAGE // 4 :]}"


class InputError(ValueError):
    """A value given by the user is wrong; the command line prints it and exits with code 2."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*map(_shortened, parts))


class DamagedFileError(RuntimeError):
    """A file's content does not match its checksum, its format or its name."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*map(_shortened, parts))


class DivergedError(RuntimeError):
    """A run has diverged: the loss of too many consecutive steps, or a weight, is not finite."""


class InterruptedRunError(Exception):
    """A run stopped after a signal and has saved a checkpoint; `code` is the exit code, 129, 130 or 143."""

    def __init__(self, number: int, step: int) -> None:
        saved = f"interrupted after step {step}, which is saved; the same command continues from there"
        super().__init__(saved if step else "interrupted before the first step; the same command begins again")
        self.code = 128 + number


class LeaderFailedError(RuntimeError):
    """Raised in all other processes if one failed; that one reports the reason."""


def require(package: str, extra: str, what: str) -> None:
    """Raise InputError if an optional package is not installed; called before any work is done."""
    if importlib.util.find_spec(package) is None:
        raise InputError(f'{what} needs the package {package}: pip install "rdlm[{extra}]"')


def check_integer(name: str, value: object) -> None:
    """Raise InputError for a value that is no integer."""
    if not isinstance(value, numbers.Integral):
        raise InputError(f"{name} must be an integer, got {value!r}")


def unknown(kind: str, value: str, choices: Iterable[str]) -> InputError:
    """Return the error for a name that is not one of `choices`, with suggestions of the nearest ones."""
    names = sorted(choices)
    near = difflib.get_close_matches(value, names, n=3)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"known: {', '.join(names)}"
    return InputError(f"unknown {kind} {value!r}: {hint}")
