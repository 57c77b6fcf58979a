"""A reader of 8-bit RGB PNG pictures, which is all that picture sheets of training data need."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rdlm.errors import DamagedFileError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
Row = NDArray[np.uint8]


def decode(data: bytes) -> NDArray[np.uint8]:
    """Return the picture [height, width, 3]; other kinds of PNG and damaged ones are refused."""
    if not data.startswith(SIGNATURE):
        raise DamagedFileError("not a PNG picture")
    chunks = list(_chunks(data))
    width, height, *form = struct.unpack(">IIBBBBB", chunks[0][1])
    if form != [8, 2, 0, 0, 0]:
        raise DamagedFileError(f"a PNG picture of another form than 8-bit RGB, not interlaced: {form}")
    try:
        raw = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    except zlib.error as error:
        raise DamagedFileError(f"a damaged PNG picture: {error}") from None
    if len(raw) != height * (1 + 3 * width):
        raise DamagedFileError(f"a PNG picture of {width} x {height} with {len(raw)} bytes")
    lines = np.frombuffer(raw, np.uint8).reshape(height, 1 + 3 * width)
    picture = np.zeros((height + 1, width, 3), np.uint8)  # row 0 is the black row above the picture
    for y, line in enumerate(lines):
        picture[y + 1] = _unfiltered(int(line[0]), line[1:].reshape(width, 3), picture[y])
    return picture[1:]


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8].ljust(8, b"\0"))
        body, checksum = data[at + 8 : at + 8 + size], data[at + 8 + size : at + 12 + size]
        if checksum != struct.pack(">I", zlib.crc32(kind + body)):
            raise DamagedFileError("a damaged PNG picture: a chunk's checksum differs")
        yield kind, body
        at += 12 + size


def _unfiltered(kind: int, line: Row, above: Row) -> Row:
    """Return a row [width, 3] from its differences to the left pixel, the upper one, or both."""
    match kind:
        case 0:
            return line
        case 1:
            return np.cumsum(line, axis=0, dtype=np.uint8)
        case 2:
            return line + above
        case 3 | 4:
            return _recurrent(kind, line.tolist(), above.tolist())
    raise DamagedFileError(f"a PNG row with the unknown filter {kind}")


def _recurrent(kind: int, line: list[list[int]], above: list[list[int]]) -> Row:
    left, corner = [0, 0, 0], [0, 0, 0]
    pixels = []
    for pixel, up in zip(line, above, strict=True):
        guess = (lambda a, b, c: (a + b) // 2) if kind == 3 else _paeth
        left = [(p + guess(a, b, c)) % 256 for p, a, b, c in zip(pixel, left, up, corner, strict=True)]
        pixels.append(left)
        corner = up
    return np.array(pixels, np.uint8)


def _paeth(left: int, up: int, corner: int) -> int:
    """Return which of the three neighbours is nearest to left + up - corner, ties in this order."""
    target = left + up - corner
    return min((left, up, corner), key=lambda value: abs(target - value))
