"""Choice of the settings that the user did not give, by the data and the time of a run.

`fit_vocabulary` chooses total noise and codes by the number of tokens. `largest_affordable`, `in_bfloat16` and
`fit_training` choose network, batch, precision, steps, warm-up and validation by the time of the run and the measured
seconds of a step. `best_lr` and `next_lr` are the rules of the search for a learning rate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rdlm.config import (
    PAPER_TOTAL_NOISE,
    Convolution2DConfig,
    ConvolutionConfig,
    NetworkConfig,
    RunConfig,
    TrainingConfig,
    TransformerConfig,
)
from rdlm.data.store import Corpus
from rdlm.methods.objective import BINS, DUE_EARLY, DUE_EVERY, PER_BIN
from rdlm.methods.rdlm import total_noise

OWN = "own"
"""Name of the corpus and of the preset for user data."""

MOST_ONE_HOT = 1024
"""Tokens above which `process.codes auto` chooses learned codes: states of one coordinate per token cost too much."""

MOST_WEIGHTS = 1 << 21
"""Default number of weights of an n-gram chain (states times tokens)."""


def fit_kind(config: RunConfig, corpus: Corpus) -> RunConfig:
    """Return the configuration for own data of a kind; the preset is that of text, and other presets are unchanged."""
    if corpus.name != OWN or (corpus.kind == "text" and corpus.train.ndim == 1):
        return config
    model, data = config.model, config.data
    if corpus.train.ndim == 2:  # rows, such as images, have one length and no order from left to right
        data = replace(data, length=None)
        if isinstance(model, TransformerConfig):
            model = replace(model, places=model.places or corpus.train.shape[1])
    if corpus.kind == "image":
        model = replace(model, belief="none")
    return replace(config, data=data, model=model, objective=replace(config.objective, blockwise=0.0))


def fit_vocabulary(config: RunConfig, vocabulary: int) -> tuple[RunConfig, str]:
    """Return the configuration for this number of tokens, and a sentence on the choices; "" without any."""
    chosen = config
    if config.process.codes == "auto":
        learned = config.method == "rdlm" and config.process.base is None and vocabulary > MOST_ONE_HOT
        chosen = _with_codes(config) if learned else _with_process(config, codes="onehot")
        chosen = _with_frequencies(_with_chain(chosen, vocabulary), vocabulary)
    chosen = _with_process(chosen, total=total_noise(chosen.process, vocabulary))
    said = []
    if chosen.method == "rdlm" and (codes := chosen.process.codes) != config.process.codes and codes == "learned":
        said.append(f"process.codes learned, process.dimension {chosen.process.dimension}")
    if chosen.method == "rdlm" and config.process.total is None and chosen.process.total != PAPER_TOTAL_NOISE:
        said.append(f"process.total {chosen.process.total:.2g}")
    if chosen.model.belief != config.model.belief:
        said.append("model.belief none")
    elif chosen.model.states != config.model.states:
        said.append(f"model.states {chosen.model.states}")
    return chosen, f"chosen for a vocabulary of {vocabulary:,} tokens: {', '.join(said)}" if said else ""


def _with_process(config: RunConfig, **changes: object) -> RunConfig:
    return replace(config, process=replace(config.process, **changes))  # type: ignore[arg-type]


def _with_codes(config: RunConfig) -> RunConfig:
    """Return the configuration with learned codes, which need mean codes as features and no chain."""
    features = "mean" if config.denoiser.features == "evidence" else config.denoiser.features
    return replace(
        _with_process(config, codes="learned"),
        denoiser=replace(config.denoiser, features=features),
        model=replace(config.model, belief="none"),
    )


def _with_frequencies(config: RunConfig, vocabulary: int) -> RunConfig:
    """Return the configuration with an output bias at the frequencies, for large vocabularies."""
    model = config.model
    if not isinstance(model, TransformerConfig) or model.belief != "none" or vocabulary <= MOST_ONE_HOT:
        return config
    return replace(config, model=replace(model, frequencies=True))


def _with_chain(config: RunConfig, vocabulary: int) -> RunConfig:
    """Return the configuration with a chain that fits the vocabulary, or without one where it has digits or codes."""
    model = config.model
    if model.belief != "ngram" or model.states is not None:
        return config
    most = MOST_WEIGHTS // vocabulary
    if vocabulary > MOST_ONE_HOT or (config.method == "rdlm" and config.process.base is not None):
        return replace(config, model=replace(model, belief="none"))
    return config if most >= model.chain_states else replace(config, model=replace(model, states=most))


# -- time -------------------------------------------------------------------------------------------

SIZES = ((1 / 8, 1 / 32), (1 / 4, 1 / 8), (1 / 3, 1 / 4), (1 / 2, 1 / 2), (0.7, 1.0), (1.0, 1.0))
"""Candidate shares of width and depth, and of the batch, from the smallest to the configuration itself."""

SMALLEST_BATCH = 4
"""Sequences of the smallest candidate batch."""

FEWEST_STEPS = 400
"""Fewest steps of a run: the largest size with that number of steps is chosen."""

VALIDATION_SHARE, SAMPLES_SHARE, SLACK = 0.05, 0.1, 0.1
"""Shares of the time for one validation, for the samples of the report, and for steps slower than those measured."""

FIXED_SECONDS = 2.0
"""Seconds for the last checkpoint and the report."""

FEWEST_SEQUENCES, FEWEST_CALLS = 4, 4
"""Sequences of the smallest validation, and network calls of the shortest samples."""

HALF = 0.8
"""Time of a step in bfloat16, relative to one in float32, below which it is chosen; many processors emulate it."""

CAUTION = 1.5
"""Factor for validation and samples that are slower than measured."""


@dataclass(frozen=True)
class Pace:
    """Measured seconds of a training step, of a validation sequence and of a network call of the sampler."""

    step: float
    sequence: float = 0.0
    call: float = 0.0

    def reserve(self, training: TrainingConfig, caution: float = 1.0) -> float:
        """Return the seconds after the last step: a validation, the samples, a checkpoint and the report."""
        seconds = self.sequence * training.validation_sequences + self.call * training.validation_nfe
        return caution * seconds + FIXED_SECONDS


def sizes(config: RunConfig, given: Collection[str]) -> Iterator[RunConfig]:
    """Yield the configuration in all sizes, the smallest first; keys given by the user are not changed."""
    training, last = config.training, None
    keep_network = keeps_network(given)
    keep_batch = any(key in given for key in ("training.batch", "training.accumulate"))
    for share, batch_share in SIZES:
        model = config.model if keep_network else scaled(config.model, share)
        batch = training.batch if keep_batch else _batch(training, batch_share)
        found = replace(config, model=model, training=replace(training, batch=batch))
        if found != last:
            yield found
        last = found


def keeps_network(given: Collection[str]) -> bool:
    """Return whether the user has chosen the network, by one of its keys or by an initial model ("model")."""
    return any(key.partition(".")[0] == "model" for key in given)


def _batch(training: TrainingConfig, share: float) -> int:
    unit = training.accumulate
    return min(training.batch, max(SMALLEST_BATCH // unit, round(training.batch * share / unit), 1) * unit)


def scaled(model: NetworkConfig, share: float) -> NetworkConfig:
    """Return a network of about this share of the width and of the depth; 1 returns it unchanged.

    The states of an n-gram chain are kept: in short runs it contributes more than the network.
    """
    if share == 1:
        return model
    if isinstance(model, TransformerConfig):
        heads = min(model.heads, max(1, round(model.width * share / 32)))
        unit = 2 * heads
        width = min(model.width, max(32, round(model.width * share)) // unit * unit)
        return replace(model, width=width, heads=heads, layers=min(model.layers, max(2, round(model.layers * share))))
    width = max(8, round(model.width * share))
    if isinstance(model, Convolution2DConfig):
        return replace(model, width=width, layers=min(model.layers, max(2, round(model.layers * share))))
    return replace(model, width=width, stacks=max(1, round(model.stacks * share)))


def largest_affordable(
    candidates: Sequence[RunConfig], seconds: Callable[[RunConfig], float], left: Callable[[], float]
) -> RunConfig:
    """Return the largest candidate with `FEWEST_STEPS` steps in the time left, else the smallest one.

    Candidates are measured from the smallest on, and none that is expected to be too slow.
    """
    chosen = candidates[0]
    for index, candidate in enumerate(candidates):
        measured = seconds(candidate)
        steps = left() * (1 - VALIDATION_SHARE - SAMPLES_SHARE - SLACK) / measured
        if index and steps < FEWEST_STEPS:
            break
        chosen = candidate
        if steps < 2 * FEWEST_STEPS:  # the next size takes about twice as long
            break
    return chosen


def in_bfloat16(candidates: Sequence[RunConfig], given: Collection[str]) -> list[RunConfig]:
    """Return the candidates in bfloat16; none if the precision is given, or is not float32."""
    first = candidates[0].training
    if "training.precision" in given or first.precision != "float32":
        return []
    return [replace(one, training=replace(one.training, precision="bfloat16")) for one in candidates]


def fit_training(config: RunConfig, given: Collection[str], pace: Pace, left: float, done: int = 0) -> RunConfig:
    """Return the configuration with as many further steps as the time allows, and matching warm-up and validation."""
    own = config.training
    sequences = _within(VALIDATION_SHARE * left / max(pace.sequence, 1e-9), FEWEST_SEQUENCES, own.validation_sequences)
    nfe = _within(SAMPLES_SHARE * left / max(pace.call, 1e-9), FEWEST_CALLS, own.validation_nfe)
    training = replace(own, validation_sequences=sequences, validation_nfe=nfe)
    training = with_given(training, own, given)
    renewal = pace.sequence * PER_BIN * BINS if config.objective.proposal == "information" else 0.0
    seconds = (left - pace.reserve(training)) * (1 - SLACK)
    steps = min(own.steps, done + max(1, _steps_in(seconds, pace.step, renewal, done)))
    every = max(1, -(-steps // 2))
    training = replace(
        training,
        steps=steps,
        warmup=min(own.warmup, steps // 10),
        validate_every=min(own.validate_every, every),
        save_every=min(own.save_every, every),
    )
    return replace(config, training=with_given(training, own, given))


def _steps_in(seconds: float, step: float, renewal: float, done: int) -> int:
    """Return the number of steps after `done` that fit into a time, including the measurements of the information."""
    at = done
    for due in itertools.chain(DUE_EARLY, itertools.count(DUE_EVERY, DUE_EVERY)):
        if due <= at:
            continue
        steps = min(due - at, int(max(seconds, 0.0) / step))
        seconds -= steps * step + renewal
        at += steps
        if at < due or seconds < step:
            return at - done
    raise AssertionError("the steps at which the information is measured do not end")


def described_fit(config: RunConfig, minutes: float, parameters: int) -> str:
    """Return a sentence on the chosen size and length of a run."""
    training, model = config.training, config.model
    network = f"width {model.width}" + ("" if isinstance(model, ConvolutionConfig) else f", {model.layers} layers")
    return (
        f"{minutes:g} minutes: {network} ({parameters:,} parameters), {training.steps:,} steps of {training.batch} "
        f"sequences, {training.warmup} of them warm-up, decay {training.decay}, {training.precision}; keys given as "
        "options are kept"
    )


def _within(value: float, low: int, high: int) -> int:
    return min(high, max(low, int(value)))


def with_given(training: TrainingConfig, own: TrainingConfig, given: Collection[str]) -> TrainingConfig:
    """Return the settings `training` with the keys that the user has given, whose values are those of `own`."""
    names = [key.removeprefix("training.") for key in given if key.startswith("training.")]
    return replace(training, **{name: getattr(own, name) for name in names})


# -- learning rates ---------------------------------------------------------------------------------


def best_lr(bounds: Mapping[float, float]) -> float:
    """Return the learning rate with the lowest bound, the smallest of several."""
    return min(sorted(bounds), key=lambda lr: bounds[lr])


def next_lr(bounds: Mapping[float, float]) -> float | None:
    """Return the learning rate beyond the best one if that is the largest or the smallest; None if it is inside.

    The factor is that between the two nearest rates, or 2.
    """
    lrs, best = sorted(bounds), best_lr(bounds)
    if best == lrs[-1] and math.isfinite(bounds[best]):
        beyond = best * (best / lrs[-2] if len(lrs) > 1 else 2.0)
    elif best == lrs[0]:
        beyond = best / (lrs[1] / best if len(lrs) > 1 else 2.0)
    else:
        return None
    return float(f"{beyond:g}")
