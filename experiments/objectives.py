"""The paper's comparison of training objectives: drift error, cross-entropy, cross-entropy with importance sampling.

Small scale: a network of 0.2M parameters on sequences of 64 characters of speeches, in the paper's setting (logarithm
bridge, plain coordinates, no evidence), about two minutes each on two cores. Paper scale: its text8 network and a
million steps each, which needs a cluster.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiments.trial import Budget, plot_trials, trial
from rdlm.config import (
    DataConfig,
    DenoiserConfig,
    ObjectiveConfig,
    ProcessConfig,
    RunConfig,
    TrainingConfig,
    TransformerConfig,
)
from rdlm.presets import preset


def variants(importance: ObjectiveConfig) -> dict[str, ObjectiveConfig]:
    """Return the three objectives: the given one, and two with uniform times."""
    plain = replace(importance, proposal="uniform")
    return {
        "drift error": replace(plain, loss="drift_error"),
        "cross-entropy": plain,
        "cross-entropy, importance": importance,
    }


def small() -> RunConfig:
    """Return the configuration of the small scale."""
    return RunConfig(
        data=DataConfig(name="demo", length=64),
        process=ProcessConfig(bridge="logarithm", levels=128, pairs=8192),
        denoiser=DenoiserConfig(features="coordinates", evidence=False),
        model=TransformerConfig(width=64, layers=2, heads=4),
        objective=ObjectiveConfig(proposal="interval", interval=(0.3, 0.6)),
        training=TrainingConfig(
            steps=800, batch=32, lr=2e-3, warmup=50, decay="cosine", ema=0.98, save_every=800, validate_every=400
        ),
    )


def run(out: Path, paper_scale: bool = False, steps: int | None = None, seed: int = 0) -> list[dict[str, object]]:
    """Return a row for each objective, and plot them; `steps` overrides the training steps."""
    base = preset("text8-paper") if paper_scale else small()
    training = replace(base.training, seed=seed, steps=steps or base.training.steps)
    budget = Budget(256, 512, 4096) if paper_scale else Budget()
    rows = []
    for name, objective in variants(base.objective).items():
        config = replace(base, objective=objective, training=training)
        rows.append(trial(name, config, out / name.replace(", ", "-").replace(" ", "-"), budget))
    plot_trials(rows, "Training objectives", out / "objectives.png")
    return rows
