"""The paper's comparison of dimension splitting: one sphere for a large vocabulary, with and without its top
coordinates marked, and tokens split into digits.

Small scale: WikiText-2 with 2,048 byte pairs, sequences of 32 tokens and networks below a million parameters, one to
three minutes each on two cores. Paper scale: the LM1B networks on WikiText-2's word pieces (V = 30522), with serial
digits and one softmax per digit, as in the paper; its corpus, LM1B, is only available from its authors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiments.trial import Budget, plot_trials, trial
from rdlm.config import DataConfig, DenoiserConfig, ProcessConfig, RunConfig, TrainingConfig, TransformerConfig
from rdlm.presets import preset

PLAIN = DenoiserConfig(features="coordinates", evidence=False, head="token")


def variants(base: int, split: DenoiserConfig = PLAIN) -> dict[str, tuple[int | None, DenoiserConfig]]:
    """Return digit base and denoiser of each variant."""
    return {
        "one sphere": (None, PLAIN),
        "one sphere, top 8": (None, replace(PLAIN, features="top", top=8)),
        f"split, base {base}": (base, split),
    }


def small() -> RunConfig:
    """Return the configuration of the small scale."""
    return RunConfig(
        data=DataConfig(name="wikitext-2", length=32, tokenizer="bpe", vocabulary=2048),
        process=ProcessConfig(bridge="logarithm", levels=128, pairs=4096),
        model=TransformerConfig(width=64, layers=2, heads=4),
        training=TrainingConfig(
            steps=1200,
            batch=16,
            lr=2e-3,
            warmup=50,
            decay="cosine",
            ema=0.98,
            save_every=1200,
            validate_every=1200,
            validation_sequences=32,
            validation_nfe=32,
        ),
    )


def large() -> RunConfig:
    """Return the configuration of the paper's scale: its LM1B network on WikiText-2."""
    return replace(preset("lm1b-paper"), data=DataConfig(name="wikitext-2", length=128))


def run(out: Path, paper_scale: bool = False, steps: int | None = None, seed: int = 0) -> list[dict[str, object]]:
    """Return a row for each variant, and plot them; `steps` overrides the training steps."""
    base = large() if paper_scale else small()
    training = replace(base.training, seed=seed, steps=steps or base.training.steps)
    budget = Budget(256, 512, 4096) if paper_scale else Budget(32, 128, 256)
    wanted = variants(3, base.denoiser) if paper_scale else variants(46)
    rows = []
    for number, (name, (digits, denoiser)) in enumerate(wanted.items()):
        process = replace(base.process, base=digits)
        config = replace(base, process=process, denoiser=denoiser, training=training)
        rows.append(trial(name, config, out / f"variant-{number}", budget))
    plot_trials(rows, "Dimension splitting", out / "splitting.png")
    return rows
