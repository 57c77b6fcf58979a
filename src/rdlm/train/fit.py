"""Fitting a configuration to the data and to the time of a run: what the user did not set is chosen here.

`fit_vocabulary` chooses total noise and codes by the number of tokens.
"""

from __future__ import annotations

from dataclasses import replace

from rdlm.config import PAPER_TOTAL_NOISE, RunConfig
from rdlm.methods.rdlm import total_noise

MOST_ONE_HOT = 1024
"""Tokens above which `process.codes auto` chooses learned codes: states of one coordinate per token cost too much."""

MOST_WEIGHTS = 1 << 21
"""Weights of an n-gram chain (states times tokens) unless its number of states is given."""


def fit_vocabulary(config: RunConfig, vocabulary: int) -> tuple[RunConfig, str]:
    """Return the configuration for so many tokens, and a sentence on what was chosen; "" where nothing differs."""
    chosen = config
    if config.process.codes == "auto":
        learned = config.method == "rdlm" and config.process.base is None and vocabulary > MOST_ONE_HOT
        chosen = _with_codes(config) if learned else _with_process(config, codes="onehot")
        chosen = _with_chain(chosen, vocabulary)
    chosen = _with_process(chosen, total=total_noise(chosen.process, vocabulary))
    said = []
    if chosen.method == "rdlm" and (codes := chosen.process.codes) != config.process.codes and codes == "learned":
        said.append(f"learned codes of {chosen.process.dimension} numbers")
    if chosen.method == "rdlm" and config.process.total is None and chosen.process.total != PAPER_TOTAL_NOISE:
        said.append(f"total noise {chosen.process.total:.2g}")
    if chosen.model.belief != config.model.belief:
        said.append("no n-gram chain")
    elif chosen.model.states != config.model.states:
        said.append(f"a chain of {chosen.model.states:,} states")
    return chosen, f"{vocabulary:,} tokens: {', '.join(said)}" if said else ""


def _with_process(config: RunConfig, **changes: object) -> RunConfig:
    return replace(config, process=replace(config.process, **changes))  # type: ignore[arg-type]


def _with_codes(config: RunConfig) -> RunConfig:
    """Return the configuration with learned codes, and with what they need: mean codes as features, no chain."""
    features = "mean" if config.denoiser.features == "evidence" else config.denoiser.features
    return replace(
        _with_process(config, codes="learned"),
        denoiser=replace(config.denoiser, features=features),
        model=replace(config.model, belief="none"),
    )


def _with_chain(config: RunConfig, vocabulary: int) -> RunConfig:
    """Return the configuration with a chain that fits the vocabulary, or without one where it has digits or codes."""
    model = config.model
    if model.belief != "ngram" or model.states is not None:
        return config
    most = MOST_WEIGHTS // vocabulary
    if vocabulary > MOST_ONE_HOT or (config.method == "rdlm" and config.process.base is not None):
        return replace(config, model=replace(model, belief="none"))
    return config if most >= model.chain_states else replace(config, model=replace(model, states=most))
