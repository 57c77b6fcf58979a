"""Sample quality against network calls, for every solver, grid and clock: the table that decides the defaults.

    python -m rdlm.analysis.steps RUN --calls 8 16 32 64 128 256 --samples 64 --scorer AUTOREGRESSIVE_RUN

Rows have equally many network calls: a solver that calls twice per step takes half the steps. Divergences are from
validation data (unigrams, bigrams); the entropy is that of a sample's tokens, and says whether a low perplexity is
quality or repetition.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from rdlm.evaluation.sample import divergences, generative_perplexity, sample_entropy
from rdlm.evaluation.scorer import Scorer, scorer_of
from rdlm.generation import generate
from rdlm.language_model import LanguageModel, load
from rdlm.process.window import Order
from rdlm.progress import bar
from rdlm.report import table
from rdlm.sampler.curve import GRIDS, NAME
from rdlm.sampler.solver import SOLVERS
from rdlm.storage import write_atomic
from rdlm.training.run import load_corpus
from rdlm.training.validation import held_out

CALLS = (8, 16, 32, 64, 128, 256)
COLUMNS = ("calls", "steps", "solver", "grid", "clock", "unigram", "bigram", "entropy", "perplexity")


@dataclass(frozen=True)
class Setting:
    """One way to spend the network calls."""

    calls: int
    solver: str
    grid: str = "time"
    window: float = 1.0
    order: Order = "spread"

    @property
    def steps(self) -> int:
        """Return the steps that so many network calls allow."""
        per_step = SOLVERS[self.solver].calls
        # All steps take `per_step` calls but, where all positions run together, the last, which takes one.
        return max(1, (self.calls + (per_step - 1) * (self.window == 1)) // per_step)

    @property
    def clock(self) -> str:
        """Return the name of the positions' clocks."""
        return "synchronous" if self.window == 1 else f"{self.order} {self.window:g}"


def settings(
    calls: Sequence[int], solvers: Sequence[str], grids: Sequence[str], windows: Sequence[float] = (0.25, 0.5)
) -> Iterator[Setting]:
    """Yield every solver on every grid, and the default solver in windows of both orders."""
    for count in calls:
        yield from (Setting(count, solver, grid) for solver in solvers for grid in grids)
        orders: tuple[Order, ...] = ("random", "left_to_right")
        yield from (Setting(count, solvers[0], "time", window, order) for window in windows for order in orders)


def quality(
    model: LanguageModel,
    setting: Setting,
    data: Int[Tensor, "n length"],
    samples: int,
    scorer: Scorer | None = None,
    seed: int = 0,
) -> dict[str, object]:
    """Return a row of the table: what samples of one setting look like beside the data."""
    made = generate(
        model, num=samples, steps=setting.steps, solver=setting.solver, grid=setting.grid, window=setting.window,
        order=setting.order, seed=seed, rows=16,
    )  # fmt: skip
    size = model.tokenizer.size
    apart = divergences(made.tokens, data, size)
    row: dict[str, object] = {
        "calls": setting.calls, "steps": setting.steps, "solver": setting.solver, "grid": setting.grid,
        "clock": setting.clock, "network_calls": made.network_calls, "invalid_codes": made.invalid_codes,
        "unigram": apart["unigram_divergence"].value, "unigram_stderr": apart["unigram_divergence"].stderr,
        "bigram": apart["bigram_divergence"].value, "bigram_stderr": apart["bigram_divergence"].stderr,
        "bigram_of_data": apart["bigram_divergence_of_data"].value,
        "entropy": sample_entropy(made.tokens, size)["entropy_per_sample_nats"].value,
    }  # fmt: skip
    if scorer is not None:
        found = generative_perplexity([sample.text for sample in made.samples], scorer)["generative_perplexity_corpus"]
        row |= {"perplexity": found.value, "perplexity_stderr": found.stderr}
    return row


def reference(
    model: LanguageModel, data: Int[Tensor, "n length"], samples: int, scorer: Scorer | None = None
) -> dict[str, object]:
    """Return the row that data themselves would have."""
    half, size = len(data) // 2, model.tokenizer.size
    kept = data[half : half + samples]
    apart = divergences(kept, data, size)
    row: dict[str, object] = {
        "solver": "data", "unigram": apart["unigram_divergence_of_data"].value,
        "bigram": apart["bigram_divergence_of_data"].value,
        "entropy": sample_entropy(kept, size)["entropy_per_sample_nats"].value,
    }  # fmt: skip
    if scorer is not None:
        texts = [model.tokenizer.decode(ids) for ids in kept.tolist()]
        row["perplexity"] = generative_perplexity(texts, scorer)["generative_perplexity_corpus"].value
    return row


def main() -> None:
    """Measure all settings of a run, print the table, and keep it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run or of a checkpoint")
    parser.add_argument("--calls", type=int, nargs="+", default=CALLS, help="network calls M")
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=list(SOLVERS), help="solvers")
    parser.add_argument("--grids", nargs="+", choices=GRIDS, help="grids; all that the run has, if not given")
    parser.add_argument("--windows", type=float, nargs="*", default=[0.25, 0.5], help="widths of windows")
    parser.add_argument("--samples", type=int, default=64, help="samples per row")
    parser.add_argument("--scorer", help="autoregressive run, or transformers model, that judges the samples")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first sample of each row")
    parser.add_argument("--out", type=Path, help="JSON file of the rows")
    arguments = parser.parse_args()
    model = load(arguments.run)
    scorer = scorer_of(arguments.scorer) if arguments.scorer else None
    measured = model.folder is not None and (model.folder / NAME).is_file()
    grids = arguments.grids or [name for name in GRIDS if name != "information" or measured]
    data = held_out(load_corpus(model.config), model.length, max(512, 2 * arguments.samples), 0).ids
    wanted = list(settings(arguments.calls, arguments.solvers, grids, arguments.windows))
    rows = [reference(model, data, arguments.samples, scorer)]
    with bar(sum(setting.calls for setting in wanted), "steps", "call") as progress:
        for setting in wanted:
            progress.set_postfix_str(f"{setting.solver} {setting.grid} {setting.clock}")
            rows.append(quality(model, setting, data, arguments.samples, scorer, arguments.seed))
            progress.update(setting.calls)
            if arguments.out is not None:
                write_atomic(arguments.out, json.dumps({"rows": rows}, indent=1) + "\n")
    print(table(sorted(rows, key=_order), COLUMNS))


def _order(row: Mapping[str, object]) -> tuple[float, float]:
    calls, bigram = row.get("calls", 0), row["bigram"]
    assert isinstance(calls, int) and isinstance(bigram, float)
    return calls, bigram if math.isfinite(bigram) else math.inf


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
