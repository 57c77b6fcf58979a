"""Trajectories: the steps of a sample as a stream of frames, and statistics of a bridge over time as curves."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from jaxtyping import Bool, Float
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from torch import Tensor

from rdlm.api.generate import PreparedSampling, WindowStep, prepare
from rdlm.api.language_model import LanguageModel
from rdlm.errors import InputError
from rdlm.methods.rdlm import Process
from rdlm.process.bridge import EXPANSION_RANGE, Bridge, masked_start, uniform_start
from rdlm.process.exact import ExactLaw, tabulate
from rdlm.process.layout import Layout
from rdlm.process.normal import match_moments
from rdlm.process.schedule import Schedule, schedule, uniform_in_time
from rdlm.sampling.constraints import OPEN, encode_prompt
from rdlm.sampling.denoisers import evaluated
from rdlm.serve import http_errors
from rdlm.serve.engine import Finished, Job, RunningSample
from rdlm.serve.http_errors import queue_full
from rdlm.serve.openai import HEADERS, data, options_of
from rdlm.serve.schema import MOST_TOKENS, TrajectoryBody
from rdlm.serve.service import ServedModel, Service, order_fields, while_connected

SHOWN = 3
"""Alternatives of a position, and axes of the sphere."""
WIDEST_TRAIL = 4096
"""Most coordinates of a state whose whole path is kept."""


@dataclass(frozen=True, eq=False)
class TrajectoryFrame:
    """One step as a few numbers per position, whatever the vocabulary."""

    step: int
    likeliest: Tensor
    """[length, SHOWN] ids of whole tokens or digits, and"""
    probability: Tensor
    entropy: Tensor
    evaluated: Tensor
    final: Tensor
    axes: list[int]
    state: list[float]


class FrameRecorder:
    """Records frames of one sample in the engine's thread; the request's thread writes them as JSON."""

    def __init__(self, prepared: PreparedSampling, job: Job, position: int | None, frames: int) -> None:
        self.prepared, self.job, self.frames = prepared, job, frames
        known, length = prepared.prompt.known != OPEN, prepared.prompt.length
        self.known: list[bool] = known.tolist()
        if position is not None and position >= length:
            raise InputError(f"position {position} is outside a sample of {length} tokens")
        self.position = int((~known).long().argmax()) if position is None else position
        self.steps: set[int] = set()
        self._axes: list[int] = []
        self._trail: list[Tensor] = []

    def __call__(self, step: int, step_info: WindowStep) -> None:
        """Record a frame, where one is due: at most `frames`, evenly distributed over the steps of the sample."""
        sampler, before = step_info.info.sampler, step_info.info.before
        if not self.steps:
            ahead = sampler.steps_of(before)
            chosen = torch.linspace(0, len(ahead) - 1, min(self.frames, len(ahead))).round().long().tolist()
            self.steps = {ahead[at] for at in chosen}
        if step in self.steps:
            self._record(step, before.state[0], step_info.info.log_probs[0], sampler.finished(before)[0])

    def _record(
        self,
        step: int,
        state: Float[Tensor, "positions *spheres d"],
        log_probs: Float[Tensor, "positions v"],
        final: Bool[Tensor, " positions"],
    ) -> None:
        best = log_probs.topk(min(SHOWN, log_probs.shape[-1]), dim=-1)
        entropy = -(log_probs.exp() * log_probs.clamp_min(-200)).sum(-1) / math.log(2)
        place = self.position * self._layout.symbols_per_token
        whole = state.ndim == 3
        # Of a token that is split into digits, the sphere of the first digit.
        own = state[place, 0] if whole else state[place]
        tokens = self.prepared.model.rdlm.process.bridge.tokens
        coordinates = torch.cat([tokens.cosines(own), own[tokens.coordinates :]])  # on the tokens and on the mask
        self._choose_axes(self._layout.marginals(log_probs[place].exp())[0] if whole else log_probs[place].exp())
        if len(coordinates) <= WIDEST_TRAIL:
            self._trail.append(coordinates.clone())
        point = _point(coordinates, self._axes)
        chance, known = best.values.exp(), evaluated(log_probs)
        self.job.post(TrajectoryFrame(step, best.indices, chance, entropy, known, final, list(self._axes), point))

    @property
    def _layout(self) -> Layout:
        return self.prepared.model.rdlm.layout

    def _choose_axes(self, chance: Float[Tensor, " b"]) -> None:
        """Choose three tokens as axes, kept from frame to frame unless the most likely one is none of them."""
        order = chance.argsort(descending=True).tolist()
        if not self._axes:
            self._axes = order[:SHOWN]
        elif order[0] not in self._axes:
            self._axes[min(range(len(self._axes)), key=lambda i: float(chance[self._axes[i]]))] = order[0]

    def trail(self, tokens: Sequence[int]) -> dict[str, object] | None:
        """Return the path of the shown position on axes chosen at the end, its final token first; None if not kept."""
        if not self._trail:
            return None
        own = int(self._layout.encode(torch.tensor([tokens[self.position]])).flatten()[0])
        axes = [own, *(axis for axis in self._axes if axis != own)][:SHOWN]
        return {
            "position": self.position,
            "tokens": [self._axis(axis) for axis in axes],
            "states": [_point(coordinates, axes) for coordinates in self._trail],
        }

    def written(self, frame: TrajectoryFrame) -> dict[str, object]:
        """Return a frame as JSON; the probability of a token is the product over its digits."""
        per = self._layout.symbols_per_token
        digits = frame.likeliest.view(-1, per, frame.likeliest.shape[-1])  # [length, digits, shown]
        chance = frame.probability.view(digits.shape).prod(1)
        is_evaluated = frame.evaluated.view(-1, per).any(-1).tolist()
        words = [
            words_of(self.prepared.model, self._layout.ids(token.T)[:, 0].tolist()) if some else []
            for token, some in zip(digits, is_evaluated, strict=True)
        ]
        entropy = frame.entropy.view(-1, per).sum(-1)
        most = math.log2(self.prepared.model.tokenizer.size)
        gained = sum(most - bits for bits, known in zip(entropy.tolist(), self.known, strict=True) if not known)
        return {
            "step": frame.step,
            "time": frame.step / self.prepared.order.nfe,
            "tokens": [row[0] if row else None for row in words],
            "certainty": _rounded(chance[:, 0]),
            "entropy": _rounded(entropy),
            "information": round(gained, 4),
            "alternatives": [
                list(map(list, zip(row, p, strict=False))) for row, p in zip(words, map(_rounded, chance), strict=True)
            ],
            "known": self.known,
            "settled": frame.final.view(-1, per).all(-1).tolist(),
            "sphere": {
                "position": self.position,
                "tokens": [self._axis(axis) for axis in frame.axes],
                "state": frame.state,
            },
        }

    def _axis(self, axis: int) -> str:
        split = self._layout.digits > 1
        return f"digit {axis}" if split else self.prepared.model.tokenizer.decode([axis])


def words_of(model: LanguageModel, ids: list[int]) -> list[str]:
    """Return each token's text; U+FFFD for digits that are the code of none."""
    return ["\ufffd" if i < 0 else model.tokenizer.decode([i]) for i in ids]


