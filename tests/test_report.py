from __future__ import annotations

import json
import math

import pytest

from rdlm.display.text_table import print_json, table


def test_table_aligns_text_left_and_numbers_right() -> None:
    rows = [{"name": "die", "bound": 1.09861, "ok": True}, {"name": "letters", "bound": 12.5, "ok": False}]
    assert table(rows, ["name", "bound", "ok"]).splitlines() == [
        "name     bound  ok",
        "-------  -----  ---",
        "die      1.099  yes",
        "letters  12.50  no",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (123456, "123456"),
        (2.9299999, "2.930"),
        (0.0, "0.000"),
        (-0.000123456, "-0.0001235"),
        (1234.0, "1234"),
        (9999.4, "9999"),
        (9999.6, "10000"),
        (1e70, "1.000e+70"),
        (30522.0, "30522"),
        (math.inf, "inf"),
        (math.nan, "nan"),
        ("mask", "mask"),
    ],
)
def test_table_cell(value: object, text: str) -> None:
    assert table([{"x": value}], ["x"]).splitlines()[-1] == text


def test_table_shows_only_its_columns_and_survives_missing_keys_and_rows() -> None:
    assert table([{"a": 1, "b": 2}, {"b": 3}], ["a"]).splitlines()[2:] == ["1", "-"]
    assert table([], ["a", "bb"]).splitlines() == ["a  bb", "-  --"]


def test_print_json_is_one_strict_object(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"rows": [{"x": math.nan, "y": (1.5, -math.inf)}], "name": "θ", "ok": True, "n": 3})
    out = capsys.readouterr().out
    assert json.loads(out, parse_constant=pytest.fail) == {
        "rows": [{"x": None, "y": [1.5, None]}],
        "name": "θ",
        "ok": True,
        "n": 3,
    }
    assert out.endswith("}\n")
