from __future__ import annotations

import json
import os
import time
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from rdlm.cli import doctor
from rdlm.cli.doctor import Check, Doctor
from rdlm.data import store
from rdlm.data.tokenizer import Bytes
from rdlm.geometry import sphere
from rdlm.likelihood import certificate
from rdlm.storage.tables import table_path, write


@pytest.mark.parametrize(
    ("failed", "code"),
    [(None, 0), (Check("geometry", False, "advice", False), 0), (Check("geometry", False, "advice"), 1)],
)
def test_only_a_required_check_decides_the_exit_code(
    failed: Check | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "dependencies", lambda: [])
    if failed:
        monkeypatch.setattr(doctor, "geometry", lambda: failed)
    assert Doctor(json=True).run() == code
    checks = json.loads(capsys.readouterr().out)["checks"]
    names = ["python", "torch build", "threads", "cache", "runs", "leftovers", "tables", "corpora"]
    assert [check["name"] for check in checks] == [*names, "geometry", "certificate", "self-test"]
    assert all(check.keys() == {"name", "ok", "detail", "required"} for check in checks)
    assert Doctor().run() == code
    assert "torch build" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("torch>=2.6", Check("torch", True, "2.13.0+cpu")),
        ("torch>=2.14", Check("torch", False, "2.13.0+cpu is older than 2.14; run: make setup")),
        ("torch>=2.13.0.1", Check("torch", False, "2.13.0+cpu is older than 2.13.0.1; run: make setup")),
        ("numpy", Check("numpy", False, "missing; run: make setup")),
        (
            "pillow; extra == 'dev'",
            Check("pillow [dev]", False, "missing; run: pip install -c constraints.txt -e '.[dev]'", False),
        ),
    ],
)
def test_dependency(requirement: str, expected: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            return "2.13.0+cpu"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert doctor.dependency(requirement) == expected


def test_users_are_not_asked_for_the_packages_of_developers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Check("pytest [dev]", False, "missing", False), Check("matplotlib [viz]", False, "missing", False)]
    monkeypatch.setattr(doctor, "dependencies", lambda: found)
    for developer in (False, True):
        Doctor(developer=developer, json=True).run()
        names = {check["name"] for check in json.loads(capsys.readouterr().out)["checks"]}
        assert ("pytest [dev]" in names) == developer and "matplotlib [viz]" in names


def test_an_installed_package_is_not_told_of_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "in_checkout", lambda: False)
    assert doctor.dependency("nosuch; extra == 'viz'").detail == "missing; run: pip install 'rdlm[viz]'"
    assert doctor.dependency("nosuch>=2").detail == "missing; run: pip install --upgrade nosuch"


def test_running_without_being_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    (check,) = doctor.dependencies()
    assert not check.ok
    assert "make setup" in check.detail


def test_threads_beyond_the_processors_are_advised_against(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 100_000)
    check = doctor.threads()
    assert not check.ok
    assert "set OMP_NUM_THREADS=" in check.detail


def test_cache_is_probed_without_being_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "not" / "there"))
    assert str(tmp_path / "not" / "there") in doctor.cache().detail
    assert list(tmp_path.iterdir()) == []


def test_cache_that_is_a_file_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "file"))
    check = doctor.cache()
    assert not check.ok
    assert "set RDLM_CACHE" in check.detail


def test_cache_on_a_full_disk_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 10**9, 5))
    check = doctor.cache()
    assert not check.ok
    assert "set RDLM_CACHE to a writable folder on a disk with free space" in check.detail
    assert not doctor.runs().ok and not doctor.runs().required


@pytest.mark.parametrize("wrong", [1e-9, float("nan")])
def test_geometry_notices_a_wrong_distance(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.geometry().ok
    distance = sphere.distance
    monkeypatch.setattr(sphere, "distance", lambda x, y: distance(x, y) + wrong)
    assert not doctor.geometry().ok


@pytest.mark.parametrize("wrong", [-0.01, 0.2, float("nan")])
def test_certificate_notices_a_bound_off_its_floor(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    check = doctor.certificate()
    assert check.ok and check.required and "entropy 1.0180 nats" in check.detail
    terms = certificate.path_terms
    monkeypatch.setattr(certificate, "path_terms", lambda *given: terms(*given) + wrong / 64)
    check = doctor.certificate()
    assert not check.ok and "reinstall" in check.detail


def test_the_self_test_takes_seconds_or_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.process_time()
    assert [check.name for check in doctor.self_test()] == ["geometry", "certificate", "self-test"]
    assert time.process_time() - begin < doctor.SELF_TEST
    monkeypatch.setattr(doctor, "SELF_TEST", 0.0)
    *_, check = doctor.self_test()
    assert not check.ok and not check.required and "the machine is busy" in check.detail


def test_what_killed_processes_left_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path))
    old, new = tmp_path / "data" / ".old.part", tmp_path / "data" / ".new.part"
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (0, 0))
    check = doctor.leftovers()
    assert not check.ok and not check.required
    assert (
        check.detail.startswith("1 files left by killed processes") and f"delete {tmp_path}/*/.*.part" in check.detail
    )


def test_damage_in_the_caches_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path))
    parameters = {"some": "parameters"}
    path = table_path(parameters)
    write(path, parameters, {"table": torch.arange(4.0)})
    draft = store.Draft("toy", Bytes(), {"train": [np.zeros(9, np.uint8)]}, "made up")
    store.write(tmp_path / "data" / "toy", draft, {"name": "toy", "kind": "text", "length": 3, "licence": "none"})
    assert [doctor.tables().detail, doctor.corpora().detail] == ["1 cached, all intact"] * 2
    path.rename(path.with_name("0.safetensors"))
    (tmp_path / "data" / "toy" / "train.bin").write_bytes(bytes(8) + b"1")
    reasons = ["do not match its name", "train.bin is damaged: its SHA-256"]
    for check, message in zip((doctor.tables(), doctor.corpora()), reasons, strict=True):
        assert not check.ok and not check.required and "1 cached; 1 damaged" in check.detail and message in check.detail
