"""Cached laws: tables are computed once, named by what determines them, and computed again when damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from rdlm.errors import DamagedFileError
from rdlm.process import law as laws
from rdlm.process.bridge import Bridge, Start, masked_start, uniform_start
from rdlm.process.schedule import Geometric, uniform_in_time
from rdlm.storage import tables
from rdlm.storage.tables import read

CLOCK = Geometric()
BRIDGE = Bridge(masked_start(4), CLOCK.total, "logarithm")
GRID = uniform_in_time(CLOCK, 8)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tables"


@pytest.fixture
def builds(monkeypatch):
    """The calls that computed a table."""
    calls = []
    for name in ("tabulate", "precompute"):
        real = getattr(laws, name)
        monkeypatch.setattr(laws, name, lambda *given, real=real, **named: calls.append(1) or real(*given, **named))
    return calls


def exact():
    return laws.cached_exact(BRIDGE, GRID, 64, seed=5)


def only_file(folder):
    (path,) = folder.iterdir()
    return path


def test_exact_table_is_built_once_and_equals_a_fresh_one(folder, builds):
    first, second = exact(), exact()
    fresh = laws.tabulate(BRIDGE, GRID, 64, torch.Generator().manual_seed(5))
    assert len(builds) == 2  # one by the cache, one for `fresh`
    assert torch.equal(first.radius, second.radius) and torch.equal(first.start_cosine, second.start_cosine)
    assert torch.equal(fresh.radius, second.radius) and torch.equal(fresh.start_cosine, second.start_cosine)
    assert only_file(folder).suffix == ".safetensors"


def test_normal_table_is_built_once(folder, builds):
    first, second = (laws.cached_normal(BRIDGE, GRID, 64, seed=5) for _ in range(2))
    assert len(builds) == 1
    for name in ("angle", "scale"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert second.draw(torch.tensor([1]), 0.01).shape == (1, 5)


def test_everything_that_determines_a_table_changes_its_name(folder):
    exact()
    laws.cached_exact(BRIDGE, GRID, 64, seed=6)
    laws.cached_exact(BRIDGE, GRID, 65, seed=5)
    laws.cached_exact(BRIDGE, uniform_in_time(CLOCK, 9), 64, seed=5)
    laws.cached_exact(replace(BRIDGE, kind="brownian"), GRID, 64, seed=5)
    laws.cached_exact(replace(BRIDGE, start=uniform_start(4)), GRID, 64, seed=5)
    laws.cached_exact(replace(BRIDGE, start=Start(5)), GRID, 64, seed=5)
    laws.cached_normal(BRIDGE, GRID, 64, seed=5)
    assert len(list(folder.iterdir())) == 8


def damage(path, where):
    content = bytearray(path.read_bytes())
    if where == "truncated":
        del content[len(content) // 2 :]
    elif where == "empty":
        content.clear()
    else:
        index = {"length": 3, "header": 30, "first number": -64 * 8 * 4 * 2, "last number": -1}[where]
        content[index] ^= 0x10
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("where", ["truncated", "empty", "length", "header", "first number", "last number"])
def test_damaged_table_is_built_again(folder, builds, caplog, where):
    intact = exact()
    damage(only_file(folder), where)
    repaired = exact()
    assert len(builds) == 2 and len(caplog.records) == 1
    assert str(only_file(folder)) in caplog.text
    assert torch.equal(intact.radius, repaired.radius)
    assert torch.equal(exact().radius, intact.radius)
    assert len(builds) == 2 and len(caplog.records) == 1  # now it is intact


def test_table_with_other_parameters_is_not_used(folder, builds):
    exact()
    path = only_file(folder)
    other = laws.cached_exact(BRIDGE, GRID, 64, seed=6)
    (other_path,) = (p for p in folder.iterdir() if p != path)
    shutil.copy(path, other_path)
    assert torch.equal(laws.cached_exact(BRIDGE, GRID, 64, seed=6).radius, other.radius)
    assert len(builds) == 3


def test_read_names_the_damaged_file(folder):
    exact()
    path = only_file(folder)
    with pytest.raises(DamagedFileError, match=path.name):
        read(path, {"law": "another"})


def test_a_pipe_or_a_link_in_place_of_a_table_is_not_read(tmp_path):
    tables.write(tmp_path / "real.safetensors", {"a": 1}, {"b": torch.zeros(2)})
    path = tmp_path / "table.safetensors"
    for make in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "real.safetensors")):
        make(path)
        for check in (tables.check, lambda path: read(path, {"a": 1})):
            with pytest.raises(DamagedFileError, match="cannot be read"):
                check(path)
        path.unlink()


def test_unwritable_cache_logs_one_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "file"))
    assert exact().radius.shape == (8, 64)
    assert len(caplog.records) == 1 and "built again next time" in caplog.text


SCRIPT = """
import torch
from rdlm.process.law import cached_exact
from rdlm.process.bridge import Bridge
from rdlm.process.schedule import Geometric
from rdlm.process.schedule import uniform_in_time
from rdlm.process.bridge import masked_start
torch.set_num_threads(1)
schedule = Geometric()
for seed in range(20):
    law = cached_exact(Bridge(masked_start(4), schedule.total, "logarithm"), uniform_in_time(schedule, 8), 64, seed)
    print(law.radius.double().sum().item())
"""


def test_two_processes_at_once_agree(folder):
    runs = [subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=-1, stderr=-1, text=True) for _ in range(2)]
    answers = [run.communicate(timeout=60) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], answers
    assert answers[0] == answers[1] and answers[0][1] == ""
    assert len(list(folder.iterdir())) == 20  # no part of a file is left behind