def _point(coordinates: Float[Tensor, " d"], axes: Sequence[int]) -> list[float]:
    """Return the coordinates of a state on three axes and on the mask, and the length of the rest."""
    on = [float(coordinates[axis]) for axis in axes]
    on += [0.0] * (SHOWN - len(on)) + [float(coordinates[-1])]
    rest = math.sqrt(max(0.0, 1 - sum(value * value for value in on)))
    return [round(value, 5) for value in (*on, rest)]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


def _prepared(served: ServedModel, body: TrajectoryBody) -> PreparedSampling:
    """Return the sampling of the body's sample."""
    options = options_of(served, body)
    if options.infill is None:
        prompt = body.prompt or ""
        own = min(served.model.length, MOST_TOKENS)
        longest = max(own, len(encode_prompt(served.model.tokenizer, prompt, "prompt")) + 1)
        options = replace(options, prompt=prompt, length=body.length or longest)
    elif body.prompt:
        raise InputError("an infill is a whole text: leave out prompt")
    return prepare(served.model, options, trace=True)


async def follow(service: Service, served: ServedModel, body: TrajectoryBody, request: Request) -> Response:
    """Return the stream of a trajectory; it begins with its first frame, so that errors are plain answers."""
    engine = served.rdlm_engine
    engine.check_room(1)
    job = service.new_job()
    changed = await job.run(lambda: served.normalise(body))

    def begin() -> tuple[FrameRecorder, RunningSample]:
        prepared = _prepared(served, body)
        recorder = FrameRecorder(prepared, job, body.position, body.frames)
        return recorder, RunningSample(prepared, prepared.options.seed, job, watch=recorder)

    recorder, sample = await job.run(begin)
    engine.submit([sample])
    events = job.events()
    first = await while_connected(request, job, anext(events))
    stream = _stream(served, recorder, first, events, changed)
    return StreamingResponse(stream, headers=HEADERS, media_type="text/event-stream")


