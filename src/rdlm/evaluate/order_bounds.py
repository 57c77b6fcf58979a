"""The bound of every order of generation at several numbers of network calls, by which `auto` chooses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, get_args

from rdlm.api.language_model import LanguageModel
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
from rdlm.process.order import TokenSchedule, named_schedule
from rdlm.random import generator_of
from rdlm.storage.measurements import fingerprint

CALLS: Final = (8, 16, 32, 64, 128)
"""Network calls at which every order is measured, beside one call per token."""


def measure_orders(
    model: LanguageModel,
    corpus: Corpus,
    plan: EvaluationPlan,
    calls: Sequence[int] = CALLS,
    stage: Stage = lambda name, total: lambda count: None,
) -> dict[str, Any]:
    """Return the content of orders.json: the bound of every order at every number of calls that it can use.

    All are measured on the same sequences, from equally many evaluations, and at most one of each sequence.
    """
    check_same_data(model, corpus)
    batch = held_out_sequences(corpus, plan.split, model.length, plan.sequences, plan.seed)
    size, found = size_of(model, batch), []
    plan = replace(plan, evaluations=max(2, min(plan.evaluations, len(batch.ids))))
    known: dict[tuple[TokenSchedule, int], dict[str, Any]] = {}
    for order, schedule, nfe in measured_orders(model, calls):
        if (schedule, nfe) not in known:  # random and strided are the same order with one call per token
            setting = replace(plan.setting, nfe=nfe, token_schedule=schedule)
            named = _named_stage(stage, order)
            nats, _ = bound_of(model, batch, setting, plan, generator_of("orders", plan.seed), named)
            known[schedule, nfe] = curve_row(setting, nats, size, model.kind)
        row = {key: known[schedule, nfe][key] for key in ("value", "stderr", "low", "high")}
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
    """Yield every order that the network can take, with its schedule, at the calls and at one call per token."""
    for order in get_args(OrderName):
        seen = set()
        for asked in sorted({*calls, model.length}):
            schedule, nfe = named_schedule(order, asked, model.length)
            possible = model.rdlm.takes_blocks or not schedule.block
            # From left to right with very few calls there would be no blocks: that is the strided order.
            whole = order == "left-to-right" and not schedule.discretize(nfe, model.length).block
            if nfe not in seen and possible and not whole:
                seen.add(nfe)
                yield order, schedule, nfe


def _named_stage(stage: Stage, order: str) -> Stage:
    """Return a stage whose name begins with that of an order."""
    return lambda name, total: stage(f"{order}, {name}", total)
