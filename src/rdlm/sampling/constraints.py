"""Prompts, constraints on the tokens of a sample, and changes to log-probabilities before tokens are drawn.

A prompt is the known tokens of a sequence; a long sequence is sampled in windows. Constraints are applied in a fixed
order: after guidance and temperature come the classifier's gradient, the allowed tokens,
known and finished tokens, the regular language, and last top-k and top-p truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.data.tokenizer import Characters, Tokenizer
from rdlm.errors import InputError
from rdlm.process.kernel import indices
from rdlm.random import RandomStreams, pick_token
from rdlm.sampling.automaton import Automaton, Choice, Restriction

# -- prompts ---------------------------------------------------------------------------------------


class Window(NamedTuple):
    """Tokens `begin` to `end` of a sequence; those from `fresh` on are new."""

    begin: int
    fresh: int
    end: int


def windows(length: int, context: int, stride: int | None = None) -> Iterator[Window]:
    """Yield the windows of at most `context` tokens that cover `length`; each but the first adds `stride` tokens.

    The stride is by default half the context; longer ones need fewer windows, shorter ones condition on more text.
    """
    size = max(1, context // 2) if stride is None else stride
    if not 1 <= size <= context:
        raise InputError(f"the stride must be 1 to {context} tokens, the model's length, got {size}")
    end = min(length, context)
    yield Window(0, 0, end)
    while end < length:
        fresh, end = end, min(length, end + size)
        yield Window(max(0, end - context), fresh, end)


OPEN = -1
"""The id of a position whose token is not known."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """Known ids, `OPEN` elsewhere, and the tokens that each position may take."""

    known: Int[Tensor, " length"]
    allowed: Bool[Tensor, "length v"] | None = None

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.known)

    def choices(self, vocabulary: int) -> Bool[Tensor, "length v"]:
        """Return the tokens that each position may take, known ones included."""
        allowed = torch.ones(self.length, vocabulary, dtype=torch.bool) if self.allowed is None else self.allowed
        fixed = torch.nn.functional.one_hot(self.known.clamp_min(0), vocabulary).bool()
        return torch.where((self.known != OPEN)[:, None], fixed & allowed, allowed)


def encode_prompt(tokenizer: Tokenizer, text: str, what: str, begin: int = 0) -> Int[Tensor, " n"]:
    """Return the ids of a text; a character outside the alphabet is an error even where the corpus was lenient.

    `begin` is the position of the text in the user's input.
    """
    if isinstance(tokenizer, Characters):
        for at, character in enumerate(text, begin):
            if character not in tokenizer.alphabet:
                raise InputError(
                    f"{what}: the character {character!r} at position {at} is outside the model's alphabet "
                    f"{tokenizer.alphabet!r}; with normalise, case is changed and digits are spelled"
                )
    return torch.from_numpy(tokenizer.encode(text).astype(np.int64))


def framed(tokenizer: Tokenizer, length: int, prompt: str = "", suffix: str = "") -> Int[Tensor, " length"]:
    """Return a sequence that begins with the prompt, ends with the suffix, and is open in between."""
    first, last = encode_prompt(tokenizer, prompt, "prompt"), encode_prompt(tokenizer, suffix, "suffix")
    if len(first) + len(last) >= length:
        raise InputError(
            f"a prompt and a suffix of {len(first)} and {len(last)} tokens leave nothing open in {length} tokens"
        )
    gap = torch.full((length - len(first) - len(last),), OPEN)
    return torch.cat([first, gap, last])


def infilled(tokenizer: Tokenizer, text: str, gap: str = "_") -> Int[Tensor, " n"]:
    """Return the ids of a text in which each gap character is one open token."""
    if len(gap) != 1:
        raise InputError(f"a gap is one character, got {gap!r}")
    if isinstance(tokenizer, Characters) and gap in tokenizer.alphabet:
        raise InputError(f"the gap {gap!r} is a character of the model's alphabet: choose another one with --gap")
    if gap not in text:
        raise InputError(f"the infill {text!r} has no gap: write {gap!r} for every open token")
    pieces, begin = [], 0
    for part in text.split(gap):
        pieces += [encode_prompt(tokenizer, part, "infill", begin), torch.tensor([OPEN])]
        begin += len(part) + 1
    return torch.cat(pieces[:-1])


def restricted(
    tokenizer: Tokenizer, known: Int[Tensor, " length"], ban: str, forbid: Mapping[int, str], require: Mapping[int, str]
) -> Prompt:
    """Return the prompt in which the tokens of `ban` occur nowhere, and positions avoid or take given tokens."""
    if not (ban or forbid or require):
        return Prompt(known)
    length = len(known)
    allowed = torch.ones(length, tokenizer.size, dtype=torch.bool)
    allowed[:, encode_prompt(tokenizer, ban, "ban")] = False
    for position, text in forbid.items():
        allowed[_place(position, length), encode_prompt(tokenizer, text, "forbid")] = False
    for position, text in require.items():
        wanted = torch.zeros(tokenizer.size, dtype=torch.bool)
        wanted[encode_prompt(tokenizer, text, "require")] = True
        allowed[_place(position, length)] &= wanted
    prompt = Prompt(known, allowed)
    stuck = (~prompt.choices(tokenizer.size).any(-1)).nonzero().flatten().tolist()
    if stuck:
        raise InputError(f"the conditions contradict each other: no token is left at position {stuck[0]}")
    return prompt


def _place(position: int, length: int) -> int:
    if not -length <= position < length:
        raise InputError(f"position {position} is outside a sequence of {length} tokens")
    return position % length


# -- constraints -----------------------------------------------------------------------------------

Classifier = Callable[[Tensor], Tensor]
"""A differentiable log-likelihood [batch] of a property, given probabilities [batch, positions, v]."""


@dataclass(frozen=True, eq=False)
class Constraints:
    """The constraints and truncations of one sampler."""

    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False
    """Decode the most likely token in the last step."""
    allowed: Bool[Tensor, "positions v"] | None = None
    language: Restriction | None = None
    classifier: Classifier | None = None
    classifier_scale: float = 1.0

    def apply(
        self,
        log_probs: Float[Tensor, "batch positions v"],
        fixed: Bool[Tensor, "batch positions"] | None = None,
        token: Int[Tensor, "batch positions"] | None = None,
    ) -> Float[Tensor, "batch positions v"]:
        """Return the log-probabilities of each position alone, one-hot where `fixed`, a mask on the CPU, is set."""
        result = log_probs
        if self.classifier is not None:
            result = result + self.classifier_scale * classifier_gradient(self.classifier, result)
        if self.allowed is not None:
            result = result.masked_fill(~self.allowed, -torch.inf)
        if result is not log_probs:
            result = torch.log_softmax(result, -1)
        if fixed is not None and token is not None:
            row, place = indices(fixed, result)
            result = result.clone() if result is log_probs else result
            result[row, place] = -torch.inf  # at the fixed positions alone: fewer passes over all tokens
            result[row, place, token[row, place]] = 0.0
        return result

    def marginals(self, log_probs: Float[Tensor, "batch positions v"]) -> Float[Tensor, "batch positions v"]:
        """Return the log-probabilities by which states move: marginals within the language, truncated."""
        if self.language is not None:
            log_probs = self.language.marginals(log_probs)
        return log_probs if self.top_k is None and self.top_p is None else self.truncate(log_probs)

    def truncate(self, log_probs: Float[Tensor, "... v"]) -> Float[Tensor, "... v"]:
        """Return log-probabilities of the `top_k` most likely tokens and of the fewest with total mass `top_p`."""
        if self.top_k is not None and self.top_k < log_probs.shape[-1]:
            least = log_probs.topk(self.top_k, dim=-1).values[..., -1:]
            log_probs = torch.log_softmax(log_probs.masked_fill(log_probs < least, -torch.inf), -1)
        if self.top_p is not None and self.top_p < 1:
            falling, order = log_probs.sort(dim=-1, descending=True)
            mass = falling.double().exp()
            # A token stays if those before it have not reached the mass; the first one always does.
            late = mass.cumsum(-1) - mass >= self.top_p
            log_probs = torch.log_softmax(log_probs.masked_fill(late.scatter(-1, order, late), -torch.inf), -1)
        return log_probs

    def rows(self, rows: Int[Tensor, " rows"]) -> Constraints:
        """Return the constraints of some rows of the batch."""
        if self.language is None:
            return self
        return replace(self, language=replace(self.language, entry=self.language.entry[rows]))

    def draw(
        self,
        log_probs: Float[Tensor, "batch positions v"],
        marginals: Float[Tensor, "batch positions v"],
        random: RandomStreams,
        wanted: Bool[Tensor, "batch columns"],
    ) -> Int[Tensor, "batch positions"]:
        """Return tokens at the requested positions, drawn from the marginals, or jointly from the language."""
        # One uniform number for every position, so that draws do not depend on the requested positions.
        point = random.uniform(log_probs.shape[:2], log_probs.device)
        if self.language is not None:
            return self.language.draw(log_probs, point, self.truncate)
        if bool(wanted.all()):
            return pick_token(marginals, point)
        drawn = torch.zeros(log_probs.shape[:2], dtype=torch.long, device=log_probs.device)
        if bool(wanted.any()):
            at = indices(wanted, log_probs)
            drawn[at] = pick_token(marginals[at], point[at])
        return drawn

    def decide(
        self, log_probs: Float[Tensor, "batch positions v"], marginals: Float[Tensor, "batch positions v"]
    ) -> Int[Tensor, "batch positions"]:
        """Return the most likely token per position; within a language, the most likely after those before it."""
        if self.language is None:
            return marginals.argmax(-1)
        point = torch.zeros(log_probs.shape[:2], dtype=torch.float64)
        return self.language.draw(log_probs, point, most_likely)


def most_likely(log_probs: Float[Tensor, "... v"]) -> Float[Tensor, "... v"]:
    """Return one-hot log-probabilities of the most likely token."""
    return torch.full_like(log_probs, -torch.inf).scatter_(-1, log_probs.argmax(-1, keepdim=True), 0.0)


def classifier_gradient(
    classifier: Classifier, log_probs: Float[Tensor, "batch positions v"]
) -> Float[Tensor, "batch positions v"]:
    """Return the gradient of a classifier with respect to the probabilities, which is added to their logarithms.

    Exact for a sum over positions: `p(k | x, y)` is in proportion to `p(k | x) p(y | k)`.
    """
    with torch.enable_grad():
        probability = log_probs.detach().exp().requires_grad_()
        score = classifier(probability)
        if score.shape != probability.shape[:1]:
            raise InputError(f"a classifier must return one number per sample, got the shape {list(score.shape)}")
        return torch.autograd.grad(score.sum(), probability)[0]


def valid_digits(
    codes: Automaton,
    digit: Int[Tensor, "batch positions"],
    decoding: Bool[Tensor, "batch positions"],
    log_probs: Float[Tensor, "batch positions b"],
    point: Float[Tensor, "batch positions"],
    choice: Choice,
    size: int,
) -> tuple[Int[Tensor, "batch positions"], int]:
    """Return digits whose decoded groups of `size` are codes of tokens, and the number of groups that were not.

    Such a group is drawn again, digit by digit among those that continue the code of some token. `choice`, such as a
    truncation, is applied afterwards, so that a token remains.
    """
    code = digit.unflatten(1, (-1, size)).flatten(0, 1).cpu()  # [batch, tokens * m] -> [batch * tokens, m]
    wrong = ~codes.accepting[codes.run(code)] & decoding[:, ::size].flatten().cpu()
    if not bool(wrong.any()):
        return digit, 0
    log_probs = log_probs.unflatten(1, (-1, size)).flatten(0, 1).cpu()[wrong]
    points = point.unflatten(1, (-1, size)).flatten(0, 1).cpu()[wrong]
    entry = torch.full((len(log_probs),), codes.start)
    code[wrong] = Restriction(codes, entry, codes.accepting).draw(log_probs, points, choice)
    return code.reshape(digit.shape).to(digit.device), int(wrong.sum())
