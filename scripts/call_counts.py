"""Count the files and functions of the package that are executed by typical operations.

    python scripts/call_counts.py [--json]             # operation, files, functions
    python scripts/call_counts.py --list OPERATION     # the functions of one operation by file

A function is counted if its code is in a file of the package and it is entered during the operation. Lambdas and inner
functions are counted; module and class bodies, comprehensions, generator expressions, and generated methods (such as
the constructors of dataclasses, whose code is in no file) are not. All threads are included. Each operation runs in its
own process, with a cache folder that an earlier run of the same operation has filled, so that no tables are made.

    step      one training step, from the third backward pass to the fourth, of `rdlm train textfile`
    bound     the first likelihood bound of one batch by a loaded model
    score     the second call of `model.score` for one text
    generate  `rdlm generate --prompt "the history of " --steps 8`, from the main function to the output
    request   options to samples of a loaded model, without network evaluations and steps
    sampler   one step of a sampler, from the end of one network call to the beginning of the next
    http      the second completion of a running service, from the arrival of the request to the response
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import rdlm

ROOT = str(Path(str(rdlm.__file__)).parent) + os.sep
INNER = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}
PROMPT = ("--prompt", "the history of ", "--steps", "8")
TEXT = "the history of the world and of the king in one city by the river and the sea "


SMALL = (
    "--data.length 32 --model.width 32 --model.layers 1 --training.batch 8 --training.steps 5 --process.levels 16 "
    "--process.pairs 64 --training.validation-calls 8 --training.validation-sequences 8 --training.record-every 1000"
)


class Calls:
    """The functions that are entered while `on`; `watching` includes all threads that start meanwhile."""

    def __init__(self) -> None:
        self.on = False
        self.entered: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Record a call; a callback of `sys.setprofile`."""
        if self.on and event == "call":
            self.entered.add(frame.f_code)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Context manager: record every call in this thread and in new ones."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            self.on = False

    def by_file(self) -> dict[str, list[str]]:
        """Return the names of the functions by file."""
        found: dict[str, set[tuple[int, str]]] = {}
        for code in self.entered:
            if counts(code):
                name = code.co_filename.removeprefix(ROOT)
                found.setdefault(name, set()).add((code.co_firstlineno, code.co_qualname))
        return {file: [name for _, name in sorted(found[file])] for file in sorted(found)}


def counts(code: CodeType) -> bool:
    """Return whether code is that of a function of the package; bodies of modules and classes have no fast locals."""
    body = not code.co_flags & inspect.CO_OPTIMIZED
    return code.co_filename.startswith(ROOT) and not body and code.co_name not in INNER


def command(*arguments: str) -> int:
    """Run the command line in this process."""
    from rdlm.cli.main import main

    sys.argv = ["rdlm", *arguments]
    return main()


@contextlib.contextmanager
def network_calls(before: Callable[[int], None], after: Callable[[int], None]) -> Iterator[None]:
    """Call functions with the number of the network call before and after each call of an outermost module."""
    from torch.nn.modules import module

    depth, number = [0], [0]

    def enter(*given: object) -> None:
        depth[0] += 1
        if depth[0] == 1:
            before(number[0])

    def leave(*given: object) -> None:
        depth[0] -= 1
        if depth[0] == 0:
            after(number[0])
            number[0] += 1

    hooks = module.register_module_forward_pre_hook(enter), module.register_module_forward_hook(leave)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def step(calls: Calls) -> None:
    """Record the third training step, from one backward pass to the next."""
    import torch

    backward, count = torch.Tensor.backward, [0]

    def counted(*given: Any, **named: Any) -> None:
        count[0] += 1
        calls.on = count[0] == 3
        backward(*given, **named)

    torch.Tensor.backward = counted  # type: ignore[method-assign,assignment]
    try:
        with calls.watching(), tempfile.TemporaryDirectory() as out:
            command("train", "textfile", "--data.file", text(), *SMALL.split(), "--out", out)
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]


def text() -> str:
    """Return a text file, which stays the same one for all processes that share a cache."""
    file = Path(os.environ["RDLM_CACHE"]) / "text.txt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TEXT * 100, "utf-8")
    return str(file)


def bound(calls: Calls) -> None:
    """Record the bound of a batch of four sequences at 8 network calls."""
    import torch

    model = rdlm.load()
    ids = torch.randint(1, 27, (4, model.length), generator=torch.Generator().manual_seed(0))
    batch = SimpleNamespace(ids=ids, label=None, signal=None)
    with calls.watching():
        calls.on = True
        model.method.bound(batch, 8, torch.Generator().manual_seed(0))


