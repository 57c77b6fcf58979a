"""Attacks by what foreign files contain, made by `attacks.py`: models, configurations, data, readings, and names.

Some are bombs, some would be obeyed by a terminal or a browser, and some lead a reader to another file.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from fuzz import OPTIONS
from mutation import PUBLISHED, sign
from scene import CONTROL, GENERATE, Attack, Scene, edit, respoil, sha256

OBEYED = "\x1b\x9b\x07\x08\r\u202e\u2066\x7f\x00\x84\x90\x1a\x0c"
"""Characters that a terminal obeys: the beginnings of commands, and those that move or reverse text."""
TRAINING = tuple(f"{word}" for key, value in OPTIONS.items() for word in (f"--{key}", value))
HUGE = 10**4000


# -- what a terminal or a browser would obey -------------------------------------------------------


def relabel(scene: Scene, symbols: str) -> None:
    """Give the published model an alphabet with these symbols in place of its first ones."""

    def change(found: dict[str, Any]) -> None:
        old = sorted(found["model"]["vocab"], key=found["model"]["vocab"].get)
        names = [*symbols, *(name for name in old if name not in symbols)][: len(old)]
        found["model"]["vocab"] = {name: index for index, name in enumerate(names)}

    edit(scene.published / "tokenizer.json", change)
    sign(scene.published, PUBLISHED)


def sample_on_terminal(scene: Scene) -> None:
    """A model whose alphabet is mostly control characters, sampled on a terminal: they are shown as escapes."""
    relabel(scene, OBEYED)
    printed = scene.on_terminal("generate", scene.published, "--num", 9, "--steps", 2)
    assert not CONTROL.search(printed) and "\\x" in printed, repr(printed)


def restored_on_terminal(scene: Scene) -> None:
    """A text with commands for the terminal, restored on one: nothing of them is obeyed, with colours or without."""
    (scene.place / "text.txt").write_text("so?e \x1b]0;owned\x07 \x1b\\[2J\x9b2J \u202e?")
    for color in ("auto", "never"):
        printed = scene.on_terminal("restore", scene.published, scene.place / "text.txt", "--color", color)
        assert not CONTROL.search(re.sub(r"\x1b\[3[0-9]m|\x1b\[0m", "", printed)), repr(printed)


def named_on_terminal(scene: Scene) -> None:
    """Names and values with control characters, in errors and notices: they are shown as escapes."""
    for words in (
        ("generate", "a\x1b[2J"),
        ("score", scene.published, "a\x9b2J.txt"),
        ("generate", "--no\x1b[2Jthing"),
    ):
        scene.refused("", *words)
    (scene.place / "table.csv").write_text("\x1b[2J,b\n" + "some text,1\n" * 50)
    scene.refused("\\x1b[2J", "train", "--data", scene.place / "table.csv", "--out", scene.place / "new", *TRAINING)
    orders(scene, unit="\x1b[2J")
    scene.accepted("generate", scene.published, "--json")


def script(scene: Scene) -> None:
    """A text with a script, restored into a page, and a model whose samples are markup: the pages hold neither."""
    text, page = scene.place / "text.txt", scene.place / "page.html"
    text.write_text("so?e <script>alert(1)</script> <img src=x onerror=alert(1)>")
    scene.accepted("restore", scene.published, text, "--html", page)
    assert "<script" not in page.read_text() and "<img" not in page.read_text()
    relabel(scene, "</script>")
    scene.accepted("generate", scene.published, "--steps", 2, "--trace", scene.place / "trace.html")
    assert (scene.place / "trace.html").read_text().lower().count("</script") == 2


def half_a_pair(scene: Scene, where: str) -> None:
    """Half a surrogate pair in a model, which no file or terminal can hold: refused when it is read."""
    if where == "alphabet":
        relabel(scene, "\ud800")
    else:
        edit(scene.published / "config.json", _strange_name if where == "name" else _strange_protocol)
    scene.refused("damaged", "publish", scene.published, scene.place / "again")
    assert not (scene.place / "again").exists()


def _strange_name(found: dict[str, Any]) -> None:
    found["name"] = "a\ud800"


def _strange_protocol(found: dict[str, Any]) -> None:
    found["corpus"]["protocol"] = "x\ud800"


# -- files of a published model --------------------------------------------------------------------


def attach(scene: Scene, name: str, content: object) -> None:
    """Put a JSON file into the published model, with a correct checksum."""
    path = scene.published / name
    path.write_text(json.dumps(content))
    entry = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    edit(scene.published / "config.json", lambda found: found["files"].update({name: entry}))


def orders(scene: Scene, rows: list[dict[str, Any]] | None = None, **changes: Any) -> None:
    """Put bounds by order into the published model."""
    weights = json.loads((scene.published / "config.json").read_text())["weights"]["fingerprint"]
    about = {"weights": weights, "protocol": "p", "split": "validation", "sequences": 1, "evaluations": 1}
    attach(scene, "orders.json", {**about, "unit": "bits", "rows": rows or [ROW], **changes})


ROW: dict[str, Any] = {"order": "synchronous", "block": 0, "calls": 4, "value": 1.0, "low": 0.5, "high": 2.0}


def poisoned_orders(scene: Scene, **changes: Any) -> None:
    """Bounds by order with impossible numbers: the file is ignored with a warning, and publishing it is refused."""
    orders(scene, [ROW, {**ROW, **changes}])
    scene.harmless("generate", scene.published, "--steps", 4, "--json", codes=(0,), says="its bounds are ignored")
    assert len(scene.said) < 2000, scene.said
    scene.refused("damaged", "publish", scene.published, scene.place / "again")


def many_orders(scene: Scene) -> None:
    """A hundred thousand bounds, the cheapest of a million calls: chosen within seconds."""
    orders(scene, [{**ROW, "calls": 1_000_000 - index} for index in range(100_000)])
    scene.accepted("generate", scene.published, "--steps", 4, "--json")


def poisoned_evaluation(scene: Scene, **changes: Any) -> None:
    """Measurements with impossible numbers or markup: no card is written of the former, the latter is escaped."""
    metric = {"value": 1.0, "low": 0.5, "high": 2.0, "unit": "bits", "convention": "upper bound", **changes}
    about = {"split": "test", "protocol": "<script>", "claims_bound": True, "sequences": "</td><script>"}
    attach(scene, "evaluation.json", {"evaluations": [{**about, "metrics": {"bits_per_character": metric}}]})
    if changes:
        scene.refused("damaged", "publish", scene.published, scene.place / "again")
    else:
        scene.accepted("publish", scene.published, scene.place / "again")
        assert "<script" not in (scene.place / "again" / "README.md").read_text()


def link_in_model(scene: Scene, name: str) -> None:
    """A file of a published model that is a link to another one."""
    (scene.published / name).rename(scene.place / name)
    (scene.published / name).symlink_to(scene.place / name)
    scene.refused("damaged", "generate", scene.published, *GENERATE)


def published_onto_link(scene: Scene) -> None:
    """A model is published under a name that is a link to a folder: the link and the folder are kept."""
    (scene.place / "again").symlink_to(scene.place / "home")
    scene.refused("symbolic link", "publish", scene.published, scene.place / "again")
    assert (scene.place / "again").is_symlink() and list((scene.place / "home").iterdir()) == []


def header(scene: Scene, change: Callable[[bytes, bytes], bytes]) -> None:
    """Weights whose list of tensors is crafted: refused as damaged, or as those of another network."""
    path = scene.published / "model.safetensors"
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    path.write_bytes(change(raw[8 : 8 + size], raw[8 + size :]))
    sign(scene.published, PUBLISHED)
    scene.refused("model.safetensors", "generate", scene.published, *GENERATE)


def with_head(head: object, body: bytes) -> bytes:
    """Return a safetensors file."""
    content = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(content)) + content + body


def overlapping(head: bytes, body: bytes) -> bytes:
    """Let the first tensors share their bytes."""
    found = json.loads(head)
    first, second = [name for name in found if name != "__metadata__"][:2]
    found[first]["data_offsets"] = found[second]["data_offsets"]
    return with_head(found, body)


def empty_tensors(head: bytes, body: bytes) -> bytes:
    """Add a hundred thousand tensors without content."""
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [len(body)] * 2}
    return with_head(json.loads(head) | {f"x{index}": empty for index in range(100_000)}, body)


def looping_table(scene: Scene) -> None:
    """An n-gram table in which each context is the suffix of the next one, and that of the first: no end."""

    def loop(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for name, table in found.items():
            if name.endswith("belief.suffix"):
                used = int((table >= 0).sum())
                table[used - 3 : used] = torch.tensor([used - 1, used - 3, used - 2], dtype=table.dtype)
        return found

    respoil(scene.published, PUBLISHED, loop)
    scene.refused("damaged", "generate", scene.published, *GENERATE)


def poisoned_tokenizer(scene: Scene, change: Callable[[dict[str, Any]], object]) -> None:
    """A vocabulary with contradictory, huge or many ids."""
    edit(scene.published / "tokenizer.json", change)
    sign(scene.published, PUBLISHED)
    scene.refused("tokenizer", "generate", scene.published, *GENERATE)


# -- configurations, and names that no system accepts ----------------------------------------------


def nested_references(depth: int) -> str:
    """Return a list of lists by references, nine of each."""
    inner = "[1,1,1,1,1,1,1,1,1]"
    for level in range(depth):
        inner = f"[&y{level} {inner}{f',*y{level}' * 8}]"
    return inner


MERGES = "\n".join(
    ["m0: &m0 {a: 1}", *(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 3)}], b{n}: 1}}" for n in range(1, 25))]
)
CONFIGURATIONS = {
    "references for 9^10 numbers": f"training: {{seed: {nested_references(9)}}}",
    "merge keys for 3^24 mappings": MERGES,
    "a reference to itself": "training: &r {seed: *r}",
    "a merge with itself": "training: &r {<<: *r, seed: 1}",
    "a number of 400,000 bits": f"training: {{seed: 0x{'f' * 100_000}}}",
    "a name of 400,000 bits": f"? 0x{'f' * 100_000}\n: 1",
    "a choice of 400,000 bits": f"method: 0x{'f' * 100_000}",
    "a date that is none": "training: {seed: !!timestamp 2001-99-99}",
    "a path with a null character": 'data: {name: textfile, file: "a\\0b"}',
}


def configuration(scene: Scene, text: str) -> None:
    """A configuration that is a bomb or has impossible values: refused within seconds."""
    path = scene.place / "config.yaml"
    path.write_text(text)
    scene.refused("config.yaml", "train", path, "--out", scene.place / "new")


def long_name(scene: Scene) -> None:
    """Names of 5,000 characters in every place of a name: refused, without a trace of the program."""
    name = "x" * 5000
    for words in (
        ("generate", name),
        ("evaluate", name),
        ("score", scene.published, name),
        ("restore", scene.published, name),
        ("train", "--data", name, "--out", scene.place / "new"),
        ("generate", scene.published, "--out", name, "--steps", 2),
        ("publish", scene.published, scene.place / name),
        scene.train(scene.place / name),
    ):
        scene.refused("", *words)
        assert len(scene.said) < 16_000, len(scene.said)


def byte_name(scene: Scene) -> None:
    """Names of files that are not of UTF-8, and control characters in them."""
    for name in (os.fsdecode(b"\xff\xfe"), "a\n\x1b[2Jb", "\u202eb"):
        data = scene.place / f"data{name}"
        data.write_text("some text of mine, and more of it\n" * 40)
        for words in (
            ("train", "--data", data, "--out", scene.place / f"run{name}", *TRAINING),
            ("generate", scene.published, "--steps", 2, "--out", scene.place / f"out{name}"),
            ("publish", scene.published, scene.place / f"model{name}"),
            ("generate", scene.place / f"model{name}", *GENERATE),
        ):
            scene.harmless(*words)


def environment(scene: Scene) -> None:
    """Odd values of the variables that are read: refused, or without effect."""
    for cache in ("/dev/null", "/proc/self/x", "x" * 5000, "\x1b[2J", "~nobody/x"):
        scene.harmless(*scene.train(scene.place / "new"), "--overwrite", RDLM_CACHE=cache)
    for name, value in (("COLUMNS", "-5"), ("COLUMNS", "9" * 30), ("TMPDIR", "/nonexistent"), ("RANK", "x")):
        scene.accepted("generate", scene.published, *GENERATE, **{name: value})


COUNTS = [("generate", name) for name in ("--steps", "--length", "--num", "--batch")]
COUNTS += [("restore", "--samples"), ("restore", "--steps")]


def enormous_request(scene: Scene) -> None:
    """Counts of a trillion: refused before anything is allocated."""
    (scene.place / "text.txt").write_text("so?e")
    for words in COUNTS:
        command, option = words
        text = [scene.place / "text.txt"] if command == "restore" else []
        scene.refused("at most", command, scene.published, *text, option, 10**12)


# -- data ------------------------------------------------------------------------------------------


def foreign_link(scene: Scene, kind: str) -> None:
    """A folder of data that somebody has given you, with a link to a file of yours: it is not read."""
    folder, secret = scene.place / "data", scene.place / "secret.txt"
    folder.mkdir()
    secret.write_text("the quick brown fox jumps over the lazy dog " * 40)
    (folder / "a.txt").write_text("some text of mine " * 60)
    if kind == "file":
        (folder / "b.txt").symlink_to(secret)
    else:  # a link to a folder is not followed; one to the folder above leads to no end
        (folder / "b").symlink_to(folder)
        (folder / "c").symlink_to(scene.place / "home")
    run = partial(scene.refused, "outside of the folder") if kind == "file" else scene.accepted
    run("train", "--data", folder, "--out", scene.place / "new", *TRAINING)
    run(*scene.train(scene.place / "another", **{"data.file": folder}))


def packed(members: dict[str, bytes], change: Callable[[bytearray, int], None] | None = None) -> bytes:
    """Return a zip archive; `change` is given its bytes, and where the list of its members begins."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    raw = bytearray(buffer.getvalue())
    if change is not None:
        change(raw, raw.find(b"PK\x01\x02"))
    return bytes(raw)


