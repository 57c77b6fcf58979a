"""A restored text with terminal colours, or as a self-contained web page without scripts.

A place is an object with the keys `char`, `read`, `probability` and `alternatives` of `rdlm restore --json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
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
    head, _, tail = PAGE.partition("__SECTIONS__")
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


PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Restored text</title>
<style>
:root { color-scheme: light dark; --changed: #b7e4c0; --unsure: #ffe08a; --guess: #ffb3a7; --ink: #1b1b1b;
  --page: #fdfdfb; --line: #d5d5d0; --soft: #5c5c58; --tip: #222; --tip-ink: #fff; }
@media (prefers-color-scheme: dark) { :root { --changed: #1f5a30; --unsure: #6b5200; --guess: #7c2a1e;
  --ink: #e8e8e4; --page: #17181a; --line: #3a3c40; --soft: #a5a5a0; --tip: #eee; --tip-ink: #111; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 54rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-bottom: 0; } h3 { font-size: 1rem; }
p { color: var(--soft); margin: .3rem 0; }
pre { font: 15px/1.9 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; margin: .6rem 0; }
b { font-weight: inherit; border-radius: 3px; position: relative; }
b[tabindex] { cursor: help; }
b.changed { background: var(--changed); font-weight: 700; text-decoration: underline; }
b.unsure { background: var(--unsure); }
b.guess { background: var(--guess); }
b[data-about]:hover::after, b[data-about]:focus::after { content: attr(data-about); position: absolute; left: 0;
  top: 1.8em; z-index: 1; width: max-content; max-width: 16rem; padding: .2rem .5rem; border-radius: 4px;
  background: var(--tip); color: var(--tip-ink); font: 400 13px/1.4 system-ui, sans-serif; white-space: normal; }
del { color: var(--soft); }
table { border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); }
td.where { font-family: ui-monospace, monospace; white-space: pre; }
summary { cursor: pointer; margin: .6rem 0; }
</style>
</head>
<body>
<h1>Restored text</h1>
<p>__ABOUT__</p>
<p><b class="changed">changed</b>, <b class="unsure">less than 90% sure</b>, <b class="guess">less than 50%</b>. Point
at a marked character, or move to it with the tab key, for what was read and what else it may be.</p>
__SECTIONS__
</body>
</html>
"""
