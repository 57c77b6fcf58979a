"""What test_footprint runs in a process of its own: `python footprint.py FOLDER`, without any network.

Imports every module, trains, evaluates, scores and generates; prints as JSON what was opened for writing, made, moved
or removed outside of the run's folder, the cache and the folder for temporary files. The first use of a socket ends it.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from pathlib import Path

HOME = Path(sys.argv[1])
ALLOWED = (HOME / "runs", HOME / "cache", HOME / "tmp", Path(os.devnull))
MOVES = {
    "os.rename",
    "os.link",
    "os.symlink",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "os.chmod",
    "shutil.rmtree",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NETWORK = {"socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}

outside: list[str] = []


def watch(event: str, arguments: tuple[object, ...]) -> None:
    if event in NETWORK or event.startswith(("http.client.", "urllib.", "smtplib.", "ftplib.")):
        print(f"the network was used: {event} {arguments}", file=sys.stderr, flush=True)
        os._exit(9)
    touched: list[object] = []
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
        touched = [arguments[0]]
    elif event in MOVES:
        touched = list(arguments[: 2 if event in ("os.rename", "os.link") else 1])
    for path in touched:
        # A name without a folder belongs to an open one, inside a removal that was seen as a whole.
        if isinstance(path, str | bytes | os.PathLike) and (os.sep in os.fsdecode(path) or event == "open"):
            place = Path(os.fsdecode(path)).absolute()
            if not any(place.is_relative_to(home) for home in ALLOWED):
                outside.append(f"{event} {place}")


sys.addaudithook(watch)
sys.stdout = sys.stderr  # what the commands print is not the answer

import rdlm  # noqa: E402
from rdlm.cli import main as cli  # noqa: E402

for module in pkgutil.walk_packages(rdlm.__path__, "rdlm."):
    if module.name not in ("rdlm.__main__", "rdlm.evaluate.lm_eval"):  # the latter needs an extra
        importlib.import_module(module.name)

TINY = [
    "--data.length",
    "8",
    "--model.width",
    "8",
    "--model.layers",
    "1",
    "--model.heads",
    "1",
    "--process.levels",
    "16",
    "--process.pairs",
    "64",
    "--training.steps",
    "2",
    "--training.batch",
    "4",
    "--training.device",
    "cpu",
    "--training.validation-sequences",
    "4",
    "--training.validation-calls",
    "4",
]
(HOME / "runs").mkdir()
(HOME / "runs" / "text.txt").write_text("some text")
for command in (
    ["train", "textfile", "--data.file", str(HOME / "book.txt"), *TINY],
    ["evaluate", "runs/textfile", "--sequences", "4", "--evaluations", "8", "--samples", "2", "--nfe", "4"],
    ["score", "runs/textfile", "runs/text.txt", "--nfe", "4"],
    ["generate", "runs/textfile", "--steps", "4", "--num", "1"],
    ["publish", "runs/textfile", "runs/published"],
    ["doctor"],
    ["generate", "runs/published", "--steps", "4", "--num", "1"],
):
    code = cli.main(command)
    if code:
        sys.exit(f"rdlm {command[0]} ended with {code}")
print(json.dumps(outside), file=sys.__stdout__)
