"""`rdlm train` trains a preset or your own configuration, `rdlm plan` estimates its cost, `rdlm presets` lists all."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

import tyro

from rdlm.config import DataConfig, RunConfig
from rdlm.display.text_table import print_json, print_result, table
from rdlm.errors import InputError, require
from rdlm.presets import PRESETS, preset
from rdlm.storage import config_file
from rdlm.storage.own_classes import trusting

if TYPE_CHECKING:
    from rdlm.train.run import Build

Unknown = Literal["error", "skip", "replace", "extend"]

SOURCE = f"Name of a preset ({', '.join(PRESETS)}; -paper: the paper's settings), or a YAML file."


@dataclass(frozen=True)
class FromPreset:
    """Options of a command whose first argument selects the defaults of all others."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET|FILE.yaml", help=SOURCE)]
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)
    """Configuration of the run."""

    @classmethod
    def defaults(cls, command: str, options: Sequence[str]) -> Self:
        """Return the command with the configuration of the preset or file that `options` begin with."""
        return cls(*chosen_configuration(command, options))


@dataclass(frozen=True)
class Train(FromPreset):
    """Train a preset or the configuration of a YAML file; the same command continues an interrupted run.

    rdlm train --data PATH trains on your own data. rdlm presets lists the presets. Every key of the configuration is an
    option; its default is the preset's: this help has those of demo, rdlm train PRESET --help those of another. With
    several processes: torchrun --nproc-per-node N -m rdlm train ... The exit code is 130 after Ctrl-C and 143 after
    SIGTERM, both after saving a checkpoint, and 1 if the run diverged.
    """

    path: Annotated[str | None, tyro.conf.arg(name="data", metavar="PATH|hf://NAME")] = None
    """Your data in place of a preset: text, CSV, TSV, JSONL, JSON, Parquet, FASTA, FASTQ, a folder of them or of
    images, or an .npy array; the format is detected from the content. Or a dataset of the Hugging Face hub,
    hf://NAME[:CONFIG][/SPLIT], of which --data.limit characters are streamed."""
    column: str | None = None
    """Column of your table (CSV, TSV, JSONL, JSON, Parquet), or of a dataset of the hub."""
    alphabet: str | None = None
    """Alphabet of your text; what happens to other characters is chosen by --unknown."""
    unknown: Unknown | None = None
    """Characters outside of the alphabet: an error, left out (skip), spaces (replace), or more tokens (extend). By
    default spaces if the alphabet has one, else left out; with --init, more tokens."""
    normalise: bool = False
    """Reduce your text to 27 characters as in text8: lower case, digits spelled, other characters to spaces; with
    --alphabet or --init, to that alphabet in the same way."""
    out: Path | None = None
    """Folder of the run; by default runs/NAME."""
    init: str | None = None
    """Start from this run, checkpoint or model, such as text8: with its weights, network, method, process and tokens.
    Options take precedence, and new characters become new tokens; weights that do not fit are new and reported. An
    n-gram model (model.belief) is always counted in the new data; it can be added or removed."""
    minutes: float | None = None
    """Time limit of the whole command: loading, training, validation, samples and report. Network, batch, steps,
    warm-up and validation are chosen by the measured speed and reported; options take precedence. The same command
    continues the run. With several processes: time limit of training alone, and nothing is chosen."""
    accept_changes: bool = False
    """Continue the run in the folder although its configuration differs."""
    track: tuple[Literal["wandb"], ...] = ()
    """Also log to a tracker: wandb (Weights & Biases, extra wandb). record.jsonl is always written, and files for
    TensorBoard if it is installed."""
    trust: tuple[str, ...] = ()
    """Names module:Class of your own network, schedule or bridge that may be imported and run."""
    json: bool = False
    """Print one JSON object instead of a table."""
    default: Annotated[RunConfig, tyro.conf.Fixed, tyro.conf.Suppress] = field(default_factory=RunConfig)
    """Configuration of the preset or file, with that of the initial model."""
    began: Annotated[float, tyro.conf.Fixed, tyro.conf.Suppress] = 0.0
    """Time at which the command began."""

    @classmethod
    def defaults(cls, command: str, options: Sequence[str]) -> Self:
        """Return the command with the configuration of a preset or file, or with that of the model of `--init`."""
        began = time.monotonic()
        name, config = chosen_configuration(command, options)
        init = value_of(options, "--init")
        if init is not None and not str(name).endswith((".yaml", ".yml")):  # a file has a value for every key
            from rdlm.api.training import initial_configuration

            config = initial_configuration(config, init)
        return cls(name, config, default=config, began=began)

    def run(self) -> int:
        """Train, print the result, and return the exit code."""
        logging.basicConfig(format="rdlm: %(message)s")
        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"--minutes must be positive, got {self.minutes:g}")
        for name in self.track:
            require(name, name, f"--track {name}")
        out = self.out or Path("runs") / (self.source if self.source in PRESETS else Path(self.source).stem)
        config = self._with_data()
        given = set(config_file.difference(self.default, config))
        from rdlm import methods
        from rdlm.train.loop import train

        build: Build = methods.build
        with trusting(self.trust):
            if self.init is not None:
                from rdlm.api.training import starting_from

                build, given = starting_from(self.init), {*given, "model"}
            result = train(
                config,
                out,
                build,
                minutes=self.minutes,
                given=given,
                began=self.began,
                accept_changes=self.accept_changes,
                track=self.track,
            )
        if result.leads:
            _show(result.to_json(), self.json)
        return 0

    def _with_data(self) -> RunConfig:
        """Return the configuration with the data options of this command."""
        data = self.config.data
        changes: dict[str, Any] = {"column": self.column, "alphabet": self.alphabet}
        if self.path is not None:
            changes |= {"hub": self.path} if self.path.startswith("hf://") else {"file": Path(self.path)}
        kept = {name: value for name, value in changes.items() if value is not None}
        data = replace(data, **kept, normalise=self.normalise or data.normalise)
        data = replace(data, **own_tokens(data, self.default.data, self.alphabet, self.unknown))
        if data.hub is not None:
            from rdlm.data.own import check_datasets, parsed_hub_name

            parsed_hub_name(data.hub)
            check_datasets()
        return replace(self.config, data=data)


