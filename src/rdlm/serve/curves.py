"""Statistics of a bridge over time, from a small table of the exact law: the curves that the page plots."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.errors import InputError
from rdlm.methods.rdlm import Process
from rdlm.process.bridge import EXPANSION_RANGE, Bridge, masked_start, uniform_start
from rdlm.process.exact import ExactLaw, tabulate
from rdlm.process.normal import match_moments
from rdlm.process.schedule import Schedule, schedule, uniform_in_time
from rdlm.serve.http_errors import queue_full

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
