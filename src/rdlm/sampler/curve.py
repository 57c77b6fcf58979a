"""The grid of a name, and the measured curve of information from which one of them is made.

`curve.json` stands beside a checkpoint: `{"noise": [S, ..., 0], "nats": [0, ..., total]}`, the nats gained by the time
that so much noise is still to come.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rdlm.errors import DamagedFileError, InputError, unknown
from rdlm.language_model import LanguageModel
from rdlm.process.grid import Grid, equal_information, uniform_in_log_noise
from rdlm.storage import read_json

NAME = "curve.json"
GRIDS = ("time", "log", "information")


def grid_of(model: LanguageModel, name: str) -> Callable[[int], Grid]:
    """Return what makes a grid of so many steps; the measured one needs a curve beside the checkpoint."""
    process = model.rdlm.process
    if name == "time":
        return process.grid
    if name == "log":
        return partial(uniform_in_log_noise, process.clock.total)
    if name != "information":
        raise unknown("grid", name, GRIDS)
    if model.folder is None or not (model.folder / NAME).is_file():
        raise InputError(
            "the information grid needs a measured curve: run rdlm evaluate RUN --window 1 first, "
            "and publish a model afterwards to have it among its files"
        )
    return partial(equal_information, *read(model.folder / NAME, process.clock.total))


def read(path: Path, total: float) -> tuple[Tensor, Tensor]:
    """Return noise levels and cumulative nats of a curve's file, which must be of the same total noise."""
    found = read_json(path)
    try:
        noise, nats = (torch.tensor(found[key], dtype=torch.float64) for key in ("noise", "nats"))
        equal_information(noise, nats, 1)
    except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None
    if abs(float(noise[0]) - total) > 1e-6 * total:
        raise DamagedFileError(f"{path} was measured with a total noise of {float(noise[0]):g}, not {total:g}")
    return noise, nats
