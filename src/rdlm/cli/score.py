"""`rdlm score`: likelihood bounds of texts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import tyro

from rdlm.cli import ModelOptions
from rdlm.config import OrderChoice
from rdlm.display.text_table import print_json, say, table
from rdlm.errors import InputError

if TYPE_CHECKING:
    from rdlm.api.language_model import LanguageModel
    from rdlm.api.score import Effort, Encoded, Score


LARGEST_TEXT = 64 << 20
"""Bytes of the largest text, and of the largest file of evidence, that is read."""


@dataclass(frozen=True)
class ScoreText(ModelOptions):
    """Bound the negative log-likelihood of texts, line by line or as one document, with 95% intervals.

    A text longer than the model's sequences is cut into consecutive windows of that length, the last one shorter;
    each window is scored independently. Empty lines are skipped. Of FASTA each sequence is a text. A megabyte takes
    about three minutes on one core with the demo's model of a million parameters.
    """

    model: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """A packaged model (text8, the default), the folder of a run, a checkpoint or a published model, or user/name on
    the hub."""
    file: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE|-]")] = None
    """UTF-8 text file, or - (the default): standard input. A file as the only argument is scored by the packaged text
    model."""
    named: Annotated[str | None, tyro.conf.arg(name="model", metavar="RUN")] = None
    """The model, as an option in place of the first argument: rdlm score FILE --model words."""
    prompt: str | None = None
    """Score every text as a continuation of this prompt: -log p(text | prompt), exact if tokens are decoded one per
    call from left to right, else a bound."""
    document: bool = False
    """Score the whole file as one text instead of line by line."""
    nfe: Annotated[int | None, tyro.conf.arg(aliases=["--steps"])] = None
    """Network calls of the sampler; by default the model's, which is 64, or one per block."""
    order: OrderChoice = "auto"
    """Order in which the sampler generates a text, as in rdlm generate."""
    block: int | None = None
    """Tokens per block; blocks are generated left to right."""
    estimator: Literal["auto", "path", "steps"] = "auto"
    """Simulated paths, or random steps, which are cheaper by the number of network calls and less precise; auto: paths
    for up to 128 windows."""
    draws: int | None = None
    """Paths or random steps per window; by default 4 paths, or as many steps as 32,768 windows allow, at least 3."""
    unknown: Literal["error", "skip", "replace"] = "error"
    """Characters outside of the alphabet: an error, left out (skip), or replaced by a space."""
    normalise: bool = False
    """Convert texts to the model's alphabet first, and report the changes; for text8: lower case, digits spelled, other
    characters to spaces."""
    seed: int = 0
    """Random seed."""
    positions: bool = False
    """With --json: list every token with its contribution in bits."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Score, print, and return 0."""
        if self.positions and not self.json:
            raise InputError("--positions needs --json")
        run, file = model_and_input(self.model, self.file, self.named)
        text = read_text(file)
        from rdlm.api.score import score_continuations, score_encoded, score_note, split_windows
        from rdlm.data.formats import fasta_records
        from rdlm.display.progress import bar

        model = self.load(run)
        lines = fasta_records(text) or {n: line for n, line in enumerate(text.splitlines(), 1) if line.strip()}
        lines, changed = self._normalised(model, {1: text.removesuffix("\n")} if self.document else lines)
        dropped = self._dropped(model, lines.values())
        encodings = self._encoded(model, lines)
        texts = list(encodings.values())
        windows = [len(window) for encoded in texts for window in split_windows(encoded.ids, model.length)]
        effort = self._effort(model, len(windows))
        cost = sum(effort.cost(model, 1, length) for length in windows)
        began = time.perf_counter()
        if self.prompt is not None:
            before = self._encoded(model, {1: self.prompt}, least=0)[1]
            found = score_continuations(model, [(before, encoded) for encoded in texts], effort)
        else:
            with bar(cost, "score", "window") as progress:
                found = score_encoded(model, texts, effort, progress.update)
        order = None if effort.order is None else effort.order.name
        how: dict[str, object] = {
            "steps": effort.nfe,
            "order": order,
            "claims_bound": model.method.claims_bound,
            "unit": "nats",
        }
        how |= {"interval": "95%", "estimator": effort.estimator, "draws": effort.draws}
        how |= {"exact": all(effort.is_exact(model, length) for length in windows), "network_windows": cost}
        how |= {"seconds": time.perf_counter() - began, "note": score_note(model, texts, found)}
        how |= {"normalised": changed, "outside_of_vocabulary": dropped}
        scores = zip(encodings, found, strict=True)
        self._report([_row(number, lines[number], score, self.positions) for number, score in scores], how)
        return 0

    def _normalised(self, model: LanguageModel, lines: dict[int, str]) -> tuple[dict[int, str], str | None]:
        """Return the texts in the model's alphabet where that is requested, and what was changed."""
        if not self.normalise:
            return lines, None
        from rdlm.data.tokenizer import check_rule, normalised

        rule = check_rule(model.tokenizer)
        _, changed = normalised(model.tokenizer, "".join(lines.values()).replace("\n", ""))
        say(f"normalised ({rule}): {changed or 'nothing to change'}")
        return {number: normalised(model.tokenizer, line)[0] for number, line in lines.items()}, changed

    def _encoded(self, model: LanguageModel, lines: dict[int, str], least: int | None = None) -> dict[int, Encoded]:
        """Return the tokens of texts by their line; those that are too short for a score are left out and counted."""
        from rdlm.api.score import MIN_TOKENS, encode_text

        if least is None:
            least = MIN_TOKENS if self.prompt is None else 1
        found = {}
        for number, line in lines.items():
            try:
                found[number] = encode_text(model, line, self.unknown, 0)
            except InputError as mistake:
                raise InputError(f"line {number}: {mistake}" if len(lines) > 1 else str(mistake)) from None
        enough = {number: text for number, text in found.items() if len(text.ids) >= least}
        if not enough:
            raise InputError(f"a text needs at least {least} tokens: no line has as many")
        if short := len(found) - len(enough):
            first = min(found.keys() - enough.keys())
            say(f"{short:,} lines of less than {least} tokens are left out, the first is line {first}")
        return enough

    def _dropped(self, model: LanguageModel, lines: Iterable[str]) -> int:
        """Return the number of characters outside of the alphabet, and report what was done with them."""
        alphabet = model.tokenizer.to_json().get("alphabet")
        if alphabet is None or self.unknown == "error":
            return 0
        missing = "".join(lines).translate(dict.fromkeys(map(ord, alphabet)))
        if missing:
            shown = " ".join(sorted(set(missing)))
            done = "left out" if self.unknown == "skip" else "replaced by spaces"
            say(f"{len(missing):,} characters outside of the alphabet are {done}: {shown[:80]}")
        return len(missing)

    def _effort(self, model: LanguageModel, windows: int) -> Effort:
        from rdlm.api.score import effort_for, order_for

        estimator = None if self.estimator == "auto" else self.estimator
        order = order_for(model, self.order, self.nfe, self.block)
        for notice in order.notices if order is not None else ():
            say(notice)
        effort = effort_for(model, windows, self.nfe, estimator, self.seed, order)
        return effort if self.draws is None else replace(effort, draws=self.draws)

    def _report(self, rows: list[dict[str, object]], how: dict[str, object]) -> None:
        if self.json:
            print_json({"rows": rows, **how})
            return
        print(table(rows, ("text", "nats", "low", "high", "chars", "bits_per_char")))
        if how["note"] is not None:
            print(f"note: {how['note']}")
        if not how["claims_bound"]:
            print("not a bound: this method estimates -log p, and the error can have either sign")
        draws = f"{how['draws']} {'paths' if how['estimator'] == 'path' else 'random steps'} per window"
        draws = "exact, one path per window" if how["exact"] else draws
        say(f"{draws}, {how['network_windows']} in total, in {how['seconds']:.1f} s")


