"""Journeys: the samples of a plan that share a path, walked window after window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from rdlm.likelihood import Posterior
from rdlm.model.transformer import Cache, Transformer
from rdlm.process.path import Path
from rdlm.random import Noise
from rdlm.sampling.automaton import Restriction
from rdlm.sampling.constraints import Rules
from rdlm.sampling.course import Outcome
from rdlm.sampling.prompt import OPEN, Stretch
from rdlm.sampling.solvers import solver_of
from rdlm.sampling.walk import Callback, Walker

if TYPE_CHECKING:
    from rdlm.api.plan import Plan


class Journey:
    """Samples on one path: what is written so far, and the walk of the window that comes next."""

    def __init__(self, plan: Plan, path: Path, noise: Noise) -> None:
        request, method = plan.request, plan.model.rdlm
        self.plan, self.path, self.noise = plan, path, noise
        self.solver = solver_of(request.solver)
        kernel = self.solver.bound or "mixture"
        length = min(plan.template.length, plan.model.length)
        self.chain = method.chain(path, plan.steps, kernel, request.clock(), plan.grid, length)
        self.block_mask = method.block_mask(self.chain)
        self.law = method.chain_law(self.chain) if self.chain.switch >= 0 else None
        self.token: Int[Tensor, "batch length"] = plan.template.known.repeat(noise.batch, 1)
        self.invalid, self.nfe = 0, torch.zeros(noise.batch, dtype=torch.long)
        self._left = list(plan.windows)

    @property
    def window(self) -> Stretch | None:
        """Return the window that comes next; none at the end."""
        return self._left[0] if self._left else None

    def walker(self, stretch: Stretch, posterior: Posterior, callback: Callback | None = None) -> Walker:
        """Return what walks a window."""
        return Walker(
            posterior,
            self.chain,
            self.solver,
            self.plan.model.rdlm.process.schedule,
            self._rules(stretch),
            self.law,
            self.plan.request.clean,
            self.plan.codes,
            callback,
            self.plan.device,
            self._remember(),
            self.plan.model.config.model.self_condition,
        )

    def _remember(self) -> Callable[[], Cache] | None:
        """Return what makes room for finished chunks; none where a model is asked about more than the one that runs."""
        request, network = self.plan.request, self.plan.model.rdlm.network
        # A wish and a regex look at tokens ahead, a guided model answers twice, and a last prediction is not recalled.
        ahead = request.wish is not None or request.regex is not None
        twice = request.guidance != 1 or self.plan.model.config.model.self_condition
        signal = self.plan.condition is not None and self.plan.condition.is_floating_point()
        if self.block_mask is None or ahead or twice or signal or not isinstance(network, Transformer):
            return None
        return network.cache

    def known(self, stretch: Stretch) -> Int[Tensor, "batch positions"]:
        """Return the symbols of a window that are known, `OPEN` where they are not."""
        method = self.plan.model.rdlm
        known = self.token[:, stretch.begin : stretch.end]
        open_too = (known == OPEN).repeat_interleave(method.symbols_per_token, dim=1)
        return method.symbols(known.clamp_min(0)).masked_fill(open_too, OPEN)

    def settle(self, stretch: Stretch, walked: Outcome) -> None:
        """Write down what a window's walk ended in, and turn to the next one."""
        self.token[:, stretch.begin : stretch.end] = self.plan.model.rdlm.spell(walked.token.cpu())
        self.invalid += walked.invalid
        self.nfe += walked.nfe
        del self._left[0]

    def run(self, posterior: Callable[[int, Stretch], Posterior], callback: Callback) -> None:
        """Walk all windows, each with the model that `posterior` returns for so many samples in it."""
        while (stretch := self.window) is not None:
            walker = self.walker(stretch, posterior(self.noise.batch, stretch), callback)
            self.settle(stretch, walker.run(self.known(stretch), self.noise))

    def _rules(self, stretch: Stretch) -> Rules:
        """Return the rules in one window; the language is entered after what is written, and left able to end."""
        plan = self.plan
        rules, allowed, automaton = plan.request.rules(), plan.template.allowed, plan.automaton
        if allowed is not None:
            rules = replace(rules, allowed=allowed[stretch.begin : stretch.end].to(plan.device))
        if automaton is None:
            return rules
        rest = plan.template.choices(plan.model.tokenizer.size)[stretch.end :]
        entry = automaton.run(self.token[:, : stretch.begin])
        return replace(rules, language=Restriction(automaton, entry, automaton.alive(rest)))
