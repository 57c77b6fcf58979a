"""The checks of a certificate: an estimator against the entropy of known sources, and other laws of likelihoods.

| check | law | applies to |
|---|---|---|
| `floor` | the mean over a source is at least the source's entropy, Eq. (61) | every estimator |
| `normalisation` | `exp(-value)` of all sequences add up to at most 1, Eq. (62) | values per sequence |
| `relabelling` | another numbering of the tokens does not change the mean | every estimator |
| `steps` | twice the steps do not raise the value | an estimator with a parameter `steps` |
| `sampler` | `exp(-value)` is at most the frequency in the sampler's draws | values per sequence, and a sampler |
| `coverage` | standard errors agree with the spread of repetitions, Eq. (63) | a mean with a standard error |

A law is violated beyond `CERTAINTY` standard errors. It is held if a violation by `resolution` (a share of the entropy)
is excluded with the same certainty; else the check is inconclusive, and states the number of samples that would
suffice.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.certify.gallery import Estimator
from rdlm.certify.oracle import Oracle
from rdlm.data import sources
from rdlm.data.sources import Source
from rdlm.errors import InputError, check_integer
from rdlm.likelihood.certificate import CERTAINTY
from rdlm.likelihood.estimate import Estimate, sample_mean, student
from rdlm.random import generator_of

Outcome = Literal["held", "violated", "cannot tell"]

BATCHES = 20
"""Calls of the estimator for one source; their spread is the error of an estimator that returns means."""

ROUNDING = 1e-4
"""Share of the entropy below which a difference is due to rounding or to the solver of a differential equation."""

LEAST = 400
"""Fewest samples: with fewer, the mean of values with rare large ones is not normal, and valid bounds are refuted."""

LARGE = 1000
"""Largest number of sequences of a batch."""

SKEWEST = 0.2
"""Largest skewness of a mean for which the expansion of its interval, Eq. (61), is used."""

MakeOracle = Callable[[Source, Tensor, torch.Generator], Oracle]
Sampler = Callable[[Oracle, int], object]
"""Draws a number of sequences [count, length] of the model, given an oracle without samples."""


def default_sources() -> list[Source]:
    """Return the sources of a certificate: independent, dependent and sparse, 2 to 16 states, 1 to 6 positions."""
    independent = [sources.uniform(4, 2), sources.skewed(3, 2), sources.skewed(16)]
    chains = [sources.markov(4), sources.markov_two(6)]
    return [*independent, *chains, sources.copies(4, 3), sources.parity(4), sources.twin_digits(2)]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check on one source."""

    check: str
    source: str
    outcome: Outcome
    verdict: str
    """The outcome in words."""
    limit: float
    """What the value is compared with: the entropy in nats, or 1, or the other value."""
    value: float
    stderr: float
    samples: int
    needed: int | None = None
    """Number of samples for a conclusive outcome, if this one is `cannot tell`."""

    @property
    def slack(self) -> float:
        """The value over the limit, as a share of the limit."""
        return (self.value - self.limit) / abs(self.limit) if self.limit else self.value

    def row(self) -> dict[str, object]:
        """Return the finding as a JSON row."""
        margin = CERTAINTY * self.stderr
        return asdict(self) | {"low": self.value - margin, "high": self.value + margin}


@dataclass(frozen=True)
class Plan:
    """The settings of a certificate."""

    samples: int = 4000
    """Sequences of each source."""
    seed: int = 0
    resolution: float = 0.05
    """Share of the entropy: the smallest violation that must be excluded for a law to be held."""
    oracle: MakeOracle = field(default=Oracle)
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        check_integer("samples", self.samples)
        if self.samples < LEAST:
            raise InputError(f"a certificate needs at least {LEAST} samples of each source, got {self.samples}")
        if not 0 < self.resolution < 1:
            raise InputError(f"the resolution is a share of the entropy between 0 and 1, got {self.resolution}")


# -- running an estimator ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What an estimator returned for a batch: values per sequence [n], or their mean [1]; and its standard error."""

    value: Float[Tensor, " n"]
    stderr: float | None = None


def ask(estimator: Estimator, oracle: Oracle, source: Source) -> Answer:
    """Return the estimator's values of one batch; raises InputError naming whatever is wrong with them."""
    try:
        found = estimator(oracle)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames[1:] if "site-packages" not in frame.filename]
        last = (own or frames)[-1]
        where = f"{last.filename}, line {last.lineno}"
        text = f"the estimator failed on the source {source.name}: {type(error).__name__}: {error} ({where})"
        raise InputError(text) from error
    if isinstance(found, tuple) and len(found) == 2:
        value, stderr = found
    else:
        value, stderr = getattr(found, "value", found), getattr(found, "stderr", None)
    answer = Answer(_vector(value, len(oracle), source), None if stderr is None else float(_numbers(stderr)))
    if answer.stderr is not None and not (answer.stderr >= 0 and len(answer.value) == 1):
        raise InputError(
            f"a standard error must be a number of at least 0, returned beside a mean; got {answer.stderr}"
        )
    return answer


