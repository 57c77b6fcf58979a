"""`rdlm evaluate`: what a run's model is worth, with intervals and named conventions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rdlm.display.tables import print_json, table
from rdlm.errors import InputError

if TYPE_CHECKING:
    from rdlm.api.language_model import LanguageModel
    from rdlm.evaluate.evaluate import Evaluation, Plan
    from rdlm.process.order import TokenSchedule


Calls = int | Literal["inf"]


@dataclass(frozen=True)
class Evaluate:
    """Measure a model: its likelihood bound on held-out sequences, and what its samples are like.

    The bound is that of the sampler that takes so many network calls. It is estimated from single random steps of
    many sequences (`--estimator steps`), which needs fewer network calls for the same interval than whole paths do
    from about 20 calls on. Runs of other methods have an estimator of their own; that of flow is not a bound. Writes
    evaluation.json and report.html, and leaves the measured information curve, curve.json, beside the checkpoint for
    the sampler.
    """

    model: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """Folder of a run, checkpoint or a published model, or user/name on the hub; if not given, the model in the box."""
    split: Literal["validation", "test"] = "validation"
    """Held-out split; the test split is for final numbers alone."""
    nfe: Annotated[Calls | None, tyro.conf.arg(aliases=["--steps"])] = None
    """Network calls M of the sampler that is bounded; inf is the limit of continuous time. If not given, the model's
    own number: 64, or one for each chunk."""
    curve_nfe: str | None = None
    """Also measure the bound at these numbers of calls, such as 4,8,16,inf."""
    kernel: Literal["mixture", "drift"] = "mixture"
    """Step of the model: a token's bridge, or the mean of all bridges as in the paper."""
    window: float | None = None
    """Part of the time in which one position runs through its bridge; 1: synchronous. The run's own if not given."""
    order: Literal["random", "strided", "left_to_right"] | None = None
    """Order in which windows begin. The run's own if not given."""
    block: int | None = None
    """Tokens of a chunk, where chunks run one after the other; 0: none. The run's own if not given, unless a window
    or an order is."""
    estimator: Literal["steps", "path"] = "steps"
    """Single steps of many sequences, or whole paths of few."""
    states: Literal["exact", "simulated"] = "exact"
    """States of single steps: drawn from their law, or walked step by step in all dimensions, which is slow."""
    sequences: int = 512
    """Sequences of the split; all of them where it has fewer."""
    evaluations: int = 1024
    """Sequences that go through the network for each bound; four times as many halve the interval."""
    samples: int = 16
    """Sequences to generate and describe; 0 for none."""
    scorer: str | None = None
    """Judge of the samples: folder or hub name of a causal model of transformers, or an autoregressive run."""
    paper: bool = False
    """Also compute the paper's estimator, which is not a bound."""
    seed: int = 0
    """Seed of the choice of sequences and of all noise."""
    out: Path | None = None
    """Folder of evaluation.json and report.html; RUN/evaluation-SPLIT if not given.
    A published model, which stays as it is, has runs/published-NAME/evaluation-SPLIT instead."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Evaluate, write, print, and return 0; what goes wrong is raised."""
        from rdlm.process.order import TokenSchedule

        self._plan(TokenSchedule(), 1)  # what is wrong with the options is said before the model is read
        import torch

        import rdlm
        from rdlm.evaluate.evaluate import evaluate, to_json
        from rdlm.evaluate.samples import scorer_of
        from rdlm.storage.measurements import fingerprint
        from rdlm.train.run import load_corpus

        model = rdlm.load(self.model)
        plan = self._plan(model.method.token_schedule or TokenSchedule(), model.nfe)
        scorer = None if self.scorer is None else scorer_of(self.scorer)
        corpus = load_corpus(model.config)
        with torch.no_grad(), _Bars() as bars:
            found = evaluate(model, corpus, plan, scorer, bars.begin)
        weights = fingerprint(model.method.network)
        result = {"run": model.name, "protocol": corpus.protocol, "weights": weights, **to_json(found)}
        self._write(model, found, result)
        if self.json:
            print_json(result)
        else:
            _show(found)
        return 0

    def _plan(self, own: TokenSchedule, own_nfe: int) -> Plan:
        from rdlm.evaluate.evaluate import Plan
        from rdlm.methods.bound import Setting
        from rdlm.process.order import TokenSchedule

        named = self.window is not None or self.order is not None
        block = self.block if self.block is not None else 0 if named else own.block
        window = TokenSchedule(own.width if self.window is None else self.window, self.order or own.order, block)
        nfe = None if self.nfe == "inf" else own_nfe if self.nfe is None else self.nfe
        setting = Setting(
            nfe,
            self.kernel,
            None if window == TokenSchedule(1, window.order) else window,
            self.estimator,
            self.states,
        )
        curve = parse_nfe(self.curve_nfe) if self.curve_nfe is not None else ()
        return Plan(
            setting,
            self.split,
            self.sequences,
            self.evaluations,
            self.samples,
            tuple(c for c in curve if c != nfe),
            self.paper,
            self.seed,
        )

    def _write(self, model: LanguageModel, found: Evaluation, result: dict[str, object]) -> None:
        from rdlm.api import publish as publication
        from rdlm.evaluate.evaluate import curve_to_json
        from rdlm.evaluate.page import page
        from rdlm.storage.files import write_atomic

        folder = model.folder
        assert folder is not None  # `rdlm.load` always says where the checkpoint is
        published = publication.is_published(
            folder
        )  # its files are as they were published, perhaps nobody may write there
        home = Path("runs") / f"published-{Path(model.name).name}" if published else folder.parent
        out = self.out or home / f"evaluation-{self.split}"
        write_atomic(out / "evaluation.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
        write_atomic(out / "report.html", page(model, found))
        written = [out / "evaluation.json", out / "report.html"]
        # The test split must not steer the sampler.
        curve = curve_to_json(found) if self.split == "validation" and not published else None
        if curve is not None:
            write_atomic(folder / "curve.json", json.dumps(curve) + "\n")
            written.append(folder / "curve.json")
        print(f"rdlm: wrote {', '.join(map(str, written))}", file=sys.stderr)


def parse_nfe(text: str) -> tuple[int | None, ...]:
    """Return the numbers of calls in `4,8,inf`; None for inf."""
    found: list[int | None] = []
    for word in text.split(","):
        if word.strip() == "inf":
            found.append(None)
        elif word.strip().isdigit() and int(word) > 0:
            found.append(int(word))
        else:
            raise InputError(f"--curve-calls takes numbers of calls such as 4,8,16,inf, got {word!r}")
    return tuple(found)


class _Bars:
    """One progress bar after the other."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def begin(self, name: str, total: int) -> Callable[[int], object]:
        """Close the bar of the stage before and open the next."""
        from rdlm.display.progress import bar

        self._open.close()
        return self._open.enter_context(bar(total, name, "sequence")).update

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *reason: object) -> None:
        self._open.close()


def _show(found: Evaluation) -> None:
    rows = [{"metric": name, **value.to_json()} for name, value in found.metrics.items()]
    print(table(rows, ("metric", "value", "low", "high", "unit", "convention")))
    if len(found.rows) > 1:
        print()
        print(table(found.rows, ("calls", "value", "low", "high", "unit")))
