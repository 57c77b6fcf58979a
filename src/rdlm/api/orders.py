"""Orders of generation: the token schedule of a request, and the measured bounds for the order `auto`.

`rdlm evaluate RUN --orders` writes orders.json beside a checkpoint:

    {"weights": fingerprint, "protocol": ..., "split": "validation", "sequences": n, "evaluations": n, "unit": ...,
     "rows": [{"order": "strided", "block": 0, "calls": 64, "value": ..., "low": ..., "high": ...}, ...]}
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from rdlm.config import OrderChoice, OrderName, RunConfig
from rdlm.errors import DamagedFileError, InputError
from rdlm.process.order import TokenSchedule, named_schedule
from rdlm.storage.files import damaged, read_json
from rdlm.storage.measurements import is_label

if TYPE_CHECKING:
    from rdlm.api.language_model import LanguageModel

log = logging.getLogger(__name__)

ORDERS: Final = "orders.json"
"""The bounds by order beside a checkpoint."""

LARGEST_BOUND: Final = 1e6
"""Largest plausible bound in bits per character, pixel or base; no vocabulary has 64."""

HOW: Final = "rdlm evaluate RUN --orders measures them"


@dataclass(frozen=True)
class OrderBound:
    """The measured bound of one order at one number of network calls, in bits per character, pixel or base."""

    order: OrderName
    block: int
    calls: int
    value: float
    low: float
    high: float
    unit: str

    @property
    def stderr(self) -> float:
        """The standard error of the measurement."""
        return (self.high - self.low) / (2 * 1.96)

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] {self.unit}"


@dataclass(frozen=True)
class ChosenOrder:
    """The token schedule and the network calls of a request, with warnings."""

    order: OrderChoice
    """Options that reproduce the schedule: order, block and window."""
    block: int
    window: float | None
    schedule: TokenSchedule
    nfe: int
    choice: str | None = None
    """The message about the choice of `auto`."""
    measured: bool = False
    """Whether that message contains a measured bound."""
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> OrderChoice:
        """The name of the order; with a window, that of its schedule."""
        return self.order if self.window is None else self.schedule.name

    @property
    def notices(self) -> tuple[str, ...]:
        """The choice and the warnings."""
        return self.warnings if self.choice is None else (self.choice, *self.warnings)

    def log(self) -> None:
        """Log the warnings, and the choice as information."""
        for warning in self.warnings:
            log.warning("%s", warning)
        if self.choice is not None:
            log.info("%s", self.choice)


def choose_order(
    model: LanguageModel,
    order: OrderChoice,
    nfe: int | None,
    length: int,
    block: int | None = None,
    window: float | None = None,
    ahead: bool = False,
    exact: bool = False,
) -> ChosenOrder:
    """Return the order of a request for sequences of `length`; None for calls, block and window: not given.

    Left to right has one call per token if nothing else is given, so that its likelihoods are exact.
    With `ahead`, known tokens follow open ones: blocks, which do not attend to later tokens, are not chosen. With
    `exact`, `auto` prefers an order with exact likelihoods, for any number of calls, if it is as good as the others.
    """
    if block is not None and block > length:
        raise InputError(f"a block of {block} tokens is longer than the sequence of {length} tokens")
    model.rdlm.check_blocks(block or 0)
    calls = model.nfe if nfe is None else nfe
    if order == "left-to-right" and not ahead and nfe is None and block is None and window is None:
        calls = length
    if order != "auto":
        return _named(model, order, calls, nfe is not None, length, 0 if block is None and ahead else block, window)
    if block is not None or window is not None:
        return _own(model, calls, length, block, window, ahead)
    rows, trouble = _stored(model)
    if ahead or not model.rdlm.takes_blocks:
        rows = [row for row in rows if not row.block]
    if not rows:
        return _fallback(model, calls, length, ahead, trouble, nfe is not None)
    return (_exact(rows, length) if exact else None) or _measured(rows, calls, length)


def _named(
    model: LanguageModel,
    order: OrderName,
    calls: int,
    requested: bool,
    length: int,
    block: int | None,
    window: float | None,
) -> ChosenOrder:
    """Return an order by its name, with warnings about unused calls and about missing training."""
    schedule, nfe = named_schedule(order, calls, length, block, window)
    model.rdlm.check_blocks(schedule.block)
    warnings = []
    if requested and window is None and nfe < calls:
        most = "at most " if order != "synchronous" and nfe >= length else ""
        inside = f" in blocks of {schedule.block}" if schedule.block > 1 else ""
        warnings.append(f"order {order} uses {most}{nfe} calls for {length} tokens{inside}: {calls} requested")
    warnings += _block_warning(schedule, calls, length)
    if not is_trained_for(model.config, schedule):
        warnings.append(_untrained(model, order, nfe))
    return ChosenOrder(order, schedule.block, window, schedule, nfe, warnings=tuple(warnings))


def _own(
    model: LanguageModel, calls: int, length: int, block: int | None, window: float | None, ahead: bool
) -> ChosenOrder:
    """Return the model's own order, with another window or block where one is given."""
    own = model.rdlm.token_schedule
    if block is None:
        block = 0 if ahead or window is not None else own.block
    schedule = TokenSchedule(own.width if window is None else window, own.order, block)
    nfe = schedule.discretize(calls, length).nfe
    given = window is not None or block != own.block
    warnings = (_untrained(model, schedule.name, nfe),) if given and not is_trained_for(model.config, schedule) else ()
    return ChosenOrder(model.config.process.order, block, schedule.width, schedule, nfe, warnings=warnings)


