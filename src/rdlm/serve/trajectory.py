"""Trajectories: a sample watched while it takes shape, frame by frame."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.api.plan import Plan
from rdlm.errors import InputError
from rdlm.process.layout import Codec
from rdlm.sampling.prompt import OPEN, encode
from rdlm.sampling.recall import answered
from rdlm.serve import refusal as error
from rdlm.serve.curves import mean_path
from rdlm.serve.engine import Sample
from rdlm.serve.job import Finished, Job
from rdlm.serve.openai import HEADERS, data, sampling, seed_of
from rdlm.serve.schema import TrajectoryBody
from rdlm.serve.served_model import ServedModel
from rdlm.serve.service import Service, while_present

SHOWN = 3
"""Alternatives of a position, and tokens of a sphere."""
WIDEST_TRAIL = 4096
"""Coordinates of a state up to which all states of the followed position are kept to the end."""


@dataclass(frozen=True, eq=False)
class Frame:
    """What one step looked like, as numbers: small, whatever the vocabulary."""

    step: int
    likeliest: Tensor
    """[length, SHOWN] ids of whole tokens or digits, and"""
    probability: Tensor
    entropy: Tensor
    answered: Tensor
    settled: Tensor
    axes: list[int]
    state: list[float]


class Film:
    """Takes the frames of one sample in the engine's thread, and writes them down in the request's."""

    def __init__(self, plan: Plan, job: Job, position: int | None) -> None:
        self.plan, self.job = plan, job
        known = plan.template.known != OPEN
        self.known: list[bool] = known.tolist()
        length = plan.template.length
        if position is not None and position >= length:
            raise InputError(f"position {position} is outside a sample of {length} tokens")
        self.position = int((~known).long().argmax()) if position is None else position
        self.steps: set[int] = set()
        self._axes: list[int] = []
        self._trail: list[Tensor] = []

    def choose(self, stops: Sequence[int], frames: int) -> None:
        """Have at most so many frames taken, evenly spread over the steps that the sample will take."""
        chosen = torch.linspace(0, len(stops) - 1, min(frames, len(stops))).round().long().tolist()
        self.steps = {stops[at] for at in chosen}

    def __call__(
        self,
        step: int,
        state: Float[Tensor, "positions *spheres d"],
        law: Float[Tensor, "positions v"],
        settled: Bool[Tensor, " positions"],
    ) -> None:
        """Take a frame, where one is due."""
        if step not in self.steps:
            return
        best = law.topk(min(SHOWN, law.shape[-1]), dim=-1)
        entropy = -(law.exp() * law.clamp_min(-200)).sum(-1) / math.log(2)
        place = self.position * self.plan.model.rdlm.symbols_per_token
        whole = state.ndim == 3
        # Of tokens that are split into digits it is the first digit's sphere.
        coordinates = state[place, 0] if whole else state[place]
        self._choose_axes(self._codec.marginals(law[place].exp())[0] if whole else law[place].exp())
        if len(coordinates) <= WIDEST_TRAIL:
            self._trail.append(coordinates.clone())
        point = _point(coordinates, self._axes)
        chance, known = best.values.exp(), answered(law)
        self.job.post(Frame(step, best.indices, chance, entropy, known, settled, list(self._axes), point))

    @property
    def _codec(self) -> Codec:
        return self.plan.model.rdlm.process.codec

    def _choose_axes(self, chance: Float[Tensor, " b"]) -> None:
        """Have three tokens as axes, kept from frame to frame unless the likeliest is none of them."""
        order = chance.argsort(descending=True).tolist()
        if not self._axes:
            self._axes = order[:SHOWN]
        elif order[0] not in self._axes:
            self._axes[min(range(len(self._axes)), key=lambda i: float(chance[self._axes[i]]))] = order[0]

    def trail(self, tokens: Sequence[int]) -> dict[str, object] | None:
        """Return all states of the followed position on the axes that only the end could choose, its token's first.

        None where they were not kept.
        """
        if not self._trail:
            return None
        own = int(self._codec.encode(torch.tensor([tokens[self.position]])).flatten()[0])
        axes = [own, *(axis for axis in self._axes if axis != own)][:SHOWN]
        return {
            "position": self.position,
            "tokens": [self._axis(axis) for axis in axes],
            "states": [_point(coordinates, axes) for coordinates in self._trail],
        }

    def written(self, frame: Frame) -> dict[str, object]:
        """Return a frame for machines; a token of several digits is as likely as all of them together."""
        per = self.plan.model.rdlm.symbols_per_token
        digits = frame.likeliest.view(-1, per, frame.likeliest.shape[-1])  # [length, digits, shown]
        chance = frame.probability.view(digits.shape).prod(1)
        told = frame.answered.view(-1, per).any(-1).tolist()
        words = [
            [self._word(ids) for ids in token.T.tolist()] if some else []
            for token, some in zip(digits, told, strict=True)
        ]
        entropy = frame.entropy.view(-1, per).sum(-1)
        most = math.log2(self.plan.model.tokenizer.size)
        gained = sum(most - bits for bits, known in zip(entropy.tolist(), self.known, strict=True) if not known)
        return {
            "step": frame.step,
            "time": frame.step / self.plan.steps,
            "tokens": [row[0] if row else None for row in words],
            "certainty": _rounded(chance[:, 0]),
            "entropy": _rounded(entropy),
            "information": round(gained, 4),
            "alternatives": [
                list(map(list, zip(row, p, strict=False))) for row, p in zip(words, map(_rounded, chance), strict=True)
            ],
            "known": self.known,
            "settled": frame.settled.view(-1, per).all(-1).tolist(),
            "sphere": {
                "position": self.position,
                "tokens": [self._axis(axis) for axis in frame.axes],
                "state": frame.state,
            },
        }

    def _word(self, symbols: list[int]) -> str:
        return words_of(self.plan.model, self.plan.model.rdlm.spell(torch.tensor([symbols]))[0].tolist())[0]

    def _axis(self, axis: int) -> str:
        split = self._codec.digits > 1
        return f"digit {axis}" if split else self.plan.model.tokenizer.decode([axis])


def words_of(model: LanguageModel, ids: list[int]) -> list[str]:
    """Return each token's text; digits that spell none show as U+FFFD."""
    return ["\ufffd" if i < 0 else model.tokenizer.decode([i]) for i in ids]


