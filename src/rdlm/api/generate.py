"""Samples of a model, with conditions and solvers, of any length, reproducible by seed.

Sample `i` of a request with seed `s` has the seed `s + i`, and does not depend on the batch or on the number of
samples.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rdlm.api import notebook
from rdlm.api.language_model import LanguageModel
from rdlm.api.orders import ChosenOrder, choose_order
from rdlm.api.output import Trace
from rdlm.config import SamplingOptions
from rdlm.data.tokenizer import Characters
from rdlm.errors import DamagedFileError, InputError, unknown
from rdlm.model.network import transformer_of
from rdlm.model.transformer import Cache
from rdlm.process.kernel import Chain
from rdlm.process.path import Path as ProcessPath
from rdlm.process.schedule import Grid, equal_information, uniform_in_log_remaining
from rdlm.random import RandomStreams, generator_of
from rdlm.sampling.automaton import Automaton, Restriction, compile_regex, shortened, token_codes
from rdlm.sampling.constraints import (
    OPEN,
    Classifier,
    Constraints,
    Prompt,
    Window,
    framed,
    infilled,
    restricted,
    windows,
)
from rdlm.sampling.denoisers import Batcher, GuidedDenoiser, Query, drive
from rdlm.sampling.sampler import Output, Sampler, StepInfo
from rdlm.sampling.solvers import Solver, solver_of
from rdlm.storage.files import read_json
from rdlm.storage.measurements import CURVE

BASELINE_OPTIONS: Final = ("num", "length", "steps", "seed", "batch")
"""The options of methods other than rdlm."""

SHOWN: Final = 60
"""Characters of a sample in its one-line representation."""

Progress = Callable[[int, int], object]
"""Called after each step with the steps done and the steps in total."""


class WindowStep(NamedTuple):
    """The argument of the callback after each step of a sample."""

    window: Window
    tokens: Int[Tensor, "rows length"]
    """Tokens of the whole sequences before this window."""
    info: StepInfo


@dataclass(frozen=True)
class Sample:
    """One sample: its ids, their text, and the seed that reproduces it."""

    tokens: tuple[int, ...]
    text: str
    seed: int

    def __repr__(self) -> str:
        return f"Sample({_short(self.text)!r}, seed={self.seed})"

    def _repr_html_(self) -> str:
        return notebook.sample(self)


@dataclass(frozen=True, eq=False)
class Generation:
    """Samples, and the settings of their generation."""

    samples: tuple[Sample, ...]
    options: SamplingOptions
    network_calls: int
    """Largest number of network evaluations per sample: steps in which no position is active take none."""
    invalid_codes: int
    """Codes drawn again because their digits are the code of no token."""
    claims_bound: bool
    """Whether the likelihood bound of the same steps and grid holds for these samples."""
    trace: Trace | None = None
    model: LanguageModel | None = None
    known: tuple[bool, ...] = ()
    """The given tokens, such as those of a prompt; empty for methods without prompts."""
    order: ChosenOrder | None = None
    """The order in which tokens were generated; None for baselines."""

    def __repr__(self) -> str:
        bound = "its bound holds" if self.claims_bound else "no bound holds"
        first = _short(self.samples[0].text)
        return f"<Generation of {len(self.samples)}, {self.network_calls} network calls each, {bound}: {first!r}>"

    def _repr_html_(self) -> str:
        return notebook.generation(self)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    @property
    def tokens(self) -> Int[Tensor, "num length"]:
        """The ids of all samples."""
        return torch.tensor([sample.tokens for sample in self.samples])


def generate(
    model: LanguageModel,
    options: SamplingOptions | None = None,
    *,
    classifier: Classifier | None = None,
    classifier_scale: float = 1.0,
    trace: bool = False,
    progress: Progress | None = None,
    **changes: Any,
) -> Generation:
    """Return samples of the model; `changes` are fields of `SamplingOptions`, such as `num=4, prompt="the "`.

    A `classifier` is a differentiable log-likelihood [batch] of probabilities [batch, length, v] (classifier guidance).
    A `trace` records the steps of the first sample.
    """
    options = replace(options or SamplingOptions(), **changes)
    with _evaluation_mode(model.method.network):
        if model.method.token_schedule is None:
            return _baseline_samples(model, options, progress)
        prepared = prepare(model, options, classifier, classifier_scale, trace)
        record = Trace(model) if trace else None
        output = prepared.run(progress, record)
    if record is not None:
        record.finish(output.token[0])
    return prepared.generation(output, record)


def generate_steps(model: LanguageModel, options: SamplingOptions) -> Generator[WindowStep, None, Generation]:
    """Yield every step of samples that fit into one batch; the generator returns them as `generate` does."""
    if model.method.token_schedule is None or options.num > options.batch:
        raise InputError(
            "generate_steps needs a model of the method 'rdlm' and at most one batch of samples: use generate"
        )
    prepared, seen = prepare(model, options), list[WindowStep]()
    seeds = range(options.seed, options.seed + options.num)
    sampling = prepared.sample(seeds, lambda rows, step: seen.append(step))
    with _evaluation_mode(model.method.network):
        try:
            query = next(sampling)
            while True:
                query = sampling.send(prepared.batcher.evaluate(query))
                yield from seen
                seen.clear()
        except StopIteration as stop:
            yield from seen
            return prepared.generation(stop.value)


def _baseline_samples(model: LanguageModel, options: SamplingOptions, progress: Progress | None) -> Generation:
    """Return samples of a baseline, which has no conditions and no option but the number of steps."""
    plain = SamplingOptions(**{name: getattr(options, name) for name in BASELINE_OPTIONS})
    others = [one.name for one in fields(options) if getattr(options, one.name) != getattr(plain, one.name)]
    length = model.sample_length(options.length)
    if others or length > model.length:
        raise InputError(
            f"a model of the method {model.config.method!r} samples at most {model.length} tokens, and its options are "
            f"only {', '.join(BASELINE_OPTIONS)}: leave out {', '.join(others) or f'length {length}'}"
        )
    rows, steps = [], options.steps or model.nfe
    for number in range(options.num):
        rows.append(model.method.generate(1, length, steps, generator_of("sample", options.seed + number)))
        if progress is not None:
            progress(number + 1, options.num)
    samples = _samples(model, torch.cat(rows), options.seed)
    nfe = model.method.sampling_nfe(length, steps)
    return Generation(samples, replace(options, steps=steps), nfe, 0, model.method.claims_bound, model=model)


@dataclass(frozen=True, eq=False)
class PreparedSampling:
    """Sampling options checked and encoded for a model."""

    model: LanguageModel
    options: SamplingOptions
    """The options, with the chosen order and its number of steps."""
    order: ChosenOrder
    prompt: Prompt
    windows: tuple[Window, ...]
    """The windows with open tokens."""
    solver: Solver
    grid: Callable[[int], Grid]
    """Returns the grid of a number of steps."""
    condition: Tensor | None = None
    """A class, or a signal with a number per token, for a batch of one."""
    automaton: Automaton | None = None
    """Accepts the texts that match the regex."""
    codes: Automaton | None = None
    """Accepts the codes of tokens, if tokens are split into digits."""
    classifier: Classifier | None = None
    classifier_scale: float = 1.0

    @property
    def claims_bound(self) -> bool:
        """Whether the likelihood bound of the same chain holds for these samples."""
        plain = len(self.windows) == 1 and not self.model.config.model.self_condition and self.classifier is None
        return plain and not self.options.changes and self.solver.bound is not None

    @property
    def is_signal(self) -> bool:
        """Whether the condition is a number per token."""
        return self.condition is not None and self.condition.is_floating_point()

    @cached_property
    def batcher(self) -> Batcher:
        """The batcher of the queries of these samples."""
        method, on_cpu = self.model.rdlm, self.model.device.type == "cpu"
        # The test of equal rounding has no signal, so rows with a signal are evaluated one by one.
        rows = self.options.rows or (None if on_cpu and not self.is_signal else 1 if on_cpu else self.options.batch)
        return Batcher(method.denoiser, method.network, self.model.config.model.self_condition, rows=rows)

    def run(self, progress: Progress | None = None, trace: Trace | None = None) -> Output:
        """Return the tokens of all samples, batch by batch; a trace follows the first sample."""
        seeds = range(self.options.seed, self.options.seed + self.options.num)
        batches = [seeds[at : at + self.options.batch] for at in range(0, len(seeds), self.options.batch)]
        report = _StepCount(progress, self.order.nfe * len(self.windows) * len(batches))
        outputs = []
        for index, batch in enumerate(batches):
            callback = partial(report, len(batch), None if index else trace)
            outputs.append(drive(self.sample(batch, callback), self.batcher))
        token, nfe = torch.cat([one.token for one in outputs]), torch.cat([one.nfe for one in outputs])
        return Output(token, sum(one.invalid for one in outputs), nfe)

    def generation(self, output: Output, trace: Trace | None = None) -> Generation:
        """Return the output of all batches as samples, with the settings of their generation."""
        return Generation(
            _samples(self.model, output.token, self.options.seed),
            self.options,
            network_calls=int(output.nfe.max()),
            invalid_codes=output.invalid,
            claims_bound=self.claims_bound,
            trace=trace,
            model=self.model,
            known=tuple((self.prompt.known != OPEN).tolist()),
            order=self.order,
        )

    def sample(
        self, seeds: Sequence[int], callback: Callable[[Sequence[int], WindowStep], object] | None = None
    ) -> Generator[Query, Tensor, Output]:
        """Sample one batch; a generator of network queries. The callback receives the indices of the rows in the
        batch."""
        noise = RandomStreams([generator_of("sample", seed) for seed in seeds], len(seeds))
        mixture = self.model.rdlm.process.mixture
        if len(mixture.paths) == 1:
            follow = None if callback is None else partial(callback, range(len(seeds)))
            return (yield from self._sample_path(mixture.paths[0], noise, follow))
        token = self.prompt.known.repeat(len(seeds), 1)
        nfe, invalid = torch.zeros(len(seeds), dtype=torch.long), 0
        first = noise.uniform((noise.batch,)) < mixture.weights[0]
        for path, mask in zip(mixture.paths, (first, ~first), strict=True):
            if rows := mask.nonzero().flatten().tolist():
                follow = None if callback is None else partial(callback, rows)
                output = yield from self._sample_path(path, noise.subset(rows), follow)
                token[rows], nfe[rows] = output.token, output.nfe
                invalid += output.invalid
        return Output(token, invalid, nfe)

    def _sample_path(
        self, path: ProcessPath, noise: RandomStreams, callback: Callable[[WindowStep], object] | None
    ) -> Generator[Query, Tensor, Output]:
        """Sample rows on one path, window after window."""
        method, length = self.model.rdlm, min(self.prompt.length, self.model.length)
        kernel, schedule = self.solver.bound or "mixture", self.order.schedule
        layout, chain = method.layout, method.chain(path, self.order.nfe, kernel, schedule, self.grid, length)
        token = self.prompt.known.repeat(noise.batch, 1)
        nfe, invalid = torch.zeros(noise.batch, dtype=torch.long), 0
        for window in self.windows:
            known = token[:, window.begin : window.end]
            is_open = (known == OPEN).repeat_interleave(layout.symbols_per_token, dim=1)
            sampler = self._sampler(chain, window, token, callback)
            output = yield from sampler.sample(layout.symbols(known.clamp_min(0)).masked_fill(is_open, OPEN), noise)
            token[:, window.begin : window.end] = layout.ids(output.token.cpu())
            nfe, invalid = nfe + output.nfe, invalid + output.invalid
        return Output(token, invalid, nfe)

    def _sampler(
        self, chain: Chain, window: Window, token: Tensor, callback: Callable[[WindowStep], object] | None
    ) -> Sampler:
        """Return the sampler of one window."""
        method, condition, self_condition = self.model.rdlm, self.condition, self.model.config.model.self_condition
        if condition is not None and self.is_signal:
            positions = method.layout.positions
            condition = condition[:, window.begin * positions : window.end * positions]
        denoiser = GuidedDenoiser(
            method.denoiser,
            condition=None if condition is None else condition.to(self.model.device),
            guidance=self.options.guidance,
            temperature=self.options.temperature,
            block_mask=method.block_mask(chain),
            self_condition=self_condition,
        )
        return Sampler(
            denoiser,
            chain,
            self.solver,
            method.process.schedule,
            constraints=self._constraints(window, token),
            law=method.chain_law(chain).to(self.model.device) if chain.switch >= 0 else None,
            clean=self.options.clean,
            codes=self.codes,
            callback=None if callback is None else lambda info: callback(WindowStep(window, token, info)),
            device=self.model.device,
            make_cache=self._make_cache(chain),
            every_step=self_condition,
        )

    def _make_cache(self, chain: Chain) -> Callable[[], Cache] | None:
        """Return the constructor of a KV cache; None if more than the current block has to be evaluated."""
        transformer = transformer_of(self.model.rdlm.network)
        # A classifier and a regex need tokens ahead, guidance two evaluations, and self-conditioning whole predictions.
        ahead = self.classifier is not None or self.options.regex is not None
        twice = self.options.guidance != 1 or self.model.config.model.self_condition
        if not chain.token_steps.block or ahead or twice or self.is_signal or transformer is None:
            return None
        return transformer.cache

    def _constraints(self, window: Window, token: Tensor) -> Constraints:
        """Return the constraints of a window; a regular language is entered after the text before it."""
        options, allowed, language = self.options, self.prompt.allowed, None
        if allowed is not None:
            allowed = allowed[window.begin : window.end].to(self.model.device)
        if self.automaton is not None:
            rest = self.prompt.choices(self.model.tokenizer.size)[window.end :]
            entry = self.automaton.run(token[:, : window.begin])
            language = Restriction(self.automaton, entry, self.automaton.alive(rest))
        likelihood = (self.classifier, self.classifier_scale)
        return Constraints(options.top_k, options.top_p, options.greedy, allowed, language, *likelihood)


def prepare(
    model: LanguageModel,
    options: SamplingOptions,
    classifier: Classifier | None = None,
    classifier_scale: float = 1.0,
    trace: bool = False,
) -> PreparedSampling:
    """Return the checked options for a model; InputError for any invalid one."""
    layout, prompt = model.rdlm.layout, _prompt(model, options)
    known, length = prompt.known != OPEN, min(prompt.length, model.length)
    ahead = bool((known & ~known.cumprod(0).bool()).any())  # whether known tokens follow open ones
    order = choose_order(model, options.order or "auto", options.steps, length, options.block, options.window, ahead)
    if order.measured and (others := _other_than_measured(model, options, prompt.length, classifier)):
        order = replace(order, choice=f"{order.choice}; it does not apply to samples with {', '.join(others)}")
    options = replace(options, order=order.order, block=order.block, window=order.window, steps=order.nfe)
    parts = windows(prompt.length, model.length, options.stride)
    kept = tuple(part for part in parts if bool((prompt.known[part.begin : part.end] == OPEN).any()))
    if trace and prompt.length > model.length:
        raise InputError(f"a trace shows one window: at most {model.length} tokens, not {prompt.length}")
    automaton = _automaton(model, options, prompt)
    if layout.symbols_per_token > 1 and (prompt.allowed is not None or automaton is not None or classifier is not None):
        raise InputError("conditions on tokens need a model with denoiser.head token; this one has denoiser.head digit")
    return PreparedSampling(
        model,
        options,
        order,
        prompt,
        kept,
        solver_of(options.solver),
        grid_of(model, options.grid),
        condition=_condition(model, options, prompt.length),
        automaton=automaton,
        codes=token_codes(layout.vocabulary, layout.base, layout.digits) if layout.symbols_per_token > 1 else None,
        classifier=classifier,
        classifier_scale=classifier_scale,
    )


def _other_than_measured(
    model: LanguageModel, options: SamplingOptions, length: int, classifier: Classifier | None
) -> list[str]:
    """Return the names of the settings for which the bound that was measured for the order is not that of the
    samples."""
    own = {
        f"solver {options.solver}": options.solver != "mixture",
        f"grid {options.grid}": options.grid != "time",
        f"length {length}": length != model.length,
        "a classifier": classifier is not None,
        "self-conditioning": model.config.model.self_condition,
    }
    return [*options.changes, *(name for name, differs in own.items() if differs)]


def _prompt(model: LanguageModel, options: SamplingOptions) -> Prompt:
    tokenizer = model.tokenizer
    if options.infill is not None:
        known = infilled(tokenizer, options.infill, options.gap)
        if options.length not in (None, len(known)):
            raise InputError(f"the infill has {len(known)} tokens, but the length is {options.length}")
    else:
        known = framed(tokenizer, model.sample_length(options.length), options.prompt, options.suffix)
    if model.kind == "image" and len(known) != model.length:
        raise InputError(f"an image of this model has {model.length} tokens, not {len(known)}")
    return restricted(tokenizer, known, options.ban, options.forbid, options.require)


def _automaton(model: LanguageModel, options: SamplingOptions, prompt: Prompt) -> Automaton | None:
    if options.regex is None:
        return None
    if not isinstance(model.tokenizer, Characters):
        raise InputError("a regex needs a model of characters; the tokens of this one have several")
    automaton = compile_regex(options.regex, model.tokenizer.alphabet)
    if not bool(automaton.alive(prompt.choices(model.tokenizer.size))[automaton.start]):
        others = options.prompt or options.suffix or options.infill or options.ban or options.forbid or options.require
        also = " and the other conditions" if others else ""
        advice = "" if others else _other_length(automaton, prompt.length, model.tokenizer.size)
        pattern = shortened(options.regex)
        raise InputError(f"no sequence of {prompt.length} tokens matches the regex {pattern!r}{also}{advice}")
    return automaton


def _other_length(automaton: Automaton, length: int, size: int) -> str:
    """Return the advice of a length at which something matches: the longest below, else the shortest above."""
    fits, alive, row = [], automaton.accepting, torch.ones(1, size, dtype=torch.bool)
    for count in range(1, 2 * length + 1):
        alive = replace(automaton, accepting=alive).alive(row)
        fits += [count] if bool(alive[automaton.start]) else []
    best = max((count for count in fits if count < length), default=min(fits, default=0))
    return f"; one of {best} tokens does: use length {best}, or end the regex with .*" if best else ""


def _condition(model: LanguageModel, options: SamplingOptions, length: int) -> Tensor | None:
    """Return the condition as the network takes it, for a batch of one."""
    if options.label is not None and options.signal is not None:
        raise InputError("a sample is conditioned on a label or on a signal, not on both")
    if options.signal is not None:
        if not model.about.get("signal"):
            raise InputError("this model was trained without a signal")
        if len(options.signal) != length:
            raise InputError(f"the signal has {len(options.signal)} numbers, the sample {length} tokens")
        return model.rdlm.laid_out(torch.tensor([list(options.signal)], dtype=torch.float32))
    if options.label is None:
        if options.guidance != 1:
            raise InputError(f"guidance {options.guidance:g} needs a label or a signal to guide by")
        return None
    return torch.tensor([_class_of(model, options.label)])


def _class_of(model: LanguageModel, label: str) -> int:
    classes = [str(name) for name in model.about.get("classes") or ()]
    if not classes:
        raise InputError(f"this model was trained without classes: there is no label {label!r}")
    if label in classes:
        return classes.index(label)
    if label.isdecimal() and int(label) < len(classes):
        return int(label)
    raise unknown("label", label, classes)


def grid_of(model: LanguageModel, name: str) -> Callable[[int], Grid]:
    """Return the function from a number of steps to a grid; equal information needs a measured curve beside the
    checkpoint."""
    process = model.rdlm.process
    if name == "time":
        return process.grid
    if name == "log":
        return partial(uniform_in_log_remaining, process.schedule.total)
    if name != "information":
        raise unknown("grid", name, ("time", "log", "information"))
    if model.folder is None or not (model.folder / CURVE).is_file():
        raise InputError(
            "the information grid needs a measured curve: run rdlm evaluate RUN --order synchronous first, "
            "and publish a model afterwards to have it among its files"
        )
    return partial(equal_information, *read_curve(model.folder / CURVE, process.schedule.total))


def read_curve(path: Path, total: float) -> tuple[Tensor, Tensor]:
    """Return remaining noise and cumulative nats of a curve's file, which must have the same total noise."""
    found = read_json(path)
    try:
        remaining, nats = (torch.tensor(found[key], dtype=torch.float64) for key in ("noise", "nats"))
        equal_information(remaining, nats, 1)
    except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None
    if abs(float(remaining[0]) - total) > 1e-6 * total:
        raise DamagedFileError(f"{path} was measured with a total noise of {float(remaining[0]):g}, not {total:g}")
    return remaining, nats


class _StepCount:
    """Counts steps over batches, windows and paths, and records the first sample in a trace."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0.0
        self._behind = 0

    def __call__(self, batch: int, trace: Trace | None, rows: Sequence[int], step: WindowStep) -> None:
        info = step.info
        at, nfe = int(info.after.step.min()), info.sampler.chain.nfe
        self.done += len(rows) / batch * (at - self._behind)
        self._behind = at % nfe
        if self.progress is not None:
            self.progress(min(self.total, round(self.done)), self.total)
        if trace is not None and rows[int(info.rows[0])] == 0:
            trace.record(info.before.state[0], info.log_probs[0])


def _samples(model: LanguageModel, tokens: Int[Tensor, "num length"], seed: int) -> tuple[Sample, ...]:
    return tuple(
        Sample(tuple(row), model.tokenizer.decode(row), seed + index) for index, row in enumerate(tokens.tolist())
    )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


@contextmanager
def _evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Put the network into evaluation mode inside the `with` block."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)
