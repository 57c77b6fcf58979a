"""`rdlm restore`: the most likely text or image given an uncertain reading, with its probabilities."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rdlm.cli import ModelOptions
from rdlm.cli.score import LARGEST_TEXT, model_and_input, read_text
from rdlm.config import OrderName
from rdlm.display.text_table import print_json, say
from rdlm.errors import DamagedFileError, InputError
from rdlm.storage.files import check_output, write_atomic

if TYPE_CHECKING:
    from torch import Tensor

    from rdlm.api.language_model import LanguageModel
    from rdlm.api.reading_likelihood import ErrorRate
    from rdlm.api.restore import ImageRestoration, Restoration
    from rdlm.data.evidence import Reading
    from rdlm.data.word_evidence import WordReading

Format = Literal["auto", "text", "jsonl", "npy", "fastq", "hocr", "png"]
SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".npy": "npy",
    ".fastq": "fastq",
    ".fq": "fastq",
    ".hocr": "hocr",
    ".png": "png",
}

BEST_QUALITY = 60
"""Largest Phred quality that is written."""


@dataclass(frozen=True)
class Restore(ModelOptions):
    """Restore a text, a DNA read or an image from an uncertain reading of it.

    In a text, ? or _ is an unreadable character, [ae] is one of several, and a backslash quotes the next character.
    With --channel every character may be wrong: replaced, but not inserted, left out or exchanged with its neighbour.
    Upper case, digits and punctuation that the model lacks are kept. Other inputs: a page read by Tesseract (hOCR),
    JSON lines with one {character: probability} per position, an array of log-likelihoods [positions, V] as .npy, FASTQ
    with qualities for DNA models, and a PNG or .npy of grey levels with the option --noise for image models. One
    network call per window of the model's length.
    """

    model: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """A packaged model (text8, the default), the folder of a run, a checkpoint or a published model, or user/name on
    the hub."""
    file: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE|-]")] = None
    """Input file, or - (the default): standard input. A file as the only argument is restored by the packaged text
    model."""
    format: Format = "auto"
    """Format of the input; auto: by the suffix of the file, else text."""
    channel: str | None = None
    """Error model: symmetric (any other character), keyboard (a neighbouring key), or a confusion matrix as CSV or JSON
    {true: {read: probability}}. By default, readable characters are correct."""
    error: str | None = None
    """Share of misread characters, for symmetric and keyboard, by default 0.1; auto: estimated from the text."""
    literal: bool = False
    """Take ? _ [ ] and backslashes in a text as ordinary characters, such as the question mark of a sentence."""
    words: str | None = None
    """A model of word pieces, such as the packaged `words`: the posterior is that of a mixture of both models."""
    normalise: bool = False
    """Convert the text to the model's alphabet (lower case, spelled digits and spaces for text8), and report the
    changes. Without it, characters outside of the alphabet are mapped for the model and kept in the output."""
    noise: float | None = None
    """Standard deviation of the noise of an image; 1 is the range from black to white."""
    whole: bool = False
    """Print the most likely whole text found in 8 more network calls in place of the most likely character of every
    position: more words are right, but not more characters."""
    passes: int = 0
    """Number of sampler passes whose mean is the posterior; 0: one network call."""
    samples: int = 0
    """Number of texts to draw from the joint posterior."""
    steps: int = 64
    """Network calls of a sample or pass."""
    order: OrderName = "synchronous"
    """Order in which samples are generated, as in rdlm generate, without blocks."""
    seed: int = 0
    """Random seed of samples and passes."""
    bound: bool = False
    """Bound -log p of the reading itself, in nats; for readings of at most the model's length."""
    out: Path | None = None
    """Output file: the text, FASTQ with new qualities, or for images a PNG of the input, the restoration and
    samples."""
    html: Path | None = None
    """Output file of a web page with the changes and their probabilities."""
    overwrite: bool = False
    """Overwrite existing files of --out and --html."""
    color: Literal["auto", "always", "never"] = "auto"
    """Colours in the output; auto: if standard output is a terminal and NO_COLOR is not set."""
    json: bool = False
    """Print one JSON object: every position with its probability and alternatives."""

    def run(self) -> int:
        """Restore, write, print, and return 0."""
        run, file = model_and_input(self.model, self.file)
        for name, path in (("--out", self.out), ("--html", self.html)):
            if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
                raise InputError(f"{name} {path}: give a file in a folder that exists")
            if path is not None:
                check_output(name, path, self.overwrite)
        model = self.load(run)
        _check_model(model)
        if model.kind == "image":
            return self._restore_image(model, file)
        if self.noise is not None:
            raise InputError(f"--noise is for images; {model.name} is a model of {model.kind}")
        readings, error = self._readings(model, file)
        self._report(model, readings, self._restored(model, readings), error)
        return 0

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("passes", "samples", "steps", "order", "seed")}

    # -- texts ------------------------------------------------------------------------------------

    def _readings(self, model: LanguageModel, file: str) -> tuple[Sequence[Reading | WordReading], ErrorRate | None]:
        """Return the readings in the input, and the error rate of the channel if it has one."""
        from rdlm.api.restore import channel_alphabet, read_text_through
        from rdlm.data import evidence, hocr
        from rdlm.data.word_evidence import has_word_pieces

        alphabet = channel_alphabet(model)
        kind = (
            SUFFIXES.get(Path(file.removesuffix(".gz")).suffix.lower(), "text")
            if self.format == "auto"
            else self.format
        )
        if kind == "png":
            advice = "read it by Tesseract, and give the .hocr file (docs/guides/restore.md)"
            raise InputError(f"{file} is an image, {model.name} a model of {model.kind}: {advice}")
        if kind != "text" and (self.channel is not None or self.error is not None or self.literal or self.normalise):
            raise InputError(f"--channel, --error, --literal and --normalise are for text; {file} is {kind}")
        if has_word_pieces(model.tokenizer) and (kind != "text" or self.normalise):
            raise InputError(f"{model.name} has word pieces: it restores text (without --normalise)")
        if kind == "npy":
            return [evidence.from_array(_array(file), alphabet)], None
        text = self._normalised(model, read_text(file, "restore"))
        if kind == "jsonl":
            return [evidence.from_json_lines(text, alphabet)], None
        if kind == "fastq":
            return evidence.from_fastq(text, alphabet), None
        if kind == "hocr":
            return [hocr.from_hocr(text, alphabet, file)], None
        channel = self._channel(alphabet)
        reading, error = read_text_through(model, text.removesuffix("\n"), channel, self._error(), self.literal)
        gaps = reading.read.count(None)
        if gaps:
            say(f"{gaps} of ? _ [] are read as gaps; --literal reads them as they are")
        return [reading], error

    def _normalised(self, model: LanguageModel, text: str) -> str:
        """Return a text by the model's rule if that was requested, and print what was changed."""
        if not self.normalise:
            return text
        from rdlm.data.evidence import normalised_reading
        from rdlm.data.tokenizer import check_rule

        rule = check_rule(model.tokenizer)
        found, changed = normalised_reading(model.tokenizer, text, self.literal)
        say(f"normalised ({rule}): {changed or 'nothing to change'}")
        return found

    def _channel(self, alphabet: str) -> str | Tensor | None:
        """Return the name of a channel, or the confusion matrix in a file."""
        from rdlm.api.restore import CHANNELS
        from rdlm.data.channels import confusion

        if self.error is not None and self.channel not in CHANNELS:
            raise InputError(f"--error needs --channel {' or '.join(CHANNELS)}, which have an error rate")
        if self.channel is None or self.channel in CHANNELS:
            return self.channel
        if not Path(self.channel).expanduser().is_file():
            raise InputError(f"--channel {self.channel}: neither {' nor '.join(CHANNELS)} nor the file of a matrix")
        return confusion(read_text(self.channel), alphabet, self.channel)

    def _error(self) -> float | Literal["auto"] | None:
        if self.error == "auto":
            return "auto"
        try:
            return None if self.error is None else float(self.error)
        except ValueError:
            raise InputError(f"--error must be a number between 0 and 1, or auto, got {self.error!r}") from None

    def _restored(self, model: LanguageModel, readings: Sequence[Reading | WordReading]) -> list[Restoration]:
        from rdlm.api.decoding import overlapping_windows
        from rdlm.api.restore import restore, restore_reads
        from rdlm.data.evidence import Reading
        from rdlm.display.progress import steps

        windows = sum(len(overlapping_windows(len(one.evidence), model.length)) for one in readings)
        with steps(windows * (2 if self.samples > 0 else 1), "restore", "windows") as progress:
            reads = [one for one in readings if isinstance(one, Reading)]
            plain = self.steps > 0 and not (self.words or self.whole or self.passes or self.samples)
            if len(reads) > 1 and plain:
                return restore_reads(model, reads, progress)
            words = None if self.words is None else self.load(self.words)
            options = {"whole": self.whole, "words": words, **self._options()}
            return [restore(model, one, progress=progress, **options) for one in readings]

    def _report(
        self,
        model: LanguageModel,
        readings: Sequence[Reading | WordReading],
        found: list[Restoration],
        error: ErrorRate | None,
    ) -> None:
        """Print the restored texts or one JSON object, and write the files."""
        rows = []
        for one, result in zip(readings, found, strict=True):
            rows.append({"name": one.name, "kept": one.kept, **result.to_json(), **self._bound(model, one)})
        kept = sum(one.kept for one in readings)
        about = _summary(model, found, error)
        self._write(rows, about)
        if self.json:
            rate, interval = error or (None, None)
            how = {"error": rate, "error_interval": interval, "channel": self.channel}
            how |= {"calls": found[0].calls, "model": model.name}
            print_json({"rows": rows, **how})
        elif self.out is None:
            for row in rows:
                self._show(row)
        if kept and not self.json:
            say(f"kept as they are, since the model's vocabulary lacks them: {kept} characters")
        say(about)

    def _bound(self, model: LanguageModel, reading: Reading | WordReading) -> dict[str, object]:
        from rdlm.api.reading_likelihood import observation_bound

        if not self.bound:
            return {"nats": None}
        found = observation_bound(model, reading.evidence, seed=self.seed)
        return {"nats": found.value, "stderr": found.stderr, "claims_bound": found.claims_bound}

    def _show(self, row: dict[str, Any]) -> None:
        from rdlm.display.restoration import LEGEND, terminal_text

        terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        coloured = self.color == "always" or (self.color == "auto" and terminal)
        if row["name"]:
            print(f"> {row['name']}")
        print(terminal_text(row["positions"]) if coloured else row["text"])
        for sample in row.get("samples", ()):
            print(f"sample: {sample}")
        if self.bound:
            print(f"-log p of the reading is at most {row['nats']:.2f} ± {1.96 * row['stderr']:.2f} nats")
        if coloured:
            say(LEGEND)

    def _write(self, rows: list[dict[str, Any]], about: str) -> None:
        from rdlm.display.restoration import restoration_page

        if self.out is not None:
            fastq = self.out.suffix.lower() in (".fastq", ".fq")
            write_atomic(self.out, "".join(map(_fastq if fastq else _named_text, rows)))
            say(f"wrote {self.out}")
        if self.html is not None:
            write_atomic(self.html, restoration_page(rows, about))
            say(f"wrote {self.html}")

    # -- images -----------------------------------------------------------------------------------

    def _restore_image(self, model: LanguageModel, file: str) -> int:
        """Restore one image, write it, print, and return 0."""
        from rdlm.api.restore import restore_image

        if self.noise is None:
            raise InputError("an image needs --noise, the standard deviation of its levels; 1 is the whole range")
        if self.html is not None or self.bound or self.whole or self.words or self.channel is not None:
            raise InputError(
                "--html, --bound, --whole, --words and --channel are for text; an image is written by --out"
            )
        if self.out is None and not self.json:
            raise InputError("the restored image needs a file: --out restored.png (or --json)")
        found = restore_image(model, _pixels(file, self.format, model, self.noise), self.noise, **self._options())
        if self.out is not None:
            self._write_picture(model, found)
        if self.json:
            print_json({**found.to_json(), "noise": self.noise, "model": model.name})
        sure = float(found.posterior.amax(-1).mean())
        say(f"{found.levels.numel()} pixels, {sure:.1%} sure of the level on average")
        return 0

    def _write_picture(self, model: LanguageModel, found: ImageRestoration) -> None:
        """Write the given image, the mean of the posterior and the samples side by side."""
        import numpy as np

        from rdlm.api.output import grid
        from rdlm.data.image import encode_png

        assert self.out is not None
        drawn = found.samples.double() / (model.tokenizer.size - 1)
        pictures = [found.given.clamp(0, 1), found.mean, *drawn]
        levels = [np.rint(255 * np.asarray(picture)).astype(np.uint8) for picture in pictures]
        write_atomic(self.out, encode_png(grid(levels)))
        say(f"wrote {self.out}: given, restored{', samples' if len(drawn) else ''}")


