"""The record of the last campaign, docs/torture.json, and the table that is written from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "torture.json").read_text())
    return found


def test_the_campaign_was_whole_and_lost_nothing(record: dict[str, Any]) -> None:
    assert record["lost"] == record["not tried"] == [] and record["command"] == "python torture/campaign.py"
    assert record.get("let in", []) == record.get("hung", []) == []  # not in records before version 0.2.0
    assert set(record.get("attacks", {}).get("outcomes", {}).values()) <= {"held"}
    service = record["service"]
    assert record["kills"] >= 100 and record["mutations"] >= 10_000
    assert sum(service["abuses"].values()) >= 10_000 and service["defects"] == 0
    assert service["crowd sent"] == sum(service["crowd"].values())
    assert sum(record["mutations refused"].values()) + sum(record["mutations read"].values()) == record["mutations"]


NEWER = {"pauses of one of two": "pauses", "runs of another host refused": "starts from hosts of other names"}
"""Counts that records before version 0.2.0 do not have, and the words of the table after them."""


def figures(record: dict[str, Any]) -> list[str]:
    """Return the figures that the table must quote."""
    service, struck = record["service"], record["where the kills struck"]
    drawn = sum(count for name, count in service["abuses"].items() if name.startswith("described"))
    crowd, times = service["crowd"], service["crowd, milliseconds"]["200"]
    attacks = record.get("attacks", {}).get("outcomes", {})
    newer = [f"{record[name]} {words}" for name, words in NEWER.items() if name in record]
    newer += [f"{len(attacks)} attacks, see below"] if attacks else []
    return [
        *newer,
        f"{record['kills']} kills, {record['restarts']} restarts",
        f"{record['runs compared']} runs compared",
        f"{record['bytes equal']:,} bytes",
        f"{struck['inside the write']} inside the writing",
        f"{record['full disks']} full disks",
        f"{record['file size limits']} file size limits",
        f"{record['signals']} signals",
        f"{record['kills of one of two']} kills of one of two",
        f"{record['mutations']:,} damaged",
        f"{sum(record['mutations refused'].values()):,} refused",
        f"{sum(service['abuses'].values()):,} requests, {drawn:,} of them",
        f"{service['crowd sent']:,} requests",
        f"{crowd['200']:,} answered (p50 {times['p50']:.0f} ms",
        f"{crowd['429']:,} with 429",
        f"{service['megabytes before']:.0f} MB after a tenth of it, {service['megabytes after']:.0f} MB after all",
        f"Python {record['python']}",
        f"torch {record['torch']}",
    ]


def test_the_table_quotes_the_record(record: dict[str, Any]) -> None:
    table = (DOCS / "reliability.md").read_text()
    assert [figure for figure in figures(record) if figure not in table.replace("\n", " ")] == []