def _encrypted(raw: bytearray, listed: int) -> None:
    raw[6] |= 1
    raw[listed + 8] |= 1


def _unknown_method(raw: bytearray, listed: int) -> None:
    raw[listed + 10 : listed + 12] = b"\x63\x00"


TEXT = b"some text of mine, and more of it " * 60
ARCHIVES: dict[str, Callable[[], bytes]] = {
    "an encrypted member.zip": lambda: packed({"a.txt": TEXT}, _encrypted),
    "an unknown method.zip": lambda: packed({"a.txt": TEXT}, _unknown_method),
    "5,000 members.zip": lambda: packed({f"{index}.txt": b"x" for index in range(5000)}),
    "a bomb.zip": lambda: packed({"a.txt": bytes(1 << 28)}),
    "100,000 empty parts.gz": lambda: gzip.compress(b"") * 100_000,
    "a bomb in parts.gz": lambda: gzip.compress(bytes(1 << 20)) * 300,
    "a cut one.gz": lambda: gzip.compress(TEXT)[:-9],
}
PAIRS = {
    "half a surrogate pair.jsonl": b'{"text": "some text"}\n' * 60 + b'{"text": "\\ud800"}\n',
    "a number of 5,000 digits.jsonl": b'{"text": "some text"}\n' * 60 + b'{"text": ' + b"9" * 5000 + b"}\n",
    "UTF-16.txt": TEXT.decode().encode("utf-16"),
    "only unknown bases.fasta": b">a\nNNNN\n" * 100,
}


