"""`rdlm demo`: what this package does, on one screen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Demo:
    """Hold the likelihood bound against sources of known entropy, below which no true bound goes."""

    out: Path = Path("runs/certify")
    """Folder of the results."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Run the certificate and return its exit code."""
        from rdlm.command.certify import Certify

        return Certify(out=self.out, json=self.json).run()
