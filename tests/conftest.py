"""What every test shares: one thread, no network, a cache of its own, and examples that never change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).parents[1]

# Thousands of small operations run faster on one thread, and two test processes share the processors.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

# A test suite answers the same way twice; new examples are looked for by changing this line.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["RDLM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT
