"""`rdlm train`: train a preset or a configuration of your own, or go on with it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rdlm.config import RunConfig
from rdlm.display.tables import print_json, table
from rdlm.errors import DivergedError, InputError
from rdlm.presets import PRESETS, preset
from rdlm.storage import config_file as configfile

if TYPE_CHECKING:
    from rdlm.train.loop import Result


@dataclass(frozen=True)
class Train:
    """Train a preset or a YAML file's configuration; a run that was interrupted continues by itself.

    Every key of the configuration is an option, whose default is the preset's. With several processes:
    torchrun --nproc-per-node N -m rdlm train ... The exit code is 130 after Ctrl-C and 143 after SIGTERM, both with a
    checkpoint saved; 1 if the run diverged.
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET|FILE.yaml")]
    """A preset's name, or a YAML file."""
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)
    """What is trained."""
    out: Path | None = None
    """Folder of the run; runs/NAME if not given."""
    minutes: float | None = None
    """End after so many minutes of training, with a checkpoint and a report; the same command continues."""
    accept_changes: bool = False
    """Go on with the run in the folder although its configuration was another one."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Train, print how it ended, and return the exit code."""
        logging.basicConfig(format="rdlm: %(message)s")
        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"--minutes must be positive, got {self.minutes:g}")
        out = self.out or Path("runs") / (self.source if self.source in PRESETS else Path(self.source).stem)
        result = attempt(self.config, out, self.minutes, self.accept_changes)
        if isinstance(result, int):
            return result
        if result.leads:
            _show(result.to_json(), self.json)
        return 0


def attempt(config: RunConfig, out: Path, minutes: float | None, accept_changes: bool = False) -> Result | int:
    """Return how a run ended, or the exit code where it did not: stopped, diverged, or another process failed."""
    from rdlm.methods import build
    from rdlm.train.interruption import InterruptedRunError
    from rdlm.train.loop import train
    from rdlm.train.parallel import LeaderFailedError

    try:
        return train(config, out, build, minutes=minutes, accept_changes=accept_changes)
    except InterruptedRunError as stopped:
        print(f"rdlm: {stopped}", file=sys.stderr)
        return stopped.code
    except DivergedError as error:
        print(f"rdlm: error: {error}", file=sys.stderr)
        return 1
    except LeaderFailedError:
        return 1


def defaults(options: Sequence[str]) -> Train:
    """Return the command as the preset or file that `options` begin with sets it; the rest changes its keys."""
    return Train(*chosen("train", options))


def chosen(command: str, options: Sequence[str]) -> tuple[str, RunConfig]:
    """Return the name and the configuration of the preset or YAML file that a command's options begin with."""
    first = options[0] if options else ""
    if first in ("-h", "--help"):
        return "demo", preset("demo")
    if not first or first.startswith("-"):
        raise InputError(f"rdlm {command} begins with a preset or a YAML file; presets: {', '.join(PRESETS)}")
    if first in PRESETS or not first.endswith((".yaml", ".yml")):
        return first, preset(first)
    return first, configfile.read(Path(first))


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    bound = result["bound"] or {}
    row = {**result, **{key: bound.get(key) for key in ("low", "high")}, "bound": bound.get("value")}
    print(table([row], ["run", "protocol", "parameters", "steps", "seconds", "loss", "bound", "low", "high", "unit"]))
    print(f"report: {Path(result['run']) / 'report.html'}", file=sys.stderr)