def _check_model(model: LanguageModel) -> None:
    """Raise InputError for a model that takes no evidence, with a way to one that does."""
    try:
        model.rdlm.denoiser.check_given()
    except InputError as error:
        advice = "rdlm demo trains one in minutes: rdlm restore runs/demo FILE"
        raise InputError(f"{model.name} cannot restore: {error}. {advice}") from None


def _summary(model: LanguageModel, found: list[Restoration], error: ErrorRate | None) -> str:
    """Return one line about restorations: error rate, characters changed, mean certainty of those not kept."""
    import torch

    rows = torch.cat([result.posterior.gather(-1, result.chosen[:, None])[:, 0] for result in found])
    changed, count = sum(len(result.changed) for result in found), sum(len(result.text) for result in found)
    rate = "" if error is None else f"error rate {error}, "
    return f"{rate}{changed} of {count} characters changed, {float(rows.mean()):.1%} sure on average ({model.name})"


def _named_text(row: dict[str, Any]) -> str:
    lines = [*([f"> {row['name']}"] if row["name"] else []), row["text"]]
    return "".join(f"{line}\n" for line in lines)


def _fastq(row: dict[str, Any]) -> str:
    """Return a restored read with the Phred qualities of its posterior."""
    wrong = [max(1 - place["probability"], 1e-12) for place in row["positions"]]
    quality = "".join(chr(33 + min(BEST_QUALITY, round(-10 * math.log10(share)))) for share in wrong)
    return f"@{row['name']}\n{row['text']}\n+\n{quality}\n"


