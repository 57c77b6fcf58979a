from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from toy import toy_config, toy_corpus

from rdlm.data.image import encode_png
from rdlm.train.record import Record
from rdlm.train.report import chart, image_of, text_of, ticks, write_report

RESULT = {
    "protocol": "toy",
    "parameters": 1234,
    "steps": 20,
    "skipped": 0,
    "seconds": 1.0,
    "loss": None,
    "unit": "bits <b>",
    "bound": {"value": 2.0, "low": 1.9, "high": 2.1},
}


class Tags(HTMLParser):
    """Checks that every tag is closed, and collects what is linked."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    with Record(tmp_path, 0) as lines:
        for step in (5, 10):
            lines.write("step", step, loss=3.0 / step)
            lines.write("validation", step, bits=2.5, margin=0.1)
    corpus = toy_corpus(toy_config())
    write_report(toy_config(), corpus, RESULT, [[1, 2, -1, 3]], tmp_path)
    page = (tmp_path / "report.html").read_text()
    tags = Tags(page)
    assert tags.open == [] and tags.links == []
    assert page.count("<svg") == 2 and "prefers-color-scheme: dark" in page
    assert "2.0000 bits &lt;b&gt;, 95% interval 1.9000 to 2.1000" in page
    assert "validation_nfe: 2" in page
    assert text_of(corpus.tokenizer, [1, 2, -1, 3]) in page
    assert not re.search(r"https?://", page)


def test_an_invalid_id_becomes_a_replacement_character() -> None:
    tokenizer = toy_corpus(toy_config()).tokenizer
    assert text_of(tokenizer, [0, -1, -1, 0]) == " \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} "


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_png_files(channels: int, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    levels = np.arange(4 * 5 * channels) % 17
    (tmp_path / "x.png").write_bytes(encode_png(image_of(levels.tolist(), (4, 5, channels), 17)))
    with image.open(tmp_path / "x.png") as found:
        pixels = np.asarray(found)
    assert (pixels.reshape(-1) == levels * 255 // 16).all()
    assert pixels.shape[:2] == (4, 5)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1.3, 1.31), (-5, 2000), (2, 2), (0, 0), (1e-7, 3e-7)])
def test_ticks_are_few_and_enclose(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 8
    slack = 1e-6 * (found[-1] - found[0])
    assert found[0] <= low + slack and found[-1] >= high - slack


def test_a_chart_leaves_out_what_is_not_finite() -> None:
    picture = chart("x < y", [(0, 1.0, 0.1), (1, float("nan"), 0), (2, 2.0, float("inf"))])
    assert "nan" not in picture and "inf" not in picture and "x &lt; y" in picture
    assert picture.count("<circle") == 2
    assert chart("empty", [(0, float("nan"), 0)]) == ""
