"""`rdlm certify`: hold likelihood bounds against sources of known entropy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rdlm.errors import InputError

if TYPE_CHECKING:
    from rdlm.likelihood.certificate import Verdict


COLUMNS = (
    "source",
    "path",
    "bridge",
    "kernel",
    "clock",
    "steps",
    "entropy",
    "bound",
    "stderr",
    "slack_percent",
    "verdict",
)


@dataclass(frozen=True)
class Certify:
    """Compare every bound of the package with the entropy of sources that are known exactly.

    Exits with 1 if a number that claims to be a bound lies below its floor by more than chance allows.
    """

    steps: int = 400
    """Network calls M of the chains."""
    paths: int = 600
    """Sampled paths per case; the interval shrinks with their square root."""
    seed: int = 0
    """Seed of all random draws."""
    out: Path | None = None
    """Folder for certify.json and the picture of information against time; nothing is written without it."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Measure all cases, report them, and return 0 only if every floor held."""
        if self.steps < 2 or self.paths < 2:
            raise InputError(f"certify needs at least 2 steps and 2 paths, got {self.steps} and {self.paths}")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise InputError(f"--out {self.out} is a file, a folder is needed")
        from rdlm.display.tables import print_json, table

        verdicts = self._measure()
        rows = [verdict.row() for verdict in verdicts]
        if self.out is not None:
            self._write(verdicts, rows)
        if self.json:
            print_json({"rows": rows, "steps": self.steps, "paths": self.paths, "seed": self.seed, "unit": "nats"})
        else:
            print(table([row | {"verdict": _words(row)} for row in rows], COLUMNS))
            print(
                "\nPosteriors are Bayes' rule on the evidence; nothing is trained. Nats per sequence. A switch at the"
                "\npaper's time forgets what the first path knew: samples stay right, the bound pays for it."
            )
        failed = [row for row in rows if not row["ok"]]
        if failed:
            print(f"rdlm: {len(failed)} of {len(rows)} bounds lie below their entropy", file=sys.stderr)
        return 1 if failed else 0

    def _measure(self) -> list[Verdict]:
        import torch

        from rdlm.display.progress import bar
        from rdlm.likelihood.certificate import cases, measure

        torch.set_num_threads(1)  # many tiny operations: more threads only wait for each other
        generator = torch.Generator().manual_seed(self.seed)
        listed = list(cases(self.steps))
        verdicts = []
        with bar(len(listed), "certify", "case") as progress:
            for case in listed:
                progress.set_postfix_str(f"{case.source.name} {case.label}")
                # The spliced estimator lacks the terms that make whole paths vary so little.
                verdicts.append(measure(case, self.paths * (10 if case.spliced else 1), generator))
                progress.update()
        return verdicts

    def _write(self, verdicts: list[Verdict], rows: list[dict[str, object]]) -> None:
        import json

        from rdlm.likelihood.certificate import draw_information
        from rdlm.storage.files import write_atomic

        assert self.out is not None
        write_atomic(self.out / "certify.json", json.dumps({"rows": rows, "seed": self.seed}, indent=2) + "\n")
        draw_information(verdicts, self.out / "information.png")
        print(f"rdlm: wrote {self.out / 'certify.json'} and {self.out / 'information.png'}", file=sys.stderr)


def _words(row: dict[str, object]) -> str:
    if not row["claims_bound"]:
        below = isinstance(row["slack"], float) and row["slack"] < 0
        return "not a bound" + (": below the entropy" if below else "")
    return "holds" if row["ok"] else "BELOW THE ENTROPY"
