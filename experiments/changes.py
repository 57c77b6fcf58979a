"""Ablations: one change at a time to a small model, each trained and measured in the same way.

There are two base models: one whose tokens all share one time, which shows the effect of the process itself, and one
whose tokens move in narrow windows, as in the presets. Small scale: 0.5M parameters on sequences of 64 characters of
speeches, a minute or two per change on one core. Paper scale: its text8 network, which needs a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.trial import Budget, plot_trials, trial
from rdlm.config import DataConfig, ObjectiveConfig, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.errors import InputError
from rdlm.presets import preset

Change = Mapping[str, Mapping[str, Any]]
"""New values of a configuration's keys, by section."""

PLAIN = {"features": "tokens", "evidence": False}

SYNCHRONOUS: dict[str, Change] = {
    "as it is": {},
    "evidence: in alone": {"denoiser": {"evidence": False}},
    "evidence: out alone": {"denoiser": {"features": "tokens"}},
    "evidence: none": {"denoiser": PLAIN},
    "bridge: logarithm, no evidence": {"process": {"bridge": "logarithm"}, "denoiser": PLAIN},
    "law: normal, no evidence": {"process": {"bridge": "logarithm", "law": "normal"}, "denoiser": PLAIN},
    "features: coordinates": {"denoiser": {"features": "coordinates"}},
    "features: top 8": {"denoiser": {"features": "top"}},
    "noise: half": {"process": {"total": 0.0188}},
    "noise: one and a half": {"process": {"total": 0.0563}},
    "schedule: cosine": {"process": {"schedule": "cosine"}},
    "start: centre": {"process": {"path": "uniform"}},
    "start: either": {"process": {"path": "constant"}},
    "start: switch": {"process": {"path": "switch"}},
    "objective: drift error": {"objective": {"loss": "drift_error"}},
    "times: the paper's interval": {"objective": {"proposal": "interval"}},
    "times: adaptive": {"objective": {"proposal": "adaptive"}},
    "times: independent": {"objective": {"low_discrepancy": False}},
    "self-conditioning": {"model": {"self_condition": True}},
    "time embedding: scale 1": {"model": {"time_scale": 1.0}},
    "time embedding: scale 1000": {"model": {"time_scale": 1000.0}},
    "tied matrices": {"model": {"tie": True}},
    "optimizer: muon": {"training": {"optimizer": "muon"}},
}
"""Changes to the model with one time for all tokens."""

WINDOWS: dict[str, Change] = {
    "windows: 90% narrow": {},
    "windows: 50% narrow": {"objective": {"narrow": 0.5}},
    "windows: all narrow": {"objective": {"narrow": 1.0}},
    "windows: width 0.25": {"process": {"window": 0.25}, "objective": {"narrow": 0.0}},
    "windows: random order": {"process": {"order": "random"}},
    "windows: a tenth after a prefix": {"objective": {"prefix": 0.1}},
    "windows: 90% narrow, optimizer: muon": {"training": {"optimizer": "muon"}},
    "windows: left to right": {"process": {"order": "left_to_right"}, "objective": {"order": "left_to_right"}},
}
"""Changes to the model with windows."""


def small() -> RunConfig:
    """Return the base model of the small scale."""
    return RunConfig(
        data=DataConfig(name="demo", length=64),
        process=ProcessConfig(levels=128, pairs=8192),
        model=TransformerConfig(width=96, layers=4, heads=4, time_scale=10.0),
        training=TrainingConfig(
            steps=1000,
            batch=16,
            lr=2e-3,
            warmup=100,
            decay="cosine",
            ema=0.99,
            save_every=1000,
            validate_every=1000,
            validation_sequences=64,
            validation_nfe=64,
        ),
    )


def changed(config: RunConfig, change: Change) -> RunConfig:
    """Return the configuration with a change applied."""
    return replace(config, **{name: replace(getattr(config, name), **keys) for name, keys in change.items()})


def variants(base: RunConfig) -> dict[str, RunConfig]:
    """Return all configurations by the name of their change."""
    one_by_one = ObjectiveConfig(asynchronous=1.0, narrow=0.9, order="random")
    windowed = replace(base, process=replace(base.process, window=1e-3), objective=one_by_one)
    synchronous = {name: changed(base, change) for name, change in SYNCHRONOUS.items()}
    return synchronous | {name: changed(windowed, change) for name, change in WINDOWS.items()}


def chosen(names: Iterable[str], only: Sequence[str]) -> list[str]:
    """Return the names that begin with one of `only`, or all names if it is empty; an unused beginning is an error."""
    names = list(names)
    for start in only:
        if not any(name.startswith(start) for name in names):
            raise InputError(f"no change begins with {start!r}; there are: {'; '.join(names)}")
    return [name for name in names if not only or name.startswith(tuple(only))]


def run(
    out: Path, paper_scale: bool = False, steps: int | None = None, seed: int = 0, only: Sequence[str] = ()
) -> list[dict[str, object]]:
    """Return a row for each change in `only`, or for all, and plot them; `steps` overrides the training steps."""
    paper = preset("text8-paper")
    base = replace(small(), data=paper.data, model=paper.model, training=paper.training) if paper_scale else small()
    base = replace(base, training=replace(base.training, seed=seed, steps=steps or base.training.steps))
    budget = Budget(256, 512, 4096) if paper_scale else Budget(64, 512, 1024)
    rows, configs = [], variants(base)
    for name in chosen(configs, only):
        folder = name.replace(": ", "-").replace(", ", "-").replace("'", "").replace(" ", "-").replace("%", "")
        rows.append(trial(name, configs[name], out / folder, budget))
    plot_trials(rows, "One change at a time", out / "changes.png")
    return rows
