"""Pages in hOCR: a page that Tesseract 5.3 wrote, the meaning of its confidences, and files that are not such pages."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from rdlm.data.hocr import SUREST, from_hocr
from rdlm.data.image import encode_png
from rdlm.errors import InputError

TEXT8 = " abcdefghijklmnopqrstuvwxyz"
PAGE = Path(__file__).with_name("page.hocr")
CHARACTER = "<span class='ocrx_cinfo' title='x_bboxes 1 2 3 4; x_conf {1}'>{0}</span>"
CHOICE = "<span class='ocrx_cinfo' id='c' title='x_confs {1}'>{0}</span>"


def page(*characters: str) -> str:
    return f"<html><span class='ocr_line'><span class='ocrx_word'>{''.join(characters)}</span></span></html>"


def test_a_page_of_tesseract() -> None:
    reading = from_hocr(PAGE.read_text(), TEXT8)
    assert "".join(map(str, reading.read)) == "\u2018The quack fox,\n1787 hazy dogs:"
    assert reading.symbols == "the quack fox hazy dogs" and reading.kept == 7
    law = reading.evidence.softmax(-1)
    assert torch.allclose(reading.evidence.exp().sum(-1), torch.ones(len(law)).double(), atol=1e-6)
    at = reading.symbols.index("ack")
    likely = "".join(TEXT8[index] for index in law[at].argsort(descending=True)[:4].tolist())
    assert likely == "aeui"  # the order of the engine's confidences; the truth is 'quick'
    assert float(law[0, TEXT8.index("t")]) > 0.95


def test_confidences_stand_for_probabilities() -> None:
    """Confidence is 100 + 35 log p; alternatives have 70% of the rest, in proportion to exp(confidence / 10)."""
    choices = (
        f"<span class='ocrx_cinfo'>{CHOICE.format('a', 80)}{CHOICE.format('O', 40)}{CHOICE.format('e', 30)}</span>"
    )
    text = page(CHARACTER.format("a", 80), choices)
    law = from_hocr(text, TEXT8).evidence.exp()[0]
    right, rest = math.exp(-20 / 35), 1 - math.exp(-20 / 35)
    assert float(law[TEXT8.index("a")]) == pytest.approx(right + 0.3 * rest / 27)
    assert float(law[TEXT8.index("o")]) == pytest.approx(rest * (0.7 * math.e / (math.e + 1) + 0.3 / 27))
    assert float(law[TEXT8.index("z")]) == pytest.approx(0.3 * rest / 27)
    sure = from_hocr(page(CHARACTER.format("a", 100)), TEXT8).evidence.exp()[0]
    assert float(sure[TEXT8.index("a")]) == pytest.approx(SUREST + 0.01 / 27)


def test_alternatives_outside_of_the_alphabet_are_left_out_and_first_choices_are_kept() -> None:
    digit = page(CHARACTER.format("1", 60), CHOICE.format("l", 55), CHARACTER.format("a", 90), CHOICE.format("4", 80))
    reading = from_hocr(digit, TEXT8)
    assert reading.read == ("1", "a") and reading.symbols == "a"
    assert float(reading.evidence.exp()[0].sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html><span class='ocrx_word'>the</span></html>", "hocr_char_boxes=1"),
        ("<html/>", "no element of class ocrx_cinfo"),
        ("<html>", "not hOCR"),
        ("plain text", "not hOCR"),
        (page(CHARACTER.format("a", 120)), "from 0 to 100"),
        (page(CHARACTER.format("a", "nan")), "from 0 to 100"),
        (page(CHARACTER.format("a", "much")), "'much'"),
        (page(CHARACTER.format("7", 90)), "no character is in the alphabet"),
        ("<a>" * 100 + "</a>" * 100, "nested"),
        ('<!DOCTYPE h [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><html>&b;</html>', "entity 'a'"),
        ('<!DOCTYPE h [<!ENTITY x SYSTEM "file:///etc/hostname">]><html>&x;</html>', "entity 'x'"),
    ],
)
def test_other_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_hocr(text, TEXT8)


def test_a_document_type_is_not_fetched(tmp_path: Path) -> None:
    stolen = tmp_path / "stolen.dtd"
    stolen.write_text('<!ENTITY x "secret">')
    text = f"<!DOCTYPE html SYSTEM '{stolen}'>" + page(CHARACTER.format("&x;a", 90))
    assert from_hocr(text, TEXT8).read == ("a",)


@pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed (Debian: tesseract-ocr)")
def test_tesseract_writes_this_format(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    drawing, fonts = pytest.importorskip("PIL.ImageDraw"), pytest.importorskip("PIL.ImageFont")
    picture = pil.new("L", (420, 60), 255)
    drawing.Draw(picture).text((10, 10), "the lazy dog", font=fonts.load_default(32), fill=0)
    (tmp_path / "page.png").write_bytes(encode_png(np.asarray(picture)[..., None]))
    options = ["--psm", "6", "-c", "lstm_choice_mode=2", "-c", "hocr_char_boxes=1", "hocr"]
    subprocess.run(["tesseract", "page.png", "page", *options], cwd=tmp_path, check=True, capture_output=True)
    assert from_hocr((tmp_path / "page.hocr").read_text(), TEXT8).symbols == "the lazy dog"
