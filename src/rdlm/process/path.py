"""Paths: which bridge a position follows at which level of noise, and mixtures of paths.

A `Path` is one bridge, or two with a switch between them: at the switch a token is drawn from the
model and the position is put at the second bridge's law given that token. A `Mixture` draws one of
several paths once per sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.errors import InputError
from rdlm.process import bridge as start
from rdlm.process.bridge import Bridge, BridgeKind
from rdlm.process.grid import Grid


@dataclass(frozen=True)
class Path:
    """One bridge, or `bridge` above the noise level `switch_remaining` and `second` below it, Eq. (32)."""

    bridge: Bridge
    second: Bridge | None = None
    switch_remaining: float = 0.0

    def __post_init__(self) -> None:
        if self.second is None:
            return
        first, second = ((b.vocabulary, b.total, b.kind) for b in (self.bridge, self.second))
        if first != second:
            raise InputError(
                "the two bridges of a switching path need one vocabulary, one total noise and one kind, "
                f"got {first} and {second}"
            )
        if not 0 < self.switch_remaining < self.bridge.total:
            raise InputError(
                f"the noise at the switch must lie in (0, {self.bridge.total:g}), got {self.switch_remaining:g}"
            )

    def switch_step(self, grid: Grid) -> int | None:
        """Return the step of the grid that switches: the one that passes below `switch_remaining`."""
        if self.second is None:
            return None
        return int((grid.remaining > self.switch_remaining).sum()) - 1


@dataclass(frozen=True)
class Mixture:
    """Paths with weights, one of them drawn once per sequence as part of the model, Eq. (31)."""

    paths: tuple[Path, ...]
    weights: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.weights) or not self.paths:
            raise InputError("a mixture needs as many weights as paths, and at least one of each")
        if min(self.weights) < 0 or not math.isclose(sum(self.weights), 1, abs_tol=1e-9):
            raise InputError(f"the weights of a mixture must be non-negative and add up to 1, got {self.weights}")


def masked_path(vocabulary: int, total: float, kind: BridgeKind = "brownian") -> Path:
    """Return the path from the mask's vertex."""
    return Path(Bridge(start.masked(vocabulary), total, kind))


def uniform_path(vocabulary: int, total: float, kind: BridgeKind = "brownian") -> Path:
    """Return the path from the sphere's centre of all coordinates."""
    return Path(Bridge(start.uniform(vocabulary), total, kind))


def switching_path(vocabulary: int, total: float, switch_remaining: float, kind: BridgeKind = "brownian") -> Path:
    """Return the uniform path that turns into the masked one below `switch_remaining`, Eq. (32)."""
    first, second = uniform_path(vocabulary, total, kind), masked_path(vocabulary, total, kind)
    return Path(first.bridge, second.bridge, switch_remaining)


def constant_mixture(vocabulary: int, total: float, weight: float, kind: BridgeKind = "brownian") -> Mixture:
    """Return the masked path with probability `weight` and the uniform one otherwise, Eq. (31)."""
    paths = masked_path(vocabulary, total, kind), uniform_path(vocabulary, total, kind)
    return Mixture(paths, (weight, 1 - weight))


def log_evidence(path: Path, state: Float[Tensor, "... d"], remaining: Float[Tensor, ...]) -> Float[Tensor, "... v"]:
    """Return the log-likelihood of every token given each position's own state alone, Eq. (27).

    It is the same for both bridges of a switching path: only the angle to a token tells tokens apart.
    Beyond the range of the heat kernel's expansion it is refused, for the logarithm bridge, too.
    """
    path.bridge.check_evidence()
    return path.bridge.log_likelihood(state, remaining)


def joint_posterior(
    path: Path, log_joint: Tensor, state: Float[Tensor, "batch length d"], remaining: Float[Tensor, "batch length"]
) -> Float[Tensor, "batch length v"]:
    """Return `log p(token | all states)` when the joint law of the tokens is known, by Bayes' rule, Eq. (27).

    `log_joint` has one axis of `v` entries per position. Exact for the Brownian bridge, near for the logarithm one.
    """
    evidence = log_evidence(path, state, remaining)
    batch, length, tokens = evidence.shape
    joint = log_joint.to(evidence)
    for position in range(length):
        shape = [batch] + [tokens if axis == position else 1 for axis in range(length)]
        joint = joint + evidence[:, position].view(shape)
    marginals = [joint.movedim(position + 1, 1).reshape(batch, tokens, -1).logsumexp(-1) for position in range(length)]
    return torch.log_softmax(torch.stack(marginals, dim=1), dim=-1)
