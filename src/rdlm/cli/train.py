"""`rdlm train`: train a preset or your own configuration, or continue an interrupted run."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import tyro

from rdlm.config import DataConfig, RunConfig
from rdlm.display.text_table import print_json, table
from rdlm.errors import DivergedError, InputError, require
from rdlm.presets import PRESETS, preset
from rdlm.storage import config_file
from rdlm.storage.own_classes import trusting

if TYPE_CHECKING:
    from rdlm.train.loop import Result
    from rdlm.train.run import Build

Unknown = Literal["error", "skip", "replace", "extend"]

SOURCE = f"Name of a preset ({', '.join(PRESETS)}; -paper: the paper's settings), or a YAML file."


@dataclass(frozen=True)
class Train:
    """Train a preset or the configuration of a YAML file; the same command continues an interrupted run.

    rdlm train --data PATH trains on your own data. rdlm presets lists the presets. Every key of the configuration is an
    option; its default is the preset's: this help has those of demo, rdlm train PRESET --help those of another. With
    several processes: torchrun --nproc-per-node N -m rdlm train ... The exit code is 130 after Ctrl-C and 143 after
    SIGTERM, both after saving a checkpoint, and 1 if the run diverged.
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET|FILE.yaml", help=SOURCE)]
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)
    """Configuration of the run."""
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
        with trusting(self.trust):
            result = attempt(config, out, self.minutes, self.accept_changes, given, self.init, self.track, self.began)
        if isinstance(result, int):
            return result
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


def attempt(
    config: RunConfig,
    out: Path,
    minutes: float | None,
    accept_changes: bool = False,
    given: Collection[str] | None = None,
    init: str | None = None,
    track: Sequence[Literal["wandb"]] = (),
    began: float | None = None,
) -> Result | int:
    """Return the result of a run, or the exit code if it was stopped, diverged, or another process failed.

    With `given`, the keys that the user has set, the other ones are fitted to the minutes after `began`. `init` names a
    model whose weights are the initial ones and whose network is kept, and `track` trackers of its numbers.
    """
    began = began or time.monotonic()  # before torch is imported
    from rdlm import methods
    from rdlm.train.interruption import InterruptedRunError
    from rdlm.train.loop import train
    from rdlm.train.parallel import LeaderFailedError

    build: Build = methods.build
    if init is not None:
        from rdlm.api.training import starting_from

        build, given = starting_from(init), None if given is None else {*given, "model"}
    try:
        return train(
            config,
            out,
            build,
            minutes=minutes,
            given=given,
            began=began,
            accept_changes=accept_changes,
            track=track,
        )
    except InterruptedRunError as stopped:
        print(f"rdlm: {stopped}", file=sys.stderr)
        return stopped.code
    except DivergedError as error:
        print(f"rdlm: error: {error}", file=sys.stderr)
        return 1
    except LeaderFailedError:
        return 1


def own_tokens(data: DataConfig, default: DataConfig, alphabet: str | None, unknown: Unknown | None) -> dict[str, Any]:
    """Return changed options for the tokens of a text: what the user gives replaces those of an initial model."""
    if unknown is not None:
        return {"unknown": unknown}
    if data.tokenizer != default.tokenizer and data.alphabet == default.alphabet and alphabet is None:
        return {"alphabet": None, "unknown": None}
    if data.unknown == default.unknown and (alphabet is not None or data.alphabet != default.alphabet):
        return {"unknown": None}
    return {}


def defaults(options: Sequence[str]) -> Train:
    """Return the command with the configuration of the preset or file that `options` begin with, and of `--init`."""
    began = time.monotonic()
    name, config = chosen_configuration("train", options)
    init = value_of(options, "--init")
    if init is not None and not str(name).endswith((".yaml", ".yml")):  # a file has a value for every key
        from rdlm.api.training import initial_configuration

        config = initial_configuration(config, init)
    return Train(name, config, default=config, began=began)


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


@dataclass(frozen=True)
class Presets:
    """List the presets with a summary of each; `rdlm train NAME` trains one."""

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print the list and return 0."""
        rows = [{"name": name, "summary": (make.__doc__ or "").splitlines()[0]} for name, make in PRESETS.items()]
        if self.json:
            print_json({"rows": rows})
        else:
            print(table(rows, ["name", "summary"]))
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
