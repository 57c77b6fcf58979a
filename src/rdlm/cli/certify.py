"""`rdlm certify`: check likelihood bounds against sources of known entropy."""

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
    """Compare every bound of the package with the entropy of sources whose distribution is known.

    The exit code is 1 if an estimate that is labelled a bound lies significantly below the entropy.
    """

    steps: int = 400
    """Network calls M of the samplers."""
    paths: int = 600
    """Sampled paths per case; four times as many halve the interval."""
    seed: int = 0
    """Random seed."""
    out: Path | None = None
    """Folder for certify.json and the plot of information against time; None: nothing is written."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Measure all cases, report them, and return 0 if every bound holds, else 1."""
        if self.steps < 2 or self.paths < 2:
            raise InputError(f"certify needs at least 2 steps and 2 paths, got {self.steps} and {self.paths}")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise InputError(f"--out {self.out} is a file; give a folder")
        from rdlm.display.text_table import print_json, table

        verdicts = self._measure()
        rows = [verdict.row() for verdict in verdicts]
        if self.out is not None:
            self._write(verdicts, rows)
        if self.json:
            print_json({"rows": rows, "steps": self.steps, "paths": self.paths, "seed": self.seed, "unit": "nats"})
        else:
            print(table([row | {"verdict": _words(row)} for row in rows], COLUMNS))
            print(
                "\nPosteriors are exact (Bayes' rule on the evidence); nothing is trained. Nats per sequence."
                "\nA switch at the paper's time discards the information of the first path: samples remain correct,"
                "\nbut the bound is looser."
            )
        failed = [row for row in rows if not row["ok"]]
        if failed:
            print(f"rdlm: {len(failed)} of {len(rows)} bounds lie below the entropy", file=sys.stderr)
        return 1 if failed else 0

    def _measure(self) -> list[Verdict]:
        import torch

        from rdlm.display.progress import bar
        from rdlm.likelihood.certificate import cases, measure

        torch.set_num_threads(1)  # many small operations, for which more threads are slower
        generator = torch.Generator().manual_seed(self.seed)
        listed = list(cases(self.steps))
        verdicts = []
        with bar(len(listed), "certify", "case") as progress:
            for case in listed:
                progress.set_postfix_str(f"{case.source.name} {case.label}")
                # The spliced estimator has a larger variance than whole paths.
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