def array(values: Any, old: bytes = b"", new: bytes = b"") -> bytes:
    """Return an array in NumPy's format, with something in it replaced."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(values), allow_pickle=False)
    return buffer.getvalue().replace(old, new) if old else buffer.getvalue()


EIGHT = np.zeros(8, np.uint8)
ARRAYS = {
    "an array of records": lambda: array(np.zeros(100, [("a", "i4"), ("b", "f8")])),
    "an array of no entries": lambda: array(np.zeros((1 << 40, 0), np.uint8)),
    "an array of a negative size": lambda: array(EIGHT, b"(8,)", b"(-8,)"),
    "an array of arrays": lambda: array(EIGHT, b"'|u1'", b"'(3,)u1'"),
    "an array whose size is a formula": lambda: array(EIGHT, b"(8,), }       ", b"(9**9**9,), }"),
    "an array of nested brackets": lambda: b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 22) + b"(" * (1 << 22),
    "an array of dates": lambda: array(np.zeros(100, "M8[s]")),
    "an array of 2^63": lambda: array(np.full(100, 2**63, np.uint64)),
}


def data(scene: Scene, name: str, make: Callable[[], bytes]) -> None:
    """Own data that are a bomb or cannot be read: refused, and nothing is written beside the run and the cache."""
    path = scene.place / name
    path.write_bytes(make())
    scene.refused("", "train", "--data", path, "--out", scene.place / "new", *TRAINING)


def by_column(scene: Scene) -> None:
    """An array in Fortran's order is read like one in C's."""
    values = np.arange(24 * 4 * 4, dtype=np.uint8).reshape(24, 4, 4) % 4
    for name, content in (("c", values), ("f", np.asfortranarray(values))):
        (scene.place / f"{name}.npy").write_bytes(array(content))
        scene.accepted("train", "--data", scene.place / f"{name}.npy", "--out", scene.place / name, *TRAINING)
    tokens = {path.read_bytes() for path in (scene.cache / "data").glob("own*/train.bin")}
    assert len(tokens) == 1, len(tokens)


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def packed_zeros() -> bytes:
    """Return 256 MB of zeros, packed into 255 kB."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(256)) + packer.flush()


