"""`rdlm score`: the likelihood of any text."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rdlm.errors import InputError
from rdlm.report import print_json, table

if TYPE_CHECKING:
    from tqdm import tqdm

    from rdlm.language_model import LanguageModel
    from rdlm.scoring import Effort, Score


@dataclass(frozen=True)
class ScoreText:
    """Bound the negative log-likelihood of texts, line by line or as one document, with 95% intervals.

    A document is cut into consecutive windows of the model's length; the rest is a shorter window of its own, and
    windows do not see each other. Empty lines are left out.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run (its best checkpoint by validation) or of a checkpoint."""
    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|-")] = "-"
    """UTF-8 text file; - reads standard input."""
    document: bool = False
    """Score the whole file as one text of any length."""
    calls: int = 64
    """Network calls M of the sampler that is bounded."""
    estimator: Literal["auto", "path", "steps"] = "auto"
    """Whole paths, precise and M times the work; or random steps. auto: paths, and steps for long documents."""
    draws: int | None = None
    """Paths (4 if not given) or random steps (16; for long documents 3) of each text or window."""
    unknown: Literal["error", "skip", "replace"] = "error"
    """What becomes of a character outside the vocabulary: an error, nothing, or a space."""
    seed: int = 0
    """Seed of all noise."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Score, print, and return 0; what goes wrong is raised."""
        text = read_text(self.file)
        import torch

        import rdlm

        model = rdlm.load(self.model)
        with torch.no_grad():
            rows = self._document(model, text) if self.document else self._lines(model, text)
        if self.json:
            print_json({"rows": rows, "steps": self.calls, "claims_bound": True, "unit": "nats", "interval": "95%"})
        else:
            print(table(rows, ("text", "nats", "low", "high", "chars", "bits_per_char")))
        return 0

    def _lines(self, model: LanguageModel, text: str) -> list[dict[str, object]]:
        from rdlm.scoring import score

        lines = [line for line in text.splitlines() if line.strip()]
        effort = self._effort("path" if self.estimator == "auto" else self.estimator, 16)
        with _bar(len(lines) * effort.cost) as progress:
            found = score(model, lines, effort, self.unknown, progress.update)
        return [_row(line, value) for line, value in zip(lines, found, strict=True)]

    def _document(self, model: LanguageModel, text: str) -> list[dict[str, object]]:
        from rdlm.likelihood.data import BATCH
        from rdlm.scoring import score_document

        text = text.removesuffix("\n")
        windows = -(-len(text) // model.length)  # close enough for a choice and for a bar
        long = windows >= BATCH
        estimator = ("steps" if long else "path") if self.estimator == "auto" else self.estimator
        effort = self._effort(estimator, 3 if long else 16)
        with _bar(windows * effort.cost) as progress:
            found = score_document(model, text, effort, self.unknown, progress.update)
        return [_row(text, found)]

    def _effort(self, estimator: Literal["path", "steps"], steps: int) -> Effort:
        from rdlm.scoring import Effort

        draws = self.draws if self.draws is not None else 4 if estimator == "path" else steps
        return Effort(self.calls, estimator, draws, self.seed)


def read_text(name: str) -> str:
    """Return the text of a file, or of standard input for `-`; an empty one is an error."""
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).expanduser().read_bytes()
        text = raw.decode()
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text at byte {error.start}") from None
    if not text.strip():
        raise InputError(f"{'standard input' if name == '-' else name} is empty: there is nothing to score")
    return text


def _row(text: str, score: Score) -> dict[str, object]:
    return {"text": text if len(text) <= 40 else text[:37] + "...", **score.row()}


def _bar(total: int) -> tqdm[Any]:
    from rdlm.progress import bar

    return bar(total, "score", "sequence")
