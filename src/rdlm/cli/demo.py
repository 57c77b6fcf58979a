"""`rdlm demo`: from nothing to a trained model, its bound, its samples and a picture, in minutes."""

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
    """Train a small model of English letters, measure its likelihood bound, sample from it, and look at it.

    Minutes on two cores teach words, not sense. Run again, it goes on training.
    """

    minutes: float = 4.0
    """Minutes of training."""
    nfe: int = 64
    """Network calls per sample, and of the chain whose bound is measured."""
    out: Path = Path("runs/demo")
    """Folder of the run."""
    json: bool = False
    """Print the evaluation as one JSON object instead of text."""

    def run(self) -> int:
        """Train, measure, generate, draw, and return the exit code."""
        if not self.minutes > 0 or self.nfe < 1:
            raise InputError(f"--minutes and --calls must be positive, got {self.minutes:g} and {self.nfe}")
        logging.basicConfig(format="rdlm: %(message)s")
        _say(f"training for {self.minutes:g} minutes in {self.out}")
        ended = attempt(preset("demo"), self.out, self.minutes)
        if isinstance(ended, int):
            return ended
        _say(f"trained {ended.steps} steps; measuring the bound of the {self.nfe}-call sampler")
        code = Evaluate(str(self.out), nfe=self.nfe, evaluations=1024, samples=16, json=self.json).run()
        self._look()
        return code

    def _look(self) -> None:
        import rdlm
        from rdlm.api.trace import draw

        made = rdlm.load(self.out).generate(num=3, steps=self.nfe, trace=True)
        assert made.trace is not None
        picture = self.out / "denoising.png"
        draw(made.trace.frames, picture)
        if not self.json:
            print("\nthree samples, uncurated:")
            print("\n".join(f"  {sample.text}" for sample in made.samples))
        _say(f"look at {picture}, {self.out / 'report.html'} and {self.out / 'evaluation-validation' / 'report.html'}")


def _say(message: str) -> None:
    print(f"rdlm: {message}", file=sys.stderr)
