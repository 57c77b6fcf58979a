"""The Markov chain that is both sampled and bounded: a path on a grid, a kernel, and lanes for positions.

The likelihood bound and the sampler take the same `Chain`, which is why the bound holds for the
sampler that runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from rdlm.errors import InputError, unknown
from rdlm.geometry import sphere
from rdlm.process.bridge import Bridge, mixture_direction, squared_length, token_direction
from rdlm.process.exact import ExactLaw, tabulate
from rdlm.process.grid import Grid, StepCoefficients
from rdlm.process.layout import Layout
from rdlm.process.order import TokenSteps
from rdlm.process.path import Path

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
    asynchronous: TokenSteps | None = None
    layout: Layout | None = None
    """Splits a position's token into digits with a sphere each; states then have an axis of digits before `d`."""
    group: int = 1
    """Neighbouring positions that share a lane, such as the digits of a token in serial layout."""

    def __post_init__(self) -> None:
        if self.kernel not in get_args(Kernel):
            raise unknown("kernel", self.kernel, get_args(Kernel))
        if self.layout is not None and self.layout.base != self.path.bridge.vocabulary:
            raise InputError(f"digits of base {self.layout.base} need a path over as many tokens")
        if self.asynchronous is not None and self.asynchronous.steps != self.grid.steps:
            raise InputError(f"lanes of {self.asynchronous.steps} steps need a grid of as many, got {self.grid.steps}")

    @property
    def token_steps(self) -> TokenSteps:
        """Return the lanes; without any, all positions run together."""
        return self.asynchronous or TokenSteps(self.grid.steps, self.grid.steps)

    @property
    def nfe(self) -> int:
        """Return the number of network calls, those of waiting for later lanes included."""
        return self.token_steps.nfe

    def side_by_side(self) -> Chain:
        """Return the chain with all chunks running at once, as they can behind finished ones, Eq. (49)."""
        return self if self.asynchronous is None else replace(self, asynchronous=self.asynchronous.side_by_side())

    def offsets(self, token: Int[Tensor, "batch length"], generator: torch.Generator | None = None) -> Tensor:
        """Return the common step before which each position rests, Eq. (35)."""
        batch, length = token.shape
        offsets = self.token_steps.offsets(batch, length // self.group, generator)
        return offsets.repeat_interleave(self.group, dim=1).to(token.device)

    @property
    def switch(self) -> int:
        """Return the step that puts a position on the second bridge; -1 where none does (the last step decodes)."""
        step = self.path.switch_step(self.grid)
        return -1 if step is None or step >= self.grid.steps - 1 else step

    def coefficients(self, step: Int[Tensor, ...], like: Tensor) -> StepCoefficients:
        """Return noise, gain and variance of steps, as `coefficient_table` has them."""
        columns, flat = self.coefficient_table.to(like).unbind(-1), step.flatten()
        return StepCoefficients(*(column.index_select(0, flat).view(step.shape) for column in columns))

    @cached_property
    def coefficient_table(self) -> Float[Tensor, "steps 3"]:
        """Return noise, gain and variance of every step, Eq. (18); that of the decode step, which is 0, as 1."""
        coefficient_table = self.grid.coefficient_table.clone()
        coefficient_table[-1, -1] = 1
        return coefficient_table

    def split(self, token: Int[Tensor, ...]) -> Int[Tensor, ...]:
        """Return the token that each sphere ends in: the tokens themselves, or their digits [..., m], Eq. (39)."""
        return token if self.layout is None else self.layout.encode(token)

    def spread(self, level: Shaped[Tensor, ...], digit: Int[Tensor, ...]) -> Shaped[Tensor, ...]:
        """Return what the positions have for every sphere, such as their levels: in the shape of `digit`."""
        return level if self.layout is None else level[..., None].expand_as(digit)

    def join(self, value: Float[Tensor, "... b"]) -> Float[Tensor, "... v"]:
        """Return log-densities of whole tokens from those of each sphere, Eq. (40)."""
        return value if self.layout is None else self.layout.evidence(value)

    def marginals(self, probability: Float[Tensor, "... v"]) -> Float[Tensor, "... b"]:
        """Return the probabilities on each sphere from those of whole tokens, Eq. (40)."""
        return probability if self.layout is None else self.layout.marginals(probability)

    def gather(self, value: Float[Tensor, ...]) -> Float[Tensor, ...]:
        """Return the sum of a quantity over the spheres of each position."""
        return value if self.layout is None else value.sum(-1)

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
        self, token: Int[Tensor, ...], level: Int[Tensor, ...], generator: torch.Generator | None = None
    ) -> Float[Tensor, "... d"]:
        """Return the chain's states at the given levels of each position, Eq. (20)."""
        state = self.first.draw_at_level(token, level, generator)
        if self.first is self.second:
            return state
        late = self.second.draw_at_level(token, level, generator)
        return torch.where((level <= self.switch)[..., None], state, late)

    def to(self, device: torch.device | str) -> ChainLaw:
        """Return the laws with their tables on `device`."""
        first = self.first.to(device)
        return ChainLaw(first, first if self.second is self.first else self.second.to(device), self.switch)