async def _stream(
    served: ServedModel, recorder: FrameRecorder, first: object, events: AsyncIterator[object], changed: str | None
) -> AsyncIterator[bytes]:
    prepared, model = recorder.prepared, recorder.prepared.model
    try:
        yield data({**await _start(served, recorder), "normalised": changed}, "start")
        event: object = first
        while isinstance(event, TrajectoryFrame):
            yield data(await recorder.job.run(partial(recorder.written, event)), "frame")
            event = await anext(events)
        assert isinstance(event, Finished)
        ids = list(event.tokens)
        end = {"text": model.tokenizer.decode(ids), "tokens": words_of(model, ids), "seed": prepared.options.seed}
        end |= {"network_calls": event.nfe, "claims_bound": prepared.claims_bound}
        yield data(end | {"sphere": await recorder.job.run(partial(recorder.trail, ids))}, "done")
    except Exception as reason:
        yield data(http_errors.http_error_of(reason).body(), "error")
    finally:
        recorder.job.over = True


async def _start(served: ServedModel, recorder: FrameRecorder) -> dict[str, object]:
    """Return the first event: the sample, and the mean path of its bridge."""
    prepared, process = recorder.prepared, recorder.prepared.model.rdlm.process
    path, times = await recorder.job.run(partial(mean_path, process))
    about = {"id": f"traj-{secrets.token_hex(12)}", "model": served.name, "length": prepared.prompt.length}
    about |= {"steps": prepared.options.steps, "frames": len(recorder.steps), "seed": prepared.options.seed}
    schedule = prepared.order.schedule.discretize(
        prepared.order.nfe, min(prepared.prompt.length, prepared.model.length)
    )
    about |= {**order_fields(prepared.order), "steps_per_token": schedule.steps}
    return about | {"mask": process.bridge.start.token_weight == 0, "path": path, "times": times}


# -- curves ----------------------------------------------------------------------------------------------------------

LEVELS, PAIRS, STATES = 48, 512, 48
"""Time levels of a curve, draws of the table per level, and states per level for the information."""
MOST_WAITING, RETRY = 16, 5
"""Requests for curves that may wait for each other, and seconds after which another one may be sent."""
LARGEST_EVIDENCE = 512
"""Largest vocabulary for which the information is computed."""


class CurveQueue:
    """Computes curves one after the other on a thread of its own, so that no number of requests delays other ones."""

    def __init__(self) -> None:
        self._thread, self._waiting = ThreadPoolExecutor(1, thread_name_prefix="curves"), 0

    async def compute(self, name: str, noise: float, schedule_name: str, dimension: int) -> dict[str, object]:
        """Return the curves; status 429 if too many requests are waiting."""
        if self._waiting >= MOST_WAITING:
            raise queue_full(RETRY)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, curves, name, noise, schedule_name, dimension)
        finally:
            self._waiting -= 1