def _fallback(
    model: LanguageModel, calls: int, length: int, ahead: bool, trouble: tuple[str, ...], requested: bool
) -> ChosenOrder:
    """Return the model's own order where nothing was measured."""
    own = replace(_own(model, calls, length, None, None, ahead), warnings=trouble)
    blocks = f" in blocks of {own.block}" if own.block > 1 else ""
    choice = f"order auto: no bounds by order are stored with the model ({HOW}); {own.name}{blocks}, {own.nfe} calls"
    if requested and own.nfe < calls:
        choice += (
            f", the most that this order uses for {length} tokens; {calls} were requested (synchronous uses any number)"
        )
    return replace(own, choice=choice)


def _exact(rows: list[OrderBound], length: int) -> ChosenOrder | None:
    """Return left to right, token by token, if its bound is within one standard error of the best, else None."""
    first = min(rows, key=lambda row: row.value)
    for row in rows:
        if row.block == 1 and row.calls >= length and row.value <= first.value + first.stderr:
            schedule, nfe = named_schedule(row.order, length, length, 1)
            choice = f"order auto: {row.order} (exact, and within one standard error of the best order), bound {row}"
            return ChosenOrder(row.order, 1, None, schedule, nfe, choice, True)
    return None


def _measured(rows: list[OrderBound], calls: int, length: int) -> ChosenOrder:
    """Return the order with the best bound within the calls; with fewer calls than measured, the best at the fewest.

    Of the bounds within one standard error of the best, the one with the fewest calls is used.
    """
    within = [row for row in rows if row.calls <= calls]
    fewest = min(row.calls for row in rows)
    candidates = within or [row for row in rows if row.calls == fewest]
    first = min(candidates, key=lambda row: row.value)
    close = [row for row in candidates if row.value <= first.value + first.stderr]
    best = min(close, key=lambda row: (row.calls, row.value))
    block = min(best.block, length) if within else None
    schedule, nfe = named_schedule(best.order, min(best.calls, calls), length, block)
    blocks = f" in blocks of {schedule.block}" if schedule.block > 1 else ""
    kind = "fewest calls within one standard error of the best bound" if len(close) > 1 else "best bound"
    limit = f"{kind} of up to {calls} calls" if within else f"best bound at the fewest calls measured, {fewest}"
    bound = f"bound {best}" if nfe == best.calls else f"its bound at {best.calls} calls is {best}"
    choice = f"order auto: {best.order}{blocks}, {nfe} calls ({limit}), {bound}"
    return ChosenOrder(best.order, schedule.block, None, schedule, nfe, choice, True)


