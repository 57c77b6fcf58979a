"""The grid of a name, and the measured curve of information from which one of them is made.

`curve.json` stands beside a checkpoint: `{"noise": [S, ..., 0], "nats": [0, ..., total]}`, the nats gained by the time
that so much noise is still to come.

Plans: a request made ready for a model, and walked in batches and windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from rdlm.api.journey import Journey
from rdlm.api.language_model import LanguageModel
from rdlm.api.render import Trace
from rdlm.api.request import Request
from rdlm.data.tokenizer import Characters
from rdlm.errors import DamagedFileError, InputError, unknown
from rdlm.model.denoiser import BlockMask
from rdlm.process.grid import Grid, equal_information, uniform_in_log_remaining
from rdlm.random import Noise, generator_of
from rdlm.sampling.automaton import Automaton, compile_regex, spellings
from rdlm.sampling.batching import Forward
from rdlm.sampling.course import Look, Outcome
from rdlm.sampling.denoisers import Predictor
from rdlm.sampling.prompt import OPEN, Stretch, Template, framed, infilled, restricted, stretches
from rdlm.sampling.solvers import solver_of
from rdlm.sampling.walk import Callback
from rdlm.storage.files import read_json

NAME = "curve.json"
GRIDS = ("time", "log", "information")


def grid_of(model: LanguageModel, name: str) -> Callable[[int], Grid]:
    """Return what makes a grid of so many steps; the measured one needs a curve beside the checkpoint."""
    process = model.rdlm.process
    if name == "time":
        return process.grid
    if name == "log":
        return partial(uniform_in_log_remaining, process.schedule.total)
    if name != "information":
        raise unknown("grid", name, GRIDS)
    if model.folder is None or not (model.folder / NAME).is_file():
        raise InputError(
            "the information grid needs a measured curve: run rdlm evaluate RUN --window 1 first, "
            "and publish a model afterwards to have it among its files"
        )
    return partial(equal_information, *read(model.folder / NAME, process.schedule.total))


def read(path: Path, total: float) -> tuple[Tensor, Tensor]:
    """Return noise levels and cumulative nats of a curve's file, which must be of the same total noise."""
    found = read_json(path)
    try:
        remaining, nats = (torch.tensor(found[key], dtype=torch.float64) for key in ("noise", "nats"))
        equal_information(remaining, nats, 1)
    except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None
    if abs(float(remaining[0]) - total) > 1e-6 * total:
        raise DamagedFileError(f"{path} was measured with a total noise of {float(remaining[0]):g}, not {total:g}")
    return remaining, nats


