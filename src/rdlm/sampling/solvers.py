"""Pieces: how much of a large tensor to work on at once.

Intermediate results in fresh memory cost more than their arithmetic, because its pages must be found and cleared first.
In pieces they stay where they are, in the cache.

The exponential map of a whole batch of states, in as few passes over their coordinates as it takes.

Solvers: what one step of the sampler does with the states, one plain function each, found in `SOLVERS`.

| variable | symbol |
|---|---|
| `remaining`, `after` | `B_m` and `B_{m+1}`, the noise still to come before and after the step |
| `spent` | `s = S - B`, the noise that a position has behind it |
| `gain`, `variance` | `g_m` and `s2_m`, Eq. (18) |
| `ambient` | a vector of R^d whose tangent part at the state is the step |

Every function returns the states after the step; the walk replaces those of positions that decode or rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import unknown
from rdlm.geometry import special, sphere
from rdlm.process.bridge import mean_pull
from rdlm.process.grid import StepCoefficients
from rdlm.process.kernel import Chain, Kernel
from rdlm.process.schedule import Schedule
from rdlm.random import Noise
from rdlm.sampling.pace import beside

CACHED = 2**19
"""Numbers of one tensor that a CPU works on at once."""


def pieces(width: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield some rows of all tensors after the other: on a CPU as many of so many numbers as stay in its cache."""
    size = max(1, CACHED // width)
    if not tensors[0].is_cpu or len(tensors[0]) <= size:
        yield tensors
    else:
        yield from zip(*(one.split(size) for one in tensors), strict=True)


def follow(
    state: Float[Tensor, "... d"], ambient: Float[Tensor, "... d"], scale: Float[Tensor, ...] | None = None
) -> Float[Tensor, "... d"]:
    """Return `exp_x` of the tangent part of `a`, Eq. (4), `a` being `ambient`, which is consumed, times `scale`.

    Only sums, then `x' = (cos m - sinc m <x, a>) x + sinc m a` with `m^2 = |a|^2 - <x, a>^2` go over all coordinates.
    The sums also say how far the result will be from the sphere by rounding, and it is scaled back on the way.
    """
    before, rows = state.flatten(0, -2), ambient.flatten(0, -2)  # [..., d] -> [n, d]
    along, square, own = _sums(before, rows)
    to_ambient, to_state = _weights(along, square, own, None if scale is None else scale.reshape(-1, 1))
    for at, by, old, new in pieces(ambient.shape[-1], before, rows, to_state, to_ambient):
        by.mul_(new).addcmul_(at, old)
    return rows.view(ambient.shape)


def _sums(before: Float[Tensor, "n d"], rows: Float[Tensor, "n d"]) -> tuple[Tensor, ...]:
    """Return `<x, a>`, `|a|^2` and `|x|^2`, each [n, 1]."""
    sums = [_products(at, by) for at, by in pieces(rows.shape[-1], before, rows)]
    return sums[0] if len(sums) == 1 else tuple(map(torch.cat, zip(*sums, strict=True)))


def _products(at: Float[Tensor, "n d"], by: Float[Tensor, "n d"]) -> tuple[Tensor, ...]:
    square, own = (torch.linalg.vector_norm(one, dim=-1, keepdim=True).square_() for one in (by, at))
    return (at * by).sum(-1, keepdim=True), square, own


def _weights(along: Tensor, square: Tensor, own: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what `follow` multiplies the unscaled ambient vector and the state by."""
    step = along if scale is None else along * scale
    length = (square if scale is None else square * scale.square()).addcmul(step, step, value=-1)
    length = length.clamp_min_(special.SMALLEST_SQUARE).sqrt_()
    shrink = torch.sin(length).div_(length)
    to_state = torch.addcmul(torch.cos(length), shrink, step, value=-1)
    to_ambient = shrink if scale is None else shrink.mul_(scale)
    # For |x| = 1 the result has length 1, else 1 + q^2 (|x|^2 - 1) is its square.
    back = torch.addcmul(torch.ones_like(own), to_state.square(), own.sub(1)).rsqrt_()
    return to_ambient * back, to_state.mul_(back)


CUT = 1e-3
"""How long before time 1 the paper's Euler walk stops."""

CORRECTION = 0.1
"""Length of the corrector's step in units of the bridge's variance at its noise level."""

Predict = Callable[[Tensor, Tensor], Tensor]
"""The model's log-probabilities, conditions included, at states and each position's own level."""


@dataclass(frozen=True, eq=False)
class Step:
    """All that a solver may look at."""

    chain: Chain
    schedule: Schedule
    state: Float[Tensor, "batch positions *spheres d"]
    local: Int[Tensor, "batch columns"]
    """Each position's own step, on the CPU; rest and decode included, where the result is not used."""
    log_probs: Float[Tensor, "batch positions v"]
    drawn: Int[Tensor, "batch positions"]
    """A token per position that decodes, and that moves where the solver is `by_token`, drawn from the law."""
    random: Noise
    predict: Predict

    @property
    def coefficients(self) -> StepCoefficients:
        """Return noise, gain and variance of each sphere's own step, Eq. (18)."""
        return self.looked_up(self.chain.coefficient_table)

    @property
    def after(self) -> Float[Tensor, "batch positions *spheres"]:
        """Return the noise that each sphere still has before it after the step."""
        return beside(self.chain.grid.remaining[self.local + 1].to(self.state.dtype), self.state)

    def looked_up(self, coefficient_table: Float[Tensor, "steps 3"]) -> StepCoefficients:
        """Return each sphere's own of what the steps of the grid have."""
        return StepCoefficients(
            *(beside(one, self.state) for one in coefficient_table[self.local].to(self.state.dtype).unbind(-1))
        )


def mixture(step: Step) -> Tensor:
    """Return states after a step of the drawn tokens' own bridges, Eq. (19) with Eq. (29): ancestral sampling."""
    digit, coefficients = step.chain.split(step.drawn), step.coefficients
    index, scale = digit[..., None], coefficients.variance.sqrt()
    slope = step.chain.path.bridge.slope(step.state.gather(-1, index), coefficients.remaining[..., None])
    pull = slope.mul_((coefficients.gain / scale)[..., None])  # in units of the noise, which is scaled last
    return follow(step.state, step.random.normal(step.state).scatter_add_(-1, index, pull), scale)


def drift(step: Step) -> Tensor:
    """Return states after a step by the mean of the bridges with their exact coefficients, Eq. (19) with Eq. (28)."""
    return _mean_step(step, step.coefficients)


def euler(step: Step) -> Tensor:
    """Return states after an Euler step of the paper's Algorithm 2: `gamma_t dt` and `sigma_t^2 dt` of its clock.

    It stops `CUT` before time 1, so that a fine grid's last steps stand still.
    """
    levels = step.chain.grid.remaining
    time = step.schedule.time(levels)
    span = torch.diff(time.clamp_max(1 - CUT))
    spread = step.schedule.rate(time[:-1]) * span
    return _mean_step(step, step.looked_up(torch.stack([levels[:-1], spread / levels[:-1], spread], -1)))


def _mean_step(step: Step, coefficients: StepCoefficients) -> Tensor:
    ambient, scale, bridge = step.random.normal(step.state), coefficients.variance.sqrt(), step.chain.path.bridge
    # In units of the noise, which is scaled last; nothing pulls where there is none.
    pull = coefficients.gain / scale.clamp_min(special.SMALLEST_SQUARE)
    whole = (step.log_probs, step.state, ambient, pull[..., None], coefficients.remaining[..., None])
    rows = [one.flatten(0, 1) for one in whole]  # [batch, positions, ...] -> [n, ...]
    for law, state, total, share, remaining in pieces(step.log_probs.shape[-1], *rows):
        weight = step.chain.marginals(law.exp()).mul_(share)
        slope = bridge.slope(state[..., : bridge.vocabulary], remaining)
        total[..., : bridge.vocabulary].addcmul_(weight, slope)
    return follow(step.state, ambient, scale)


def heun(step: Step) -> Tensor:
    """Return states after a drift step whose pull is corrected by that at its end: second order, two network calls.

    In the clock `-log B` the mean obeys `dx = (E(x) - x)`; a step of it with `E` linear in between, in normal
    coordinates at the state, is `a + (1 - g/h) (T v' + a - v)` with `h` the step of that clock, `a` the drift
    step, `v` and `v'` the pulls before and after it, and `T` the transport back.
    """
    chain, bridge = step.chain, step.chain.path.bridge
    (remaining, gain, variance), after = step.coefficients, step.after
    wobble = sphere.tangent(step.state, step.random.normal(step.state))
    pull = mean_pull(bridge, step.state, chain.marginals(step.log_probs.exp()), remaining)
    first = gain[..., None] * pull + variance.sqrt()[..., None] * wobble
    ahead = sphere.project(sphere.exponential(step.state, first))
    law = chain.marginals(step.predict(ahead, step.local + 1).exp())
    second = sphere.transport(ahead, step.state, mean_pull(bridge, ahead, law, after))
    growing = after > 0
    span = torch.log(remaining / torch.where(growing, after, remaining / 2))
    weight = torch.where(growing, 1 - gain / span, 0.0)[..., None]
    return sphere.project(sphere.exponential(step.state, (1 + weight) * first + weight * (second - pull)))


def corrector(step: Step) -> Tensor:
    """Return states after a mixture step and one Langevin step at the level where it ends: two network calls.

    The Langevin noise is shortened so that a bridge's law on flat space is kept exactly, whatever the step's length.
    """
    chain, bridge = step.chain, step.chain.path.bridge
    state = mixture(step)
    remaining = step.after.clamp_min(special.SMALLEST_NOISE)
    spent = chain.grid.total - remaining
    length = (CORRECTION * remaining * spent / chain.grid.total)[..., None]
    probability = chain.marginals(step.predict(state, step.local + 1).exp())
    start = _start_of(chain, step.local + 1, state)
    toward = bridge.slope(state[..., : bridge.vocabulary], remaining[..., None]) * probability / remaining[..., None]
    cosine = (state * start).sum(-1, keepdim=True)
    ambient = step.random.normal(state).mul_((length * (2 - CORRECTION)).sqrt())
    ambient.addcmul_(start, length * bridge.slope(cosine, spent[..., None]) / spent[..., None])
    ambient[..., : bridge.vocabulary] += length * toward
    return follow(state, ambient)


def deterministic(step: Step) -> Tensor:
    """Return states after a step of the probability flow, which has the law of the walk and no noise.

    On flat space a state keeps its place relative to mean and width of its bridge; this step does so with the mean
    of the bridges. At the start, which is one point for all samples, a mixture step makes them differ.
    """
    chain, bridge, total = step.chain, step.chain.path.bridge, step.chain.grid.total
    remaining, after = step.coefficients.remaining, step.after
    at_start = remaining >= total * (1 - 1e-6)
    spent = torch.where(at_start, total / 2, total - remaining)
    pull = mean_pull(bridge, step.state, chain.marginals(step.log_probs.exp()), remaining)
    start = _start_of(chain, step.local, step.state)
    cosine = (step.state * start).sum(-1, keepdim=True)
    back = sphere.tangent(step.state, start) * bridge.slope(cosine, spent[..., None])
    width = torch.sqrt((total - after) * after / (spent * remaining))
    to_pull = (remaining - after) / total - (width - 1) * spent / total
    to_start = -(remaining - after) / total - (width - 1) * remaining / total
    moved = follow(step.state, to_pull[..., None] * pull + to_start[..., None] * back)
    return torch.where(at_start[..., None], mixture(step), moved)


def _start_of(chain: Chain, level: Int[Tensor, "batch columns"], like: Tensor) -> Tensor:
    """Return the start of the bridge that each sphere is on: the second one's from the switch on."""
    return chain.path.start(beside(chain.grid.remaining[level], like), like.dtype)


@dataclass(frozen=True)
class Solver:
    """A solver with what is known of it."""

    step: Callable[[Step], Tensor]
    nfe: int
    """Network calls per step; in the last step, which decodes, there is one."""
    bound: Kernel | None
    """Kernel of the chain whose likelihood bound holds for its samples; None: no bound is known."""
    consistent: bool
    """Whether samples follow the model's law when the posterior is right and the grid fine."""
    greedy: bool = False
    """Whether the last step decodes the likeliest token in place of a drawn one."""
    by_token: bool = False
    """Whether a step needs a drawn token also where nothing is decoded."""
    by_state: bool = False
    """Whether that is read from the state after a last move, as in the paper, not from the model."""


SOLVERS: dict[str, Solver] = {
    "mixture": Solver(mixture, 1, "mixture", consistent=True, by_token=True),
    "drift": Solver(drift, 1, "drift", consistent=True),
    "heun": Solver(heun, 2, None, consistent=True),
    "corrector": Solver(corrector, 2, None, consistent=True, by_token=True),
    "deterministic": Solver(deterministic, 1, None, consistent=True, greedy=True, by_token=True),
    "euler": Solver(euler, 1, None, consistent=False, greedy=True, by_state=True),
}


def solver_of(name: str) -> Solver:
    """Return a solver by its name."""
    if name not in SOLVERS:
        raise unknown("solver", name, SOLVERS)
    return SOLVERS[name]
