"""Control characters in texts of others are shown, and not obeyed by a terminal."""

from __future__ import annotations

import io
from typing import TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from rdlm.display.text_table import PrintableStream, printable

OBEYED = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)}


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = printable(text)
    assert {ord(char) for char in shown} & OBEYED <= {ord("\n"), ord("\t")}
    shown.encode()
    if not {ord(char) for char in text} & (OBEYED - {ord("\n"), ord("\t")}):
        assert shown == text


def test_escapes_name_the_character() -> None:
    assert printable("a\x1b[2J\x9b\u202e\ud800é\u200d\t\n") == "a\\x1b[2J\\x9b\\u202e\\ud800é\u200d\t\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\rprogress", "\rprogress"),
        ("a\r\nb", "a\r\nb"),
        ("hidden\rshown", "hidden\\rshown"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[2J", "\\x1b[2J"),
    ],
)
def test_a_stream_passes_our_own_colours_and_progress(text: str, shown: str) -> None:
    inner = io.StringIO()
    assert PrintableStream(inner).write(text) == len(text)
    assert inner.getvalue() == shown


def test_a_progress_bar_is_drawn_as_before() -> None:
    drawn = []
    for wrap in (lambda stream: stream, PrintableStream):
        inner = io.StringIO()
        for _ in tqdm(range(3), file=cast(TextIO, wrap(inner)), ncols=40, bar_format="{n}/{total}"):
            pass
        drawn.append(inner.getvalue())
    assert drawn[0] == drawn[1] != ""
