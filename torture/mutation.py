"""Corruptions of runs and published models: accidental ones, and crafted ones with correct checksums."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdlm.data.tokenizer import train_bpe


@dataclass(frozen=True)
class Shelf:
    """The file layout of a kind of folder."""

    home: str
    """Folder inside the spoilt one, where the files are."""
    state: str
    """The file that describes and signs the others."""
    tensors: tuple[str, ...]
    others: tuple[str, ...]
    pointers: tuple[str, ...] = ()
    """Files of the spoilt folder that point to the home."""

    def at(self, run: Path) -> Path:
        """Return the folder of the files."""
        return run / self.home

    def any_file(self, rng: random.Random, run: Path) -> Path:
        """Return one of the files."""
        return self.at(run) / rng.choice((*self.tensors, *self.others, self.state))


STEP = "checkpoint-00000002"
PARTS = ("network", "ema", "optimizer", "method")
CHECKPOINT = Shelf(
    STEP,
    "state.json",
    tuple(f"{part}.safetensors" for part in PARTS),
    ("tokenizer.json",),
    ("latest.json", "best.json"),
)
PUBLISHED = Shelf(".", "config.json", ("model.safetensors",), ("tokenizer.json", "evaluation.json"))

Spoil = Callable[[random.Random, Path, Shelf], None]

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**30,
    -(2**63),
    1e300,
    -0.5,
    0.1,
    "",
    "x",
    "nan",
    "../../etc/passwd",
    "/dev/zero",
    "a\x00b",
    "\ud800",
    [],
    [[]],
    {},
    {"": None},
    [1, 2, 3],
    "rdlm",
    "masked",
    "x" * 5000,
]
"""Values that stand where another kind of value is expected."""


MANY = "{" + ",".join(f'"{i}":[]' for i in range(200_000)) + "}"


class Payload:
    """An object whose unpickling would execute code."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def sign(run: Path, shelf: Shelf) -> None:
    """Update all checksums and sizes to the present content of the files, where possible."""
    home = shelf.at(run)
    path = home / shelf.state
    try:
        state = json.loads(path.read_text())
        for name in state["files"]:
            content = (home / name).read_bytes() if (home / name).is_file() else b""
            state["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        seal(path, state)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return


def seal(path: Path, state: dict[str, Any]) -> None:
    """Write a manifest with a correct checksum of itself."""
    content = {key: value for key, value in state.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**content, "sha256": digest}))


def bytes_of(rng: random.Random, run: Path, shelf: Shelf) -> None:
    """Corrupt bytes of one file in one of several ways."""
    path = shelf.any_file(rng, run)
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    match rng.randrange(6):
        case 0:
            content[at] ^= 1 << rng.randrange(8)
        case 1:
            del content[at:]
        case 2:
            content += rng.randbytes(rng.randrange(1, 200))
        case 3:
            content[at : at + 64] = rng.randbytes(len(content[at : at + 64]))
        case 4:
            content[at : at + 64] = bytes(len(content[at : at + 64]))
        case _:
            other = shelf.any_file(rng, run).read_bytes()
            content[at:at] = other[: rng.randrange(1, 400)]
    path.write_bytes(content)


def signed(spoil: Spoil) -> Spoil:
    """Return the same corruption with corrected checksums."""

    def both(rng: random.Random, run: Path, shelf: Shelf) -> None:
        spoil(rng, run, shelf)
        sign(run, shelf)

    return both


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def odd_json(rng: random.Random, value: Any) -> Any:
    """Return a JSON value with one of its entries replaced, removed, duplicated or moved."""
    way = rng.choice(places(value)[1:] or [()])
    if not way:
        return rng.choice(ODD)
    home = value
    for key in way[:-1]:
        home = home[key]
    match rng.randrange(6):
        case 0:
            del home[way[-1]]
        case 1 if isinstance(home, dict):
            home[f"{way[-1]}x"] = home.pop(way[-1])
        case 2 if isinstance(home[way[-1]], int | float) and not isinstance(home[way[-1]], bool):
            home[way[-1]] = home[way[-1]] * rng.choice((-1, 0, 2, 1000, 10**9, 10**18)) + rng.choice((0, 1, 0.5))
        case _:
            home[way[-1]] = rng.choice(ODD)
    return value


def state(rng: random.Random, run: Path, shelf: Shelf) -> None:
    """Corrupt the manifest, and correct its checksum."""
    path = shelf.at(run) / shelf.state
    found = json.loads(path.read_text())
    part = rng.choice([key for key, value in found.items() if isinstance(value, dict)] + ["config", None])
    if part is None:
        found = odd_json(rng, found)
    else:
        found[part] = odd_json(rng, found[part])
    seal(path, found if isinstance(found, dict) else {"x": found})


def tokenizer(rng: random.Random, run: Path, shelf: Shelf) -> None:
    """Corrupt the tokenizer or another JSON file, and correct the checksums."""
    path = shelf.at(run) / rng.choice(shelf.others)
    path.write_text(json.dumps(odd_json(rng, json.loads(path.read_text()))))
    sign(run, shelf)


