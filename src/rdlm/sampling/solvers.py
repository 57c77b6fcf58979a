"""Solvers: one step of the sampler on the states, one plain function each, listed in `SOLVERS`.

| variable | symbol |
|---|---|
| `remaining`, `after` | `B_m` and `B_{m+1}`, the remaining noise before and after the step |
| `spent` | `s = S - B`, the noise spent so far |
| `gain`, `variance` | `g_m` and `s2_m`, Eq. (18) |
| `ambient` | a vector of R^d whose tangent part at the state is the step |

A function returns the states after the step; the sampler replaces those of positions that decode or are inactive. A
function that evaluates the network again is a generator: it yields states and local steps, and receives
log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError, unknown
from rdlm.geometry import special, sphere
from rdlm.process.bridge import Bridge
from rdlm.process.kernel import Chain, Kernel, per_sphere
from rdlm.process.schedule import Schedule, StepCoefficients
from rdlm.random import RandomStreams

EULER_END = 1e-3
"""Length of the interval before time 1 at which the paper's Euler scheme stops."""

CORRECTION = 0.1
"""Length of the corrector's step in units of the bridge's variance at its remaining noise."""

Evaluations = Generator[tuple[Tensor, Tensor], Tensor, Tensor]
"""Yields states and local steps to evaluate, receives log-probabilities, returns states."""


@dataclass(frozen=True, eq=False)
class Step:
    """The inputs of a solver."""

    chain: Chain
    schedule: Schedule
    state: Float[Tensor, "batch positions *spheres d"]
    local: Int[Tensor, "batch columns"]
    """Each position's own step, on the CPU."""
    log_probs: Float[Tensor, "batch positions v"]
    drawn: Int[Tensor, "batch positions"]
    """A token drawn for each decoding position, and for each active one if the solver is `by_token`."""
    random: RandomStreams

    @property
    def coefficients(self) -> StepCoefficients:
        """Remaining noise, gain and variance of each sphere's step, Eq. (18)."""
        return self.row_of(self.chain.coefficient_table)

    @property
    def after(self) -> Float[Tensor, "batch positions *spheres"]:
        """The remaining noise of each sphere after the step."""
        return per_sphere(self.chain.grid.remaining[self.local + 1].to(self.state.dtype), self.state)

    def row_of(self, table: Float[Tensor, "steps 3"]) -> StepCoefficients:
        """Return each sphere's row of a table with one row per step of the grid."""
        columns = table[self.local].to(self.state.dtype).unbind(-1)
        return StepCoefficients(*(per_sphere(column, self.state) for column in columns))


def mixture(step: Step) -> Tensor:
    """Return states after a step of the drawn tokens' own bridges, Eq. (19) with Eq. (29): ancestral sampling."""
    digit, coefficients = step.chain.split(step.drawn), step.coefficients
    bridge, scale = step.chain.path.bridge, coefficients.variance.sqrt()
    slope = bridge.slope(bridge.tokens.cosine(step.state, digit), coefficients.remaining)
    pull = slope.mul_(coefficients.gain / scale)  # in units of the noise, which is scaled last
    return bridge.move_(step.state, bridge.tokens.add_(step.random.normal(step.state), digit, pull), scale, pull)


def drift(step: Step) -> Tensor:
    """Return states after a step by the mean of the bridges with their exact coefficients, Eq. (19) with Eq. (28)."""
    return _mean_step(step, step.coefficients)


def euler(step: Step) -> Tensor:
    """Return states after an Euler step of the paper's Algorithm 2: `gamma_t dt` and `sigma_t^2 dt` of its schedule.

    It stops `EULER_END` before time 1, so that the last steps of a fine grid do not move.
    """
    levels = step.chain.grid.remaining
    time = step.schedule.time(levels)
    span = torch.diff(time.clamp_max(1 - EULER_END))
    variance = step.schedule.rate(time[:-1]) * span
    return _mean_step(step, step.row_of(torch.stack([levels[:-1], variance / levels[:-1], variance], -1)))


def _mean_step(step: Step, coefficients: StepCoefficients) -> Tensor:
    ambient, scale = step.random.normal(step.state), coefficients.variance.sqrt()
    # In units of the noise, which is scaled last; without noise there is no pull.
    pull = coefficients.gain / scale.clamp_min(special.SMALLEST_SQUARE)
    bridge = step.chain.path.bridge
    weight = step.chain.marginals(step.log_probs.exp()).mul_(pull[..., None])
    slope = bridge.slope(bridge.tokens.cosines(step.state), coefficients.remaining[..., None])
    return bridge.move_(step.state, bridge.tokens.add_mean_(ambient, weight, slope), scale, pull)