def score(calls: Calls) -> None:
    """Record the score of one text."""
    model = rdlm.load()
    model.score([TEXT[:24]])
    with calls.watching():
        calls.on = True
        model.score([TEXT[:24]])


def generate(calls: Calls) -> None:
    """Record the command line up to a sample, without module bodies."""
    with calls.watching():
        calls.on = True
        command("generate", *PROMPT)


def request(calls: Calls) -> None:
    """Record the way from options to samples of a loaded model, without network evaluations and steps."""
    from rdlm.sampling.denoisers import Query

    evaluate = Query.evaluate

    def paused(*given: Any) -> Any:
        calls.on = False
        try:
            return evaluate(*given)
        finally:
            calls.on = True

    model = rdlm.load()
    Query.evaluate = paused  # type: ignore[method-assign]
    with calls.watching():
        calls.on = True
        model.generate(prompt=PROMPT[1], steps=int(PROMPT[3]))


def sampler(calls: Calls) -> None:
    """Record one step of a sampler, from the log-probabilities that it receives to its next query."""
    from rdlm.api.generate import SamplingOptions, prepare

    prepared = prepare(rdlm.load(), SamplingOptions(prompt=PROMPT[1], steps=int(PROMPT[3])))
    sampling = prepared.sample([0])
    query = next(sampling)
    for number in range(3):
        log_probs = prepared.batcher.evaluate(query)
        with calls.watching():
            calls.on = number == 2
            query = sampling.send(log_probs)
            calls.on = False


def http(calls: Calls) -> None:
    """Record the second completion of a service."""
    out = io.StringIO()

    def client() -> None:
        try:
            url = address(out)
            complete(url, 1)
            calls.on = True
            complete(url, 2)
            calls.on = False
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=client)
    asking.start()
    with calls.watching(), contextlib.redirect_stdout(out):
        command("serve", "--port", "0", "--json")
    asking.join()


def address(out: io.StringIO) -> str:
    """Return the address that a service prints when it is ready."""
    for _ in range(600):
        with contextlib.suppress(ValueError):
            return str(json.loads(out.getvalue())["url"])
        time.sleep(0.1)
    raise RuntimeError("the service did not start")


def complete(url: str, seed: int) -> None:
    """Request a completion, and wait for it."""
    body = json.dumps({"prompt": PROMPT[1], "max_tokens": 16, "steps": 8, "seed": seed}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


OPERATIONS: dict[str, Callable[[Calls], None]] = {
    "step": step,
    "bound": bound,
    "score": score,
    "generate": generate,
    "request": request,
    "sampler": sampler,
    "http": http,
}


def recorded(name: str, cache: str) -> dict[str, list[str]]:
    """Return the functions of an operation by file, from the second of two processes that share a cache."""
    environment = {**os.environ, "RDLM_CACHE": cache, "OMP_NUM_THREADS": "1"}
    for _ in range(2):
        arguments = [sys.executable, __file__, "--inside", name]
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def inside(name: str) -> None:
    """Record an operation in this process, and print its functions as the last line of standard output."""
    calls = Calls()
    OPERATIONS[name](calls)
    print()
    print(json.dumps(calls.by_file()))


def main() -> int:
    """Print the counts or the functions of operations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--list", metavar="OPERATION", choices=OPERATIONS, help="print the functions of one operation")
    parser.add_argument("--inside", metavar="OPERATION", choices=OPERATIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside)
        return 0
    with tempfile.TemporaryDirectory() as cache:
        chosen = [options.list] if options.list else list(OPERATIONS)
        found = {name: recorded(name, cache) for name in chosen}
    show(found, options.json, bool(options.list))
    return 0


def show(found: dict[str, dict[str, list[str]]], as_json: bool, whole: bool) -> None:
    """Print the functions of operations, or their counts as JSON or as a table."""
    if whole:
        for files in found.values():
            for file, names in files.items():
                print(f"{file}: {', '.join(names)}")
        return
    rows = {name: {"files": len(files), "functions": sum(map(len, files.values()))} for name, files in found.items()}
    if as_json:
        print(json.dumps(rows))
        return
    print(f"{'operation':<10}{'files':>6}{'functions':>11}")
    for name, row in rows.items():
        print(f"{name:<10}{row['files']:>6}{row['functions']:>11}")


if __name__ == "__main__":
    sys.exit(main())