def _point(coordinates: Float[Tensor, " d"], axes: Sequence[int]) -> list[float]:
    """Return where a state is: its coordinates on three axes, on the mask, and the length of the rest."""
    on = [float(coordinates[axis]) for axis in axes]
    on += [0.0] * (SHOWN - len(on)) + [float(coordinates[-1])]
    rest = math.sqrt(max(0.0, 1 - sum(value * value for value in on)))
    return [round(value, 5) for value in (*on, rest)]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


def plan_of(host: ServedModel, body: TrajectoryBody) -> Plan:
    """Return the plan of the sample to be watched."""
    request = sampling(host, body, seed_of(body))
    if body.infill is None:
        prompt = body.prompt or ""
        longest = max(host.model.length, len(encode(host.model.tokenizer, prompt, "prompt")) + 1)
        request = replace(request, prompt=prompt, length=body.length or longest)
    elif body.prompt:
        raise InputError("an infill is a whole text: leave out prompt")
    return Plan.of(host.model, replace(request, trace=True))


async def follow(service: Service, host: ServedModel, body: TrajectoryBody, request: Request) -> Response:
    """Return the stream of a trajectory; it begins with its first frame, so that refusals are plain answers."""
    engine = host.walks
    engine.check_room(1)
    job = Job(service.limits.deadline)

    def prepare() -> tuple[Film, Sample]:
        plan = plan_of(host, body)
        film = Film(plan, job, body.position)
        sample = Sample(plan, plan.request.seed, job, watch=film)
        film.choose(sample.stops, body.frames)
        return film, sample

    film, sample = await asyncio.to_thread(prepare)
    engine.submit([sample])
    events = job.events()
    first = await while_present(request, job, anext(events))
    stream = _stream(host, film, first, events)
    return StreamingResponse(stream, headers=HEADERS, media_type="text/event-stream")


async def _stream(host: ServedModel, film: Film, first: object, events: AsyncIterator[object]) -> AsyncIterator[bytes]:
    plan, asked = film.plan, film.plan.request
    try:
        start = plan.model.rdlm.process.mixture.paths[0].bridge.start
        path, times = await asyncio.to_thread(mean_path, plan.model.rdlm.process)
        about = {"id": f"traj-{secrets.token_hex(12)}", "model": host.name, "length": plan.template.length}
        yield data(
            {
                **about,
                "steps": asked.steps,
                "frames": len(film.steps),
                "seed": asked.seed,
                "mask": start.token_weight == 0,
                "path": path,
                "times": times,
            },
            "start",
        )
        event: object = first
        while isinstance(event, Frame):
            yield data(await asyncio.to_thread(film.written, event), "frame")
            event = await anext(events)
        assert isinstance(event, Finished)
        ids = list(event.tokens)
        words = words_of(plan.model, ids)
        yield data(
            {
                "text": plan.model.tokenizer.decode(ids),
                "tokens": words,
                "seed": asked.seed,
                "network_calls": event.nfe,
                "claims_bound": plan.claims_bound,
                "sphere": await asyncio.to_thread(film.trail, ids),
            },
            "done",
        )
    except Exception as reason:
        yield data(error.of(reason).body(), "error")
    finally:
        film.job.over = True