def token_step_parts(
    bridge: Bridge,
    state: Float[Tensor, "... d"],
    token: Int[Tensor, ...],
    coefficients: StepCoefficients,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "... d"], Float[Tensor, "... d"]]:
    """Return the pull `g v_k` and a draw of the noise `sqrt(s2) w` of one step to `token`, Eq. (19)."""
    cosine = state.gather(-1, token[..., None])[..., 0]
    pull = token_direction(state, token, coefficients.gain * bridge.slope(cosine, coefficients.remaining))
    return pull, coefficients.variance.sqrt()[..., None] * sphere.tangent_normal(state, generator)


def draw_token_step(
    bridge: Bridge,
    state: Float[Tensor, "... d"],
    token: Int[Tensor, ...],
    coefficients: StepCoefficients,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "... d"]:
    """Return a tangent step of the bridge to `token`, `g v_k + sqrt(s2) w`, Eq. (19)."""
    pull, wobble = token_step_parts(bridge, state, token, coefficients, generator)
    return pull + wobble


def draw_mean_step(
    bridge: Bridge,
    state: Float[Tensor, "... d"],
    probability: Float[Tensor, "... v"],
    coefficients: StepCoefficients,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "... d"]:
    """Return a tangent step of the drift kernel, `g sum_l p_l v_l + sqrt(s2) w`, Eq. (19) with Eq. (11)."""
    slope = bridge.slope(state[..., : bridge.vocabulary], coefficients.remaining[..., None])
    pull = mixture_direction(state, coefficients.gain[..., None] * probability * slope)
    return pull + coefficients.variance.sqrt()[..., None] * sphere.tangent_normal(state, generator)


def step_log_density(
    bridge: Bridge,
    state: Float[Tensor, "... d"],
    step: Float[Tensor, "... d"],
    coefficients: StepCoefficients,
) -> Float[Tensor, "... v"]:
    """Return `log q_l(step | state)` for every token up to a common constant, Eq. (29)."""
    weight, shift = step_log_density_parts(bridge, state, coefficients)
    return weight * step[..., : bridge.vocabulary] - shift


def step_log_density_parts(
    bridge: Bridge, state: Float[Tensor, "... d"], coefficients: StepCoefficients
) -> tuple[Float[Tensor, "... v"], Float[Tensor, "... v"]]:
    """Return what `step_log_density`, Eq. (29), multiplies the step's coordinates by, and what it takes away."""
    cosine = state[..., : bridge.vocabulary]
    pull = coefficients.gain[..., None] * bridge.slope(cosine, coefficients.remaining[..., None])
    weight = pull / coefficients.variance[..., None]
    return weight, weight * pull * (1 - cosine.square()) / 2


def mean_step_log_density(
    bridge: Bridge,
    state: Float[Tensor, "... d"],
    step: Float[Tensor, "... d"],
    probability: Float[Tensor, "... v"],
    coefficients: StepCoefficients,
) -> Float[Tensor, ...]:
    """Return the drift kernel's log-density of a step up to the constant of `step_log_density`, Eq. (28)."""
    slope = bridge.slope(state[..., : bridge.vocabulary], coefficients.remaining[..., None])
    weight = coefficients.gain[..., None] * probability * slope
    along = (weight * step[..., : bridge.vocabulary]).sum(-1)
    return (along - squared_length(state, weight) / 2) / coefficients.variance