@lru_cache(maxsize=256)
def curves(name: str, noise: float, schedule_name: str, dimension: int) -> dict[str, object]:
    """Return curves of a bridge over time: alpha and rho of Eq. (23), the angle to the token, and the information.

    The information is the mutual information in bits between a token and its own state for uniformly distributed
    tokens: the mean of `log2 V - H` with the entropy `H` of the evidence, Eq. (25). It is null where it is not
    available, and the note gives the reason.
    """
    if not 3 <= dimension <= 1 << 17:
        raise InputError(f"dimension must lie in [3, {1 << 17}], got {dimension}")
    starts = {"masked": masked_start, "uniform": uniform_start}
    if name not in starts:
        raise InputError(f"start must be one of {', '.join(starts)}, got {name!r}")
    if not 0 < noise <= 10:
        raise InputError(f"noise must lie in (0, 10], got {noise:g}")
    brownian = noise * (dimension - 2) <= EXPANSION_RANGE
    bridge = Bridge(starts[name](dimension - 1), noise, "brownian" if brownian else "logarithm")
    grid = uniform_in_time(schedule(schedule_name, noise), LEVELS)
    law = tabulate(bridge, grid, PAIRS, torch.Generator().manual_seed(0))
    on_token, on_start, radius = _means(law)
    angle, spread = match_moments(bridge, on_token, on_start)
    # The last level is the vertex.
    times = [level / LEVELS for level in range(LEVELS + 1)]
    return {
        "time": times,
        "alpha": [*angle.sin().tolist(), math.sin(bridge.start.angle)],
        "rho": [*spread.tolist(), 0.0],
        "radial": [*radius.tolist(), 0.0],
        "information": _information(law) if brownian else None,
        "note": _note(bridge, brownian),
    }


def _means(law: ExactLaw) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean coordinates on the token and on the start, and the mean angle to the token, at every level."""
    cosine, radius = law.bridge.start.token_coordinate, law.radius.double()
    on_token, across = radius.cos(), radius.sin() * law.start_cosine.double()
    on_start = cosine * on_token + math.sqrt(1 - cosine**2) * across
    return on_token.mean(1), on_start.mean(1), radius.mean(1)


def _information(law: ExactLaw) -> list[float] | None:
    bridge, grid = law.bridge, law.grid
    if bridge.vocabulary > LARGEST_EVIDENCE:
        return None
    token = torch.zeros(LEVELS, STATES, dtype=torch.long)  # the bridge is symmetric in the tokens
    level = torch.arange(LEVELS)[:, None].expand_as(token)
    state = law.draw_at_level(token, level, torch.Generator().manual_seed(1))
    remaining = grid.remaining[:-1, None].to(state).expand(token.shape)
    log_probs = torch.log_softmax(bridge.log_likelihood(state, remaining), -1).double()  # [levels, states, vocabulary]
    entropy = -(log_probs.exp() * log_probs.clamp_min(-200)).sum(-1).mean(1) / math.log(2)
    most = math.log2(bridge.vocabulary)
    return [*(most - entropy).clamp(0, most).tolist(), most]


def _note(bridge: Bridge, brownian: bool) -> str:
    if not brownian:
        return (
            f"S (d - 2) is above {EXPANSION_RANGE:g}, where the Brownian bridge and the evidence are not accurate. The "
            "curves are those of the logarithm bridge, without information; lower the noise or split the tokens."
        )
    if bridge.vocabulary > LARGEST_EVIDENCE:
        return f"Brownian bridge; the information is computed for at most {LARGEST_EVIDENCE} tokens."
    return "Brownian bridge; information in bits for uniformly distributed tokens."


@lru_cache(maxsize=16)
def _mean_path(bridge: Bridge, noise_schedule: Schedule) -> tuple[list[list[float]], list[float]]:
    grid = uniform_in_time(noise_schedule, LEVELS)
    law = tabulate(bridge, grid, PAIRS, torch.Generator().manual_seed(0))
    on_token, on_start, _ = _means(law)
    # By symmetry, the mean has equal coordinates on all other tokens.
    start = bridge.start
    points: list[Float[Tensor, " 3"]] = []
    for token, origin in zip(on_token, on_start, strict=True):
        across = (origin - start.token_coordinate * token) / math.sin(start.angle)
        mask = across * start.mask_coordinate / math.sin(start.angle)
        rest = (1 - token.square() - mask.square()).clamp_min(0).sqrt()
        points.append(torch.stack([token, mask, rest]))
    rounded = [[round(value, 5) for value in point.tolist()] for point in points]
    return [*rounded, [1.0, 0.0, 0.0]], [level / LEVELS for level in range(LEVELS + 1)]


def mean_path(process: Process) -> tuple[list[list[float]], list[float]]:
    """Return the mean path of a position as (token, mask, rest) coordinates, and the times of its points.

    The mean lies inside the sphere; the rest completes it to a unit vector.
    """
    if not isinstance(process.bridge, Bridge):
        raise InputError(f"mean paths are those of bridges of the sphere, not of the {process.bridge.kind} channel")
    return _mean_path(process.bridge, process.schedule)
