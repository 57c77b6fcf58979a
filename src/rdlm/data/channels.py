"""Channels: the distribution of the symbol that is read given the true symbol, a matrix [true, read].

| channel | errors |
|---|---|
| `symmetric` | any other symbol |
| `keyboard` | a neighbouring key |
| `confusion` | a table of the user |
| `channel_matrix` | a matrix of the user |

A channel replaces symbols; it does not insert, leave out or exchange them.
"""

from __future__ import annotations

import csv
import io
import numbers
from collections.abc import Mapping
from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.data.evidence import TOLERANCE, check_size, probability_of, symbol_index
from rdlm.errors import InputError
from rdlm.storage.files import parse_json

KEYBOARD: Final = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
"""Rows of a keyboard; each is shifted to the right by about a third of a key."""


def symmetric(alphabet: str, error: float) -> Float[Tensor, "v v"]:
    """Return the channel that reads a wrong symbol with probability `error`, any of them equally likely."""
    _check_error(error)
    check_size(len(alphabet), alphabet, "a channel")
    size = len(alphabet)
    matrix = torch.full((size, size), error / max(size - 1, 1), dtype=torch.float64)
    return matrix.fill_diagonal_(1 - error)


def keyboard(alphabet: str, error: float) -> Float[Tensor, "v v"]:
    """Return the channel that hits a neighbouring key with probability `error`; symbols without keys: any symbol."""
    _check_error(error)
    rows = enumerate(KEYBOARD)
    places = {key: (float(row), column + row / 3) for row, keys in rows for column, key in enumerate(keys)}
    matrix = symmetric(alphabet, error)
    for index, true in enumerate(alphabet):
        near = _neighbours(true.lower(), places)
        read = [position for position, symbol in enumerate(alphabet) if symbol.lower() in near and position != index]
        if read:
            matrix[index] = 0
            matrix[index, read] = error / len(read)
            matrix[index, index] = 1 - error
    return matrix


def _neighbours(key: str, places: Mapping[str, tuple[float, float]]) -> set[str]:
    if key == " ":  # the space bar lies below the letters from c to m
        return set("cvbnm")
    if key not in places:
        return set()
    row, column = places[key]
    near = {other for other, (r, c) in places.items() if abs(r - row) <= 1 and abs(c - column) <= 1.2 and other != key}
    return near | {" "} if key in "cvbnm" else near


def channel_matrix(matrix: Any, alphabet: str) -> Float[Tensor, "v v"]:
    """Return a matrix [true, read] of probabilities in float64 after a check of its shape and its rows."""
    size, found = len(alphabet), torch.as_tensor(matrix)
    if list(found.shape) != [size, size] or found.is_complex():
        shape = f"{list(found.shape)} of {found.dtype}"
        raise InputError(f"a channel is a matrix [true, read] of {size} x {size} probabilities, got {shape}")
    found = found.detach().cpu().double()
    if not bool(((found >= 0) & (found <= 1 + TOLERANCE)).all()):
        raise InputError("a channel is a matrix of probabilities: its entries must lie between 0 and 1")
    for symbol, total in zip(alphabet, found.sum(1).tolist(), strict=True):
        _check_sum(total, f"a channel is a matrix [true, read]: the row of {symbol!r}")
    return found


def confusion(text: str, alphabet: str, source: str = "the confusion matrix") -> Float[Tensor, "v v"]:
    """Return the channel in a JSON object {true: {read: probability}} or in CSV with a header of symbols.

    A CSV row begins with the true symbol; `space` stands for a blank. Cells are separated by commas, semicolons or
    tabs. Rows must sum to 1; symbols without a row are read without error.
    """
    check_size(len(alphabet), alphabet, source)
    rows = _json_rows(text, source) if text.lstrip().startswith("{") else _csv_rows(text, source)
    return confusion_of(rows, alphabet, source)


def confusion_of(
    rows: Mapping[str, Mapping[str, Any]], alphabet: str, source: str = "the confusion matrix"
) -> Float[Tensor, "v v"]:
    """Return the channel of {true: {read: probability}}, as in `confusion`."""
    check_size(len(alphabet), alphabet, source)
    matrix = torch.eye(len(alphabet), dtype=torch.float64)
    for true, law in rows.items():
        index = symbol_index(alphabet, true, source)
        values = torch.zeros(len(alphabet), dtype=torch.float64)
        for read, probability in law.items():
            what = f"{source}: p({read!r} | {true!r})"
            values[symbol_index(alphabet, read, source)] += probability_of(probability, what)
        _check_sum(float(values.sum()), f"{source}: the row of {true!r}")
        matrix[index] = values / values.sum()
    return matrix


def _json_rows(text: str, source: str) -> dict[str, dict[str, Any]]:
    try:
        found = parse_json(text.encode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not JSON: {error}") from None
    if not isinstance(found, dict) or not found or not all(isinstance(law, dict) for law in found.values()):
        raise InputError(f"{source} must be an object {{true symbol: {{read symbol: probability}}}}")
    return found


def _csv_rows(text: str, source: str) -> dict[str, dict[str, Any]]:
    try:
        lines = [line for line in csv.reader(io.StringIO(text), delimiter=_separator(text)) if line]
    except csv.Error as error:
        raise InputError(f"{source} is not CSV: {error}") from None
    if len(lines) < 2:
        raise InputError(f"{source} needs a header of symbols and a row for each true symbol")
    header = [_symbol(cell) for cell in lines[0][1:]]
    if len(set(header)) < len(header) or len({_symbol(line[0]) for line in lines[1:]}) < len(lines) - 1:
        raise InputError(f"{source} has two columns or two rows of one symbol")
    found = {}
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(header) + 1:
            count = len(line) - 1
            raise InputError(f"{source}, line {number}: {count} numbers under a header of {len(header)} symbols")
        found[_symbol(line[0])] = dict(zip(header, line[1:], strict=True))
    return found


def _separator(text: str) -> str:
    """Return the separator of cells: that by which the last row, which has numbers, has the most cells."""
    lines = text.rstrip().splitlines()
    return max(";\t,", key=lambda mark: lines[-1].count(mark) if lines else 0)


def _symbol(cell: str) -> str:
    return " " if cell.strip() in ("", "space") else cell.strip()


def _check_error(error: float) -> None:
    if not isinstance(error, numbers.Real) or not 0 < error < 1:
        raise InputError(f"an error rate must lie between 0 and 1, got {error!r}")


def _check_sum(total: float, what: str) -> None:
    if not abs(total - 1) <= TOLERANCE:
        raise InputError(f"{what} sums to {total:.4g}, not to 1")
