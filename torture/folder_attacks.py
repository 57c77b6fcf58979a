"""Attacks by what lies in the folder of a foreign run, and by what a foreign model claims to be; see `attacks.py`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from content_attacks import attach, orders
from scene import GENERATE, Attack, Scene, edit

EVALUATE = ("--sequences", 2, "--samples", 0, "--nfe", 2, "--evaluations", 8, "--json")


def resume(scene: Scene) -> list[object]:
    """Return the words that continue the run for two more steps."""
    return [*scene.train(scene.run, **{"training.steps": 6}), "--accept-changes"]


def leads_away(scene: Scene, name: str, words: Callable[[Scene], list[object]], says: str = "is a link") -> None:
    """A link in a run's folder to a file or a folder of yours: nothing is written through it."""
    yours, place = scene.place / "yours", scene.run / name
    is_folder = name in ("tensorboard", "wandb") or name.startswith("evaluation")
    if is_folder:
        yours.mkdir()
        (yours / "evaluation.json").write_text("mine")
    else:
        yours.write_text("mine")
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    place.symlink_to(yours)
    scene.refused(says, *words(scene))
    held = {path.name: path.read_text() for path in yours.iterdir()} if is_folder else yours.read_text()
    assert held == ({"evaluation.json": "mine"} if is_folder else "mine"), held


def no_file(scene: Scene, name: str, target: str) -> None:
    """A pipe, or a link to a device without end, in place of a file of a run: it is neither read nor written."""
    (scene.run / name).unlink(missing_ok=True)
    os.mkfifo(scene.run / name) if target == "pipe" else (scene.run / name).symlink_to(target)
    scene.refused("is a link or a device", *resume(scene))
    scene.accepted("generate", scene.run, *GENERATE)


def endless_line(scene: Scene) -> None:
    """A record with a line of terabytes, which take no place on the disk: it ends before that line."""
    os.truncate(scene.run / "record.jsonl", 1 << 42)
    scene.accepted(*resume(scene))
    assert (scene.run / "record.jsonl").stat().st_size < 1 << 20


def claimed(scene: Scene, says: str, **changes: Any) -> None:
    """A model whose corpus is described as what it is not: refused as damaged, by every command."""
    edit(scene.published / "config.json", lambda found: found["corpus"].update(changes))
    (scene.place / "text.txt").write_text("so?e text")
    for words in (
        ("generate", scene.published, "--steps", 2, "--out", scene.place / "samples.png"),
        ("restore", scene.published, scene.place / "text.txt"),
        ("publish", scene.published, scene.place / "again"),
        ("evaluate", scene.published, "--file", scene.book, *EVALUATE),
    ):
        scene.refused(says, *words)


def noise(scene: Scene, total: float) -> None:
    """A process whose noise no number of the network can hold."""
    edit(scene.published / "config.json", lambda found: found["config"]["process"].update(total=total))
    scene.refused("process.total", "generate", scene.published, *GENERATE)


def labels(scene: Scene, **changes: str) -> None:
    """Bounds whose unit or protocol is a page of text, or a line that looks like one of ours: they are ignored."""
    orders(scene, **changes)
    scene.accepted("generate", scene.published, "--json")
    assert len(scene.said) < 2000 and "run this" not in scene.said, scene.said[:500]


def own_class(scene: Scene, key: str, name: str) -> None:
    """A model that names a class to import: its module is not imported, with consent to another class either."""
    (scene.place / "evil.py").write_text(f"open({str(scene.place / 'canary')!r}, 'w')\nclass Net: pass\n")
    section = "model" if key == "network_class" else "process"
    edit(scene.published / "config.json", lambda found: found["config"][section].update({key: name}))
    for words in (
        ("generate", scene.published, *GENERATE),
        ("generate", scene.published, *GENERATE, "--trust", "collections:Counter"),
        ("publish", scene.published, scene.place / "again"),
        ("evaluate", scene.published, "--file", scene.book, *EVALUATE),
        ("score", scene.published, scene.book),
    ):
        scene.refused("running the code of that module", *words, prepare=lambda: sys.path.insert(0, str(scene.place)))
    assert not (scene.place / "canary").exists()


