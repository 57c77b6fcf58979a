"""The evaluation of a model: its bound on held-out sequences, over M and by order of generation, and its samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.api.orders import is_trained_for
from rdlm.config import OrderName
from rdlm.data.batch import Batch, Batches
from rdlm.data.store import Corpus
from rdlm.errors import InputError
from rdlm.evaluate.metrics import (
    Metric,
    Scorer,
    Size,
    divergences,
    generative_perplexity,
    invalid_codes,
    known_words,
    likelihood,
    metric_of,
    sample_entropy,
    size_of_texts,
)
from rdlm.likelihood.estimate import Estimate
from rdlm.likelihood.estimators import Profile
from rdlm.methods.base import Baseline, Method
from rdlm.methods.bound import REPEATS, Setting, check_weights, measure_bound, paper, repeated_bound, uniform_note
from rdlm.methods.mdlm import MDLM
from rdlm.methods.rdlm import Rdlm
from rdlm.process.order import ONE_STEP, TokenSchedule, named_schedule
from rdlm.random import generator_of
from rdlm.storage.measurements import fingerprint

Split = Literal["validation", "test"]
TRAINING_TOKENS = 20_000_000
"""Tokens of the training text from which the known words are collected."""


@dataclass(frozen=True)
class EvaluationPlan:
    """The settings of an evaluation."""

    setting: Setting
    split: Split = "validation"
    sequences: int = 512
    """Sequences of the split, chosen by the seed; all of them if it has fewer."""
    evaluations: int = 1024
    """Network evaluations of sequences per bound."""
    samples: int = 16
    """Sequences to generate; 0: none."""
    curve: tuple[int | None, ...] = ()
    """Further numbers of network calls at which to measure the bound; None is continuous time."""
    paper: bool = False
    """Whether to compute the paper's estimator, too."""
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.sequences, self.evaluations) < 2 or self.samples < 0 or self.samples == 1:
            raise InputError(
                "an interval needs at least 2 sequences, 2 evaluations and 2 samples (or none), "
                f"got {self.sequences}, {self.evaluations} and {self.samples}"
            )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results: metrics by name, the profile of the bound, its values over M, and the samples."""

    metrics: dict[str, Metric]
    profile: Profile | None
    """Contribution of each step to the bound; None for the baselines."""
    size: Size
    rows: list[dict[str, object]]
    """The bound over M."""
    samples: Int[Tensor, "n length"] | None
    plan: EvaluationPlan
    held_out: Batch
    note: str | None = None
    """The note on a bound that is worse than the uniform code."""


Stage = Callable[[str, int], Callable[[int], object]]
"""Called with the name and the total of a stage when it begins; returns the callback of its progress."""


def evaluate(
    model: LanguageModel,
    corpus: Corpus,
    plan: EvaluationPlan,
    scorer: Scorer | None = None,
    stage: Stage = lambda name, total: lambda count: None,
) -> Evaluation:
    """Return the evaluation of a model on the corpus it was trained on."""
    check_same_data(model, corpus)
    batch = held_out_sequences(corpus, plan.split, model.length, plan.sequences, plan.seed)
    size = size_of(model, batch, corpus)
    check_setting(model, plan)
    generator = generator_of("evaluation", plan.seed)
    settings = [replace(plan.setting, nfe=nfe) for nfe in (plan.setting.nfe, *plan.curve)]
    bounds = [bound_of(model, batch, setting, plan, generator, stage) for setting in settings]
    rows = [curve_row(one, nats, size, model.kind) for one, (nats, _) in zip(settings, bounds, strict=True)]
    total, profile = bounds[0]
    metrics = likelihood(total, size, model.kind, describe_bound(model, plan.setting))
    if plan.paper:
        found_paper = paper(model.rdlm, batch, plan.evaluations, generator, advance=stage("paper", plan.evaluations))
        metrics |= paper_metric(found_paper, size, model.kind)
    samples = None
    if plan.samples:
        samples = generate_samples(model, batch, plan, generator, stage("samples", 1))
        metrics |= sample_metrics(model, corpus, samples, batch.ids, scorer)
    ordered = sorted(rows, key=lambda row: math.inf if row["calls"] == "inf" else float(str(row["calls"])))
    return Evaluation(metrics, profile, size, ordered, samples, plan, batch, _note(model, total, profile, size))


def _note(model: LanguageModel, nats: Estimate, profile: Profile | None, size: Size) -> str | None:
    """Return the note on a bound that is worse than the uniform code; None if it is better."""
    late = True
    if profile is not None:
        spent = profile.cumulative()
        late = bool(spent[-1] - spent[len(spent) // 2] > spent[-1] / 2)
    unit, per = unit_per_sequence(model.kind, size)
    return uniform_note(nats.value, size.tokens, model.tokenizer.size, model.config, unit, per, late)


def bound_of(
    model: LanguageModel, batch: Batch, setting: Setting, plan: EvaluationPlan, generator: torch.Generator, stage: Stage
) -> tuple[Estimate, Profile | None]:
    """Return the bound in nats per sequence, and its profile for rdlm."""
    name = f"bound at {setting.nfe or 'inf'} calls"
    if model.method.token_schedule is not None:
        evaluations = plan.evaluations
        if block_of(model, setting):  # further estimates of the same sequences would add little
            evaluations = min(evaluations, max(2, len(batch.ids)))
        profile = measure_bound(model.rdlm, batch, setting, evaluations, generator, stage(name, evaluations))
        return profile.total, profile
    assert setting.nfe is not None  # checked by `check_setting`
    check_weights(model.method.network)
    # The estimates of baselines vary more than single steps of rdlm; they are repeated until that no longer matters.
    most = max(REPEATS[0], 4 * plan.evaluations // len(batch.ids))
    advance = stage(name, most * len(batch.ids))
    found = repeated_bound(model.method, batch, setting.nfe, plan.seed, most, advance)
    return Estimate(found.mean, found.stderr, model.method.claims_bound), None


def check_setting(model: LanguageModel, plan: EvaluationPlan) -> None:
    """Raise InputError for settings that the bounds of baselines do not have: all but the number of network calls."""
    rest = replace(plan.setting, nfe=1, token_schedule=None)
    if model.method.token_schedule is None and (
        rest != Setting(1)
        or plan.setting.token_schedule is not None
        or None in (plan.setting.nfe, *plan.curve)
        or plan.paper
    ):
        raise InputError(
            f"{model.name} is a run of the method {model.config.method!r}, whose bound has no option but --nfe: "
            "kernel, window, estimator, states, continuous time and the paper's estimator are for rdlm"
        )


def check_same_data(model: LanguageModel, corpus: Corpus) -> None:
    """Raise InputError for a corpus other than that of the training."""
    if corpus.protocol != model.about["protocol"] or corpus.tokenizer.to_json() != model.tokenizer.to_json():
        raise InputError(
            f"the model was trained on {model.about['protocol']}; this corpus is {corpus.protocol} or has another "
            "vocabulary: its splits and tokens differ from the model's"
        )


def held_out_sequences(corpus: Corpus, split: Split, length: int, count: int, seed: int) -> Batch:
    """Return `count` sequences of a split, chosen by the seed, or all of them if there are fewer."""
    rows = len(Batches(corpus, split, batch_size=1, length=length).rows)
    return Batches(corpus, split, batch_size=min(count, rows), length=length, seed=seed).batch(0)


def size_of(model: LanguageModel, batch: Batch, corpus: Corpus) -> Size:
    """Return the mean size of sequences of a corpus; characters and words are those of the decoded text."""
    count, length = batch.ids.shape
    if model.kind != "text":
        return Size(length, length, 0)
    texts = [model.tokenizer.decode(row) for row in batch.ids.tolist()]
    return size_of_texts(texts, count * length, cut=corpus.train.ndim == 1)


def describe_bound(model: LanguageModel, setting: Setting) -> str:
    """Return the convention of the bound: its sampler, its number of calls, and what is given."""
    given = "label" if model.about.get("classes") else "signal" if model.about.get("signal") else ""
    given = f", given the {given} of each sequence" if given else ""
    if model.method.token_schedule is None:
        word = "upper bound" if model.method.claims_bound else "not a bound: an estimate"
        return f"{word} at {setting.nfe} network calls, method {model.config.method}{given}"
    if model.config.model.self_condition:
        given += ", without self-conditioning"
    if setting.nfe is None:
        return f"upper bound in continuous time, with the decode step at a thousandth of the noise{given}"
    schedule, tokens = setting.token_schedule, ""
    if schedule is not None:
        windows = f", {schedule.order} windows of width {schedule.width:g}"
        tokens = f", order {schedule.name}" if schedule.width == ONE_STEP else windows
    block = block_of(model, setting)
    tokens += f" in blocks of {block}" if block else ""
    states = "" if setting.states == "exact" else ", simulated states"
    return f"upper bound at {setting.nfe} network calls, {setting.kernel} kernel{tokens}{states}{given}"


def block_of(model: LanguageModel, setting: Setting) -> int:
    """Return the tokens per block of the sampler; 0 if it has no blocks."""
    if setting.nfe is None or setting.token_schedule is None:
        return 0
    return setting.token_schedule.discretize(setting.nfe, model.length).block


def curve_row(setting: Setting, nats: Estimate, size: Size, kind: str) -> dict[str, object]:
    """Return one line of the table over M."""
    unit, per = unit_per_sequence(kind, size)
    bits = nats * (1 / per / math.log(2))
    numbers = {key: getattr(bits, key) for key in ("value", "stderr", "low", "high")}
    calls = "inf" if setting.nfe is None else setting.nfe
    return {"calls": calls, **numbers, "unit": unit, "claims_bound": bits.claims_bound}


def unit_per_sequence(kind: str, size: Size) -> tuple[str, float]:
    """Return the unit of bounds for a kind of data, and the number of its items (characters, pixels) per sequence."""
    units = {"text": ("bits per character", size.characters), "image": ("bits per dimension", size.tokens)}
    return units.get(kind, ("bits per base", size.tokens))


def paper_metric(nats: Estimate, size: Size, kind: str) -> dict[str, Metric]:
    """Return the paper's estimator as a metric."""
    unit, per = unit_per_sequence(kind, size)
    word = "" if nats.claims_bound else "not a bound: "
    rule = f"{word}the paper's estimator: uniform times up to a cut-off, normal law, no decode or switch term"
    return {"paper_estimator": metric_of(nats * (1 / per / math.log(2)), unit, rule)}


