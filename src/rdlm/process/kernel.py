"""The Markov chain that is both sampled and bounded: a path on a grid, a kernel, and the steps of each position.

The likelihood bound and the sampler use the same `Chain`, so the bound holds for the sampler that runs.

| variable | symbol |
|---|---|
| `state` | `x`, [..., d] |
| `step` | `u`, a tangent vector at the state, [..., d] |
| `coefficients` | `B_m`, `g_m` and `s2_m`, Eq. (18) |
| `slope` | `f_k`: the pull towards token `k` is `v_k = f_k (c_k - <x, c_k> x)`, Eq. (10) |
| `probability` | `p_l`, the model's posterior |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rdlm.errors import InputError, unknown
from rdlm.process.channel import Channel
from rdlm.process.exact import exact_law
from rdlm.process.layout import Layout
from rdlm.process.order import TokenSteps
from rdlm.process.path import Path, PathLaw
from rdlm.process.schedule import Grid, StepCoefficients
from rdlm.random import Rng

Kernel = Literal["mixture", "drift"]


@dataclass(frozen=True, eq=False)
class Chain:
    """A path on each position's local grid, the kernel of the model's step, and the token schedule.

    The `mixture` kernel samples a token and takes one step of its bridge, Eq. (29); the `drift` kernel takes a step
    with the mean drift of the bridges, as in the paper, Eq. (28). Both decode in the last step, Eq. (30).
    """

    path: Path
    grid: Grid
    kernel: Kernel = "mixture"
    asynchronous: TokenSteps | None = None
    layout: Layout | None = None
    """Layout of tokens that are split into digits; None: one sphere per token."""

    def __post_init__(self) -> None:
        if self.kernel not in get_args(Kernel):
            raise unknown("kernel", self.kernel, get_args(Kernel))
        if self.layout is not None and self.layout.base != self.path.bridge.vocabulary:
            raise InputError(f"digits of base {self.layout.base} need a path over {self.layout.base} tokens")
        if self.asynchronous is not None and self.asynchronous.steps != self.grid.steps:
            raise InputError(
                f"a token schedule of {self.asynchronous.steps} steps needs a grid of as many, got {self.grid.steps}"
            )

    @cached_property
    def group(self) -> int:
        """The number of neighbouring positions with the same offset: the digits of a token, unless they are joint."""
        return 1 if self.layout is None else self.layout.symbols_per_token

    @cached_property
    def joint(self) -> Layout | None:
        """The layout where a position's token has several spheres, and states an axis of digits before `d`."""
        return self.layout if self.layout is not None and self.layout.joint else None

    @property
    def token_steps(self) -> TokenSteps:
        """The token schedule; by default all positions take the same steps."""
        return self.asynchronous or TokenSteps(self.grid.steps, self.grid.steps)

    @property
    def nfe(self) -> int:
        """The number of network evaluations for a whole sequence."""
        return self.token_steps.nfe

    def side_by_side(self) -> Chain:
        """Return the chain with all blocks at once, each conditioned on the clean blocks before it, Eq. (49)."""
        return self if self.asynchronous is None else replace(self, asynchronous=self.asynchronous.side_by_side())

    def offsets(self, token: Int[Tensor, "batch length"], generator: Rng = None) -> Tensor:
        """Return the global step at which each position starts, Eq. (35)."""
        batch, length = token.shape
        offsets = self.token_steps.offsets(batch, length // self.group, generator)
        return offsets.repeat_interleave(self.group, dim=1).to(token.device)

    @property
    def switch(self) -> int:
        """The step that moves a position to the second bridge; -1 if there is none (the last step decodes)."""
        step = self.path.switch_step(self.grid)
        return -1 if step is None or step >= self.grid.steps - 1 else step

    def coefficients(self, step: Int[Tensor, ...], like: Tensor) -> StepCoefficients:
        """Return remaining noise, gain and variance of local steps, Eq. (18), each in the shape of `step`."""
        columns, flat = self.coefficient_table.to(like).unbind(-1), step.flatten()
        return StepCoefficients(*(column.index_select(0, flat).view(step.shape) for column in columns))

    @cached_property
    def coefficient_table(self) -> Float[Tensor, "steps 3"]:
        """Remaining noise, gain and variance of every step, Eq. (18); the decode step's variance of 0 is set to 1."""
        coefficient_table = self.grid.coefficient_table.clone()
        coefficient_table[-1, -1] = 1
        return coefficient_table

    def split(self, token: Int[Tensor, ...]) -> Int[Tensor, ...]:
        """Return the target of each sphere: the tokens themselves, or their digits [..., m], Eq. (39)."""
        return token if self.joint is None else self.joint.encode(token)

    def per_sphere(self, level: Shaped[Tensor, ...], digit: Int[Tensor, ...]) -> Shaped[Tensor, ...]:
        """Return a per-position quantity, such as the level, expanded to the spheres: in the shape of `digit`."""
        return level if self.joint is None else level[..., None].expand_as(digit)

    def join(self, value: Float[Tensor, "... b"]) -> Float[Tensor, "... v"]:
        """Return log-densities of whole tokens from the log-densities of each sphere, Eq. (40)."""
        return value if self.joint is None else self.joint.evidence(value)

    def marginals(self, probability: Float[Tensor, "... v"]) -> Float[Tensor, "... b"]:
        """Return the probabilities of each sphere's targets from those of whole tokens, Eq. (40)."""
        return probability if self.joint is None else self.joint.marginals(probability)

    def gather(self, value: Float[Tensor, ...]) -> Float[Tensor, ...]:
        """Return the sum of a quantity over the spheres of each position."""
        return value if self.joint is None else value.sum(-1)

    def law(self, pairs: int, generator: Rng = None) -> PathLaw:
        """Return the exact law of the chain's states given their tokens, Eq. (20), from new tables of `pairs` draws."""
        return PathLaw.of(self.path, lambda channel: exact_law(channel, self.grid, pairs, generator))


def token_step_parts(
    bridge: Channel,
    state: Float[Tensor, "... d"],
    token: Int[Tensor, ...],
    coefficients: StepCoefficients,
    generator: Rng = None,
) -> tuple[Float[Tensor, "... d"], Float[Tensor, "... d"]]:
    """Return the pull `g v_k` and a draw of the noise `sqrt(s2) z` of one step to `token`, Eq. (19)."""
    cosine = bridge.tokens.cosine(state, token)
    pull = bridge.token_direction(state, token, coefficients.gain * bridge.slope(cosine, coefficients.remaining))
    return pull, coefficients.variance.sqrt()[..., None] * bridge.noise(state, generator)


def draw_token_step(
    bridge: Channel,
    state: Float[Tensor, "... d"],
    token: Int[Tensor, ...],
    coefficients: StepCoefficients,
    generator: Rng = None,
) -> Float[Tensor, "... d"]:
    """Return a tangent step of the bridge to `token`, `g v_k + sqrt(s2) z`, Eq. (19)."""
    pull, noise = token_step_parts(bridge, state, token, coefficients, generator)
    return pull + noise


def step_log_density(
    bridge: Channel, state: Float[Tensor, "... d"], step: Float[Tensor, "... d"], coefficients: StepCoefficients
) -> Float[Tensor, "... v"]:
    """Return `log q_l(u | x) = (g <v_l, u> - g^2 |v_l|^2 / 2) / s2` for every token, up to a constant, Eq. (29)."""
    weight, shift = step_log_density_parts(bridge, state, coefficients)
    return weight * bridge.products(state, step) - shift


def step_log_density_parts(
    bridge: Channel, state: Float[Tensor, "... d"], coefficients: StepCoefficients
) -> tuple[Float[Tensor, "... v"], Float[Tensor, "... v"]]:
    """Return `a_l = g f_l / s2` and `b_l = g^2 |v_l|^2 / (2 s2)`: `log q_l(u) = a_l <v_l, u> / f_l - b_l`, Eq. (29)."""
    cosine = bridge.tokens.cosines(state)
    pull = coefficients.gain[..., None] * bridge.slope(cosine, coefficients.remaining[..., None])
    weight = pull / coefficients.variance[..., None]
    return weight, weight * pull * bridge.squared_distance(state, cosine) / 2


def mean_step_log_density(
    bridge: Channel,
    state: Float[Tensor, "... d"],
    step: Float[Tensor, "... d"],
    probability: Float[Tensor, "... v"],
    coefficients: StepCoefficients,
) -> Float[Tensor, ...]:
    """Return the drift kernel's `log q(u | x)`, with `g sum_l p_l v_l` as mean, up to the same constant, Eq. (28)."""
    slope = bridge.slope(bridge.tokens.cosines(state), coefficients.remaining[..., None])
    weight = coefficients.gain[..., None] * probability * slope
    along = (weight * bridge.products(state, step)).sum(-1)
    return (along - bridge.squared_length(state, weight) / 2) / coefficients.variance


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a CPU tensor to a device without a synchronisation."""
    return tensor.to(device, non_blocking=True)


def per_sphere(value: Shaped[Tensor, "batch columns"], state: Float[Tensor, "batch positions *spheres d"]) -> Tensor:
    """Return a CPU value of each position for each of its spheres, on the device of the states."""
    there = value.to(state.device, non_blocking=True)
    return there.view(*there.shape, *[1] * (state.ndim - 3)).expand(state.shape[:-1])


def indices(mask: Bool[Tensor, "batch columns"], like: Shaped[Tensor, "batch positions ..."]) -> tuple[Tensor, ...]:
    """Return the indices where a CPU mask is set, on the device of `like`."""
    found = mask.expand(like.shape[:2]).nonzero(as_tuple=True)
    return tuple(index.to(like.device, non_blocking=True) for index in found)
