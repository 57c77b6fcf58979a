"""Readers of foreign files: any content gives a result or an error that names it, within limits of size and time."""

from __future__ import annotations

import io
import json
import math
import random
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdlm.data import channels, evidence, own
from rdlm.data.hocr import from_hocr
from rdlm.data.image import SIGNATURE, decode_png, encode_png
from rdlm.errors import DamagedFileError, InputError

PAGE = (Path(__file__).parent / "page.hocr").read_bytes()
ALPHABETS = ("ab ", "ACGT", "abcdefghijklmnopqrstuvwxyz ", "a", "aß1")


def npy(array: object, version: tuple[int, int] | None = None) -> bytes:
    """Return an array in NumPy's format."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), version=version)
    return file.getvalue()


def read_array(data: bytes, alphabet: str) -> torch.Tensor:
    return evidence.from_array(own.decode_npy(data), alphabet).evidence


def read_image(data: bytes, _: str) -> torch.Tensor:
    return torch.from_numpy(decode_png(data).astype(float))


def text_reader(read: Callable[[str, str], torch.Tensor]) -> Callable[[bytes, str], torch.Tensor]:
    return lambda data, alphabet: read(data.decode("utf-8", "replace"), alphabet)


READERS: dict[str, tuple[Callable[[bytes, str], torch.Tensor], list[bytes]]] = {
    "text": (text_reader(lambda text, a: evidence.from_text(text, a).evidence), [b"a?b[ab]\\? a", b"[", b"AC_T"]),
    "JSON lines": (
        text_reader(lambda text, a: evidence.from_json_lines(text, a).evidence),
        [b'{"a": 0.7, "rest": 0.3}\n\n{"b": 1}\n', b'{"A": 1e-3}', b'{"a": 1, "a": 0}', b'{"a": ' + b"9" * 400 + b"}"],
    ),
    "confusion": (
        text_reader(channels.confusion),
        [b"true,a,b\na,0.5,0.5\nb,0,1\n", b'{"a": {"a": 0.25, "b": 0.75}}', b'x,"' + b"a" * 140_000, b",a,a\na,1,0\n"],
    ),
    "FASTQ": (
        text_reader(lambda text, a: torch.cat([one.evidence for one in evidence.from_fastq(text, a)])),
        [b"@one\nACN\n+\n?+!\n@two\nG\n+two\n!\n", "@ß\nß\n+\n!\n".encode(), b"@a\r\nA\r\n+\r\n~\r\n"],
    ),
    "hOCR": (
        text_reader(lambda text, a: from_hocr(text, a).evidence),
        [PAGE, b"<p class='ocrx_cinfo' title='x_conf 50'>a</p>", b"<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>"],
    ),
    "npy": (
        read_array,
        [npy(np.zeros((2, 4))), npy([[1, 2, 3]], (2, 0)), npy(np.zeros((2, 3), ">f4")), b"PK\x03\x04", b"\x80\x04."],
    ),
    "PNG": (read_image, [encode_png(np.arange(12, dtype=np.uint8).reshape(2, 2, 3)), b"\x89PNG\r\n\x1a\n"]),
}


def spoilt(content: bytes, seed: int) -> bytes:
    """Return content with a few changes: bytes, cuts, repetitions, and numbers at the edges of types."""
    rng, data = random.Random(seed), bytearray(content)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randrange(1, 20)]
            case 2:
                data[at:at] = data[at : at + rng.randrange(1, 40)] * rng.randrange(1, 4)
            case 3:
                data[at:at] = rng.choice([b"0", b"-1", b"1e400", b"9" * 30, b"NaN", b"\xff", b"\0", b"{", b"(", b"\n"])
            case 4 if at < len(data):
                data[at : at + 4] = rng.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
    return bytes(data)


def check(name: str, content: bytes, alphabet: str) -> None:
    """Read the content: a result without NaN, or an error that is one of ours and short."""
    read, _ = READERS[name]
    message = ""
    try:
        found = read(content, alphabet)
    except (InputError, DamagedFileError) as error:
        message = str(error)
    else:
        assert found.ndim >= 2 and not found.isnan().any() and not (found == math.inf).any()
    assert len(message) < 2000 + 4 * len(alphabet)


@pytest.mark.parametrize("name", READERS)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, 10), seed=st.integers(0, 2**32), alphabet=st.sampled_from(ALPHABETS), raw=st.binary())
def test_any_content_is_read_or_refused(name: str, which: int, seed: int, alphabet: str, raw: bytes) -> None:
    samples = READERS[name][1]
    check(name, spoilt(samples[which % len(samples)], seed), alphabet)
    check(name, raw, alphabet)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_the_samples_are_read_or_refused(name: str, alphabet: str) -> None:
    for content in READERS[name][1]:
        check(name, content, alphabet)
    assert any(_succeeds(name, content, alphabet) for content in READERS[name][1] for alphabet in ALPHABETS)


def _succeeds(name: str, content: bytes, alphabet: str) -> bool:
    try:
        READERS[name][0](content, alphabet)
    except (InputError, DamagedFileError):
        return False
    return True


def character(text: str) -> str:
    return f"<span class='ocrx_cinfo' title='x_conf 90'>{text}</span>"


BOMBS: list[tuple[str, Callable[[], bytes], str]] = [
    ("hOCR", lambda: b"<a>" * 100_000, "nested more than 64 deep"),
    ("hOCR", lambda: b"<!DOCTYPE x [<!ATTLIST p class CDATA 'x'>]><p/>", "declares attributes of 'p'"),
    ("hOCR", lambda: f"<p>{character('a' * 10_000)}</p>".encode(), "more than 256 code points"),
    ("hOCR", lambda: f"<p>{character('a') * 40_000}</p>".encode(), "at most"),
    ("JSON lines", lambda: b"[" * 1_000_000, "not JSON"),
    ("JSON lines", lambda: b'{"a": 0.5, "a": 0.5}', "duplicate key"),
    ("JSON lines", lambda: b'{"a": NaN}', "not JSON"),
    ("JSON lines", lambda: b'{"a": 1}\n' * 40_000, "at most"),
    ("JSON lines", lambda: b'{"a": ' + b"9" * 400 + b"}", "must be a probability"),
    ("confusion", lambda: b'x,"' + b"a" * 200_000, "needs a header"),
    ("confusion", lambda: b",a,a\na,1,0\n", "two columns or two rows"),
    ("confusion", lambda: b",a\na,1\na,1\n", "two columns or two rows"),
    ("confusion", lambda: json.dumps({"a": {"a" * 10**6: 1}}).encode(), "not one character"),
    ("text", lambda: b"a" * 40_000, "at most"),
    ("FASTQ", lambda: b"@a\n" + b"a" * 40_000 + b"\n+\n" + b"!" * 40_000, "at most"),
    ("FASTQ", lambda: b"@\na\n+\n!\n" * 21_000, "21,000 reads: at most 20,000"),
    ("FASTQ", lambda: "@a\nß\n+\n!\n".encode(), "outside the alphabet"),
    ("npy", lambda: npy(np.zeros(8))[:-1], "header claims"),
    ("npy", lambda: npy(np.zeros(8)).replace(b"(8,)", b"(9**99,)"), "not an array"),
    ("npy", lambda: npy(np.zeros(8)).replace(b"(8,)", b"(8000000000000,)"), "header claims|not an array"),
    ("npy", lambda: npy(np.array(["a"])), "real numbers"),
    ("PNG", lambda: encode_png(np.zeros((1, 1, 1), np.uint8))[:16] + b"\xff" * 8, "checksum"),
]


@pytest.mark.parametrize(("name", "content", "message"), BOMBS)
def test_files_that_would_take_all_memory_or_time_are_refused(
    name: str, content: Callable[[], bytes], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "MOST_NUMBERS", 100_000)
    monkeypatch.setattr(evidence, "MOST_READS", 20_000)
    with pytest.raises((InputError, DamagedFileError), match=message) as error:
        READERS[name][0](content(), "abcdS")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("literal", [True, False])
def test_a_text_of_too_many_positions_is_not_read_to_its_end(literal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MOST_NUMBERS", 500)
    text = "a" * 101 + "["  # which is never closed
    with pytest.raises(InputError, match="more than 100 positions: at most 100 with 5 symbols"):
        evidence.from_text(text, "abcdS", literal=literal)


def test_the_size_of_an_image_is_checked_before_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdlm.data.image.MOST_LEVELS", 3)
    assert decode_png(encode_png(np.zeros((1, 3, 1), np.uint8))).size == 3
    for width, height in ((2, 2), (0, 3), (3, 0), (2**32 - 1, 2**32 - 1)):
        header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
        with pytest.raises(DamagedFileError, match="pixels, not 1 to 3 levels"):
            decode_png(SIGNATURE + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)))


def test_line_breaks_between_characters_take_linear_time() -> None:
    """Each is an event of the parser; appended to one string, a megabyte of them took 43 s."""
    begin = time.perf_counter()
    breaks = "\n" * (1 << 20)
    assert from_hocr(f"<p>{character('a')}{breaks}{character('b')}</p>", "ab ").symbols == "ab"
    assert time.perf_counter() - begin < 20


@pytest.mark.parametrize("encoding", ["UTF-9", "UTF-16", "ISO-8859-1", "hex", "idna", "utf-8"])
def test_a_page_that_declares_any_encoding_is_text(encoding: str) -> None:
    """Found by a coverage-guided fuzzer: an unknown one was a LookupError."""
    assert from_hocr(f"<?xml version='1.0' encoding='{encoding}'?>{character('é')}", "aé ").symbols == "é"


def test_an_alphabet_whose_channel_does_not_fit_is_refused() -> None:
    alphabet = "".join(map(chr, range(0x4E00, 0x4E00 + 9000)))
    for make in (lambda: evidence.from_text("a", alphabet), lambda: channels.symmetric(alphabet, 0.1)):
        with pytest.raises(InputError, match="at most"):
            make()
