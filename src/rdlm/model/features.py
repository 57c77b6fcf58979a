"""What of a state enters the network; states are vectors in the last dimension, the mask coordinate last."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rdlm.errors import InputError


def without_mask(x: Float[Tensor, "... d"]) -> Float[Tensor, "... v"]:
    """Return the coordinates of the tokens, the last coordinate (the mask's) left out."""
    return x[..., :-1]


def with_top(x: Float[Tensor, "... d"], k: int) -> Float[Tensor, "... f"]:
    """Return the coordinates, the k largest in falling order, and the k-hot vector of where they are: 2d + k.

    The k-hot vector is what a linear input layer turns into a sum of embeddings of the leading states.
    """
    if not 1 <= k <= x.shape[-1]:
        raise InputError(f"the number {k} of top features must lie between 1 and {x.shape[-1]}")
    values, indices = x.topk(k, dim=-1)
    return torch.cat((x, values, torch.zeros_like(x).scatter(-1, indices, 1.0)), dim=-1)


def from_evidence(log_evidence: Float[Tensor, "... v"]) -> Float[Tensor, "... v"]:
    """Return `(softmax(log h) - 1/V) sqrt(V)`: zero where nothing is known, of order one throughout."""
    states = log_evidence.shape[-1]
    return (log_evidence.softmax(-1) - 1 / states) * math.sqrt(states)