def own_tokens(data: DataConfig, default: DataConfig, alphabet: str | None, unknown: Unknown | None) -> dict[str, Any]:
    """Return changed options for the tokens of a text: what the user gives replaces those of an initial model."""
    if unknown is not None:
        return {"unknown": unknown}
    if data.tokenizer != default.tokenizer and data.alphabet == default.alphabet and alphabet is None:
        return {"alphabet": None, "unknown": None}
    if data.unknown == default.unknown and (alphabet is not None or data.alphabet != default.alphabet):
        return {"unknown": None}
    return {}


def value_of(options: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag; None without it."""
    for option, following in zip(options, [*options[1:], None], strict=True):
        if option == flag or option.startswith(f"{flag}="):
            return following if option == flag else option.partition("=")[2]
    return None


OWN_DATA = {"train": ", or --data PATH", "compare": ", such as own --data.file PATH for your own data"}
"""Command -> how it takes the user's data, in the message for a missing argument."""


def chosen_configuration(command: str, options: Sequence[str]) -> tuple[str, RunConfig]:
    """Return the name and the configuration of the preset or YAML file that `options` begin with."""
    first = options[0] if options else ""
    if first in ("-h", "--help"):
        return cast(str, tyro.MISSING_NONPROP), preset("demo")  # the help says that it is required
    if command == "train" and first.startswith("-") and any(one.split("=")[0] == "--data" for one in options):
        return "own", preset("own")
    if not first or first.startswith("-"):
        raise InputError(
            f"rdlm {command} needs a preset or a YAML file as its first argument"
            f"{OWN_DATA.get(command, '')}; presets: {', '.join(PRESETS)}"
        )
    if first in PRESETS or not first.endswith((".yaml", ".yml")):
        return first, preset(first)
    return first, config_file.read(Path(first))


CORPORA: dict[str, tuple[int, int, int]] = {
    "demo": (27, 0, 0),
    "text8": (27, 0, 0),
    "enwik8": (256, 0, 0),
    "lm1b": (30522, 0, 0),
    "wikitext-2": (2048, 0, 0),
    "digits": (17, 10, 0),
    "mnist": (256, 10, 0),
    "cifar10": (256, 10, 0),
    "promoter": (4, 0, 1),
    "promoter-chr22": (4, 0, 0),
    "chr22": (4, 2, 0),
    "regulatory": (4, 4, 0),
}
"""Vocabulary, classes and width of the signal of corpora."""


@dataclass(frozen=True)
class PlanRun(FromPreset):
    """Estimate the cost of a run: parameters, FLOPs, memory, speed by the roofline model, hours and dollars.

    Nothing is trained and no data are read: the network is built on the meta device, and its matrix products are
    counted. The estimate has not been compared with a measured run; all its assumptions are printed.
    """

    device: str = "h100"
    """Devices: h100, a100, l4 or rtx4090, with their number, such as h100:8."""
    price: float | None = None
    """Dollars per device and hour; by default an assumed price, which is printed."""
    vocabulary: int | None = None
    """Vocabulary size of your own data; by default 100."""
    json: bool = False
    """Print one JSON object instead of lines."""

    def run(self) -> int:
        """Print the plan and return 0."""
        from rdlm.data.corpus import recipe_of
        from rdlm.train.roofline import DataSize, plan

        name = self.config.data.name
        known, classes, signal = CORPORA.get(name, (100, 0, 0))
        if self.price is not None and not self.price >= 0:
            raise InputError(f"--price must not be negative, got {self.price:g}")
        length = self.config.data.length or recipe_of(name).length
        data = DataSize(self.vocabulary or known, length, classes, signal)
        found = plan(self.config, data, self.device, self.price)
        facts = (
            ("parameters", f"{found.parameters / 1e6:.1f} million"),
            ("tokens of the run", f"{found.tokens:.3g}"),
            ("FLOPs per token", f"{found.flops_per_token:.3g}, forward and backward"),
            ("memory per device", f"{found.memory_per_device / 1e9:.1f} GB" + ("" if found.fits else ": DOES NOT FIT")),
            ("tokens per second", f"{found.tokens_per_second:,.0f} on {self.device}, limited by {found.limit}"),
            ("time of the run", f"{found.hours:,.1f} hours"),
            ("cost of the run", f"{found.dollars:,.0f} dollars"),
        )
        lines = [f"{label:<18} {value}" for label, value in facts]
        lines += ["", "assumptions:", *(f"- {assumption}" for assumption in found.assumptions)]
        if not found.fits:
            lines += ["", "It does not fit: more --training.accumulate, or --training.parallel fsdp."]
        print_result({"device": self.device, **found.to_json()}, "\n".join(lines), self.json)
        return 0


@dataclass(frozen=True)
class Presets:
    """List the presets with a summary of each; `rdlm train NAME` trains one."""

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print the list and return 0."""
        rows = [{"name": name, "summary": (make.__doc__ or "").splitlines()[0]} for name, make in PRESETS.items()]
        print_result({"rows": rows}, table(rows, ["name", "summary"]), self.json)
        return 0


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    bound = result["bound"] or {}
    row = {**result, **{key: bound.get(key) for key in ("low", "high")}, "bound": bound.get("value")}
    print(table([row], ["run", "protocol", "parameters", "steps", "seconds", "loss", "bound", "low", "high", "unit"]))
    if result["note"] is not None:
        print(f"note: {result['note']}")
    print(f"report: {Path(result['run']) / 'report.html'}", file=sys.stderr)
