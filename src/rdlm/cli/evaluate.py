"""`rdlm evaluate`: the likelihood bound and the sample quality of a model, with intervals and conventions."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rdlm.cli import ModelOptions
from rdlm.config import OrderChoice
from rdlm.display.text_table import print_result, say, table
from rdlm.errors import InputError

if TYPE_CHECKING:
    from rdlm.api.language_model import LanguageModel
    from rdlm.evaluate.evaluate import Evaluation, EvaluationPlan
    from rdlm.process.order import TokenSchedule


@dataclass(frozen=True)
class Evaluate(ModelOptions):
    """Measure a model: its likelihood bound on held-out sequences, and the quality of its samples.

    The bound is that of the sampler with --nfe network calls. It is estimated from single random steps of many
    sequences (`--estimator steps`); from about 20 calls on, this needs fewer network calls for the same interval than
    whole paths do. The baselines have their own estimators; that of fisher_flow is not a bound. Writes evaluation.json
    and report.html, and writes the measured information curve, curve.json, into the checkpoint for the sampler. The
    option --orders measures the bounds of all orders of generation.
    """

    model: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """A packaged model (text8, the default), the folder of a run, a checkpoint or a published model, or user/name on
    the hub."""
    file: Path | None = None
    """Your file or folder, for corpora that need one; by default that of the run (a published model has none)."""
    split: Literal["validation", "test"] = "validation"
    """Held-out split; use the test split for final numbers only."""
    nfe: Annotated[int | Literal["inf"] | None, tyro.conf.arg(aliases=["--steps"])] = None
    """Network calls of the sampler; inf: the limit of continuous time. By default the model's: 64, or one per block."""
    curve_nfe: str | None = None
    """Also measure the bound at these numbers of network calls, such as 4,8,16,inf."""
    kernel: Literal["mixture", "drift"] = "mixture"
    """Step of the sampler: along the bridge to a sampled token, or along the mean of all bridges, as in the paper."""
    order: OrderChoice | None = None
    """Order of generation, as in rdlm generate; by default the run's."""
    block: int | None = None
    """Tokens per block; blocks are generated left to right. 0: the whole sequence is one block. By default that of the
    order or of the run, or 0 with --window."""
    window: float | None = None
    """For experts: share of the time during which a token moves; 1: all tokens move together. By
    default that of the order or of the run."""
    orders: bool = False
    """Measure the bound of every order instead, at 8, 16, 32, 64 and 128 network calls and at one per token, or at
    those of --curve-nfe. The table is printed and stored in the checkpoint (orders.json), for --order auto."""
    estimator: Literal["steps", "path"] = "steps"
    """Single steps of many sequences, or whole paths of few sequences."""
    states: Literal["exact", "simulated"] = "exact"
    """States of single steps: drawn from the exact law, or simulated step by step in all dimensions, which is slow."""
    sequences: int = 512
    """Number of sequences of the split; all if it has fewer."""
    evaluations: int = 1024
    """Evaluations of single sequences per bound; four times as many halve the interval."""
    samples: int = 16
    """Number of sequences to generate for measuring sample quality; 0: none."""
    scorer: str | None = None
    """Scorer of the samples: folder or hub name of a causal model of transformers, or an autoregressive run."""
    paper: bool = False
    """Also compute the paper's estimator, which is not a bound."""
    seed: int = 0
    """Random seed, of the choice of sequences and of all noise."""
    out: Path | None = None
    """Folder of evaluation.json and report.html; by default RUN/evaluation-SPLIT, or for a published model, whose files
    are not changed, runs/published-NAME/evaluation-SPLIT."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Evaluate, write, print, and return 0."""
        from rdlm.process.order import TokenSchedule

        # Checks the options before the model is loaded.
        self._plan(TokenSchedule(self.window or 1), 1 if self.nfe is None or self.nfe == "inf" else self.nfe)
        if self.orders:
            bounds = self.measure_orders()
            text = table(bounds["rows"], ("order", "block", "calls", "value", "low", "high"))
            text += f"\n\n{bounds['unit']}, 95% intervals; {bounds['evaluations']} evaluations each"
            print_result(bounds, text, self.json)
            return 0
        import torch

        from rdlm.evaluate.evaluate import evaluate, to_json
        from rdlm.evaluate.metrics import scorer_of
        from rdlm.storage.measurements import fingerprint
        from rdlm.train.run import load_corpus_of_model

        model = self.load(self.model)
        self._folders(model)  # refused before the work
        plan = self._plan(*self._order(model))
        scorer = None if self.scorer is None else scorer_of(self.scorer)
        corpus = load_corpus_of_model(model.config, self.file)
        with torch.no_grad(), _Bars() as bars:
            found = evaluate(model, corpus, plan, scorer, bars.begin)
        weights = fingerprint(model.method.network)
        result = {"run": model.name, "protocol": corpus.protocol, "weights": weights, **to_json(found)}
        self._write(model, found, result)
        print_result(result, _shown(found), self.json)
        return 0

    def _order(self, model: LanguageModel) -> tuple[TokenSchedule | None, int]:
        """Return the token schedule and the network calls of the options, and print warnings."""
        from rdlm.api.orders import choose_order

        own, requested = model.method.token_schedule, None if self.nfe == "inf" else self.nfe
        if self.order is None and self.block is None and self.window is None:
            return own, model.nfe if requested is None else requested
        if own is None:
            raise InputError(
                f"{model.name} is a run of the method {model.config.method!r}, whose bound has no option but --nfe: "
                "leave out --order, --block and --window"
            )
        chosen = choose_order(model, self.order or "auto", requested, model.length, self.block, self.window)
        for notice in chosen.notices:
            say(notice)
        return chosen.schedule, chosen.nfe

    def _plan(self, schedule: TokenSchedule | None, own_nfe: int) -> EvaluationPlan:
        from rdlm.evaluate.evaluate import EvaluationPlan
        from rdlm.methods.bound import Setting
        from rdlm.process.order import TokenSchedule

        nfe = None if self.nfe == "inf" else own_nfe
        if schedule is not None and schedule == TokenSchedule(1, schedule.order):
            schedule = None  # all tokens move together
        curve = parse_nfe(self.curve_nfe) if self.curve_nfe is not None else ()
        return EvaluationPlan(
            Setting(nfe, self.kernel, schedule, self.estimator, self.states),
            self.split,
            self.sequences,
            self.evaluations,
            self.samples,
            tuple(c for c in curve if c != nfe),
            self.paper,
            self.seed,
        )

    def measure_orders(self) -> dict[str, Any]:
        """Measure the bound of every order, write orders.json, and return its content."""
        import torch

        from rdlm.api.orders import ORDERS
        from rdlm.evaluate.evaluate import CALLS, measure_orders
        from rdlm.storage.files import write_atomic
        from rdlm.train.run import load_corpus_of_model

        if self.order is not None or self.block is not None or self.window is not None or self.nfe is not None:
            raise InputError("--orders measures every order: leave out --order, --block, --window and --nfe")
        model = self.load(self.model)
        checkpoint, out = self._folders(model)  # refused before the work
        calls = CALLS if self.curve_nfe is None else parse_nfe(self.curve_nfe)
        if None in calls:
            raise InputError("--orders measures finite numbers of network calls: leave out inf in --curve-nfe")
        plan = self._plan(model.rdlm.token_schedule, 1)
        corpus = load_corpus_of_model(model.config, self.file)
        with torch.no_grad(), _Bars() as bars:
            found = measure_orders(model, corpus, plan, [one for one in calls if one is not None], bars.begin)
        place = out if checkpoint is None else checkpoint
        write_atomic(place / ORDERS, json.dumps(found, indent=1, allow_nan=False) + "\n")
        unused = f"; --order auto reads {ORDERS} in the folder of a checkpoint only" if checkpoint is None else ""
        say(f"wrote {place / ORDERS}{unused}")
        return found

    def _folders(self, model: LanguageModel) -> tuple[Path | None, Path]:
        """Return the folder of the checkpoint, for measurements that the sampler reads, and that of the results.

        The first is None for a published model, whose files do not change, and for the test split, on which the sampler
        must not depend.
        """
        from rdlm.api import publish
        from rdlm.storage.files import check_no_link

        assert model.folder is not None  # always set by `rdlm.load`
        published = publish.is_published(model.folder)
        home = Path("runs") / f"published-{Path(model.name).name}" if published else model.folder.parent
        if self.out is None:
            check_no_link(home / f"evaluation-{self.split}")
        checkpoint = model.folder if self.split == "validation" and not published else None
        return checkpoint, self.out or home / f"evaluation-{self.split}"

    def _write(self, model: LanguageModel, found: Evaluation, result: dict[str, object]) -> None:
        from rdlm.evaluate.evaluate import curve_to_json
        from rdlm.evaluate.page import evaluation_page
        from rdlm.storage.files import write_atomic
        from rdlm.storage.measurements import CURVE, NAME

        checkpoint, out = self._folders(model)
        files = {out / NAME: json.dumps(result, indent=2, allow_nan=False) + "\n"}
        files[out / "report.html"] = evaluation_page(model, found)
        if checkpoint is not None and (curve := curve_to_json(found)) is not None:
            files[checkpoint / CURVE] = json.dumps(curve) + "\n"
        for path, content in files.items():
            write_atomic(path, content)
        say(f"wrote {', '.join(map(str, files))}")


def parse_nfe(text: str) -> tuple[int | None, ...]:
    """Return the numbers of network calls in `4,8,inf`; None for inf."""
    found: list[int | None] = []
    for word in text.split(","):
        if word.strip() == "inf":
            found.append(None)
        elif word.strip().isdigit() and int(word) > 0:
            found.append(int(word))
        else:
            raise InputError(f"--curve-nfe takes numbers of network calls such as 4,8,16,inf; got {word!r}")
    return tuple(found)


class _Bars:
    """A progress bar for each stage of an evaluation."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def begin(self, name: str, total: int) -> Callable[[int], object]:
        """Close the bar of the previous stage and open the next."""
        from rdlm.display.progress import bar

        self._open.close()
        return self._open.enter_context(bar(total, name, "sequence")).update

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *reason: object) -> None:
        self._open.close()


def _shown(found: Evaluation) -> str:
    rows = [{"metric": name, **value.to_json()} for name, value in found.metrics.items()]
    parts = [table(rows, ("metric", "value", "low", "high", "unit", "convention"))]
    parts += [] if found.note is None else [f"note: {found.note}"]
    parts += [table(found.rows, ("calls", "value", "low", "high", "unit"))] if len(found.rows) > 1 else []
    return "\n\n".join(parts)