def generate_samples(
    model: LanguageModel,
    batch: Batch,
    plan: EvaluationPlan,
    generator: torch.Generator,
    advance: Callable[[int], object],
) -> Int[Tensor, "n length"]:
    """Return samples of the sampler whose bound is measured, with the conditions of the held-out sequences, if any.

    Baselines sample without a condition.
    """
    setting = plan.setting
    nfe = 64 if setting.nfe is None else setting.nfe
    if model.method.token_schedule is not None:
        given = batch.label if batch.signal is None else batch.signal
        ids = model.rdlm.generate(
            min(plan.samples, len(batch.ids)) if given is not None else plan.samples,
            model.sample_length(),
            nfe,
            generator,
            setting.kernel,
            setting.token_schedule or TokenSchedule(),
            None if given is None else given[: plan.samples],
        )
    else:
        ids = model.method.generate(plan.samples, model.sample_length(), nfe, generator)
    advance(1)
    return ids.cpu()


def sample_metrics(
    model: LanguageModel, corpus: Corpus, samples: Tensor, data: Tensor, scorer: Scorer | None
) -> dict[str, Metric]:
    """Return the metrics of the samples, and the same metrics of the data where they are comparable."""
    vocabulary = model.tokenizer.size
    found = {"invalid_codes": invalid_codes(samples)}
    found |= sample_entropy(samples, vocabulary)
    if len(data) > 1:  # a small corpus can have a single sequence for validation
        found["entropy_per_sample_of_data_nats"] = sample_entropy(data, vocabulary)["entropy_per_sample_nats"]
        found |= divergences(samples, data, vocabulary)
    if model.kind != "text":
        return found
    texts = [model.tokenizer.decode([i for i in row if i >= 0]) for row in samples.tolist()]
    known = set(model.tokenizer.decode(corpus.train.reshape(-1)[:TRAINING_TOKENS].tolist()).split())
    if any(len(text.split()) > 2 for text in texts):
        found["known_words"] = known_words(texts, known)
    if scorer is not None:
        found |= generative_perplexity(texts, scorer)
    return found


