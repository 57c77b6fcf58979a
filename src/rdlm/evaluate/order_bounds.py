"""Bounds by order of generation: those of a model for the order `auto`, and every method in each of its orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from rdlm.api.language_model import LanguageModel
from rdlm.api.orders import is_trained_for
from rdlm.config import OrderName
from rdlm.data.store import Corpus
from rdlm.evaluate.evaluate import (
    EvaluationPlan,
    Stage,
    bound_of,
    check_same_data,
    curve_row,
    held_out_sequences,
    size_of,
    unit_per_sequence,
)
from rdlm.methods.base import Baseline, Method
from rdlm.methods.mdlm import MDLM
from rdlm.methods.rdlm import Rdlm
from rdlm.process.order import TokenSchedule, named_schedule
from rdlm.random import generator_of
from rdlm.storage.measurements import fingerprint

CALLS: Final = (8, 16, 32, 64, 128)
"""Network calls at which every order is measured, in addition to one call per token."""


def measure_orders(
    model: LanguageModel,
    corpus: Corpus,
    plan: EvaluationPlan,
    calls: Sequence[int] = CALLS,
    stage: Stage = lambda name, total: lambda count: None,
) -> dict[str, Any]:
    """Return the content of orders.json: the bound of every order at every possible number of calls.

    All are measured on the same sequences, from equally many evaluations, and at most one of each sequence.
    """
    check_same_data(model, corpus)
    batch = held_out_sequences(corpus, plan.split, model.length, plan.sequences, plan.seed)
    size, found = size_of(model, batch, corpus), []
    plan = replace(plan, evaluations=max(2, min(plan.evaluations, len(batch.ids))))
    known: dict[tuple[TokenSchedule, int], dict[str, Any]] = {}
    for order, schedule, nfe in measured_orders(model, calls):
        if (schedule, nfe) not in known:  # random and strided are the same order with one call per token
            setting = replace(plan.setting, nfe=nfe, token_schedule=schedule)
            named = _named_stage(stage, order)
            nats, _ = bound_of(model, batch, setting, plan, generator_of("orders", plan.seed), named)
            known[schedule, nfe] = curve_row(setting, nats, size, model.kind)
        row = {key: known[schedule, nfe][key] for key in ("value", "stderr", "low", "high")}
        row["low"] = max(0.0, row["low"])  # a wide interval may extend below 0, where no bound can be
        found.append({"order": order, "block": schedule.block, "calls": nfe, **row})
    return {
        "weights": fingerprint(model.method.network),
        "protocol": corpus.protocol,
        "split": plan.split,
        "sequences": len(batch.ids),
        "evaluations": plan.evaluations,
        "unit": unit_per_sequence(model.kind, size)[0],
        "rows": found,
    }


def measured_orders(model: LanguageModel, calls: Sequence[int]) -> Iterator[tuple[OrderName, TokenSchedule, int]]:
    """Yield every order that the network supports, with its schedule, at these calls and at one call per token."""
    for order in get_args(OrderName):
        seen = set()
        for nfe in sorted({*calls, model.length}):
            usable = usable_schedule(model.rdlm, order, nfe, model.length)
            if usable is not None and usable[1] not in seen:
                seen.add(usable[1])
                yield order, *usable


def usable_schedule(method: Rdlm, order: OrderName, nfe: int, length: int) -> tuple[TokenSchedule, int] | None:
    """Return the schedule of a named order and its calls; None if the network does not support it."""
    schedule, nfe = named_schedule(order, nfe, length)
    if schedule.block and not method.takes_blocks:
        return None
    # From left to right with very few calls there would be no blocks, as in the strided order.
    whole = order == "left-to-right" and not schedule.discretize(nfe, length).block
    return None if whole else (schedule, nfe)


def _named_stage(stage: Stage, order: str) -> Stage:
    """Return a stage whose name begins with that of an order."""
    return lambda name, total: stage(f"{order}, {name}", total)


# -- all methods ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OrderedMethod:
    """A trained method that generates in one of its orders; it shares the network with the others."""

    order: str | None
    """Name of the order; None: the method has a single order without a name."""
    method: Method
    """The same object for names of the same order."""
    nfe: int
    """Network calls of a sample."""
    trained: bool = True
    """Whether the training objective includes this order."""


def orders_of(method: Method, nfe: int, length: int) -> list[OrderedMethod]:
    """Return a method in each of its orders, with as many of `nfe` network calls as the order can use."""
    if isinstance(method, Rdlm):
        return list(_rdlm_orders(method, nfe, length))
    if type(method) is not MDLM:  # derived methods have their own order
        order = method.order_name if isinstance(method, Baseline) else None
        return [OrderedMethod(order, method, method.sampling_nfe(length, nfe))]
    names: tuple[Literal["random", "strided"], ...] = ("random", "strided")
    possible = names if method.schedule == "log_linear" else names[:1]  # as configurations demand
    return [OrderedMethod(name, _masked_in_order(method, name), nfe) for name in possible]


def _masked_in_order(method: MDLM, order: Literal["random", "strided"]) -> MDLM:
    other = copy(method)
    other.order = order
    return other


def _rdlm_orders(method: Rdlm, nfe: int, length: int) -> Iterator[OrderedMethod]:
    """Yield RDLM in every named order, left to right if it was trained block-wise, and in the configured order if that
    is another.

    With one call per token the random and the strided order are the same.
    """
    schedules: dict[str, tuple[TokenSchedule, int]] = {}
    for order in get_args(OrderName):
        usable = usable_schedule(method, order, nfe, length)
        if usable is not None and (order != "left-to-right" or method.config.objective.blockwise):
            schedules[order] = usable
    own, calls = _own_schedule(method.token_schedule, nfe, length)
    known = [schedule.discretize(used, length) for schedule, used in schedules.values()]
    if own.discretize(calls, length) not in known:
        block = f", block {own.block}" if own.block else ""
        schedules[f"{own.name}, window {own.width:g}{block}"] = own, calls
    copies: dict[tuple[TokenSchedule, int], Rdlm] = {}
    for name, (schedule, used) in schedules.items():
        ordered = copies.setdefault((schedule, used), _rdlm_in_order(method, schedule))
        yield OrderedMethod(name, ordered, used, is_trained_for(method.config, schedule))


def _own_schedule(own: TokenSchedule, nfe: int, length: int) -> tuple[TokenSchedule, int]:
    """Return the schedule of a configuration and its calls, with the name of that order in `nfe` calls, if any."""
    steps = own.discretize(nfe, length)
    if own.width == 1 and not own.block:
        return named_schedule("synchronous", nfe, length)
    if steps.steps == 1 and own.order == "strided":
        return named_schedule("left-to-right" if steps.block else "strided", nfe, length, steps.block)
    if steps.steps == 1 and own.order == "random" and not steps.block:
        return named_schedule("random", nfe, length)
    return own, steps.nfe


def _rdlm_in_order(method: Rdlm, schedule: TokenSchedule) -> Rdlm:
    names: dict[str, OrderName] = {"left_to_right": "left-to-right", "random": "random", "strided": "strided"}
    own = method.config.process
    process = replace(own, window=schedule.width, order=names[schedule.order], block=schedule.block)
    other = copy(method)
    other.config = replace(method.config, process=process)
    return other