Progress = Callable[[int, int], object]
"""Called after each step with the steps done and the steps in all."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A request made ready for a model: checked, encoded and cut into windows."""

    model: LanguageModel
    request: Request
    template: Template
    windows: tuple[Stretch, ...]
    automaton: Automaton | None
    codes: Automaton | None
    condition: Tensor | None
    grid: Callable[[int], Grid]

    @staticmethod
    def of(model: LanguageModel, request: Request) -> Plan:
        """Return the plan of a request; everything that can be wrong with it is found here."""
        method, tokenizer = model.rdlm, model.tokenizer
        template = _template(model, request)
        request = _clocked(model, request, template)
        # A window in which all is known has nothing to walk for.
        parts = stretches(template.length, model.length, request.stride)
        windows = tuple(part for part in parts if bool((template.known[part.begin : part.end] == OPEN).any()))
        if request.trace and template.length > model.length:
            raise InputError(f"a trace shows one window: at most {model.length} tokens, not {template.length}")
        automaton = _automaton(model, request, template)
        per_token = method.symbols_per_token
        if per_token > 1 and (template.allowed is not None or automaton is not None or request.wish is not None):
            raise InputError("conditions on tokens need a model whose head is over tokens; this one's is over digits")
        codes = spellings(tokenizer.size, method.process.codec.base, per_token) if per_token > 1 else None
        solver_of(request.solver)
        request.rules()
        return Plan(
            model,
            request,
            template,
            windows,
            automaton,
            codes,
            _condition(model, request, template.length),
            grid_of(model, request.grid),
        )

    @property
    def steps(self) -> int:
        """Return the steps of the walk in each window."""
        assert self.request.steps is not None  # `of` has seen to it
        return self.request.steps

    def run(self, progress: Progress | None = None, trace: Trace | None = None) -> Outcome:
        """Return the tokens of all samples, walked in batches; a trace follows the first one."""
        request, seeds = self.request, range(self.request.seed, self.request.seed + self.request.num)
        batches = [list(seeds[at : at + request.batch]) for at in range(0, len(seeds), request.batch)]
        report = _Report(progress, self.steps * len(self.windows) * len(batches))
        parts = [self._batch(batch, report, None if index else trace) for index, batch in enumerate(batches)]
        tokens, nfe = torch.cat([part.token for part in parts]), torch.cat([part.nfe for part in parts])
        return Outcome(tokens, sum(part.invalid for part in parts), nfe)

    @property
    def claims_bound(self) -> bool:
        """Return whether the likelihood bound of the same chain holds for these samples."""
        free = len(self.windows) == 1 and not self.model.config.model.self_condition
        return free and not self.request.reshapes and solver_of(self.request.solver).bound is not None

    @property
    def device(self) -> torch.device:
        """Return where the network is."""
        return next(self.model.rdlm.network.parameters()).device

    def journeys(self, seeds: Sequence[int]) -> Iterator[tuple[list[int], Journey]]:
        """Yield the samples of some seeds, by their places, as journeys: those on the same path go together."""
        remaining = Noise([generator_of("sample", seed) for seed in seeds], len(seeds))
        mixture = self.model.rdlm.process.mixture
        if len(mixture.paths) == 1:
            yield list(range(len(seeds))), Journey(self, mixture.paths[0], remaining)
            return
        first = remaining.uniform((len(seeds),)) < mixture.weights[0]
        for path, mask in zip(mixture.paths, (first, ~first), strict=True):
            chosen: list[int] = mask.nonzero().flatten().tolist()
            if chosen:
                yield chosen, Journey(self, path, remaining.subset(chosen))

    def _batch(self, seeds: list[int], report: _Report, trace: Trace | None) -> Outcome:
        """Return the tokens of some samples, how many codes were chosen anew, and the network calls of each."""
        tokens, invalid = torch.zeros(len(seeds), self.template.length, dtype=torch.long), 0
        nfe = torch.zeros(len(seeds), dtype=torch.long)
        for chosen, journey in self.journeys(seeds):
            advance = report.part(len(chosen), len(seeds))
            watch = _watch(advance, self.steps, trace if chosen[0] == 0 else None)
            journey.run(partial(self._predictor, journey.block_mask), watch)
            tokens[chosen], nfe[chosen] = journey.token, journey.nfe
            invalid += journey.invalid
        return Outcome(tokens, invalid, nfe)

    def _predictor(self, block_mask: BlockMask | None, batch: int, stretch: Stretch) -> Predictor:
        condition, positions = self.condition, self.model.rdlm.process.codec.positions
        if condition is not None and condition.is_floating_point():
            condition = condition[:, stretch.begin * positions : stretch.end * positions]
        # Whether rows round alike is tried out without a signal, so that those with one go by themselves.
        alone = condition is not None and condition.is_floating_point()
        forward = None if self.request.rows or self.device.type != "cpu" or alone else self._forward
        rows = self.request.rows or (1 if self.device.type == "cpu" else batch)
        return Predictor(
            self.model.rdlm,
            None if condition is None else condition.to(self.device),
            self.request.guidance,
            self.request.temperature,
            rows,
            block_mask,
            forward,
        )

    @cached_property
    def _forward(self) -> Forward:
        return Forward(self.model.rdlm)


