"""The argument of a certified estimator: samples of a source, and posteriors given noisy states of them.

Every state that diffusion models of tokens use is a set of observations that are independent given the tokens. It
enters the posterior through its evidence, the log-likelihood of every token at every position, Eq. (60):

| method | state | evidence of token `l` |
|---|---|---|
| `erased` | the token, or nothing | 0 or -inf where the token is shown, 0 where it is erased |
| `digits` | some digits of the token | 0 where `l` has the digits shown, else -inf |
| `corrupted` | the token with chance `keep`, else a uniform one | `log(keep [l = z] + (1 - keep) / V)` |
| `gaussian` | `scale c_l + std noise`, also of a one-hot flow | `(scale <x, c_l> - scale^2 |c_l|^2 / 2) / std^2` |
| `dirichlet` | a point of Dirichlet(1 + (a - 1) e_l) | `(a - 1) log x_l` |
| `sphere` | a point of the sphere's Brownian bridge | `log h(x, e_l)`, Eq. (25) |
| `posterior` | any other | your own; evidence of several observations adds up |

`Oracle` computes the posterior exactly, by enumeration of the source. `LearnedOracle` is a network trained on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rdlm.data.sources import Source
from rdlm.errors import InputError
from rdlm.process.path import log_evidence, masked_path
from rdlm.process.schedule import Geometric

IMPOSSIBLE = -1e30
"""Evidence that excludes a token; finite, so that sums over sequences are a matrix product."""


class Oracle:
    """Samples of a source, `tokens` [n, length], and exact posteriors of states.

    Arguments are tensors, arrays or numbers. Leading axes of states are free: `[..., length]` or `[..., length, d]`.
    Every posterior is `log p(token | all states)`, float64 [..., length, vocabulary].
    """

    def __init__(self, source: Source, tokens: Int[Tensor, "n length"], generator: torch.Generator) -> None:
        self.tokens = tokens
        """Sequences of the source, [n, length]."""
        self.generator = generator
        """The random numbers to use, so that a certificate can be repeated."""
        self._source = source
        self._sequences = nn.functional.one_hot(source.support, source.states).double().flatten(1)  # [s, length * v]
        self._log_prob = source.log_prob(source.support)

    @property
    def vocabulary(self) -> int:
        """The number of tokens V."""
        return self._source.states

    @property
    def length(self) -> int:
        """The number of positions."""
        return self._source.length

    def __len__(self) -> int:
        return len(self.tokens)

    def uniform(self, *shape: int) -> Float[Tensor, ...]:
        """Return uniform random numbers in [0, 1), float64."""
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def normal(self, *shape: int) -> Float[Tensor, ...]:
        """Return standard normal random numbers, float64."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def surprise(self, log_probs: Float[Tensor, "... length v"]) -> Float[Tensor, "... length"]:
        """Return `-log p` of the samples' own tokens."""
        own = self.tokens[..., None].expand(*log_probs.shape[:-1], 1)
        return -log_probs.gather(-1, own)[..., 0]

    # -- posteriors ----------------------------------------------------------------------------------------------------

    def posterior(self, evidence: Any) -> Float[Tensor, "... length v"]:
        """Return the posterior of states with this evidence, [..., length, vocabulary], by Eq. (60)."""
        evidence = _tensor(evidence).double()
        if evidence.shape[-2:] != (self.length, self.vocabulary):
            wanted = f"[..., {self.length}, {self.vocabulary}]"
            raise InputError(f"evidence is {wanted}: positions and tokens; got shape {list(evidence.shape)}")
        if bool(evidence.isnan().any()):
            raise InputError("the evidence has NaN entries")
        flat = evidence.clamp_min(IMPOSSIBLE).flatten(-2) @ self._sequences.T + self._log_prob  # [..., s]
        if bool((flat.amax(-1) < IMPOSSIBLE / 2).any()):
            raise InputError("no sequence of the source is possible given these states")
        weight = (torch.softmax(flat, dim=-1) @ self._sequences).clamp_max(1)
        weight = weight.unflatten(-1, (self.length, self.vocabulary))
        possible = weight > 0
        return torch.where(possible, torch.where(possible, weight, 1.0).log(), -math.inf)

    def erased(self, mask: Any, ids: Any = None) -> Float[Tensor, "... length v"]:
        """Return the posterior given the tokens where `mask` is False; `ids` are the samples by default."""
        mask = _tensor(mask).bool()
        return self.posterior(self.token_evidence(self.tokens if ids is None else ids, mask))

    def token_evidence(self, ids: Any, mask: Bool[Tensor, ...]) -> Float[Tensor, "... length v"]:
        """Return the evidence of tokens that are shown where `mask` is False."""
        shown = nn.functional.one_hot(_tensor(ids).long(), self.vocabulary).double()
        return torch.where(mask[..., None] | (shown > 0), 0.0, IMPOSSIBLE)

    def digits(self, mask: Any, base: int = 2) -> Float[Tensor, "... length v"]:
        """Return the posterior given the digits of the samples where `mask` [..., length, digits] is False."""
        code = self.digit_table(base)  # [v, m]
        differs = code[self.tokens][:, :, None] != code  # [n, length, v, m]
        excluded = (differs & ~_tensor(mask).bool()[..., None, :]).any(-1)
        return self.posterior(excluded.double() * IMPOSSIBLE)

    def digit_table(self, base: int = 2) -> Int[Tensor, "v m"]:
        """Return the digits of every token, most significant first, as many as the largest token needs."""
        count = next(m for m in range(1, 64) if base**m >= self.vocabulary)
        return torch.arange(self.vocabulary)[:, None] // base ** torch.arange(count - 1, -1, -1) % base

    def corrupted(self, ids: Any, keep: Any) -> Float[Tensor, "... length v"]:
        """Return the posterior given `ids`, each token kept with chance `keep` and else replaced by a uniform one."""
        shown = nn.functional.one_hot(_tensor(ids).long(), self.vocabulary).double()
        keep = _tensor(keep).double()
        keep = keep[..., None] if keep.dim() else keep
        return self.posterior((keep * shown + (1 - keep) / self.vocabulary).clamp_min(1e-300).log())

    def gaussian(self, x: Any, scale: Any, std: Any, codes: Any = None) -> Float[Tensor, "... length v"]:
        """Return the posterior given `x = scale * code + std * noise`; codes [v, d] are one-hot vectors by default."""
        x, scale, std = (_tensor(value).double() for value in (x, scale, std))
        code = torch.eye(self.vocabulary, dtype=torch.float64) if codes is None else _tensor(codes).double()
        return self.posterior((scale * (x @ code.T) - scale.square() * code.square().sum(-1) / 2) / std.square())

    def dirichlet(self, x: Any, a: Any) -> Float[Tensor, "... length v"]:
        """Return the posterior given points `x` of Dirichlet(1 + (a - 1) e_token)."""
        return self.posterior((_tensor(a).double() - 1) * _tensor(x).double().log())

    def sphere(self, state: Tensor, remaining: Tensor) -> Float[Tensor, "... length v"]:
        """Return the posterior given states of the masked path's Brownian bridge with remaining noise [..., length]."""
        path = masked_path(self.vocabulary, Geometric().total)
        return self.posterior(log_evidence(path, state.double(), remaining.double()))

    def left_to_right(self) -> Float[Tensor, "n length v"]:
        """Return `log p(token | tokens before it)` at every position of the samples."""
        later = torch.arange(self.length) >= torch.arange(self.length)[:, None]  # [length, length]
        each = self.erased(later[:, None].expand(-1, len(self), -1))  # [length, n, length, v]
        return each[torch.arange(self.length), :, torch.arange(self.length)].transpose(0, 1)


