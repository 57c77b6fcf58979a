"""Spelling: digits that are chosen one by one must in the end be the digits of an existing token.

Rules: what a sample must obey, and what becomes of the model's probabilities before a token is drawn.

The order is fixed, so that every combination means one thing: after the predictor's guidance and temperature come the
tilt of a wish (classifier guidance), the tokens that are allowed, those that are settled, the regular language, and
last top-k and top-p among what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.random import Noise, pick_token
from rdlm.sampling.automaton import Automaton, Choice, Restriction
from rdlm.sampling.pace import places


def spelled(
    codes: Automaton,
    digit: Int[Tensor, "batch positions"],
    decoding: Bool[Tensor, "batch positions"],
    law: Float[Tensor, "batch positions b"],
    point: Float[Tensor, "batch positions"],
    choice: Choice,
    size: int,
) -> tuple[Int[Tensor, "batch positions"], int]:
    """Return digits of which those that decode spell tokens, `size` of them each, and how many codes did not.

    Such a code is chosen anew, digit by digit by its law among those that some token goes on with: `choice`, such as a
    cut to the likeliest, comes after that, so that it leaves a token.
    """
    code = digit.unflatten(1, (-1, size)).flatten(0, 1).cpu()  # [batch, tokens * m] -> [batch * tokens, m]
    wrong = ~codes.accepting[codes.run(code)] & decoding[:, ::size].flatten().cpu()
    if not bool(wrong.any()):
        return digit, 0
    laws = law.unflatten(1, (-1, size)).flatten(0, 1).cpu()[wrong]
    points = point.unflatten(1, (-1, size)).flatten(0, 1).cpu()[wrong]
    entry = torch.full((len(laws),), codes.start)
    code[wrong] = Restriction(codes, entry, codes.accepting).draw(laws, points, choice)
    return code.reshape(digit.shape).to(digit.device), int(wrong.sum())


Wish = Callable[[Tensor], Tensor]
"""A differentiable score [batch] of probabilities [batch, positions, v]: the log-likelihood of what is wished for."""


@dataclass(frozen=True, eq=False)
class Rules:
    """All that restricts or reshapes the draws of one walk."""

    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False
    """Take the likeliest token in the last step."""
    allowed: Bool[Tensor, "positions v"] | None = None
    language: Restriction | None = None
    wish: Wish | None = None
    wish_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top-k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top-p must lie in (0, 1], got {self.top_p:g}")

    def law(
        self,
        log_probs: Float[Tensor, "batch positions v"],
        settled: Bool[Tensor, "batch positions"] | None = None,
        token: Int[Tensor, "batch positions"] | None = None,
    ) -> Float[Tensor, "batch positions v"]:
        """Return the law of each position on its own; one that is settled, on the CPU, has its token for certain."""
        law = log_probs
        if self.wish is not None:
            law = law + self.wish_scale * tilt(self.wish, law)
        if self.allowed is not None:
            law = law.masked_fill(~self.allowed, -torch.inf)
        if law is not log_probs:
            law = torch.log_softmax(law, -1)
        if settled is not None and token is not None:
            row, place = places(settled, law)
            law = law.clone() if law is log_probs else law
            law[row, place] = -torch.inf  # few passes over all tokens: of the settled positions alone
            law[row, place, token[row, place]] = 0.0
        return law

    def marginals(self, law: Float[Tensor, "batch positions v"]) -> Float[Tensor, "batch positions v"]:
        """Return the law by which states move: within the language, cut to the likeliest tokens."""
        return self.cut(law if self.language is None else self.language.marginals(law))

    def cut(self, law: Float[Tensor, "... v"]) -> Float[Tensor, "... v"]:
        """Return the law of the `top_k` likeliest tokens and of the fewest that reach the mass `top_p`."""
        if self.top_k is not None and self.top_k < law.shape[-1]:
            least = law.topk(self.top_k, dim=-1).values[..., -1:]
            law = torch.log_softmax(law.masked_fill(law < least, -torch.inf), -1)
        if self.top_p is not None and self.top_p < 1:
            falling, order = law.sort(dim=-1, descending=True)
            mass = falling.double().exp()
            # A token stays if those before it have not reached the mass; the first one always does.
            late = mass.cumsum(-1) - mass >= self.top_p
            law = torch.log_softmax(law.masked_fill(late.scatter(-1, order, late), -torch.inf), -1)
        return law

    def subset(self, row: Int[Tensor, " rows"]) -> Rules:
        """Return the rules for some samples of the batch."""
        if self.language is None:
            return self
        return replace(self, language=replace(self.language, entry=self.language.entry[row]))

    def draw(
        self,
        law: Float[Tensor, "batch positions v"],
        marginals: Float[Tensor, "batch positions v"],
        random: Noise,
        wanted: Bool[Tensor, "batch columns"],
    ) -> Int[Tensor, "batch positions"]:
        """Return a token per position where one is wanted: drawn from the marginals, or jointly from the language."""
        point = random.uniform(law.shape[:2], law.device)  # for all, so that it does not matter where one is wanted
        if self.language is not None:
            return self.language.draw(law, point, self.cut)
        if bool(wanted.all()):
            return pick_token(marginals, point)
        drawn = torch.zeros(law.shape[:2], dtype=torch.long, device=law.device)
        if bool(wanted.any()):
            at = places(wanted, law)
            drawn[at] = pick_token(marginals[at], point[at])
        return drawn

    def decide(
        self, law: Float[Tensor, "batch positions v"], marginals: Float[Tensor, "batch positions v"]
    ) -> Int[Tensor, "batch positions"]:
        """Return the likeliest token per position; with a language, the likeliest after those before it."""
        if self.language is None:
            return marginals.argmax(-1)
        point = torch.zeros(law.shape[:2], dtype=torch.float64)
        return self.language.draw(law, point, likeliest)


def likeliest(law: Float[Tensor, "... v"]) -> Float[Tensor, "... v"]:
    """Return the law that has the likeliest token for certain."""
    return torch.full_like(law, -torch.inf).scatter_(-1, law.argmax(-1, keepdim=True), 0.0)


def tilt(wish: Wish, log_probs: Float[Tensor, "batch positions v"]) -> Float[Tensor, "batch positions v"]:
    """Return the gradient of a wish by the probabilities, which added to their logarithms guides them.

    Exact for a wish that is a sum over positions: `p(k | x, y)` is in proportion to `p(k | x) p(y | k)`.
    """
    with torch.enable_grad():
        probability = log_probs.detach().exp().requires_grad_()
        score = wish(probability)
        if score.shape != probability.shape[:1]:
            raise InputError(f"a wish must return one number per sample, got the shape {list(score.shape)}")
        return torch.autograd.grad(score.sum(), probability)[0]