def _numbers(value: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return tensors, arrays, lists and numbers as an array."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().resolve_conj().numpy()
    try:
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return array.astype(np.float64)
        if array.dtype.kind == "O" and value is not None:  # a list of tensors, fractions
            return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    what = "nothing" if value is None else f"{type(value).__name__}, which holds no numbers"
    raise InputError(f"the estimator returned {what}: return nats per sequence, or their mean")


def _vector(value: Any, count: int, source: Source) -> Float[Tensor, " n"]:
    array = _numbers(value)
    if array.shape not in ((), (1,), (count,)):
        raise InputError(
            f"the estimator returned shape {list(array.shape)} for {count} sequences of {source.name}: return nats per "
            f"sequence [{count}], their mean, or the mean and its standard error"
        )
    bad = int((~np.isfinite(array)).sum())
    if bad:
        kind = "NaN" if np.isnan(array).any() else "infinite"
        raise InputError(
            f"the estimator returned {bad} of {array.size} values that are {kind} on the source {source.name}"
        )
    return torch.from_numpy(array.reshape(-1).copy())


def oracle_of(source: Source, plan: Plan, size: int, *key: int) -> Oracle:
    """Return an oracle with samples and random numbers that depend on the seed, the source's name and the key."""
    generator = generator_of("certify", plan.seed, *key, source.name)
    return plan.oracle(source, source.draw(size, generator), generator)


def excess_of(estimator: Estimator, source: Source, plan: Plan, offset: int = 0) -> Float[Tensor, " n"]:
    """Return independent draws of `value + log p` in nats: the mean of `-log p` is known, so the excess is estimated.

    The draws are sequences, in few large batches, or the means of `BATCHES` batches.
    """
    found, left, number, size = [], plan.samples, 0, plan.samples // BATCHES
    while left > 0:
        oracle = oracle_of(source, plan, min(size, left), offset, number)
        answer, known = ask(estimator, oracle, source), source.log_prob(oracle.tokens)
        each = len(answer.value) == len(oracle) > 1
        found.append(answer.value + (known if each else known.mean()))
        left, number, size = left - len(oracle), number + 1, LARGE if each else size
    return torch.cat(found)


# -- outcomes ----------------------------------------------------------------------------------------------------------


def margin_of(estimate: Estimate) -> float:
    """Return the half-width of the interval of a check."""
    return 0.0 if estimate.stderr == 0 else student(estimate.freedom, CERTAINTY) * estimate.stderr


def skewness(value: Float[Tensor, " n"]) -> float:
    """Return the third standardised moment of a mean: that of the values over `sqrt(n)`."""
    centred = value - value.mean()
    spread = float(centred.square().mean().sqrt())
    return float(centred.pow(3).mean()) / spread**3 / math.sqrt(len(value)) if spread > 1e-12 else 0.0


def judge(excess: Estimate, scale: float, plan: Plan, skew: float = 0.0) -> tuple[Outcome, int | None]:
    """Return the outcome of `excess >= 0` and, if it is inconclusive, the number of samples that would suffice.

    Values with rare large ones have a mean that is too small more often than a normal one: the interval is longer
    upwards by the first term of the Cornish-Fisher expansion of a studentised mean, Eq. (61). Beyond a skewness of
    `SKEWEST` that term is too small, and nothing is refuted.
    """
    margin, low = margin_of(excess), plan.resolution * scale
    longer = excess.stderr * max(0.0, skew) * (2 * CERTAINTY**2 + 1) / 6
    below = excess.value + margin + longer < -ROUNDING * scale
    if below and skew <= SKEWEST:
        return "violated", None
    if excess.value - margin >= -low or margin <= ROUNDING * scale:
        return "held", None
    if below:
        return "cannot tell", _rounded_up(plan.samples * (skew / SKEWEST) ** 2)
    distances = [excess.value + low] + ([-excess.value] if excess.value < 0 else [])
    return "cannot tell", _rounded_up(plan.samples * min((margin / d) ** 2 for d in distances if d > 0))


def _rounded_up(number: float) -> int:
    """Return a number with two significant digits."""
    digits: int = 10 ** max(0, int(math.log10(number)) - 1)
    return math.ceil(number / digits) * digits


def verdict_words(outcome: Outcome, needed: int | None, held: str, violated: str) -> str:
    """Return the verdict."""
    if outcome == "cannot tell":
        return f"cannot tell: about {needed:,} samples would tell"
    return held if outcome == "held" else violated


# -- checks ------------------------------------------------------------------------------------------------------------


def check_floor(estimator: Estimator, source: Source, plan: Plan) -> Finding:
    """Compare the mean over a source with its entropy, Eq. (61)."""
    draws = excess_of(estimator, source, plan)
    excess = sample_mean(draws)
    outcome, needed = judge(excess, source.entropy, plan, skewness(draws))
    verdict = verdict_words(outcome, needed, "bound held", "below the entropy: not a bound")
    value = source.entropy + excess.value
    return Finding("floor", source.name, outcome, verdict, source.entropy, value, excess.stderr, plan.samples, needed)


def all_sequences(source: Source, plan: Plan, estimator: Estimator, offset: int) -> Float[Tensor, "repeats s"] | None:
    """Return values of every sequence of a source, several times; None if the estimator returns means."""
    tokens, repeats = source.support, max(2 * BATCHES, plan.samples // len(source.support))
    generator = generator_of("certify", plan.seed, offset, source.name)
    answer = ask(estimator, plan.oracle(source, tokens.repeat(repeats, 1), generator), source)
    return None if len(answer.value) == 1 else answer.value.view(repeats, len(tokens))


def check_normalisation(estimator: Estimator, source: Source, plan: Plan) -> Finding | None:
    """Add up `exp(-value)` over all sequences of a source, Eq. (62).

    The exponential of a noisy mean is too large on average, by much if rare values are large. So the first half of the
    values only chooses the weights `q` of the sequences, and the mean over `q` of the other half is compared with the
    entropy of `q`: that is linear in the values, and valid for any `q`.
    """
    value = all_sequences(source, plan, estimator, 1)
    if value is None:
        return None
    first, second = value.tensor_split(2)
    log_q = torch.log_softmax(-first.mean(0), dim=-1)
    excess = (second + log_q) @ log_q.exp()  # [repeats / 2]
    mean = sample_mean(excess)
    total = math.exp(min(-mean.value, 700.0))
    outcome, needed = judge(mean, 1.0, plan, skewness(excess))
    verdict = verdict_words(
        outcome, needed, "probabilities add up to at most 1", f"probabilities add up to {total:.3f}"
    )
    return Finding(
        "normalisation", source.name, outcome, verdict, 1.0, total, total * mean.stderr, value.numel(), needed
    )


def paired_difference(
    estimators: tuple[Estimator, Estimator], pair: tuple[Source, Source], order: Tensor, plan: Plan, offset: int
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return draws of the values of two estimators, the second on the same samples with token `k` called `order[k]`.

    Both have the same random numbers: what they have in common is not in the error of their difference.
    """
    first, second, size = [], [], plan.samples // BATCHES
    for number in range(BATCHES):
        oracle = oracle_of(pair[0], plan, size, offset, number)
        generator = torch.Generator().set_state(oracle.generator.get_state())
        other = plan.oracle(pair[1], order[oracle.tokens], generator)
        first.append(ask(estimators[0], oracle, pair[0]).value)
        second.append(ask(estimators[1], other, pair[1]).value)
    return torch.cat(first), torch.cat(second)


def check_relabelling(estimator: Estimator, source: Source, plan: Plan) -> Finding:
    """Compare the mean with that of the same source under another numbering of its tokens."""
    order = torch.arange(source.states).roll(1)
    first, second = paired_difference((estimator, estimator), (source, source.relabelled(order)), order, plan, 2)
    sign = -1.0 if float((second - first).mean()) > 0 else 1.0
    draws = sign * (second - first)
    distance = sample_mean(draws)
    outcome, needed = judge(distance, source.entropy, plan, skewness(draws))
    verdict = verdict_words(outcome, needed, "independent of the numbering", "depends on the numbering of the tokens")
    limit, value = float(first.mean()), float(second.mean())
    return Finding(
        "relabelling", source.name, outcome, verdict, limit, value, distance.stderr, 2 * plan.samples, needed
    )


def check_steps(estimator: Estimator, source: Source, plan: Plan) -> Finding | None:
    """Compare the value with that of twice the steps; for estimators with a parameter `steps` that has a default."""
    try:
        default = inspect.signature(estimator).parameters["steps"].default
    except (KeyError, ValueError, TypeError):
        return None
    if not isinstance(default, int):
        return None
    fine: Estimator = lambda oracle: estimator(oracle, steps=2 * default)  # type: ignore[call-arg]  # noqa: E731
    same = torch.arange(source.states)
    first, second = paired_difference((estimator, fine), (source, source), same, plan, 4)
    apart = sample_mean(first - second)
    outcome, needed = judge(apart, source.entropy, plan, skewness(first - second))
    verdict = verdict_words(outcome, needed, "more steps do not raise it", "more steps raise it: not a limit of bounds")
    limit, value = float(second.mean()), float(first.mean())
    return Finding("steps", source.name, outcome, verdict, limit, value, apart.stderr, 2 * plan.samples, needed)


def check_sampler(estimator: Estimator, source: Source, plan: Plan) -> Finding | None:
    """Compare values with `-log` of the sampler's frequencies, sequence by sequence; the worst one decides."""
    values = None if plan.sampler is None else all_sequences(source, plan, estimator, 6)
    if values is None or plan.sampler is None:
        return None
    mean, variance = values.mean(0), values.var(0) / len(values)
    variance = variance.clamp_min(float(variance.mean()))  # for sequences among whose values no rare one is
    generator = generator_of("certify", plan.seed, 7, source.name)
    drawn = torch.as_tensor(plan.sampler(plan.oracle(source, source.support[:0], generator), plan.samples))
    if drawn.shape != (plan.samples, source.length):
        raise InputError(f"the sampler returned shape {list(drawn.shape)}, not [{plan.samples}, {source.length}]")
    count = (drawn[:, None] == source.support).all(-1).double().sum(0)  # [s]
    claimed, frequency = (-mean).exp(), count / plan.samples
    excess, stderr = mean + ((count + 1) / (plan.samples + 1)).log(), (variance + 1 / (count + 1)).sqrt()
    worst = int((excess / stderr).argmin())
    likely = float(torch.maximum(frequency, claimed)[worst].clamp_max(1))
    apart = Estimate(float(excess[worst]), float(stderr[worst])) * likely
    skew = skewness((values - mean).flatten()) * math.sqrt(values.shape[1])  # of the mean of one sequence
    outcome, needed = judge(apart, 1.0, plan, skew)
    name = " ".join(map(str, source.support[worst].tolist()))
    claim = f"{float(claimed[worst]):.3f} claimed for the sequence {name}, drawn {float(frequency[worst]):.3f}"
    verdict = verdict_words(outcome, needed, "not below the sampler's frequencies", claim)
    limit, value = float(claimed[worst]), float(frequency[worst])
    samples = values.numel() + plan.samples
    return Finding("sampler", source.name, outcome, verdict, limit, value, apart.stderr, samples, needed)


def check_coverage(estimator: Estimator, source: Source, plan: Plan) -> Finding | None:
    """Compare the standard errors that the estimator returns with the spread of its means, Eq. (63)."""
    answers = []
    for number in range(3 * BATCHES):
        answers.append(ask(estimator, oracle_of(source, plan, plan.samples // BATCHES, 8, number), source))
        if answers[0].stderr is None:
            return None
    value = torch.cat([answer.value for answer in answers])
    claimed = math.sqrt(sum((answer.stderr or 0.0) ** 2 for answer in answers) / len(answers))
    return coverage(value, claimed, source.name, 3 * plan.samples)


def coverage(value: Float[Tensor, " repetitions"], claimed: float, name: str, samples: int) -> Finding:
    """Judge a standard error by the spread of repetitions: `log(claimed / spread)` has an error of 1 / sqrt(2n)."""
    spread = float(value.std())
    ratio = claimed / spread if spread > 0 else (1.0 if claimed == 0 else math.inf)
    error = 1 / math.sqrt(2 * (len(value) - 1))
    apart = math.log(ratio) if 0 < ratio < math.inf else math.copysign(math.inf, ratio - 1)
    outcome: Outcome = "violated" if abs(apart) > CERTAINTY * error else "held"
    size = f"{ratio:.2g} times too wide" if ratio > 1 else f"{1 / ratio if ratio else math.inf:.2g} times too narrow"
    verdict = "standard errors agree with the spread" if outcome == "held" else f"standard errors are {size}"
    return Finding("coverage", name, outcome, verdict, spread, claimed, error * spread, samples)


Check = Callable[[Estimator, Source, Plan], Finding | None]


def law_sources() -> list[Source]:
    """Return small sources in which every sequence is possible, for the checks beyond the floor."""
    return [sources.skewed(3, 2), sources.markov(3)]


LAWS: dict[str, Check] = {
    "normalisation": check_normalisation,
    "relabelling": check_relabelling,
    "steps": check_steps,
    "sampler": check_sampler,
    "coverage": check_coverage,
}
"""The checks beyond the floor."""


def findings(
    estimator: Estimator, plan: Plan, listed: Sequence[Source] | None = None, laws: Sequence[str] = tuple(LAWS)
) -> Iterator[Finding]:
    """Yield the finding of every check that applies: the floor on all sources, the others on two small ones."""
    for source in default_sources() if listed is None else listed:
        yield check_floor(estimator, source, plan)
    for law in laws:
        for source in law_sources():
            found = LAWS[law](estimator, source, plan)
            if found is not None:
                yield found
