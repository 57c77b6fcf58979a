"""A trace: how one sample takes shape, what the model thinks of each token and where its states are on the sphere."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.language_model import LanguageModel
from rdlm.sampler.recall import answered

UNASKED = -2
"""In place of a token of which the model has not been asked yet."""
SHOWN_SPHERES = 24
"""Positions whose states are kept, evenly spread over the sample."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One step: the likeliest token of each position with its probability, and points of the unit sphere."""

    tokens: tuple[str, ...]
    certainty: tuple[float, ...]
    points: tuple[tuple[float, float, float], ...]
    """Of the shown positions: coordinates on the token that they end in, on the mask, and all others' length."""


@dataclass(eq=False)
class Trace:
    """The frames of a sample; `look` records a step, `finish` tells how it ended."""

    model: LanguageModel
    frames: list[Frame] = field(default_factory=list)
    _seen: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def look(self, state: Float[Tensor, "positions *spheres d"], log_probability: Float[Tensor, "positions v"]) -> None:
        """Record a step: states and log-probabilities of one sample."""
        method = self.model.rdlm
        best = log_probability.max(-1)
        # [positions] -> [length, digits]: a token of several digits is as certain as all of them together.
        certainty = best.values.view(-1, method.symbols_per_token).sum(-1).exp()
        kept = state.flatten(0, -2)[self._shown(state.flatten(0, -2).shape[0])]
        told = answered(log_probability).view(-1, method.symbols_per_token).any(-1).cpu()
        ids = method.spell(best.indices[None].cpu())[0].masked_fill(~told, UNASKED)
        self._seen.append((ids, certainty.cpu(), kept.cpu()))

    def finish(self, token: Int[Tensor, " length"]) -> None:
        """Turn what was recorded into frames, now that the end is known."""
        codec = self.model.rdlm.process.codec
        digit = codec.encode(token[None]).flatten()
        chosen = digit[self._shown(len(digit))]
        for ids, certainty, state in self._seen:
            on_token = state.gather(-1, chosen[:, None])[:, 0]
            on_mask = state[:, -1]
            rest = (1 - on_token.square() - on_mask.square()).clamp_min(0).sqrt()
            points = torch.stack([on_token, on_mask, rest], -1)
            self.frames.append(Frame(self._words(ids), tuple(certainty.tolist()), tuple(map(tuple, points.tolist()))))
        ends = ((1.0, 0.0, 0.0),) * len(chosen)
        self.frames.append(Frame(self._words(token), (1.0,) * len(token), ends))

    def _words(self, ids: Tensor) -> tuple[str, ...]:
        strange = {UNASKED: "", -1: "\ufffd"}  # digits may spell no token
        return tuple(strange[i] if i in strange else self.model.tokenizer.decode([i]) for i in ids.tolist())

    def _shown(self, spheres: int) -> Tensor:
        return torch.linspace(0, spheres - 1, min(SHOWN_SPHERES, spheres)).round().long()