def to_json(evaluation: Evaluation) -> Mapping[str, Any]:
    """Return the evaluation as JSON values."""
    plan = evaluation.plan
    nfe = plan.setting.nfe
    return {
        "metrics": {name: found.to_json() for name, found in evaluation.metrics.items()},
        "split": plan.split,
        "steps": "inf" if nfe is None else nfe,
        "claims_bound": evaluation.rows[0]["claims_bound"],
        "estimator": plan.setting.estimator,
        "kernel": plan.setting.kernel,
        "sequences": len(evaluation.held_out.ids),
        "evaluations": plan.evaluations,
        "samples": plan.samples,
        "seed": plan.seed,
        "rows": evaluation.rows,
        "interval": "95%",
        "note": evaluation.note,
    }


def curve_to_json(evaluation: Evaluation) -> Mapping[str, Any] | None:
    """Return the information curve for a sampler's grid, remaining noise against nats; None with windows."""
    profile = evaluation.profile
    if profile is None or profile.remaining is None:
        return None
    return {"noise": profile.remaining.tolist(), "nats": profile.cumulative().tolist()}


# -- orders of generation --------------------------------------------------------------------------------------------

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
            of_order = partial(lambda order, name, total: stage(f"{order}, {name}", total), order)
            nats, _ = bound_of(model, batch, setting, plan, generator_of("orders", plan.seed), of_order)
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
