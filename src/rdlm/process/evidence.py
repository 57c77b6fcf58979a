"""Posteriors from evidence: what a state itself says of its token, joined with what is known beforehand."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.process.path import Path


def log_evidence(
    path: Path, state: Float[Tensor, "... d"], noise: Float[Tensor, "..."]
) -> Float[Tensor, "... v"]:
    """Return the log-likelihood of every token given each position's own state alone, Eq. (27).

    It is the same for both bridges of a switching path: only the angle to a token tells tokens apart.
    Beyond the range of the heat kernel's expansion it is refused, for the logarithm bridge, too.
    """
    path.bridge.check_evidence()
    return path.bridge.log_likelihood(state, noise)


def joint_posterior(
    path: Path, log_joint: Tensor, state: Float[Tensor, "batch length d"], noise: Float[Tensor, "batch length"]
) -> Float[Tensor, "batch length v"]:
    """Return `log p(token | all states)` when the joint law of the tokens is known, by Bayes' rule, Eq. (27).

    `log_joint` has one axis of `v` entries per position. Exact for the Brownian bridge, near for the logarithm one.
    """
    evidence = log_evidence(path, state, noise)
    batch, length, tokens = evidence.shape
    joint = log_joint.to(evidence)
    for position in range(length):
        shape = [batch] + [tokens if axis == position else 1 for axis in range(length)]
        joint = joint + evidence[:, position].view(shape)
    marginals = [joint.movedim(position + 1, 1).reshape(batch, tokens, -1).logsumexp(-1) for position in range(length)]
    return torch.log_softmax(torch.stack(marginals, dim=1), dim=-1)