class _Report:
    """Counts steps over batches and windows, and over the parts of a batch that walk apart."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0.0

    def part(self, some: int, of_all: int) -> Callable[[int], object]:
        return partial(self._add, some / of_all)

    def _add(self, share: float, steps: int) -> None:
        self.done += share * steps
        if self.progress is not None:
            self.progress(min(self.total, round(self.done)), self.total)


def _watch(advance: Callable[[int], object], steps: int, trace: Trace | None) -> Callback:
    """Return what counts the steps of one window after the other, and shows the first sample to a trace."""
    behind = 0

    def callback(look: Look) -> None:
        nonlocal behind
        advance(look.done - behind)
        behind = look.done % steps
        if trace is not None and int(look.row[0]) == 0:
            trace.look(look.state[0], look.log_probs[0])

    return callback


def _clocked(model: LanguageModel, request: Request, template: Template) -> Request:
    """Return the request with the model's own clock where it names none, and the steps that such a walk takes."""
    method, known = model.rdlm, template.known != OPEN
    own, width, block = method.window, request.window, request.block
    if block is None:  # chunks would not see known tokens that lie ahead
        ahead = bool((known & ~known.cumprod(0).bool()).any())
        block = 0 if ahead or width is not None or request.order is not None else own.block
    request = replace(
        request, window=own.width if width is None else width, order=request.order or own.order, block=block
    )
    method.check_blocks(block)
    token_steps = request.clock().discretize(request.steps or model.nfe, min(template.length, model.length))
    return replace(request, steps=token_steps.nfe)


def _template(model: LanguageModel, request: Request) -> Template:
    tokenizer = model.tokenizer
    if request.infill is not None:
        known = infilled(tokenizer, request.infill, request.gap)
        if request.length not in (None, len(known)):
            raise InputError(f"the infill has {len(known)} tokens, but length {request.length} was asked for")
    else:
        known = framed(tokenizer, request.length or model.length, request.prompt, request.suffix)
    if model.kind == "image" and len(known) != model.length:
        raise InputError(f"an image of this model has {model.length} tokens, not {len(known)}")
    return restricted(tokenizer, known, request.ban, request.forbid, request.require)


def _automaton(model: LanguageModel, request: Request, template: Template) -> Automaton | None:
    if request.regex is None:
        return None
    if not isinstance(model.tokenizer, Characters):
        raise InputError("a regex needs a model of characters")
    automaton = compile_regex(request.regex, model.tokenizer.alphabet)
    if not bool(automaton.alive(template.choices(model.tokenizer.size))[automaton.start]):
        others = request.prompt or request.suffix or request.infill or request.ban or request.forbid or request.require
        also = " and the other conditions" if others else ""
        raise InputError(f"nothing of length {template.length} matches the regex {request.regex!r}{also}")
    return automaton


def _condition(model: LanguageModel, request: Request, length: int) -> Tensor | None:
    """Return the condition as the network takes it, for a batch of one."""
    if request.label is not None and request.signal is not None:
        raise InputError("a sample is conditioned on a label or on a signal, not on both")
    if request.signal is not None:
        if not model.about.get("signal"):
            raise InputError("this model was trained without a signal")
        if len(request.signal) != length:
            raise InputError(f"the signal has {len(request.signal)} numbers, the sample {length} tokens")
        return model.rdlm.laid_out(torch.tensor([list(request.signal)], dtype=torch.float32))
    if request.label is None:
        if request.guidance != 1:
            raise InputError(f"guidance {request.guidance:g} needs a label or a signal to guide by")
        return None
    classes = [str(name) for name in model.about.get("classes") or ()]
    if not classes:
        raise InputError(f"this model was trained without classes: there is no label {request.label!r}")
    if request.label in classes:
        return torch.tensor([classes.index(request.label)])
    if request.label.isdecimal() and int(request.label) < len(classes):
        return torch.tensor([int(request.label)])
    raise unknown("label", request.label, classes)
