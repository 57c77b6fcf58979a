"""Attacks on the command line: foreign models, tables, corpora and caches, and a machine that misbehaves.

`python torture/attacks.py` runs this part of the campaign alone. Each attack is a function that prepares something bad,
runs `rdlm` on it in a process without privileges, and states what must come of it. An attack that gets through was let
in; one that is not over within its time hung.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from content_attacks import CONTENT_ATTACKS
from folder_attacks import FOLDER_ATTACKS
from fuzz import OPTIONS, seed_runs
from lying_server import HUB_LIES, INDEX_LIES, lying_server
from mutation import CHECKPOINT, PUBLISHED, Shelf, sign
from scene import GENERATE, SECONDS, Attack, Hung, Record, Scene, edit, respoil, sha256
from victim import different

from rdlm.api import publish
from rdlm.cli import main as cli
from rdlm.data.image import encode_png
from rdlm.data.tokenizer import train_bpe

# -- findings of an independent attack ---------------------------------------------------------------


def cache_of_others(scene: Scene, spoil: Callable[[Path], object], says: str) -> None:
    """A cache that others can write to holds a table and compiled code: neither is used, and nothing is written."""
    shutil.rmtree(scene.cache)
    for name in ("tables", "inductor"):
        (scene.cache / name).mkdir(parents=True)
    (scene.cache / "inductor" / "evil.so").write_bytes(b"\x7fELF")
    before = {path: path.stat().st_mtime_ns for path in scene.cache.rglob("*")}
    spoil(scene.cache)
    code = scene.rdlm(*scene.train(scene.place / "new"))
    assert says in scene.said and code in (0, 2) and "Traceback" not in scene.said, f"code {code}: {scene.said}"
    assert {path: path.stat().st_mtime_ns for path in before} == before, "the cache was written to"


def linked(cache: Path) -> None:
    """Replace the cache by a symbolic link to it."""
    cache.rename(cache.with_name("elsewhere"))
    cache.symlink_to(cache.with_name("elsewhere"))


def foreign(cache: Path) -> None:
    """Give the cache to another user."""
    os.chown(cache, 65534, 65534)


def replaceable(scene: Scene, spoil: Callable[[Path], object]) -> None:
    """A private cache in a folder where others can rename it: it could be replaced, and so is not used."""
    above = scene.place / "shared"
    above.mkdir()
    scene.cache = scene.cache.rename(above / "cache")
    before = {path: path.stat().st_mtime_ns for path in scene.cache.rglob("*")}
    spoil(above)
    code = scene.rdlm(*scene.train(scene.place / "new"))
    assert "can replace the cache folder" in scene.said and code in (0, 2), f"code {code}: {scene.said}"
    assert {path: path.stat().st_mtime_ns for path in before} == before, "the cache was written to"


def umask(scene: Scene, mask: int) -> None:
    """A process that would let anybody write to its new folders: those of the cache are private all the same."""
    shutil.rmtree(scene.cache)
    scene.accepted(*scene.train(scene.place / "new"), prepare=partial(os.umask, mask))
    folders = [scene.cache, *(path for path in scene.cache.rglob("*") if path.is_dir())]
    modes = {oct(path.stat().st_mode & 0o022) for path in folders if path.parent in (scene.cache, scene.place)}
    assert len(folders) > 2 and modes == {"0o0"}, f"modes {modes}"


def tokenizer_bomb(scene: Scene, step: str, value: object) -> None:
    """A tokenizer with a step that is not ours: it is refused before the step is built."""
    description = train_bpe(["some text of mine, some text"], 270).to_json()
    description["model"][step] = value
    (scene.published / "tokenizer.json").write_text(json.dumps(description))
    sign(scene.published, PUBLISHED)
    (scene.place / "text.txt").write_text("a" * 40 + "b")
    scene.refused("tokenizer", "score", scene.published, scene.place / "text.txt", "--json")


DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
SPLIT = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}


def named_file(scene: Scene, path: str) -> None:
    """A published model that names a file of this machine as its corpus: it is not opened."""
    os.mkfifo(scene.place / "pipe")
    edit(scene.published / "config.json", lambda found: found["config"]["data"].update(file=path.format(scene.place)))
    before = stored(scene)
    scene.refused("needs a file", "evaluate", scene.published, "--sequences", 2, "--samples", 0, "--json")
    assert stored(scene) == before, "the file was tokenised into the cache"


def named_by_run(scene: Scene, path: str) -> None:
    """A checkpoint that names a file or a folder of this machine as its corpus: it is not read."""
    secret = scene.place / "secret.txt"
    secret.write_text("the quick brown fox jumps over the lazy dog " * 400)
    named = path.format(scene.place)
    edit(CHECKPOINT.at(scene.run) / CHECKPOINT.state, lambda found: found["config"]["data"].update(file=named))
    before = stored(scene)
    checkpoint = CHECKPOINT.at(scene.run)
    scene.refused("not prepared on this machine", "evaluate", checkpoint, "--samples", 0, "--json")
    scene.refused("not prepared on this machine", "analyze", "steps", checkpoint, "--out", scene.place / "steps")
    assert stored(scene) == before, "the file was tokenised into the cache"


def special_file(scene: Scene, path: str) -> None:
    """A corpus that is a device or a pipe."""
    os.mkfifo(scene.place / "pipe")
    path = path.format(scene.place)
    scene.refused("regular file", *scene.train(scene.place / "new", **{"data.file": path}))
    scene.refused("regular file", "evaluate", scene.published, "--file", path, "--samples", 0, "--json")


def stored(scene: Scene) -> list[str]:
    """Return the names of the prepared corpora."""
    return sorted(path.name for path in (scene.cache / "data").iterdir())


def overflow(scene: Scene) -> None:
    """Weights that are finite, but overflow in the network: no sample comes of them."""
    respoil(scene.published, PUBLISHED, lambda found: {k: v * (1e30 if "blocks" in k else 1) for k, v in found.items()})
    scene.refused("not finite", "generate", scene.published, *GENERATE)
    (scene.place / "text.txt").write_text("some text")
    scene.refused("not finite", "score", scene.published, scene.place / "text.txt", "--json")


def regex(scene: Scene, pattern: str) -> None:
    """A regular expression without end."""
    scene.refused("regex", "generate", scene.published, "--regex", pattern, *GENERATE)


def duplicate_keys(scene: Scene) -> None:
    """A configuration that names a key twice."""
    path = scene.place / "config.yaml"
    path.write_text((scene.run / "config.yaml").read_text() + "\nmethod: mdlm\n")
    scene.refused("duplicate", "train", path, "--out", scene.place / "new")


def overwritten(scene: Scene) -> None:
    """An output file that exists, as a file, as a link or as a device: it is kept."""
    letter = scene.place / "letter.txt"
    letter.write_text("dear")
    (scene.place / "link").symlink_to(letter)
    for path in (letter, scene.place / "link", Path("/dev/null")):
        scene.refused("--out", "generate", scene.published, "--out", path, "--steps", 2)
    assert letter.read_text() == "dear"


def pointer(scene: Scene) -> None:
    """A pointer that was changed to another checkpoint."""
    for name in ("latest.json", "best.json"):
        (scene.run / name).write_text((scene.run / name).read_text().replace("00000002", "00000001"))
    scene.refused("damaged", "generate", scene.run, *GENERATE)


def record_line(scene: Scene) -> None:
    """A line of the record that was changed: it is left out with a warning."""
    path = scene.run / "record.jsonl"
    path.write_text(path.read_text().replace('"step":', '"step": 1', 1))
    scene.accepted("evaluate", scene.run, "--sequences", 2, "--samples", 0, "--nfe", 2, "--evaluations", 8, "--json")


def claimed_length(scene: Scene) -> None:
    """A model that claims sequences of 16.7 million tokens."""
    edit(scene.published / "config.json", lambda found: found["corpus"].update(length=1 << 24))
    scene.refused("length", "generate", scene.published, *GENERATE)


def half_compiled(scene: Scene) -> None:
    """Compiled code that a killed process has left: it is deleted before torch could load it."""
    folder = scene.cache / "inductor"
    folder.mkdir(mode=0o700)
    (folder / "half.so").write_bytes(b"\x7fELF")
    (folder / ".user-4194304").touch()
    scene.accepted("generate", scene.published, *GENERATE)
    assert not (folder / "half.so").exists() or "inductor" not in scene.said


# -- poisoned tables and corpora ---------------------------------------------------------------------


def ngram_table(scene: Scene, name: str, value: float, shelf: Shelf) -> None:
    """An n-gram table with a wrong index or an impossible probability: the model is refused by that name."""
    folder = scene.published if shelf is PUBLISHED else scene.run

    def poison(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for key, table in tensors.items():
            if key.endswith(f"belief.{name}"):
                table.view(-1)[3:6] = value
        return tensors

    respoil(folder, shelf, poison)
    scene.refused("damaged", "generate", folder, *GENERATE)


def claimed_table(scene: Scene, name: str, value: int) -> None:
    """A configuration that claims a table of terabytes."""
    edit(scene.published / "config.json", lambda found: found["config"]["model"].update({name: value}))
    scene.refused("", "generate", scene.published, *GENERATE)


def claimed_order(scene: Scene) -> None:
    """A configuration that claims contexts of a billion symbols, which its tables do not have: that costs nothing."""
    edit(scene.published / "config.json", lambda found: found["config"]["model"].update(order=10**9))
    scene.accepted("generate", scene.published, *GENERATE)


def cached_table(scene: Scene) -> None:
    """Cached tables that were changed or cut, or are pipes: they are built again, with the same bytes of the run."""
    scene.accepted(*scene.train(scene.place / "whole"))
    for number, path in enumerate(sorted((scene.cache / "tables").iterdir())):
        content = bytearray(path.read_bytes())
        content[-8:] = bytes(8)
        path.write_bytes(content[: len(content) // (1 + number % 2)])
    scene.accepted(*scene.train(scene.place / "new"))
    assert different(scene.place / "new", scene.place / "whole")[0] == []
    for path in (scene.cache / "tables").iterdir():
        path.unlink()
        os.mkfifo(path)
    scene.accepted(*scene.train(scene.place / "newer"))
    assert different(scene.place / "newer", scene.place / "whole")[0] == []


def corpus_index(scene: Scene, change: Callable[[dict[str, Any]], object]) -> None:
    """A prepared corpus whose index is damaged or crafted."""
    scene.accepted(*scene.train(scene.place / "whole"))
    for path in (scene.cache / "data").glob("*/meta.json"):
        edit(path, change)
    scene.refused("", *scene.train(scene.place / "new"))
    assert "damaged" in scene.said or "has no split" in scene.said, scene.said


def corpus_tokens(scene: Scene) -> None:
    """A prepared corpus whose tokens are no symbols of its tokenizer, with correct checksums."""
    scene.accepted(*scene.train(scene.place / "whole"))
    for path in (scene.cache / "data").glob("*/meta.json"):
        train = path.parent / "train.bin"
        train.write_bytes(b"\xff" * train.stat().st_size)
        found = json.loads(path.read_text())
        found["files"]["train.bin"] |= {"sha256": sha256(train), "modified": train.stat().st_mtime_ns}
        path.write_text(json.dumps(found))
    scene.refused("", *scene.train(scene.place / "new"))


def png_of(width: int, height: int) -> bytes:
    """Return a small image that claims a size."""
    content = bytearray(encode_png(np.zeros((2, 2, 3), np.uint8)))
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    return bytes(content)


CORPORA: dict[str, Callable[[], bytes]] = {
    "a gzip bomb": lambda: gzip.compress(bytes(1 << 28), 1) * 4,
    "a pickle": lambda: b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "an array of objects": lambda: b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
    "an array of terabytes": lambda: (
        b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(118)
    ),
    "an image of gigapixels": lambda: png_of(1 << 30, 1 << 30),
    "a FASTQ cut off": lambda: b"@a\nACGT\n+\nII",
    "a CSV with a field of megabytes": lambda: b'a,b\n1,2\n3,4\n1,"' + b"x" * (8 << 20),
    "a JSONL of brackets": lambda: b'{"text": "some text"}\n' * 10_000 + b'{"text": ' + b"[" * 1_000_000,
}


def own_corpus(scene: Scene, content: Callable[[], bytes]) -> None:
    """Own data that are no data."""
    path = scene.place / "data"
    made = content()
    path = path.with_suffix(".gz") if made.startswith(b"\x1f\x8b") else path
    path.write_bytes(made)
    options = [word for key, value in OPTIONS.items() for word in (f"--{key}", value)]
    scene.refused("", "train", "--data", path, "--out", scene.place / "new", *options)


# -- a hub and an index that lie ---------------------------------------------------------------------


def hub(scene: Scene, lie: str) -> None:
    """A hub that lies about a model: it is refused, and nothing is left outside the cache."""
    before = outside(scene)
    with lying_server(scene.published, lie) as address:
        harmless = ("the truth", "a name with ../")  # only files of known names are downloaded
        run = scene.accepted if lie in harmless else partial(scene.refused, "somebody/model")
        environment = {"HF_ENDPOINT": address, "HF_HUB_DOWNLOAD_TIMEOUT": 2, "HF_HUB_ETAG_TIMEOUT": 2, "no_proxy": "*"}
        run("generate", "somebody/model", *GENERATE, HF_HOME=scene.place / "home", **environment)
    assert outside(scene) == before, f"written: {outside(scene) - before}"


def hub_tokenizer(scene: Scene, lie: str) -> None:
    """A hub that lies about a tokenizer for your own data."""
    (scene.place / "tokenizer.json").write_text("{}")
    with lying_server(scene.place, lie, "tokenizer.json") as address:
        environment = {"HF_ENDPOINT": address, "HF_HUB_DOWNLOAD_TIMEOUT": 2, "HF_HUB_ETAG_TIMEOUT": 2, "no_proxy": "*"}
        words = scene.train(scene.place / "new", **{"data.tokenizer": "hf://somebody/model"})
        scene.refused("", *words, HF_HOME=scene.place / "home", **environment)


def index(scene: Scene, lie: str) -> None:
    """A package index that lies about an archive: nothing of it stays in the cache."""
    with lying_server(scene.published, lie) as address:
        scene.refused(
            "", "data", "get", "mnist", PIP_INDEX_URL=f"{address}/simple", PIP_CONFIG_FILE=os.devnull, no_proxy="*"
        )
    left = [path for path in (scene.cache / "archive").glob("*")] if (scene.cache / "archive").exists() else []
    assert left == [], f"left in the cache: {left}"


def outside(scene: Scene) -> set[Path]:
    """Return the files beside the cache, the home and the messages."""
    known = (scene.cache, scene.place / "home", scene.place / "messages.txt")
    return {path for path in scene.place.rglob("*") if not any(path.is_relative_to(one) for one in known)}


def killed_publishing(scene: Scene) -> None:
    """`rdlm publish` onto a model is killed at twenty moments: the old model is there, or the new one, whole."""
    for moment in range(1, 21):
        timer = partial(signal.setitimer, signal.ITIMER_REAL, 0.05 * moment)
        scene.rdlm("publish", scene.run, scene.published, prepare=timer)
        publish.verify(scene.published)
    left = [path for path in scene.place.glob(".published.*") if path.is_dir()]
    for path in left:
        os.utime(path, (0, 0))
    scene.accepted("publish", scene.run, scene.published)
    assert list(scene.place.glob(".published.*")) == [], f"{len(left)} folders of killed processes are left"


# -- a machine that misbehaves -----------------------------------------------------------------------


def jumping_clock(rng: random.Random) -> None:
    """Set the clock of this process back and forth by up to a year, at every reading."""
    real = time.time
    time.time = lambda: real() + rng.uniform(-3e7, 3e7)
    time.time_ns = lambda: int(1e9 * time.time())


def clock_in_a_run(scene: Scene) -> None:
    """A clock that jumps while a run is trained: it ends with the same bytes."""
    scene.accepted(*scene.train(scene.place / "whole"))
    scene.accepted(*scene.train(scene.place / "new"), prepare=partial(jumping_clock, random.Random(0)))
    assert different(scene.place / "new", scene.place / "whole")[0] == []


def clock_and_minutes(scene: Scene) -> None:
    """A clock that jumps in a run of three seconds: it takes as long as without jumps, and no year."""
    took = []
    for name, prepare in (("whole", lambda: None), ("new", partial(jumping_clock, random.Random(1)))):
        begin = time.monotonic()
        words = scene.train(scene.place / name, **{"training.steps": 1_000_000, "minutes": 0.05})
        scene.accepted(*words, prepare=prepare)
        took.append(time.monotonic() - begin)
    assert took[0] / 3 < took[1] < SECONDS, f"{took[0]:.1f} s without and {took[1]:.1f} s with jumps"


def read_only(scene: Scene, what: str) -> None:
    """A folder without the permission to write, of a run, a cache or an output."""
    folder = scene.place / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    if what == "cache":
        shutil.rmtree(scene.cache)
        scene.refused("cannot write", *scene.train(scene.place / "new"), RDLM_CACHE=folder / "cache")
        scene.accepted("generate", scene.published, *GENERATE, RDLM_CACHE=folder / "cache")
    elif what == "run":
        scene.refused("cannot write", *scene.train(folder / "new"))
    else:
        scene.refused("", "generate", scene.published, "--out", folder / "text.txt", "--steps", 2)
    assert list(folder.iterdir()) == []


def read_only_checkpoints(scene: Scene) -> None:
    """A run whose folder became read-only: it is read, and continuing it is refused."""
    scene.run.chmod(0o555)
    scene.accepted("generate", scene.run, *GENERATE)
    scene.refused("cannot write", *scene.train(scene.run, **{"training.steps": 6}), "--accept-changes")


DOUBLED = {"type": "Sequence", "normalizers": [DOUBLING] * 21}
ATTACKS: dict[str, Attack] = {
    "1: a cache with mode 0777": partial(cache_of_others, spoil=lambda c: c.chmod(0o777), says="other users can write"),
    "1: a cache with mode 0770": partial(cache_of_others, spoil=lambda c: c.chmod(0o770), says="other users can write"),
    "1: tables with mode 0777": partial(
        cache_of_others, spoil=lambda c: (c / "tables").chmod(0o777), says="other users can write"
    ),
    "1: a cache that is a link": partial(cache_of_others, spoil=linked, says="symbolic link"),
    "1: a cache in a folder with mode 0777": partial(replaceable, spoil=lambda above: above.chmod(0o777)),
    "1: umask 000": partial(umask, mask=0o000),
    "1: umask 002": partial(umask, mask=0o002),
    "2: 21 doublings": partial(tokenizer_bomb, step="normalizer", value=DOUBLED),
    "2: a decoder of megabytes": partial(tokenizer_bomb, step="decoder", value={**DOUBLING, "content": "a" * 10**6}),
    "3: a regex that panics": partial(tokenizer_bomb, step="pre_tokenizer", value=SPLIT),
    "4: a model that names /dev/zero": partial(named_file, path="/dev/zero"),
    "4: a model that names /etc/passwd": partial(named_file, path="/etc/passwd"),
    "4: a model that names a pipe": partial(named_file, path="{}/pipe"),
    "4: a checkpoint that names /etc/passwd": partial(named_by_run, path="/etc/passwd"),
    "4: a checkpoint that names a text": partial(named_by_run, path="{}/secret.txt"),
    "4: a checkpoint that names /": partial(named_by_run, path="/"),
    "4: a corpus that is /dev/zero": partial(special_file, path="/dev/zero"),
    "4: a corpus that is a pipe": partial(special_file, path="{}/pipe"),
    "5: weights that overflow": overflow,
    "5: 20,000 parentheses": partial(regex, pattern="(" * 20_000 + ")" * 20_000),
    "5: nested repetitions": partial(regex, pattern="((a{1,1000}){1,1000}){1,1000}"),
    "5: duplicate keys": duplicate_keys,
    "5: an output that exists": overwritten,
    "5: a pointer that was changed": pointer,
    "5: a line of the record that was changed": record_line,
    "5: a length of 16.7 million": claimed_length,
    "5: compiled code of a killed process": half_compiled,
    **{
        f"table: {name} {value:g} in a {kind}": partial(ngram_table, name=name, value=value, shelf=shelf)
        for kind, shelf in (("checkpoint", CHECKPOINT), ("published model", PUBLISHED))
        for name, value in (
            ("suffix", -7),
            ("suffix", 60),
            ("suffix", 2**31 - 1),
            ("oldest", -1),
            ("oldest", 10_000),
            ("weight", float("nan")),
            ("weight", float("inf")),
            ("weight", -1.0),
            ("weight", 1e30),
        )
    },
    "table: 2^40 states claimed": partial(claimed_table, name="states", value=1 << 40),
    "table: order 10^9 claimed": claimed_order,
    "table: cached ones changed": cached_table,
    "corpus: a shape of terabytes": partial(
        corpus_index, change=lambda found: found["files"]["train.bin"].update(shape=[1 << 50])
    ),
    "corpus: a negative shape": partial(
        corpus_index, change=lambda found: found["files"]["train.bin"].update(shape=[-1])
    ),
    "corpus: an array of objects": partial(
        corpus_index, change=lambda found: found["files"]["train.bin"].update(dtype="|O")
    ),
    "corpus: a file outside": partial(
        corpus_index, change=lambda found: found["files"].update({"../../train.bin": found["files"]["train.bin"]})
    ),
    "corpus: a missing split": partial(corpus_index, change=lambda found: found["files"].pop("train.bin")),
    "corpus: a length of 10^12": partial(corpus_index, change=lambda found: found.update(length="10", classes=7)),
    "corpus: another format": partial(corpus_index, change=lambda found: found.update(format=99)),
    "corpus: tokens beyond the vocabulary": corpus_tokens,
    **{f"own data: {name}": partial(own_corpus, content=content) for name, content in CORPORA.items()},
    **{f"hub: {lie}": partial(hub, lie=lie) for lie in HUB_LIES},
    **{f"hub tokenizer: {lie}": partial(hub_tokenizer, lie=lie) for lie in ("a file without end", "a packed listing")},
    **{f"index: {lie}": partial(index, lie=lie) for lie in INDEX_LIES},
    "killed: rdlm publish onto a model": killed_publishing,
    "clock: it jumps in a run": clock_in_a_run,
    "clock: it jumps in a run of three seconds": clock_and_minutes,
    "read-only: the folder of a new run": partial(read_only, what="run"),
    "read-only: the cache": partial(read_only, what="cache"),
    "read-only: the output": partial(read_only, what="output"),
    "read-only: a run that exists": read_only_checkpoints,
    **CONTENT_ATTACKS,
    **FOLDER_ATTACKS,
}
"""Name -> attack; the numbers are those of the findings in docs/reliability.md."""

if os.geteuid() == 0:  # only root can give a folder to somebody else
    ATTACKS["1: a cache of another user"] = partial(cache_of_others, spoil=foreign, says="belongs to another user")
    ATTACKS["1: a cache in a folder of another user"] = partial(replaceable, spoil=foreign)


def prepare(place: Path) -> Path:
    """Return a folder with a run, a model published from it, and the cache that they filled."""
    before = os.environ.get("RDLM_CACHE")
    os.environ["RDLM_CACHE"] = str(place / "cache")
    (run, _) = seed_runs(place)
    assert cli.main(["publish", str(run), str(place / "published"), "--json"]) == 0
    os.environ.pop("RDLM_CACHE") if before is None else os.environ.update(RDLM_CACHE=before)
    (place / "home").mkdir()
    return place


def attack(place: Path, say: Callable[[str], object], only: str = "") -> Record:
    """Make all attacks whose name contains `only`, and return the results."""
    record, seeds = Record(), prepare(place / "seeds")
    for number, (name, function) in enumerate((name, one) for name, one in ATTACKS.items() if only in name):
        begin = time.monotonic()
        try:
            function(Scene(place / str(number), seeds, record))
            record.attacks[name] = "held"
        except Hung as failure:
            record.attacks[name] = "hung"
            record.hung.append(f"{name}: {failure}")
        except Exception:
            record.attacks[name] = "let in"
            record.let_in.append(f"{name}: {traceback.format_exc()[-1800:]}")
        say(f"attack: {name}: {record.attacks[name]} ({time.monotonic() - begin:.1f} s)")
        with contextlib.suppress(OSError):
            for path in (place / str(number)).rglob("*"):
                path.chmod(0o700) if path.is_dir() and not path.is_symlink() else None
        shutil.rmtree(place / str(number), ignore_errors=True)
    return record


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rdlm-attacks-") as place:
        only = sys.argv[1] if len(sys.argv) > 1 else ""
        record = attack(Path(place), lambda line: print(line, file=sys.stderr, flush=True), only)
    print("\n".join([*record.let_in, *record.hung, record.line()]))
    return 1 if record.let_in or record.hung else 0


if __name__ == "__main__":
    sys.exit(main())
