"""`rdlm demo`: from nothing to a trained model, its bound, its samples and a picture, in minutes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Demo:
    """Train a small model of English letters, measure its likelihood bound, sample from it, and look at it.

    Minutes on two cores teach letter statistics and some words, not prose. Run again, it goes on training.
    """

    minutes: float = 4.0
    """Minutes of training."""
    calls: int = 64
    """Network calls per sample and of the chain whose bound is measured."""
    out: Path = Path("runs/demo")
    """Folder of the run."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        """Train, measure, generate, draw, and return the exit code."""
        from rdlm.command.train import Train
        from rdlm.presets import preset

        code = Train("demo", preset("demo"), out=self.out, minutes=self.minutes, quiet=True).run()
        if code:
            return code
        from rdlm.demonstration import demonstrate
        from rdlm.report import print_json

        shown = demonstrate(self.out, self.calls)
        if self.json:
            print_json(shown.to_json())
        else:
            print(shown.text())
        print(f"rdlm: the report is {self.out / 'report.html'}, the picture {self.out / 'denoising.png'}", file=sys.stderr)
        return 0
