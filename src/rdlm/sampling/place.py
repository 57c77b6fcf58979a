"""Where states are put: at the start, at the vertex of a token, or anew where a path switches to its second bridge."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.process.kernel import Chain
from rdlm.process.path import PathLaw
from rdlm.random import Noise
from rdlm.sampling.pace import Moment, beside, places


def vertices(like: Float[Tensor, "... d"], digit: Int[Tensor, ...]) -> Float[Tensor, "... d"]:
    """Return the vertices of tokens or digits."""
    return torch.zeros_like(like).scatter_(-1, digit[..., None], 1.0)


def begun(
    chain: Chain, token: Int[Tensor, "batch positions"], clean: Bool[Tensor, "batch positions"]
) -> Float[Tensor, "batch positions *spheres d"]:
    """Return the states before the first step: the start, and the vertices of tokens that are known and clean."""
    digit = chain.split(token)
    state = chain.path.bridge.start.point(device=token.device).repeat(*digit.shape, 1)
    if not bool(clean.any()):
        return state
    return torch.where(beside(clean, state)[..., None], vertices(state, digit), state)


def placed(
    chain: Chain,
    state: Float[Tensor, "batch positions *spheres d"],
    after: Float[Tensor, "batch positions *spheres d"],
    drawn: Int[Tensor, "batch positions"],
    now: Moment,
    law: PathLaw | None,
    random: Noise,
) -> Float[Tensor, "batch positions *spheres d"]:
    """Return the states after a step: new ones where they switch, vertices where they decode, at rest the old."""
    digit = chain.split(drawn)
    if law is not None:
        after = _renoised(chain, law, after, digit, now.local, random)
    if bool(now.decoding.all()):
        return vertices(state, digit)
    if not bool(now.moving.all()):
        still = after is state  # everything that moves decodes
        after = state.clone() if still else torch.where(beside(now.moving, state)[..., None], after, state)
    if bool(now.decoding.any()):
        at = places(now.decoding, state)
        after[at] = vertices(state[at], digit[at])
    return after


def _renoised(
    chain: Chain, law: PathLaw, after: Tensor, digit: Tensor, local: Int[Tensor, "batch columns"], random: Noise
) -> Tensor:
    """Return the states with those that switch put at the second bridge's law given their token, Eq. (32)."""
    switching, then = local == chain.switch, (local + 1).clamp_max(chain.grid.steps)  # some rest at the last one
    level, where = beside(then, after), beside(switching, after)[..., None]
    for rows, generator in random.rows():
        # By sample: what one draws must not depend on whether its neighbours switch now.
        if bool(switching[rows].any()):
            fresh = law.draw_at_level(digit[rows], level[rows], generator)
            after[rows] = torch.where(where[rows], fresh, after[rows])
    return after