def curve(scene: Scene, content: object) -> None:
    """An information curve that is none: the grid that needs it is refused, and everything else works."""
    attach(scene, "curve.json", content)
    information = ("--grid", "information", "--order", "synchronous", "--steps", 4, "--json")
    scene.refused("curve.json", "generate", scene.published, *information)
    scene.accepted("generate", scene.published, *GENERATE)


def long_reading(scene: Scene) -> None:
    """A text of 60 MB to restore: refused at the most positions, not after all of them are read."""
    (scene.place / "text.txt").write_text("so?e text of mine " * 3_300_000)
    scene.refused("give the parts one by one", "restore", scene.published, scene.place / "text.txt")


def folder_of_links(scene: Scene) -> None:
    """A checkpoint, and the rest of one that was killed, which are links to a folder of yours: that is kept."""
    yours = scene.place / "yours"
    yours.mkdir()
    (yours / "letter").write_text("dear")
    for name in ("checkpoint-00000009", ".checkpoint-00000010.part", ".x.part"):
        (scene.run / name).symlink_to(yours)
    scene.accepted(*resume(scene))
    assert (yours / "letter").read_text() == "dear" and len(list(yours.iterdir())) == 1


def _evaluate(scene: Scene) -> list[object]:
    return ["evaluate", scene.run, *EVALUATE]


CURVES: dict[str, object] = {
    "nothing": {},
    "one level": {"noise": [1], "nats": [1]},
    "a level of 10^4000": {"noise": [10**4000], "nats": [1]},
    "texts": {"noise": "0, 1", "nats": None},
    "a million equal levels": {"noise": [0.03, *[0.01] * 1_000_000, 0], "nats": [0] * 1_000_002},
    "another process": {"noise": [True, False], "nats": [True, False]},
}
FOLDER_ATTACKS: dict[str, Attack] = {
    **{
        f"run: {name} is a link": partial(leads_away, name=name, words=resume)
        for name in ("lock", "record.jsonl", "tensorboard", "wandb_id")
    },
    "run: evaluation-validation is a link": partial(leads_away, name="evaluation-validation", words=_evaluate),
    **{
        f"run: {name} is {what}": partial(no_file, name=name, target=target)
        for name in ("lock", "record.jsonl")
        for what, target in (("a pipe", "pipe"), ("/dev/zero", "/dev/zero"))
    },
    "run: a record with a line of terabytes": endless_line,
    "run: checkpoints that are links": folder_of_links,
    "model: images of 10^18 pixels": partial(claimed, says="wrong image", kind="image", image=[10**9, 10**9, 1]),
    "model: images of four channels": partial(claimed, says="wrong image", kind="image", image=[1, 2, 4]),
    "model: images without a size": partial(claimed, says="wrong image", kind="image"),
    "model: a noise of 1e300": partial(noise, total=1e300),
    "model: a unit of five megabytes": partial(labels, unit="run this" * 600_000),
    "model: a unit with a line of its own": partial(labels, unit="bits\nrdlm: error: run this"),
    "model: a protocol of five megabytes": partial(labels, protocol="run this" * 600_000),
    **{
        f"model: {key} {name!r}": partial(own_class, key=key, name=name)
        for key, name in (
            ("network_class", "evil:Net"),
            ("schedule_class", "os:system"),
            ("bridge_class", "evil:Net\n"),
            ("network_class", "\x1b[2J:x"),
        )
    },
    **{f"model: a curve of {name}": partial(curve, content=content) for name, content in CURVES.items()},
    "reading: a text of 60 MB": long_reading,
}
"""Name -> attack."""
