"""A small part of the campaign: the real command with faults, compared bit by bit."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import faults
import pytest
from fuzz import MEGABYTES, fuzz
from process import die_at_touch
from victim import ALONE, Victim, different

STEPS = 14


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    """A run that nothing happened to."""
    place = tmp_path_factory.mktemp("torture")
    (place / "book.txt").write_text("some text of mine, and then some more of it. " * 80)
    victim = Victim(place / "whole", place / "book.txt", STEPS)
    victim.finish()
    return victim


def test_kills_at_any_touch_of_a_file_lose_nothing(whole: Victim, tmp_path: Path) -> None:
    victim, seen = whole.moved(tmp_path / "run"), Counter[str]()
    for touch in (21, 26, 44):  # into the first checkpoint, its pointer, and the next one
        process = victim.start(partial(die_at_touch, victim.run, touch))
        assert process.wait(timeout=100) == -signal.SIGKILL
        faults.inspect(victim, 0, seen)
    assert seen["inside the write"] >= 1 and 0 < victim.newest < STEPS
    victim.finish()
    names, size = different(victim.run, whole.run)
    assert names == [] and size > 20_000


def test_a_dead_process_holds_nothing(whole: Victim, tmp_path: Path) -> None:
    victim = whole.moved(tmp_path / "run")
    faults.seconds_to_first_save(victim.moved(victim.run, ALONE))
    assert (victim.run / "lock").read_text().startswith("process ")  # a dead one's
    victim.finish()
    assert different(victim.run, whole.run)[0] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_exits_with_its_code(number: signal.Signals, whole: Victim, tmp_path: Path) -> None:
    victim = Victim(tmp_path / "run", whole.book, 2000)
    assert faults.stop(victim, random.Random(0), number) > 0


def test_a_second_run_is_refused(whole: Victim, tmp_path: Path) -> None:
    assert "is in use by process" in faults.intrude(Victim(tmp_path / "run", whole.book, 2000))


def test_a_file_size_limit_is_reported_and_loses_nothing(whole: Victim, tmp_path: Path) -> None:
    victim = whole.moved(tmp_path / "run")
    said = faults.starve(victim, random.Random(1))
    assert "File too large" in said
    victim.finish()
    assert different(victim.run, whole.run)[0] == []


def test_a_full_disk_is_reported_and_loses_nothing(whole: Victim, tmp_path: Path) -> None:
    with faults.small_disk(tmp_path / "disk", 3) as disk:
        if disk is None:
            pytest.skip("only root can mount a small disk")
        victim = whole.moved(disk / "run")
        assert "No space left on device" in str(faults.fill(victim, disk, random.Random(0), patience=0))
        victim.finish()
        assert different(victim.run, whole.run)[0] == []


@pytest.mark.parametrize("room", [4_500, 9_000, 60_000, 400_000])
def test_a_disk_of_any_size_is_enough_or_too_small(room: int, whole: Victim, tmp_path: Path) -> None:
    with faults.small_disk(tmp_path / "disk", 1) as disk:
        if disk is None:
            pytest.skip("only root can mount a small disk")
        victim = whole.moved(disk / "run")
        faults.fill_up(disk / "ballast", room)
        if not faults.ended_in_order(victim, victim.start().wait(timeout=100)):
            assert room < 200_000
            (disk / "ballast").unlink()
            victim.finish()
        assert different(victim.run, whole.run)[0] == []


def test_numbers_that_go_wrong_end_the_run_in_order(whole: Victim, tmp_path: Path) -> None:
    """The real command at a rate at which no weight stays finite: it ends with code 1, and with the batch in a file."""
    options = {"training.lr": 1e38, "training.warmup": 0, "training.tolerance": 3}
    victim = Victim(tmp_path / "run", whole.book, STEPS, options)
    assert victim.start().wait(timeout=100) == 1
    (dump,) = victim.run.glob("nonfinite-*.json")
    found = json.loads(dump.read_text())
    assert f"step {found['step']}: loss" in victim.messages and f"the batch is in {dump}" in victim.messages
    assert "not finite for 3 steps in a row" in victim.messages and "Traceback" not in victim.messages
    assert len(found["ids"]) == 4 and len(found["ids"][0]) == 16 and found["parameters"]
    assert victim.newest == 0  # weights that are not finite are not saved


def test_corrupted_checkpoints_are_refused_or_harmless(tmp_path: Path) -> None:
    outcome = fuzz(tmp_path, 200, seed=12)
    assert outcome.defects == []
    assert outcome.tried == 200 and outcome.refused.total() > 130 and outcome.read.total() > 10
    assert not outcome.executed and outcome.grown < MEGABYTES