def bomb(rng: random.Random, run: Path, shelf: Shelf) -> None:
    """Replace the tokenizer by one whose steps take any time and memory, and correct the checksums."""
    description = train_bpe(["some text of mine, some text"], 270).to_json()
    doubling = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    split = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}
    steps: tuple[tuple[str, object], ...] = (
        ("normalizer", {"type": "Sequence", "normalizers": [doubling] * rng.randrange(1, 64)}),
        ("pre_tokenizer", split),
        ("decoder", {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**6}),
        ("padding", {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_id": 0, "pad_token": "a"}),
        ("model", {**description["model"]["model"], "vocab": {"a" * (1 << 20): 0}}),
        ("model", {**description["model"]["model"], "continuing_subword_prefix": "longer than a merge"}),
    )
    step, value = rng.choice(steps)
    description["model"][step] = value
    (shelf.at(run) / "tokenizer.json").write_text(json.dumps(description))
    sign(run, shelf)


def json_text(rng: random.Random, run: Path, shelf: Shelf) -> None:
    """Replace a JSON file by malformed or extreme JSON, and correct the checksums where possible."""
    path = run / rng.choice((f"{shelf.home}/{shelf.state}", f"{shelf.home}/{shelf.others[0]}", *shelf.pointers))
    whole = path.read_text().strip()
    texts = [
        "[" * 200_000,
        '{"a":' * 100_000,
        "[" * 900 + "]" * 900,
        '{"step": NaN}',
        '{"step": 1e999}',
        "9" * 5000,
        whole[:-1] + ', "step": 2, "checkpoint": "../.."}',
        whole[:-1] + "," + whole[1:],
        "\ufeff" + whole,
        "[]",
        '""',
        '{"checkpoint": "checkpoint-00000002\\n"}',
        '{"checkpoint": "/etc"}',
        '{"checkpoint": "../run"}',
        MANY,
        '{"a":"' + "x" * (1 << 21) + '"}',
    ]
    path.write_text(rng.choice(texts))
    sign(run, shelf)


def header(rng: random.Random, run: Path, shelf: Shelf) -> None:
    """Corrupt the header of a safetensors file, and correct the checksums."""
    path = shelf.at(run) / rng.choice(shelf.tensors)
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    listed, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    match rng.randrange(7):
        case 0:
            listed["../" * rng.randrange(9) + "etc/passwd"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        case 1:
            content = struct.pack("<Q", rng.choice((0, 1, size + 1, 1 << 26, 1 << 40, 2**63, 2**64 - 1))) + content[8:]
            path.write_bytes(content)
            return sign(run, shelf)
        case 2:
            body = b"\xff" * len(body)  # not finite
        case 3:
            text = json.dumps(listed).encode()
            text = text[:-1] + b"," + text[1:] if len(listed) else text  # every name twice
            path.write_bytes(struct.pack("<Q", len(text)) + text + body)
            return sign(run, shelf)
        case 4:
            body += bytes(rng.randrange(1, 1 << 16))
        case _:
            listed = odd_json(rng, listed)
    text = json.dumps(listed).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return sign(run, shelf)


def kind_of_file(rng: random.Random, run: Path, shelf: Shelf) -> None:
    """Replace a file by a link, a pipe, a folder, a sparse file of terabytes, a pickle, or another file."""
    path = shelf.any_file(rng, run)
    other = shelf.any_file(rng, run).read_bytes()
    way = rng.randrange(7)
    path.unlink()
    if way == 0:
        path.symlink_to(rng.choice((shelf.state, shelf.tensors[0], "/dev/zero", "/etc/passwd", path.name)))
    elif way == 1:
        os.mkfifo(path)
    elif way == 2:
        path.mkdir()
    elif way == 3:
        path.touch()
        os.truncate(path, rng.choice((1 << 21, 1 << 43)))
        size_only(shelf.at(run) / shelf.state, path)
    elif way == 4:
        import pickle  # to write one: nothing here reads it

        path.write_bytes(pickle.dumps(Payload(run.parent / "canary")))
    elif way == 5:
        path.write_bytes(other)
    if way in (4, 5) and rng.random() < 0.7:
        sign(run, shelf)


def size_only(state: Path, path: Path) -> None:
    """Correct only the recorded size of a file that is too large to hash."""
    if path != state:
        found = json.loads(state.read_text())
        found["files"][path.name]["bytes"] = path.stat().st_size
        seal(state, found)


def name(rng: random.Random, run: Path, shelf: Shelf) -> None:
    """Rename the checkpoint, link to it, or replace it by another folder; exchange two files of a model."""
    way, path = rng.randrange(3), shelf.at(run)
    if shelf is PUBLISHED:
        one, other = shelf.any_file(rng, run), shelf.any_file(rng, run)
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif way == 0:
        names = ("checkpoint-00000003", "checkpoint-2", "checkpoint-99999999", ".checkpoint.part")
        path.rename(run / rng.choice(names))
    elif way == 1:
        path.rename(run / "elsewhere")
        path.symlink_to(rng.choice(("elsewhere", "..", STEP, "/")))
    else:
        shutil.copytree(path, run / "checkpoint-00000007")


SPOILS: dict[str, tuple[int, Spoil]] = {
    "bytes": (2, bytes_of),
    "bytes, signed": (3, signed(bytes_of)),
    "state, signed": (5, state),
    "tokenizer, signed": (2, tokenizer),
    "tokenizer bomb, signed": (1, bomb),
    "text of JSON": (1, json_text),
    "header, signed": (3, header),
    "kind of file": (2, kind_of_file),
    "name": (1, name),
}
"""Name -> weight and what it does."""