PACKED_ZEROS = packed_zeros()
CHUNKS = {
    "a colour profile": chunk(b"iCCP", b"x\0\0" + PACKED_ZEROS),
    "a packed comment": chunk(b"zTXt", b"x\0\0" + PACKED_ZEROS),
    "an international comment": chunk(b"iTXt", b"x\0\1\0\0\0" + PACKED_ZEROS),
    "a billion frames": chunk(b"acTL", struct.pack(">II", 1 << 30, 0)),
    "camera data without end": chunk(b"eXIf", b"II*\0" + struct.pack("<I", 8) + b"\xff\xff" * 1000),
    "5,000 comments": chunk(b"tEXt", b"a\0b") * 5000,
}


def image(scene: Scene, extra: bytes) -> None:
    """Images with a bomb beside their pixels: refused, or read without it."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0))
    raw = b"\x89PNG\r\n\x1a\n" + head + extra + chunk(b"IDAT", zlib.compress(bytes(20))) + chunk(b"IEND", b"")
    folder = scene.place / "images"
    folder.mkdir()
    for index in range(24):
        (folder / f"{index}.png").write_bytes(raw)
    scene.harmless("train", "--data", folder, "--out", scene.place / "new", *TRAINING)


# -- readings --------------------------------------------------------------------------------------

DEFAULT = b"<!DOCTYPE x [<!ATTLIST p class CDATA '" + b"x" * 100_000 + b"'>]>"
READINGS: dict[str, Callable[[], bytes]] = {
    "a page with default attributes.hocr": lambda: DEFAULT + b"<r>" + b"<p/>" * 3_000_000 + b"</r>",
    "a page with an outer entity.hocr": lambda: b"<!DOCTYPE x [<!ENTITY % a SYSTEM 'file:///etc/passwd'> %a;]><p>x</p>",
    "a page of 300,000 attributes.hocr": lambda: (
        b"<p " + b" ".join(b'a%d="x"' % index for index in range(300_000)) + b">a</p>"
    ),
    "two million reads.fastq": lambda: b"@\nA\n+\nI\n" * 2_000_000,
    "probabilities NaN.jsonl": lambda: b'{"a": NaN}\n',
    "probabilities of 1e308.jsonl": lambda: b'{"a": 1e308, "d": 1e308}\n',
    "probabilities true.jsonl": lambda: b'{"a": true}\n',
    "a probability of 4,200 digits.jsonl": lambda: b'{"a": 1' + b"0" * 4200 + b"}\n",
    "a symbol that a terminal obeys.jsonl": lambda: b'{"\\u001b[2J": 1}\n',
    "alternatives without end.txt": lambda: b"[" * 100_000,
    "marks alone.txt": lambda: "\u0301".encode() * 100_000,
}


def reading(scene: Scene, name: str, make: Callable[[], bytes]) -> None:
    """A reading that is a bomb, or evidence that is impossible."""
    (scene.place / name).write_bytes(make())
    scene.refused("", "restore", scene.published, scene.place / name)


def strange_evidence(scene: Scene) -> None:
    """Evidence of NaN, infinities, the largest and smallest numbers: refused, or restored without a failure."""
    for value in (np.nan, np.inf, -np.inf, 1e308, -1e308, -0.0, 5e-324):
        path = scene.place / "evidence.npy"
        path.write_bytes(array(np.full((4, 16), value)))
        scene.harmless("restore", scene.published, path)
        path.write_bytes(array(np.full((4, 16), 1.0) * [value, *[0.0] * 15]))
        scene.harmless("restore", scene.published, path)


def _first_twice(found: dict[str, Any]) -> None:
    names = list(found["model"]["vocab"])
    found["model"]["vocab"][names[1]] = found["model"]["vocab"][names[0]]


def _all(value: object, found: dict[str, Any]) -> None:
    found["model"]["vocab"] = dict.fromkeys(found["model"]["vocab"], value)


def _added(found: dict[str, Any]) -> None:
    found["added_tokens"] = [{"content": "a" * 10**6, "id": 0}]


CONTENT_ATTACKS: dict[str, Attack] = {
    "terminal: control characters in samples": sample_on_terminal,
    "terminal: control characters in a restored text": restored_on_terminal,
    "terminal: control characters in names and notices": named_on_terminal,
    "page: scripts in texts and samples": script,
    **{
        f"model: half a surrogate pair in its {where}": partial(half_a_pair, where=where)
        for where in ("name", "corpus")
    },
    "model: half a surrogate pair in its alphabet": partial(half_a_pair, where="alphabet"),
    "model: an order of 10^4000 calls": partial(poisoned_orders, calls=HUGE),
    "model: a bound of 1e308": partial(poisoned_orders, value=1e308, low=-1e308, high=1e308),
    "model: a bound of 10^4000": partial(poisoned_orders, value=HUGE),
    "model: 100,000 bounds": many_orders,
    "model: a measurement of 10^4000": partial(poisoned_evaluation, value=HUGE),
    "model: markup in measurements": poisoned_evaluation,
    **{
        f"model: {name} is a link": partial(link_in_model, name=name)
        for name in ("config.json", "model.safetensors", "tokenizer.json")
    },
    "model: published onto a link": published_onto_link,
    "model: tensors that overlap": partial(header, change=overlapping),
    "model: a list of tensors of 2^62 bytes": partial(
        header, change=lambda head, body: struct.pack("<Q", 1 << 62) + head + body
    ),
    "model: a tensor listed twice": partial(
        header, change=lambda head, body: with_head(head[:-1] + b"," + head[1:], body)
    ),
    "model: a list of tensors in brackets": partial(
        header, change=lambda head, body: with_head(b'{"a":' + b"[" * 100_000, body)
    ),
    "model: 100,000 tensors without content": partial(header, change=empty_tensors),
    "model: bytes after the last tensor": partial(header, change=lambda head, body: with_head(head, body + b"x" * 400)),
    "model: an n-gram table that loops": looping_table,
    "model: a tokenizer with one id twice": partial(poisoned_tokenizer, change=_first_twice),
    "model: a tokenizer with ids of 4,000 digits": partial(poisoned_tokenizer, change=partial(_all, HUGE)),
    "model: a tokenizer with ids true": partial(poisoned_tokenizer, change=partial(_all, True)),
    "model: a tokenizer with an added token of a megabyte": partial(poisoned_tokenizer, change=_added),
    **{f"configuration: {name}": partial(configuration, text=text) for name, text in CONFIGURATIONS.items()},
    "names: 5,000 characters": long_name,
    "names: other bytes than UTF-8, and control characters": byte_name,
    "names: variables of the environment": environment,
    "request: a trillion steps, tokens and samples": enormous_request,
    "data: a link to a file of yours": partial(foreign_link, kind="file"),
    "data: links to folders": partial(foreign_link, kind="folder"),
    **{f"data: {name}": partial(data, name=name, make=make) for name, make in ARCHIVES.items()},
    **{f"data: {name}": partial(data, name=name, make=partial(bytes, made)) for name, made in PAIRS.items()},
    **{f"data: {name}": partial(data, name="array.npy", make=make) for name, make in ARRAYS.items()},
    "data: an array by column": by_column,
    **{f"image: {name}": partial(image, extra=extra) for name, extra in CHUNKS.items()},
    **{f"reading: {name}": partial(reading, name=name, make=make) for name, make in READINGS.items()},
    "reading: evidence of NaN, infinity and 1e308": strange_evidence,
}
"""Name -> attack."""
