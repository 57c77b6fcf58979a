"""The Markov chain that is both sampled and bounded: a path on a grid, a kernel, and lanes for positions.

The likelihood bound and the sampler take the same `Chain`, which is why the bound holds for the
sampler that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError, unknown
from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge, mixture_direction, squared_length, token_direction
from rdlm.process.grid import Grid
from rdlm.process.law.exact import ExactLaw, tabulate
from rdlm.process.path import Path
from rdlm.process.window import Lanes

Kernel = Literal["mixture", "drift"]


@dataclass(frozen=True, eq=False)
class Chain:
    """A path on a local grid, the kernel of the model's step, and the lanes in which positions run.

    `mixture` draws a token and takes one step of its bridge, Eq. (29); `drift` moves by the mean of the
    bridges as the paper does, Eq. (28). Both decode in the last step, Eq. (30).
    """

    path: Path
    grid: Grid
    kernel: Kernel = "mixture"
    lanes: Lanes | None = None

    def __post_init__(self) -> None:
        if self.kernel not in get_args(Kernel):
            raise unknown("kernel", self.kernel, get_args(Kernel))
        if self.lanes is not None and self.lanes.steps != self.grid.steps:
            raise InputError(f"lanes of {self.lanes.steps} steps need a grid of as many, got {self.grid.steps}")

    @property
    def clocks(self) -> Lanes:
        """Return the lanes; without any, all positions run together."""
        return self.lanes or Lanes(self.grid.steps, self.grid.steps)

    @property
    def calls(self) -> int:
        """Return the number of network calls, those of waiting for later lanes included."""
        return self.clocks.calls

    def law(self, pairs: int, generator: torch.Generator | None = None) -> ChainLaw:
        """Return the exact law of the chain's states given their tokens, from fresh tables."""
        first = tabulate(self.path.bridge, self.grid, pairs, generator)
        if self.path.second is None:
            return ChainLaw(first, first, self.grid.steps)
        step = self.path.switch_step(self.grid)
        assert step is not None
        return ChainLaw(first, tabulate(self.path.second, self.grid, pairs, generator), step)


@dataclass(frozen=True, eq=False)
class ChainLaw:
    """The exact laws before and after the switch; `switch` is the last level of the first one."""

    first: ExactLaw
    second: ExactLaw
    switch: int

    def draw(
        self, token: Int[Tensor, "..."], level: Int[Tensor, "..."], generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return the chain's states at the given levels of each position, Eq. (20)."""
        state = self.first.draw_at_level(token, level, generator)
        if self.first is self.second:
            return state
        late = self.second.draw_at_level(token, level, generator)
        return torch.where((level <= self.switch)[..., None], state, late)


def token_step_parts(
    bridge: Bridge,
    state: Float[Tensor, "... d"],
    token: Int[Tensor, "..."],
    noise: Tensor,
    gain: Tensor,
    variance: Tensor,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "... d"], Float[Tensor, "... d"]]:
    """Return the pull `g v_k` and a draw of the noise `sqrt(s2) w` of one step to `token`, Eq. (19)."""
    cosine = state.gather(-1, token[..., None])[..., 0]
    pull = token_direction(state, token, gain * bridge.slope(cosine, noise))
    return pull, variance.sqrt()[..., None] * sphere.tangent_normal(state, generator)


def draw_token_step(
    bridge: Bridge,
    state: Float[Tensor, "... d"],
    token: Int[Tensor, "..."],
    noise: Tensor,
    gain: Tensor,
    variance: Tensor,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "... d"]:
    """Return a tangent step of the bridge to `token`, `g v_k + sqrt(s2) w`, Eq. (19)."""
    pull, wobble = token_step_parts(bridge, state, token, noise, gain, variance, generator)
    return pull + wobble


def draw_mean_step(
    bridge: Bridge,
    state: Float[Tensor, "... d"],
    probability: Float[Tensor, "... v"],
    noise: Tensor,
    gain: Tensor,
    variance: Tensor,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "... d"]:
    """Return a tangent step of the drift kernel, `g sum_l p_l v_l + sqrt(s2) w`, Eq. (19) with Eq. (11)."""
    slope = bridge.slope(state[..., : bridge.vocabulary], noise[..., None])
    pull = mixture_direction(state, gain[..., None] * probability * slope)
    return pull + variance.sqrt()[..., None] * sphere.tangent_normal(state, generator)


def step_log_density(
    bridge: Bridge,
    state: Float[Tensor, "... d"],
    step: Float[Tensor, "... d"],
    noise: Tensor,
    gain: Tensor,
    variance: Tensor,
) -> Float[Tensor, "... v"]:
    """Return `log q_l(step | state)` for every token up to a common constant, Eq. (29)."""
    cosine = state[..., : bridge.vocabulary]
    pull = gain[..., None] * bridge.slope(cosine, noise[..., None])
    along = step[..., : bridge.vocabulary] - pull * (1 - cosine.square()) / 2
    return pull * along / variance[..., None]


def mean_step_log_density(
    bridge: Bridge,
    state: Float[Tensor, "... d"],
    step: Float[Tensor, "... d"],
    probability: Float[Tensor, "... v"],
    noise: Tensor,
    gain: Tensor,
    variance: Tensor,
) -> Float[Tensor, "..."]:
    """Return the drift kernel's log-density of a step up to the constant of `step_log_density`, Eq. (28)."""
    weight = gain[..., None] * probability * bridge.slope(state[..., : bridge.vocabulary], noise[..., None])
    along = (weight * step[..., : bridge.vocabulary]).sum(-1)
    return (along - squared_length(state, weight) / 2) / variance
