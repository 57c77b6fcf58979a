"""`rdlm certify`: check likelihood bounds against sources of known entropy."""

from __future__ import annotations

from dataclasses import dataclass
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from rdlm.display.text_table import say
from rdlm.errors import InputError

if TYPE_CHECKING:
    from rdlm.certify import Certificate
    from rdlm.likelihood.certificate import Case, Verdict


COLUMNS = ["source", "path", "bridge", "kernel", "clock", "steps"]
COLUMNS += ["entropy", "bound", "stderr", "slack_percent", "verdict"]

Law = Literal["normalisation", "relabelling", "steps", "sampler", "coverage"]


@dataclass(frozen=True)
class Certify:
    """Compare likelihood bounds, those of the package or your own, with the entropy of known sources.

    With --estimator, your function maps samples of a source and exact posteriors to nats per sequence;
    docs/guides/certify.md has examples. With --model, your network is trained on each source first. Both run in a
    separate process. The exit code is 1 if an estimate that is labelled a bound lies significantly below the entropy,
    or if your estimator violates a law.
    """

    estimator: str | None = None
    """Your estimator, module:function or file.py:function; importing it runs its code."""
    model: str | None = None
    """Your network: a function of vocabulary and length that returns a torch module with forward(ids, mask, t)."""
    sampler: str | None = None
    """Your sampler, a function of the oracle and a count; its frequencies are compared with the estimator's claims."""
    laws: tuple[Law, ...] = get_args(Law)
    """Laws that are checked beside the entropy, where they apply. Leave out relabelling if token ids have a meaning."""
    gallery: bool = False
    """Certify the estimators of the literature with two seeds, and print docs/estimators.md."""
    slack: bool = False
    """Measure the slack of the default sampler against network calls and length, with exact posteriors."""
    samples: int = 4000
    """Sequences of each source, for --estimator, --model and --gallery."""
    train_steps: int = 600
    """Training steps of --model on each source."""
    seconds: float = 120.0
    """Time limit of --estimator and --model for one check on one source."""
    steps: int = 400
    """Network calls M of the package's samplers."""
    paths: int = 600
    """Sampled paths per case of the package's samplers; four times as many halve the interval."""
    seed: int = 0
    """Random seed."""
    out: Path | None = None
    """Folder for certify.json, and for the report (report.html) or the plot (information.png); by default no files."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Run the requested certificate, report it, and return 0 if every bound holds, else 1."""
        if self.steps < 2 or self.paths < 2:
            raise InputError(f"certify needs at least 2 steps and 2 paths, got {self.steps} and {self.paths}")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise InputError(f"--out {self.out} is a file; give a folder")
        named = self.estimator or self.model
        if self.sampler and not named:
            raise InputError("--sampler is compared with an estimator: give --estimator or --model, too")
        if sum(map(bool, (named, self.gallery, self.slack))) > 1:
            raise InputError("give one of --estimator or --model, --gallery, and --slack")
        if named:
            return self._certify_named()
        if self.gallery:
            return self._certify_gallery()
        return self._measure_slack() if self.slack else self._certify_package()

    def _certify_named(self) -> int:
        from rdlm.certify import certify

        found = certify(
            self.estimator,
            model=self.model,
            sampler=self.sampler,
            laws=self.laws,
            samples=self.samples,
            seed=self.seed,
            train_steps=self.train_steps,
            seconds=self.seconds,
        )
        self._report(found.row(), str(found), {} if self.out is None else {"report.html": found.html()})
        return 0 if found.outcome == "held" else 1

    def _certify_gallery(self) -> int:
        import torch

        from rdlm.certify.certificate_page import certify_gallery, expected, gallery_page
        from rdlm.certify.checks import Plan
        from rdlm.certify.gallery import GALLERY
        from rdlm.display.progress import bar

        torch.set_num_threads(1)
        runs: dict[int, list[Certificate]] = {self.seed: [], self.seed + 1: []}
        with bar(2 * len(GALLERY), "certify", "estimator") as progress:
            for seed, run in runs.items():
                for certificate in certify_gallery(Plan(self.samples, seed)):
                    run.append(certificate)
                    progress.update()
        certificates = [(seed, certificate) for seed, run in runs.items() for certificate in run]
        page = gallery_page(runs)
        rows = [certificate.row() for _, certificate in certificates]
        self._report({"rows": rows}, page.removesuffix("\n"), {"estimators.md": page})
        wrong = [(seed, c) for seed, c in certificates if expected(c.estimator) != (c.outcome != "violated")]
        for seed, certificate in wrong:
            say(f"{certificate.estimator}, seed {seed}: {certificate.verdict}")
        return 1 if wrong else 0

    def _measure_slack(self) -> int:
        from rdlm.display.text_table import table
        from rdlm.likelihood.certificate import slack_cases

        rows = []
        for verdict in self._measured(list(slack_cases(self.steps))):
            row = verdict.row()
            percent = 100 * float(str(row["stderr"])) / float(str(row["entropy"]))
            rows.append(row | {"length": verdict.case.source.length, "stderr_percent": percent})
        columns = ("source", "length", "steps", "entropy", "bound", "slack_percent", "stderr_percent")
        self._report({"rows": rows, "paths": self.paths, "seed": self.seed, "unit": "nats"}, table(rows, columns))
        return 0 if all(row["ok"] for row in rows) else 1

    def _certify_package(self) -> int:
        from rdlm.display.text_table import table
        from rdlm.likelihood.certificate import cases, draw_information

        verdicts = self._measured(list(cases(self.steps)))
        rows = [verdict.row() for verdict in verdicts]
        text = table([row | {"verdict": _words(row)} for row in rows], COLUMNS) + (
            "\n\nPosteriors are exact (Bayes' rule on the evidence); nothing is trained. Nats per sequence."
            "\nA switch at the paper's time discards the information of the first path: samples remain correct,"
            "\nbut the bound is looser."
        )
        sizes = {"steps": self.steps, "paths": self.paths, "seed": self.seed, "unit": "nats"}
        self._report({"rows": rows, **sizes}, text)
        if self.out is not None:
            draw_information(verdicts, self.out / "information.png")
            say(f"wrote {self.out / 'information.png'}")
        failed = [row for row in rows if not row["ok"]]
        if failed:
            say(f"{len(failed)} of {len(rows)} bounds lie below the entropy")
        return 1 if failed else 0

    def _measured(self, cases: list[Case]) -> list[Verdict]:
        import torch

        from rdlm.display.progress import bar
        from rdlm.likelihood.certificate import measure

        torch.set_num_threads(1)  # many small operations, for which more threads are slower
        generator = torch.Generator().manual_seed(self.seed)
        verdicts = []
        with bar(len(cases), "certify", "case") as progress:
            for case in cases:
                progress.set_postfix_str(f"{case.source.name} {case.label}")
                # The spliced estimator has a larger variance than whole paths.
                verdicts.append(measure(case, self.paths * (10 if case.spliced else 1), generator))
                progress.update()
        return verdicts

    def _report(self, result: dict[str, object], text: str, files: dict[str, str] | None = None) -> None:
        """Print a result as JSON or text, and write it and further files into --out."""
        from rdlm.display.text_table import print_result
        from rdlm.storage.files import write_atomic

        if self.out is not None:
            for name, content in {"certify.json": json_text(result, indent=2) + "\n", **(files or {})}.items():
                write_atomic(self.out / name, content)
                say(f"wrote {self.out / name}")
        print_result(result, text, self.json)


def _words(row: dict[str, object]) -> str:
    if not row["claims_bound"]:
        below = isinstance(row["slack"], float) and row["slack"] < 0
        return "not a bound" + (": below the entropy" if below else "")
    return "holds" if row["ok"] else "BELOW THE ENTROPY"
