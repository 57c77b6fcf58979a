"""What every test shares: one thread, no network, a cache of its own, and examples that never change."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro
from hypothesis import settings

from rdlm.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
HERE = ("127.0.0.1", "::1", "localhost")
"""This machine, by the names under which tests reach it."""

# Thousands of small operations run faster on one thread, and two test processes share the processors.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

# Under nohup SIGHUP is ignored, and processes inherit that; tests of this signal need its default action.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A test suite answers the same way twice; new examples are looked for by changing this line.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")


def stay_home(event: str, arguments: tuple[Any, ...]) -> None:
    """Let no test connect to another machine; what tests start as processes is watched in test_footprint."""
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in HERE:
        raise RuntimeError(f"tests use no network, and this one connects to {arguments[1][0]}")


sys.addaudithook(stay_home)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["RDLM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def flags_of() -> Callable[[str], dict[str, list[str] | None]]:
    """Return the flags of a command, for every network that it can configure, with the values that each allows."""

    @functools.cache
    def flags(command: str) -> dict[str, list[str] | None]:
        entry = COMMANDS[command]
        kind = getattr(importlib.import_module(entry.module), entry.name)
        config = (tyro.conf.FlagCreatePairsOff, tyro.conf.AvoidSubcommands)
        found: dict[str, list[str] | None] = {}
        for preset in ("demo", "promoter-paper") if entry.two_stages else ("",):
            default = kind.defaults(command, [preset]) if entry.two_stages else tyro.MISSING_NONPROP
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of `get_parser`, which is only read
                parser = tyro.extras.get_parser(kind, default=default, config=config)
            for action in parser._actions:
                found |= dict.fromkeys(action.option_strings, list(action.choices) if action.choices else None)
        return found

    return flags