def _tensor(value: Any) -> Tensor:
    """Return tensors, arrays and numbers as tensors."""
    return value if isinstance(value, Tensor) else torch.as_tensor(value)


# -- a learned posterior -----------------------------------------------------------------------------------------------

Network = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`forward(ids, mask, t)`: ids [n, length] with 0 where `mask` [n, length] is True, the share `t` [n] of erased tokens
that was aimed at; returns logits [n, length, vocabulary]."""


class LearnedOracle(Oracle):
    """An oracle whose posteriors of erased tokens come from a network; other states raise InputError."""

    def __init__(self, network: Network, source: Source, tokens: Tensor, generator: torch.Generator) -> None:
        super().__init__(source, tokens, generator)
        self._network = network

    @torch.no_grad()
    def erased(self, mask: Any, ids: Any = None) -> Float[Tensor, "... length v"]:
        """Return the network's posterior given the tokens where `mask` is False."""
        mask = _tensor(mask).bool()
        ids = (self.tokens if ids is None else _tensor(ids)).expand(mask.shape)
        rows = mask.reshape(-1, self.length)
        log_probs = network_log_probs(self._network, ids.reshape(-1, self.length), rows, rows.double().mean(-1))
        log_probs = torch.log_softmax(log_probs.double(), dim=-1).view(*mask.shape, self.vocabulary)
        shown = self.token_evidence(ids, torch.zeros_like(mask))
        return torch.where(mask[..., None], log_probs, shown.clamp_max(0))

    def posterior(self, evidence: Any) -> Float[Tensor, "... length v"]:
        """Raise InputError: the network has learned erasures only."""
        raise InputError("a network with forward(ids, mask, t) has posteriors of erased tokens only: use oracle.erased")


def network_log_probs(network: Network, ids: Tensor, mask: Tensor, t: Tensor) -> Float[Tensor, "n length v"]:
    """Return the logits of a network without the erased tokens in its input; InputError for a wrong shape."""
    logits = network(torch.where(mask, 0, ids), mask, t.float())
    if not isinstance(logits, Tensor) or logits.shape[:-1] != ids.shape:
        found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"forward(ids, mask, t) returns logits [n, length, vocabulary]; for {list(ids.shape)}: {found}"
        )
    return logits


def train_network(
    network: nn.Module, source: Source, steps: int = 600, lr: float = 3e-3, batch: int = 128, seed: int = 0
) -> float:
    """Train `forward(ids, mask, t)` on a source with the masked-diffusion objective; return the last tenth's mean loss.

    The share of erased tokens is uniform and the weight of a sequence is 1 / its erased tokens, so all counts of erased
    tokens have equal weight, Eq. (47). Adam, with a learning rate that falls to zero.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError("the network has no parameters to train")
    optimizer = torch.optim.Adam(parameters, lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    losses = []
    for _ in range(steps):
        ids, t = source.draw(batch, generator), torch.rand(batch, generator=generator)
        mask = torch.rand(ids.shape, generator=generator) < t[:, None]
        mask[torch.arange(batch), torch.randint(source.length, (batch,), generator=generator)] = True
        logits = network_log_probs(network, ids, mask, mask.double().mean(-1))
        nll = nn.functional.cross_entropy(logits.transpose(1, 2).float(), ids, reduction="none")
        loss = ((nll * mask).sum(-1) / mask.sum(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    last = float(torch.stack(losses[-max(1, steps // 10) :]).mean())
    if not math.isfinite(last):
        raise InputError(f"training on {source.name} diverged: the loss is {last}; try a smaller learning rate")
    return last
