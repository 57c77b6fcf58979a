"""`rdlm restore`: the most likely text, and how sure it is, from an uncertain reading."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rdlm.cli.score import read_text
from rdlm.config import OrderName
from rdlm.display.text_table import print_json
from rdlm.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from rdlm.api.language_model import LanguageModel
    from rdlm.api.restore import Restoration
    from rdlm.data.evidence import Reading

Format = Literal["auto", "text", "jsonl", "npy", "fastq"]
SUFFIXES: dict[str, Format] = {".jsonl": "jsonl", ".npy": "npy", ".fastq": "fastq", ".fq": "fastq"}

LARGEST = 64 << 20
"""Bytes of the largest file of evidence that is read."""

CHANGED, UNSURE, PLAIN = "\033[32m", "\033[33m", "\033[0m"
"""Terminal colours of symbols that were changed, of those that are less than 90% sure, and the end of a colour."""


@dataclass(frozen=True)
class Restore:
    """Restore a text, a DNA read or any sequence from an uncertain reading of it.

    In a text, ? or _ is an unreadable character, [ae] is one of several, and a backslash quotes the next character.
    With --channel every character may be wrong. Other inputs: JSON lines with one {character: probability} per
    position, a NumPy array [positions, V] of log-likelihoods, FASTQ with qualities for DNA models. One network call
    per window of the model's length.
    """

    model: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """Folder of a run, a checkpoint or a published model, or user/name on the hub; None: the pretrained model."""
    file: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|-")] = None
    """Input; - or nothing: standard input. A file as the only argument is restored by the pretrained model."""
    format: Format = "auto"
    """Format of the input; auto: by the file's name, else text."""
    channel: str | None = None
    """How characters are misread: symmetric (any other one), keyboard (a neighbouring key), or a confusion matrix, as
    CSV or JSON {true: {read: probability}}; None: what can be read is right."""
    error: str = "0.1"
    """Share of misread characters, for symmetric and keyboard; auto: estimated from the text."""
    passes: int = 0
    """Refine the posterior by the mean of so many samples; 0: one network call."""
    samples: int = 0
    """Draw so many texts from the joint posterior."""
    steps: int = 64
    """Network calls of a sample or pass."""
    order: OrderName = "synchronous"
    """Order in which a sample is decided, as in rdlm generate; there are no blocks."""
    seed: int = 0
    """Random seed of samples and passes."""
    json: bool = False
    """Print one JSON object: every position with its probability and alternatives."""

    def run(self) -> int:
        """Restore, print, and return 0."""
        run, file = self._places()
        import rdlm
        from rdlm.api.restore import restore

        model = rdlm.load(run)
        readings, error = self._readings(model, file)
        options: dict[str, Any] = {"passes": self.passes, "samples": self.samples, "steps": self.steps}
        found = [
            restore(model, one.evidence, one.symbols, order=self.order, seed=self.seed, **options) for one in readings
        ]
        if self.json:
            rows = [{"name": one.name, **result.to_json()} for one, result in zip(readings, found, strict=True)]
            print_json({"rows": rows, "error": error, "model": model.name})
            return 0
        for one, result in zip(readings, found, strict=True):
            self._show(one, result)
        changed, sure = sum(len(result.changed) for result in found), [result.certainty.mean() for result in found]
        rate = "" if error is None else f"error rate {error:.3g}, "
        mean = float(sum(sure)) / len(sure)
        print(f"rdlm: {rate}{changed} characters changed, {mean:.1%} sure on average", file=sys.stderr)
        return 0

    def _places(self) -> tuple[str | None, str]:
        """Return the model and the file; a single argument that is a file, or -, is the input."""
        if self.file is None and self.model is not None and (self.model == "-" or Path(self.model).is_file()):
            return None, self.model
        return self.model, self.file or "-"

    def _readings(self, model: LanguageModel, file: str) -> tuple[list[Reading], float | None]:
        """Return the readings in the input, and the error rate of the channel if it has one."""
        from rdlm.api.restore import read_text_through, symbols_of
        from rdlm.data import evidence

        alphabet = "".join(symbols_of(model))
        kind = SUFFIXES.get(Path(file).suffix.lower(), "text") if self.format == "auto" else self.format
        if kind == "npy":
            return [evidence.from_array(_array(file), alphabet)], None
        text = read_text(file)
        if kind == "jsonl":
            return [evidence.from_json_lines(text, alphabet)], None
        if kind == "fastq":
            return evidence.from_fastq(text, alphabet), None
        reading, error = read_text_through(model, text.removesuffix("\n"), self._channel(alphabet), self._error())
        return [reading], error

    def _channel(self, alphabet: str) -> str | Tensor | None:
        """Return the name of a channel, or the confusion matrix in a file."""
        from rdlm.api.restore import CHANNELS
        from rdlm.data.evidence import confusion

        if self.channel is None or self.channel in CHANNELS:
            return self.channel
        return confusion(read_text(self.channel), alphabet, self.channel)

    def _error(self) -> float | Literal["auto"]:
        if self.error == "auto":
            return "auto"
        try:
            return float(self.error)
        except ValueError:
            raise InputError(f"--error must be a number between 0 and 1, or auto, got {self.error!r}") from None

    def _show(self, reading: Reading, result: Restoration) -> None:
        if reading.name:
            print(f"> {reading.name}")
        print(coloured(result) if sys.stdout.isatty() else result.text)
        for sample in result.samples:
            print(f"sample: {sample}")


def coloured(result: Restoration, sure: float = 0.9) -> str:
    """Return the text with terminal colours: green where it was changed, yellow where it is unsure."""
    changed, parts = set(result.changed), []
    for at, (symbol, certainty) in enumerate(zip(result.text, result.certainty.tolist(), strict=True)):
        colour = UNSURE if certainty < sure else CHANGED if at in changed else ""
        parts.append(f"{colour}{symbol}{PLAIN}" if colour else symbol)
    return "".join(parts)


def _array(file: str) -> Any:
    """Return the array in a .npy file, without unpickling."""
    import numpy as np

    from rdlm.data.recipe import open_regular

    try:
        with open_regular(Path(file).expanduser()) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size > LARGEST:
                raise InputError(f"{file} has {size:,} bytes; at most {LARGEST:,} are read")
            return np.load(opened, allow_pickle=False)
    except InputError:
        raise
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise InputError(f"{file} is not an array of numbers in NumPy's format: {error}") from None