def _block_warning(schedule: TokenSchedule, calls: int, length: int) -> list[str]:
    """Return a warning if there are too few calls for the blocks."""
    used = schedule.discretize(calls, length).block
    if used == schedule.block or schedule.block >= length:
        return []
    instead = f"blocks of {used}" if used else "one block"
    need = -(-length // schedule.block)
    return [
        f"{need} blocks of {schedule.block} need at least {need} calls: {calls} requested, so {instead} will be used"
    ]


# -- training ---------------------------------------------------------------------------------------------------------


def is_trained_for(config: RunConfig, schedule: TokenSchedule) -> bool:
    """Return whether the objective includes this order: synchronous, one token after the other, or in blocks."""
    objective = config.objective
    whole = 1 - objective.blockwise
    if schedule.block:
        return objective.blockwise > 0
    if schedule.width == 1:
        return whole * (1 - objective.asynchronous) > 0
    other = "random" if schedule.order == "left_to_right" else "left_to_right"
    return whole * objective.asynchronous > 0 and objective.order != other


def _untrained(model: LanguageModel, order: OrderName, nfe: int) -> str:
    """Return the warning about an order without training, with its bound if it was measured."""
    rows = [row for row in _stored(model)[0] if row.order == order]
    if not rows:
        return f"the model was not trained for order {order}, and its bound was not measured ({HOW})"
    within = [row for row in rows if row.calls <= nfe]
    nearest = max(within, key=lambda row: row.calls) if within else min(rows, key=lambda row: row.calls)
    return f"the model was not trained for order {order}: its bound at {nearest.calls} calls is {nearest}"


# -- the file ---------------------------------------------------------------------------------------------------------


def _stored(model: LanguageModel) -> tuple[list[OrderBound], tuple[str, ...]]:
    """Return the bounds stored with a model; a damaged file is ignored, with a warning."""
    if model.folder is None or not (model.folder / ORDERS).is_file():
        return [], ()
    try:
        return bounds_of(read_orders(model.folder / ORDERS)), ()
    except DamagedFileError as error:
        return [], (f"{error}; its bounds are ignored",)


def bounds_of(content: Mapping[str, Any]) -> list[OrderBound]:
    """Return the rows of checked bounds by order."""
    keys = ("order", "block", "calls", "value", "low", "high")
    return [OrderBound(**{key: row[key] for key in keys}, unit=content["unit"]) for row in content["rows"]]


def read_orders(path: Path) -> dict[str, Any]:
    """Return the bounds by order in a file after checking keys, types and ranges."""
    content = read_json(path)
    try:
        texts = all(is_label(content[key]) for key in ("weights", "protocol", "split", "unit"))
        counts = all(type(content[key]) is int and content[key] > 0 for key in ("sequences", "evaluations"))
        valid = texts and counts and isinstance(content["rows"], list) and all(map(_is_row, content["rows"]))
    except (KeyError, OverflowError, TypeError):
        valid = False
    if not valid:
        raise damaged(path, "it has no bounds by order", "run rdlm evaluate --orders again")
    return content


def _is_row(row: dict[str, Any]) -> bool:
    numbers = [row[key] for key in ("low", "value", "high")]
    return (
        row["order"] in list(get_args(OrderName))
        and all(type(row[key]) is int for key in ("block", "calls"))
        and 0 <= row["block"] <= 1 << 24
        and 1 <= row["calls"] <= 1 << 24
        and all(type(number) in (int, float) and abs(number) <= LARGEST_BOUND for number in numbers)
        and numbers[0] <= numbers[1] <= numbers[2]  # with few evaluations an interval may reach below 0
        and numbers[1] >= 0
    )
