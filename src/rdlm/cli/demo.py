"""`rdlm demo`: train a small model, measure its bound, and draw samples, in minutes."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from rdlm.cli.evaluate import Evaluate
from rdlm.cli.train import attempt
from rdlm.errors import InputError
from rdlm.presets import preset


@dataclass(frozen=True)
class Demo:
    """Train a small character model of English, measure its likelihood bound, and sample from it.

    After minutes on two cores the samples have words, but no meaning. The same command continues the training.
    """

    minutes: float = 4.0
    """Minutes of training."""
    nfe: int = 64
    """Network calls per sample, and of the sampler whose bound is measured."""
    out: Path = Path("runs/demo")
    """Folder of the run."""
    json: bool = False
    """Print the evaluation as one JSON object instead of text."""

    def run(self) -> int:
        """Train, evaluate, generate, plot, and return the exit code."""
        if not self.minutes > 0 or self.nfe < 1:
            raise InputError(f"--minutes and --nfe must be positive, got {self.minutes:g} and {self.nfe}")
        logging.basicConfig(format="rdlm: %(message)s")
        _say(f"training for {self.minutes:g} minutes in {self.out}")
        ended = attempt(preset("demo"), self.out, self.minutes)
        if isinstance(ended, int):
            return ended
        _say(f"trained {ended.steps} steps; measuring the bound of the sampler with {self.nfe} network calls")
        code = Evaluate(str(self.out), nfe=self.nfe, evaluations=1024, samples=16, json=self.json).run()
        self._sample()
        return code

    def _sample(self) -> None:
        import rdlm
        from rdlm.api.trace import draw

        made = rdlm.load(self.out).generate(num=3, steps=self.nfe, trace=True)
        assert made.trace is not None
        figure = self.out / "denoising.png"
        draw(made.trace.frames, figure)
        if not self.json:
            print("\nthree samples, not selected:")
            print("\n".join(f"  {sample.text}" for sample in made.samples))
        _say(f"see {figure}, {self.out / 'report.html'} and {self.out / 'evaluation-validation' / 'report.html'}")


def _say(message: str) -> None:
    print(f"rdlm: {message}", file=sys.stderr)
