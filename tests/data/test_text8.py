"""The text8 rules on hand-made markup, one rule at a time, and on a dump cut anywhere."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdlm.data import fetch, text
from rdlm.data import text as text8


def article(body: str) -> bytes:
    return f'<page>\n<title>T</title>\n<text xml:space="preserve">{body}</text>\n</page>\n'.encode()


@pytest.mark.parametrize(
    ("markup", "seen"),
    [
        ("Hello, World!", " hello world"),
        ("In 1984 and 7", " in one nine eight four and seven"),
        ("a [[link]] and [[target|shown words]]", " a link and shown words"),
        ("[http://x.org/y the page] ok", " the page ok"),
        ("[[Image:cat.jpg|thumb|200px|left|A cat]] sits", " a cat sits"),
        ("[[Category:Old cats|cat]]", " old cats"),
        ("[[de:Katze]]word", " word"),
        ("{{stub}}kept {| table |} too", " kept too"),
        ("a &lt;ref name=x&gt;cited&lt;/ref&gt; b", " a b"),
        ("a &lt;b&gt;bold&lt;/b&gt; c", " a bold c"),
        ("fish &amp;amp; chips &amp;nbsp; tea", " fish chips tea"),
        ("caf\u00e9 na\u00efve", " caf na ve"),
    ],
)
def test_rules(markup: str, seen: str) -> None:
    assert b"".join(text8.clean([article(markup)])) == seen.encode()


def test_redirections_and_what_is_outside_text_vanish() -> None:
    dump = article("#REDIRECT [[Elsewhere]]") + b"<comment>not this</comment>" + article("but this")
    assert b"".join(text8.clean([dump])).split() == [b"but", b"this"]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 200), max_size=6))
def test_blocks_may_end_anywhere(cuts: list[int]) -> None:
    dump = article("one [[two|three]] 4") + article("five &lt;br&gt; six")
    ends = [0, *sorted(cuts), len(dump)]
    blocks = [dump[a:b] for a, b in itertools.pairwise(ends)]
    assert b"".join(text8.clean(blocks)) == b"".join(text8.clean([dump]))


@settings(deadline=None, max_examples=60)
@given(st.binary())
def test_letters_gives_words_with_one_space_before_each(raw: bytes) -> None:
    cleaned = text8.letters(raw)
    assert cleaned == b"".join(b" " + word for word in cleaned.split())
    assert set(cleaned) <= set(b" abcdefghijklmnopqrstuvwxyz")


def test_cleaned_enwik8_is_the_beginning_of_text8(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of enwik8, when this user has fetched it before; a quarter of a minute."""
    monkeypatch.delenv("RDLM_CACHE", raising=False)
    here = [a for a in text.ENWIK8 if fetch.archive_path(a).exists()]
    if not here:
        pytest.skip("enwik8 is not in the cache; rdlm data get enwik8 puts it there")
    dump = text._read_enwik8(here[0], fetch.archive_path(here[0]))
    count, sha256 = text.TEXT8_START
    cleaned = b"".join(text8.clean([dump]))
    assert hashlib.sha256(cleaned[:count]).hexdigest() == sha256
    assert len(cleaned) - count < 10_000  # the article that the dump's end cuts through