def _pixels(file: str, kind: Format, model: LanguageModel, noise: float) -> Tensor:
    """Return the levels of an image [height, width, channels] from 0 to 1; noise may exceed that."""
    import numpy as np
    import torch

    if (Path(file).suffix.lower() if kind == "auto" else f".{kind}") == ".npy":
        array = _array(file)
        array = array / 255 if array.dtype == np.uint8 else array
        if array.dtype.kind != "f" or array.ndim not in (2, 3) or not array.size or not np.isfinite(array).all():
            what = "an array of grey levels [height, width] has numbers from 0 to 1, or bytes"
            raise InputError(f"{file}: {what}; got {list(array.shape)} of {array.dtype}")
        farthest = float(np.abs(array - 0.5).max()) + 0.5
        if farthest > 1 + 8 * noise:
            raise InputError(f"{file}: levels from 0 to 1 with noise {noise:g} do not reach {farthest:g}: rescale them")
    else:
        array = _png(file, model) / 255
    return torch.from_numpy(np.array(array if array.ndim == 3 else array[..., None], dtype=np.float64))


def _png(file: str, model: LanguageModel) -> Any:
    """Return the pixels of a PNG file after comparing its size; colours become grey for a model of grey images."""
    from rdlm.data.image import decode_png, png_shape

    data = _content(file)
    try:
        height, width, channels = png_shape(data)
        if [height, width] != list(model.about["image"][:2]):
            own = "{1} x {0}".format(*model.about["image"])
            raise InputError(f"{model.name} has images of {own} pixels; {file} has {width} x {height}")
        pixels = decode_png(data)
    except DamagedFileError as error:
        raise InputError(f"{file}: {error}; give an 8-bit grey or RGB PNG file or a NumPy array") from None
    return pixels.mean(-1, keepdims=True) if channels > model.about["image"][2] else pixels


def _content(file: str) -> bytes:
    """Return the bytes of a regular file."""
    from rdlm.data.recipe import open_regular

    try:
        with open_regular(Path(file).expanduser()) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size > LARGEST_TEXT:
                raise InputError(f"{file} has {size:,} bytes; at most {LARGEST_TEXT:,} are read")
            return opened.read()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _array(file: str) -> Any:
    """Return the array in a .npy file, without unpickling."""
    from rdlm.data.own import decode_npy

    try:
        return decode_npy(_content(file))
    except DamagedFileError as error:
        raise InputError(f"{file} is {error}") from None
