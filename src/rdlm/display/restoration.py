"""A restored text with terminal colours, or as a self-contained web page without scripts.

A place is an object with the keys `char`, `read`, `probability` and `alternatives` of `rdlm restore --json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from typing import Any, Final

Place = Mapping[str, Any]

SURE, LIKELY = 0.9, 0.5
"""Probabilities below which a character is unsure, and below which it is a guess."""

COLOURS: Final = {"guess": "\033[31m", "unsure": "\033[33m", "changed": "\033[32m"}
PLAIN: Final = "\033[0m"
LEGEND: Final = f"green: changed, yellow: less than {SURE:.0%} sure, red: less than {LIKELY:.0%}"

MOST_LISTED: Final = 200
"""Rows of the table of a page; the text of the page has all places."""


def state_of(place: Place) -> str:
    """Return whether a character is a guess, unsure, changed, or none of them: the empty string."""
    if place["probability"] < LIKELY:
        return "guess"
    if place["probability"] < SURE:
        return "unsure"
    return "changed" if place["char"] != place["read"] else ""


def terminal_text(places: Sequence[Place]) -> str:
    """Return the restored text with terminal colours: see `LEGEND`. Control characters are shown as U+FFFD."""
    parts = []
    for state, run in groupby(places, state_of):
        text = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in (p["char"] for p in run))
        parts.append(f"{COLOURS[state]}{text}{PLAIN}" if state else text)
    return "".join(parts)


def restoration_page(rows: Sequence[Mapping[str, Any]], about: str) -> str:
    """Return a web page of restorations, rows of `rdlm restore --json`, under one line that describes them."""
    sections = "\n".join(_section(row, number) for number, row in enumerate(rows, 1))
    page = (resources.files("rdlm.display") / "restoration.html").read_text("utf-8")
    head, _, tail = page.partition("__SECTIONS__")
    return head.replace("__ABOUT__", escape(about)) + sections + tail


def _section(row: Mapping[str, Any], number: int) -> str:
    places = row["positions"]
    unsure = sum(place["probability"] < SURE for place in places)
    counts = f"{row['changed']} of {len(places)} characters changed, {unsure} less than {SURE:.0%} sure, "
    counts += f"{row['expected_errors']:.1f} errors expected"
    samples = [f"<pre>{escape(sample)}</pre>" for sample in row.get("samples", ())]
    drawn = f"<details><summary>{len(samples)} samples of the joint posterior</summary>{''.join(samples)}</details>"
    return (
        f'<section aria-label="restoration {number}"><h2>{escape(row["name"] or "Restoration")}</h2><p>{counts}</p>'
        f"<pre>{''.join(_spans(places))}</pre><h3>As it was read</h3><pre>{''.join(_read_spans(places))}</pre>"
        f"{_table(places)}{drawn if samples else ''}</section>"
    )


def _spans(places: Sequence[Place]) -> Iterator[str]:
    """Yield the restored text; characters that were changed or are unsure can be pointed at and focused."""
    for place in places:
        state, char = state_of(place), escape(place["char"])
        changed = bool(state) and place["char"] != place["read"]
        kind = f"{state} changed" if changed and state != "changed" else state
        label = escape(describe(place))
        shown = "␣" if changed and char == " " else char
        yield f'<b class="{kind}" tabindex="0" data-about="{label}">{shown}</b>' if state else char


def _read_spans(places: Sequence[Place]) -> Iterator[str]:
    for changed, run in groupby(places, lambda place: place["char"] != place["read"]):
        text = escape("".join(place["read"] for place in run))
        yield f"<del>{text.replace(' ', '␣')}</del>" if changed else text


def describe(place: Place) -> str:
    """Return a character's probability, what was read, and its alternatives as a sentence."""
    others = _others(place)
    read = f", read {_named(place['read'])}" if place["char"] != place["read"] else ""
    return f"{_named(place['char'])} {place['probability']:.0%}{read}{'; or ' + others if others else ''}"


def _named(char: str) -> str:
    return {" ": "space", "\n": "line break"}.get(char, char)


def _table(places: Sequence[Place]) -> str:
    """Return the places that were changed or are unsure, the least sure first, as a table."""
    chosen = [at for at, place in enumerate(places) if state_of(place)]
    if not chosen:
        return ""
    listed = sorted(chosen, key=lambda at: float(places[at]["probability"]))[:MOST_LISTED]
    head = "".join(f"<th>{name}</th>" for name in ("place", "read", "restored", "sure", "or", "in the text"))
    title = f"The {len(listed)} least sure of {len(chosen)} changed or unsure characters"
    lines = "".join(_table_row(places, at) for at in listed)
    return f"<details><summary>{title}</summary><table><tr>{head}</tr>{lines}</table></details>"


def _table_row(places: Sequence[Place], at: int) -> str:
    place = places[at]
    before, after = (
        escape("".join(_inline(one["char"]) for one in part))
        for part in (places[max(at - 12, 0) : at], places[at + 1 : at + 13])
    )
    where = f"{before}<b class='{state_of(place)}'>{escape(_inline(place['char']))}</b>{after}"
    cells = (str(at), _named(place["read"]), _named(place["char"]), f"{place['probability']:.0%}", _others(place))
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}<td class='where'>{where}</td></tr>"


def _others(place: Place) -> str:
    return ", ".join(f"{_named(char)} {share:.0%}" for char, share in place["alternatives"].items())


def _inline(char: str) -> str:
    return "⏎" if char == "\n" else char