def model_and_input(model: str | None, file: str | None, named: str | None = None) -> tuple[str | None, str]:
    """Return the model and the input file of a command; a single argument that is a file, or -, is the input.

    With `named`, the model as an option, the first argument is the input.
    """
    if named is not None:
        if file is not None:
            raise InputError(f"--model {named} and the argument {model}: give the model once")
        return named, model or "-"
    if file is not None:
        return model, file
    if model is not None and (model == "-" or Path(model).is_file()):
        return None, model
    if model is not None and not _is_model(model):
        raise InputError(f"there is no file or model named {model}")
    if sys.stdin.isatty():
        say("reading the text from the terminal; Ctrl-D ends it")
    return model, "-"


def _is_model(name: str) -> bool:
    """Return whether a name can be that of a model: a folder, a packaged model, or user/name of the hub."""
    from rdlm import pretrained

    owner, slash, rest = name.partition("/")
    on_hub = bool(slash and owner.strip(".") and rest) and "/" not in rest and not Path(owner).exists()
    return Path(name).expanduser().is_dir() or name in pretrained.names() or (on_hub and not Path(rest).suffix)


def read_text(name: str, purpose: str = "score") -> str:
    """Return the text of a file, decompressed if it is .gz, or of standard input for `-`; an empty text is an error."""
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else _opened(Path(name).expanduser()) as file:
            raw = file.read(LARGEST_TEXT + 1)  # of a pipe, too, and of a device that has no end
        if len(raw) > LARGEST_TEXT:
            raise InputError(f"{name} has more than {LARGEST_TEXT:,} bytes: give the parts one by one")
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text at byte {error.start}") from None
    if not text.strip():
        raise InputError(f"{'standard input' if name == '-' else name} is empty: there is nothing to {purpose}")
    return text


def _opened(path: Path) -> AbstractContextManager[IO[bytes]]:
    from rdlm.data.recipe import open_file

    return open_file(path) if path.suffix == ".gz" else path.open("rb")


def _row(line: int, text: str, score: Score, positions: bool) -> dict[str, object]:
    return {"line": line, "text": text if len(text) <= 40 else text[:37] + "...", **score.row(positions)}