def heun(step: Step) -> Evaluations:
    """Return states after a drift step whose pull is corrected by that at its end: second order, two evaluations.

    In the time `-log B` the mean obeys `dx = (E(x) - x)`; a step of it with `E` linear in between, in normal
    coordinates at the state, is `a + (1 - g/h) (T v' + a - v)` with `h` the step of that time, `a` the drift
    step, `v` and `v'` the pulls before and after it, and `T` the transport back.
    """
    chain, bridge = step.chain, _of_sphere(step)
    (remaining, gain, variance), after = step.coefficients, step.after
    noise = sphere.tangent(step.state, step.random.normal(step.state))
    pull = bridge.mean_pull(step.state, chain.marginals(step.log_probs.exp()), remaining)
    first = gain[..., None] * pull + variance.sqrt()[..., None] * noise
    ahead = sphere.project(sphere.exponential(step.state, first))
    log_probs = yield ahead, step.local + 1
    second = bridge.mean_pull(ahead, chain.marginals(log_probs.exp()), after)
    second = sphere.transport(ahead, step.state, second)
    growing = after > 0
    span = torch.log(remaining / torch.where(growing, after, remaining / 2))
    weight = torch.where(growing, 1 - gain / span, 0.0)[..., None]
    return sphere.project(sphere.exponential(step.state, (1 + weight) * first + weight * (second - pull)))


def corrector(step: Step) -> Evaluations:
    """Return states after a mixture step and one Langevin step at the noise where it ends: two evaluations.

    The Langevin noise is shortened so that a bridge's law on flat space is kept exactly, whatever the step's length.
    """
    chain, bridge = step.chain, _of_sphere(step)
    state = mixture(step)
    remaining = step.after.clamp_min(special.SMALLEST_NOISE)
    spent = chain.grid.total - remaining
    length = (CORRECTION * remaining * spent / chain.grid.total)[..., None]
    log_probs = yield state, step.local + 1
    probability = chain.marginals(log_probs.exp())
    start = _start_of(chain, step.local + 1, state)
    toward = bridge.slope(bridge.tokens.cosines(state), remaining[..., None]) * probability / remaining[..., None]
    cosine = (state * start).sum(-1, keepdim=True)
    ambient = step.random.normal(state).mul_((length * (2 - CORRECTION)).sqrt())
    ambient.addcmul_(start, length * bridge.slope(cosine, spent[..., None]) / spent[..., None])
    return sphere.exponential_(state, bridge.tokens.add_mean_(ambient, length * toward))


def deterministic(step: Step) -> Tensor:
    """Return states after a step of the probability flow, which has the marginals of the diffusion and no noise.

    In flat space a state keeps its position relative to mean and width of its bridge; this step does so with the mean
    of the bridges. At the start, which is one point for all samples, a mixture step makes them differ.
    """
    chain, bridge, total = step.chain, _of_sphere(step), step.chain.grid.total
    remaining, after = step.coefficients.remaining, step.after
    at_start = remaining >= total * (1 - 1e-6)
    spent = torch.where(at_start, total / 2, total - remaining)
    pull = bridge.mean_pull(step.state, chain.marginals(step.log_probs.exp()), remaining)
    start = _start_of(chain, step.local, step.state)
    cosine = (step.state * start).sum(-1, keepdim=True)
    back = sphere.tangent(step.state, start) * bridge.slope(cosine, spent[..., None])
    width = torch.sqrt((total - after) * after / (spent * remaining))
    to_pull = (remaining - after) / total - (width - 1) * spent / total
    to_start = -(remaining - after) / total - (width - 1) * remaining / total
    moved = sphere.exponential_(step.state, to_pull[..., None] * pull + to_start[..., None] * back)
    return torch.where(at_start[..., None], mixture(step), moved)


def _of_sphere(step: Step) -> Bridge:
    bridge = step.chain.path.bridge
    if not isinstance(bridge, Bridge):
        raise InputError(
            f"this solver needs a bridge of the sphere, not the {bridge.kind} channel: use mixture or drift"
        )
    return bridge


def _start_of(chain: Chain, level: Int[Tensor, "batch columns"], like: Tensor) -> Tensor:
    """Return the start of each sphere's bridge: that of the second one after the switch."""
    return chain.path.start(per_sphere(chain.grid.remaining[level], like), like.dtype)


@dataclass(frozen=True)
class Solver:
    """A solver and its properties."""

    step: Callable[[Step], Tensor | Evaluations]
    nfe: int
    """Network evaluations per step; one in the last step, which decodes."""
    bound: Kernel | None
    """Kernel of the chain whose likelihood bound holds for its samples; None: no bound is known."""
    consistent: bool
    """Whether the samples have the distribution of the data for an exact posterior and a fine grid."""
    greedy: bool = False
    """Whether the last step decodes the most likely token in place of a drawn one."""
    by_token: bool = False
    """Whether a step needs a drawn token at positions that do not decode."""
    by_state: bool = False
    """Whether tokens are read from the state after a last move, as in the paper, not from the model."""


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
