"""Golden records: outputs of fixed commands, recorded once and compared after every change.

    python scripts/golden.py write FILE [--only TEXT]    # record
    python scripts/golden.py check FILE [--only TEXT]    # compute again; exit 1 and list the differences

Only public interfaces are used: the command line, `rdlm.load`, a model's `generate`, and the HTTP service. Floats may
differ by `TOLERANCE`, because their last digits depend on the processor; everything else is compared exactly. Cases run
with one thread and an empty cache. A record names the version of torch and the instruction set that it was made with.
The models are those of version 0.1.0, under tests/golden.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import hashlib
import io
import json
import math
import os
import platform
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Case = Callable[[], Any]
"""Returns an output as plain JSON values."""

OMIT = {"convention", "lr", "rate", "seconds", "tokens_per_second", "id", "created", "file", "run", "weights", "html"}
"""Entries that change from run to run, name places or are wording; they are not compared."""

TOLERANCE = 2e-5
"""How far floats may differ, relative and absolute. Two kinds of processors were seen to differ by up to 4e-6."""

WORDS = (
    "the a of and in to one was king city river war first state years people book music house field stone water "
    "sea law art name time world south north early great jazz vex quiz"
)

FEW = {"steps": 4, "length": 24}
TOGETHER = {"steps": 4, "length": 20, "window": 1.0}
WINDOWS = {"steps": 6, "length": 24, "window": 0.25}

SAMPLES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "default": (None, {}),
    "default/steps": (None, {"steps": 16, "seed": 5}),
    "default/seed": (None, {"steps": 8, "length": 40, "seed": 123456789}),
    "default/negative_seed": (None, {"steps": 4, "length": 16, "seed": -3}),
    "digits": ("digits", {}),
    "digits/num": ("digits", {"num": 3, "steps": 8, "seed": 7}),
    "dna": ("dna", {"steps": 2}),
    "dna/short": ("dna", {"steps": 4, "length": 100, "num": 2}),
    "prompt": (None, {"prompt": "the history of ", "steps": 16, "length": 48}),
    "prompt/own_steps": (None, {"prompt": "the history of ", "length": 48}),
    "prompt/chunk0": (None, {"prompt": "the history of ", **FEW, "block": 0}),
    "prompt_suffix": (None, {"prompt": "the ", "suffix": " of france", "steps": 8, "length": 32}),
    "suffix": (None, {"suffix": " of france", "steps": 8, "length": 32, "num": 2}),
    "infill": (None, {"infill": "the ____ of the ________", "steps": 8}),
    "infill/gap": (None, {"infill": "the **** of the king", "gap": "*", "steps": 4, "num": 2}),
    "num5_batch2": (None, {"num": 5, "batch": 2, **FEW}),
    "num5_batch16": (None, {"num": 5, "batch": 16, **FEW}),
    "num3_prompt": (None, {"num": 3, "prompt": "a ", **FEW, "seed": 11}),
    **{
        f"solver/{solver}": (None, {**TOGETHER, "solver": solver, "num": 2})
        for solver in ("mixture", "drift", "heun", "corrector", "deterministic", "euler")
    },
    **{
        f"solver/{solver}/digits": ("digits", {"steps": 3, "window": 1.0, "solver": solver})
        for solver in ("mixture", "drift", "heun", "corrector", "deterministic", "euler")
    },
    **{f"solver/{solver}/window": (None, {**WINDOWS, "solver": solver}) for solver in ("drift", "heun", "corrector")},
    **{f"grid/{grid}": (None, {**TOGETHER, "grid": grid}) for grid in ("time", "log", "information")},
    **{f"grid/{grid}/window": (None, {**WINDOWS, "grid": grid}) for grid in ("log", "information")},
    "grid/information/digits": ("digits", {"steps": 4, "grid": "information"}),
    **{
        f"order/{name}": (None, {**WINDOWS, "order": order})
        for name, order in (("random", "random"), ("spread", "strided"), ("left_to_right", "left_to_right"))
    },
    "order/random/own_window": (None, {"steps": 6, "length": 24, "order": "random"}),
    "order/left_to_right/digits": ("digits", {"steps": 6, "window": 0.25, "order": "left_to_right"}),
    **{f"chunk/{chunk}": (None, {"steps": 24, "length": 24, "block": chunk}) for chunk in (0, 1, 4, 16)},
    "chunk/4/few": (None, {"steps": 4, "length": 32, "block": 4}),
    "chunk/4/window": (None, {"steps": 16, "length": 16, "block": 4, "window": 0.5, "order": "random"}),
    "chunk/4/together": (None, {"steps": 16, "length": 16, "block": 4, "window": 1.0}),
    "temperature": (None, {**FEW, "temperature": 0.5}),
    "temperature/together": (None, {**TOGETHER, "temperature": 1.5}),
    "top_k": (None, {**FEW, "top_k": 3}),
    "top_p": (None, {**FEW, "top_p": 0.7}),
    "top_k_top_p": (None, {**TOGETHER, "top_k": 5, "top_p": 0.9}),
    "greedy": (None, {**TOGETHER, "greedy": True}),
    "greedy/own_window": (None, {**FEW, "greedy": True}),
    "ban": (None, {**FEW, "ban": "e t", "num": 2}),
    "forbid": (None, {**FEW, "forbid": {0: "abcdefghijklm", -1: " "}}),
    "require": (None, {**FEW, "require": {0: "xyz", -1: "e", 3: " "}}),
    "ban/digits": ("digits", {"steps": 4, "forbid": {5: "0"}}),
    "regex": (None, {"regex": "the [a-z]+ of [a-z ]+", "steps": 8, "length": 20, "num": 2}),
    "regex/together": (None, {"regex": "(ab|cd)*[xyz ]+", **TOGETHER}),
    "label": ("digits", {"steps": 6, "label": "3"}),
    "label/guidance0": ("digits", {"steps": 4, "label": "7", "guidance": 0.0}),
    "label/guidance2": ("digits", {"steps": 4, "label": "7", "guidance": 2.0, "num": 2}),
    "label/together": ("digits", {"steps": 3, "label": "1", "guidance": 1.5, "window": 1.0}),
    "long": (None, {"length": 150, "steps": 8}),
    "long/prompt": (None, {"prompt": "the history of ", "length": 200, "steps": 6, "num": 2}),
    "long/block": (None, {"length": 150, "steps": 6, "stride": 16}),
    "long/together": (None, {"length": 140, "steps": 3, "window": 1.0}),
    "long/suffix": (None, {"suffix": " the end", "length": 140, "steps": 4}),
    "long/regex": (None, {"regex": "[a-m ]*", "length": 140, "steps": 3}),
    "unclean": (None, {"prompt": "the ", **TOGETHER, "clean": False}),
    "unclean/suffix": (None, {"prompt": "the ", "suffix": " of", **TOGETHER, "clean": False}),
    "clean": (None, {"prompt": "the ", **TOGETHER}),
    "rows4": (None, {"num": 5, **FEW, "rows": 4}),
    "rows4/together": (None, {"num": 5, **TOGETHER, "rows": 4}),
    "rows1/digits": ("digits", {"num": 3, "steps": 3, "rows": 1}),
    "trace": (None, {"prompt": "the ", "steps": 6, "length": 20, "trace": True}),
    "trace/together": (None, {**TOGETHER, "trace": True}),
    "trace/digits": ("digits", {"steps": 4, "label": "2", "trace": True}),
}

COMMANDS: dict[str, str] = {  # braces stand for files
    "generate": "generate --prompt 'the history of ' --steps 8 --json",
    "generate/num": "generate --num 2 --steps 8 --length 32 --top-k 4 --json",
    "generate/dna": "generate dna --steps 2 --length 64 --json",
    "score": "score {lines} --json",
    "score/calls": "score {lines} --calls 8 --positions --json",
    "score/path": "score {lines} --calls 6 --estimator path --draws 3 --json",
    "score/steps": "score {lines} --calls 8 --estimator steps --draws 5 --json",
    "score/seed": "score {lines} --calls 8 --seed 9 --json",
    "score/document": "score {text} --document --calls 8 --draws 3 --json",
    "score/document/steps": "score {text} --document --estimator steps --draws 3 --json",
    "score/skip": "score {odd} --unknown skip --calls 4 --positions --json",
    "score/replace": "score {odd} --unknown replace --calls 4 --json",
    "score/dna": "score dna {dna} --calls 4 --draws 3 --json",
    "evaluate/digits": "evaluate digits --sequences 8 "
    "--evaluations 16 --samples 2 --curve-calls 4,12 --out {out}/digits "
    "--json",
    "evaluate/digits/inf": "evaluate digits --sequences 8 "
    "--evaluations 16 --samples 0 --calls 8 --curve-calls inf --window 1 "
    "--out {out}/inf --json",
    "evaluate/digits/path": "evaluate digits --sequences 4 "
    "--evaluations 64 --samples 0 --calls 4 --estimator path "
    "--out {out}/path --json",
    "evaluate/digits/drift": "evaluate digits --sequences 8 "
    "--evaluations 16 --samples 0 --calls 6 --kernel drift --window 1 "
    "--paper --split test --out {out}/drift --json",
    "evaluate/digits/simulated": "evaluate digits --sequences 4 "
    "--evaluations 8 --samples 0 --calls 4 --states simulated "
    "--window 0.5 --order random --out {out}/simulated --json",
}

SMALL = (
    "--data.length 24 --model.width 16 --model.layers 1 --model.heads 2 --training.steps 6 --training.batch 8 "
    "--training.record-every 1 --training.validate-every 3 --training.validation-sequences 6 "
    "--training.validation-calls 6 --training.warmup 2 --process.levels 16 --process.pairs 64"
)
PLAIN = "--process.window 1 --process.chunk 0 --objective.asynchronous 0 --objective.chunked 0"

RUNS: dict[str, str] = {
    "preset": "",
    "plain": PLAIN,
    "path/uniform": f"{PLAIN} --process.path uniform",
    "path/constant": f"{PLAIN} --process.path constant --process.weight 0.3",
    "path/switch": f"{PLAIN} --process.path switch --process.switch 0.4",
    "law/normal": f"{PLAIN} --process.law normal",
    "law/simulated": f"{PLAIN} --process.law simulated",
    "schedule/linear": f"{PLAIN} --process.schedule linear",
    "schedule/constant": f"{PLAIN} --process.schedule constant",
    "schedule/cosine": f"{PLAIN} --process.schedule cosine",
    "bridge/logarithm": f"{PLAIN} --process.bridge logarithm --denoiser.no-evidence --denoiser.features tokens",
    "bridge/logarithm/constant": f"{PLAIN} --process.bridge logarithm --process.path constant --denoiser.no-evidence "
    "--denoiser.features coordinates",
    "paper": f"{PLAIN} --process.bridge logarithm --process.path switch --process.law normal --denoiser.no-evidence "
    "--denoiser.features tokens --objective.proposal interval --objective.floor 0.01",
    "features/top": f"{PLAIN} --denoiser.features top --denoiser.top 3",
    "packed/token": f"{PLAIN} --process.base 3 --denoiser.head token",
    "packed/digit": f"{PLAIN} --process.base 3 --denoiser.head digit",
    "packed/token/window": "--process.base 3 --denoiser.head token",
    "packed/digit/window": "--process.base 3 --denoiser.head digit",
    "serial": f"{PLAIN} --process.base 3 --process.layout serial --denoiser.head digit",
    "serial/window": "--process.base 3 --process.layout serial --denoiser.head digit",
    "drift_error": f"{PLAIN} --objective.loss drift_error",
    "asynchronous": f"{PLAIN} --objective.asynchronous 0.5 --process.window 0.25",
    "asynchronous/left_to_right": f"{PLAIN} --objective.asynchronous 1 --objective.order left_to_right "
    "--process.window 0.25 --process.order left_to_right --objective.prefix 0.5",
    "chunked": f"{PLAIN} --objective.chunked 0.5 --objective.chunks 1 4 --process.chunk 4 --process.window 0.5",
    "adaptive": f"{PLAIN} --objective.proposal adaptive",
    "adaptive/chunked": f"{PLAIN} --objective.proposal adaptive --objective.chunked 0.5 --process.chunk 1",
    "interval": f"{PLAIN} --objective.proposal interval --objective.no-low-discrepancy",
    "self_condition": f"{PLAIN} --model.self-condition",
    "tied": f"{PLAIN} --model.tie --model.dropout 0.2",
    "adamw": f"{PLAIN} --training.optimizer adamw --training.decay constant --training.weight-decay 0.1",
    "accumulate": f"{PLAIN} --training.accumulate 2",
    "masked": "--method masked",
    "masked/spread": "--method masked --discrete.order spread",
    "masked/cosine": "--method masked --discrete.schedule cosine",
    "uniform": "--method uniform",
    "score_entropy": "--method score_entropy",
    "score_entropy/uniform": "--method score_entropy --discrete.graph uniform",
    "autoregressive": "--method autoregressive",
    "flow": "--method flow",
    "flow/velocity": "--method flow --flow.predict velocity --flow.origin sphere",
    "flow/exact": "--method flow --flow.divergence exact --training.validation-calls 2 --training.steps 3",
}

COMPLETIONS: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "the king ", "max_tokens": 16, "steps": 8, "seed": 1},
    "prompts": {"prompt": ["the ", "a "], "max_tokens": 12, "steps": 6, "seed": 2},
    "n": {"prompt": "the ", "n": 2, "max_tokens": 16, "steps": 8, "seed": 3},
    "infill": {"infill": "the ____ of the ________", "steps": 8, "seed": 4},
    "suffix": {"prompt": "the ", "suffix": " of france", "max_tokens": 12, "steps": 8, "seed": 5},
    "stop": {"prompt": "the ", "stop": [" "], "max_tokens": 24, "steps": 24, "seed": 6, "echo": True},
    "temperature": {"prompt": "the ", "temperature": 0.5, "max_tokens": 16, "steps": 8, "seed": 7},
    "greedy": {"prompt": "the ", "temperature": 0, "max_tokens": 16, "steps": 8, "seed": 7},
    "top_p": {"prompt": "the ", "top_p": 0.6, "max_tokens": 16, "steps": 8, "seed": 8},
    "long": {"prompt": "the ", "max_tokens": 150, "steps": 6, "seed": 9},
    "window": {"prompt": "the ", "max_tokens": 16, "steps": 6, "seed": 10, "window": 0.25, "order": "random"},
    "solver": {"prompt": "the ", "max_tokens": 16, "steps": 4, "seed": 10, "window": 1.0, "solver": "heun"},
    "grid": {"prompt": "", "max_tokens": 16, "steps": 4, "seed": 11, "window": 1.0, "grid": "information"},
    "label": {"model": "digits", "label": "4", "guidance": 2.0, "steps": 4, "seed": 12},
    "chunk": {"prompt": "the ", "max_tokens": 16, "steps": 16, "seed": 13, "chunk": 4},
    "stream": {"prompt": "the ", "max_tokens": 16, "steps": 16, "seed": 14, "stream": True},
    "refused/logit_bias": {"prompt": "the ", "logit_bias": {"1": 5.0}},
    "refused/field": {"prompt": "the ", "nonsense": 1},
    "refused/temperature": {"prompt": "the ", "temperature": 3.0},
}
SCORES: dict[str, dict[str, Any]] = {
    "text": {"input": "the history of the world", "steps": 8},
    "texts": {"input": ["the king", "of the sea"], "steps": 4},
}
TRAJECTORIES: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "the ", "length": 16, "steps": 8, "seed": 1},
    "together": {"infill": "the ____ of", "steps": 6, "seed": 2, "window": 1.0},
    "frames": {"prompt": "", "length": 24, "steps": 24, "seed": 3, "frames": 5},
}


FOLDER = Path(__file__).resolve().parent.parent / "tests/golden"
PRESET = FOLDER / "textfile.yaml"
"""The preset textfile as it was when the cases were recorded: presets and defaults change, what they mean does not."""


def cases() -> dict[str, Case]:
    """Return every case by its name; they are independent of each other and of their order."""
    asked: dict[str, Case] = {}
    for name, (model, options) in SAMPLES.items():
        asked[f"sample/{name}"] = functools.partial(sampled, model, options)
    asked["sample/wish"] = classifier_guided
    asked["score/model"] = scored
    for name, arguments in COMMANDS.items():
        asked[f"command/{name}"] = functools.partial(commanded, arguments)
    for name, flags in RUNS.items():
        asked[f"train/{name}"] = functools.partial(trained, name, flags)
    asked["train/convolution"] = convolution
    asked["evaluate/run"] = evaluated
    for name, body in COMPLETIONS.items():
        asked[f"http/completion/{name}"] = functools.partial(answered, "/v1/completions", body)
    for name, body in SCORES.items():
        asked[f"http/score/{name}"] = functools.partial(answered, "/v1/score", body)
    for name, body in TRAJECTORIES.items():
        asked[f"http/trajectory/{name}"] = functools.partial(watched, body)
    asked["http/concurrent"] = concurrent
    return {name: functools.partial(asked_apart, ask) for name, ask in asked.items()}


def asked_apart(ask: Case) -> Any:
    """Run a case with one thread, an own cache and the models of version 0.1.0; return plain JSON values."""
    import torch

    from rdlm import pretrained

    threads, models, cache = torch.get_num_threads(), pretrained.FOLDER, os.environ.get("RDLM_CACHE")
    torch.set_num_threads(1)
    pretrained.FOLDER, os.environ["RDLM_CACHE"] = FOLDER / "models", str(home() / "cache")
    try:
        return json.loads(json.dumps(_steady(ask())))
    finally:
        torch.set_num_threads(threads)
        pretrained.FOLDER = models
        os.environ.pop("RDLM_CACHE") if cache is None else os.environ.update(RDLM_CACHE=cache)


def _steady(answer: Any) -> Any:
    """Return an output without the entries of `OMIT`."""
    if isinstance(answer, dict):
        return {name: _steady(value) for name, value in answer.items() if name not in OMIT}
    return [_steady(value) for value in answer] if isinstance(answer, list | tuple) else answer


# -- samples, in process --------------------------------------------------------------------------


def sampled(model: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return samples of a packaged model."""
    return summary(load(model).generate(**options))


def classifier_guided() -> dict[str, Any]:
    """Return a sample that is guided by a classifier that favours the letter e, token 5."""

    def many_e(probability: Any) -> Any:
        return probability[..., 5].sum(-1)

    return summary(load(None).generate(**TOGETHER, classifier=many_e, classifier_scale=2.0))


def scored() -> list[dict[str, Any]]:
    """Return the scores of texts, without any option."""
    return [
        {
            "nats": score.nats.value,
            "stderr": score.nats.stderr,
            "low": score.nats.low,
            "high": score.nats.high,
            "claims_bound": score.nats.claims_bound,
            "chars": score.chars,
            "bits_per_char": score.bits_per_char,
            "tokens": score.tokens,
            "positions": score.positions,
        }
        for score in load(None).score(["the history of the world", "ab", "xq zj of the king"])
    ]


def summary(generation: Any) -> dict[str, Any]:
    """Return a generation as numbers; of a trace, how many frames it has and what is in them."""
    found = {
        "tokens": [list(sample.tokens) for sample in generation.samples],
        "seeds": [sample.seed for sample in generation.samples],
        "network_calls": generation.network_calls,
        "invalid_codes": generation.invalid_codes,
        "claims_bound": generation.claims_bound,
    }
    if generation.trace is None:
        return found
    frames = [[list(f.tokens), list(f.certainty), list(map(list, f.points))] for f in generation.trace.frames]
    return found | {"frames": len(frames), "trace": digest(frames)}


def digest(frames: list[Any]) -> dict[str, Any]:
    """Return a hash of all that is exact in some frames, and the mean of the absolute floats of each frame."""
    exact, means = hashlib.sha256(), []
    for frame in frames:
        floats: list[float] = []
        exact.update(json.dumps(_without_floats(frame, floats)).encode())
        means.append(sum(map(abs, floats)) / max(len(floats), 1))
    return {"exact": exact.hexdigest(), "floats": means}


def _without_floats(value: Any, floats: list[float]) -> Any:
    """Return a value with null in the place of each float, and append the floats to a list."""
    if isinstance(value, dict):
        return {name: _without_floats(one, floats) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_floats(one, floats) for one in value]
    if isinstance(value, float):
        floats.append(value)
        return None
    return value


@functools.cache
def load(model: str | None) -> Any:
    """Return a model of version 0.1.0."""
    import rdlm

    return rdlm.load(model)


def commanded(line: str) -> Any:
    """Return the JSON object that a command prints; braces in its arguments stand for files."""
    return json.loads(command(*(argument.format_map(files()) for argument in shlex.split(line))))


def command(*arguments: str) -> str:
    """Return what `rdlm ARGUMENTS` prints; a failure raises what it complains about."""
    from rdlm.cli.main import main

    out, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaint):
        code = main(arguments)
    if code != 0:
        raise RuntimeError(f"rdlm {' '.join(arguments)}: exit code {code}: {complaint.getvalue()[-2000:]}")
    return out.getvalue()


@functools.cache
def home() -> Path:
    """Return a temporary folder, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="golden-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def files() -> dict[str, str]:
    """Return the input files by their placeholders."""
    chance, words = random.Random(1), WORDS.split()
    text = " ".join(chance.choice(words) for _ in range(1200))
    contents = {
        "text": text[:700],
        "corpus": text,
        "lines": "the history of the world\n\nof the king\nab\n",
        "odd": "The history, of 3 kings!\nin the year 1999\n",
        "dna": "ACGTACGTTTGACA\nGGGCGG\n",
    }
    for name, content in contents.items():
        (home() / f"{name}.txt").write_text(content, "utf-8")
    return {name: str(home() / f"{name}.txt") for name in contents} | {"out": str(home() / "out")}


# -- training, in process -------------------------------------------------------------------------


def trained(name: str, flags: str) -> dict[str, Any]:
    """Return the record of a tiny run on a text file, a sample of it, and a text's score under it."""
    import rdlm
    from rdlm.train.record import read_lines

    folder = run(name, flags)
    lines = read_lines(folder)

    model = rdlm.load(folder)
    found = {"record": lines, "sample": summary(model.generate(num=2, steps=6, seed=3))}
    if "--method" not in flags:
        found["prompted"] = summary(model.generate(num=2, steps=6, seed=4, prompt="the "))
    score = ["score", str(folder), files()["lines"], "--calls", "6", "--draws", "3", "--json"]
    return found | {"score": json.loads(command(*score))}


@functools.cache
def run(name: str, flags: str) -> Path:
    """Return the folder of a finished run of the preset `textfile`."""
    folder = home() / "runs" / name.replace("/", "-")
    arguments = ("--data.file", files()["corpus"], *SMALL.split(), *flags.split(), "--out", str(folder))
    command("train", str(PRESET), *arguments)
    return folder


def convolution() -> dict[str, Any]:
    """Return the record and a sample of a run that a YAML file configures."""
    import rdlm
    from rdlm.train.record import read_lines

    text = (
        f"data: {{name: textfile, file: {files()['corpus']}, length: 24}}\n"
        "process: {levels: 16, pairs: 64, window: 0.25}\n"
        "model: {kind: convolution, width: 8, stacks: 1, dilations: [1, 4], kernel: 3}\n"
        "denoiser: {time: true}\n"
        "objective: {asynchronous: 0.5, proposal: uniform}\n"
        "training: {steps: 4, batch: 8, record_every: 1, validate_every: 4, validation_sequences: 6,"
        " validation_calls: 6, warmup: 2}\n"
    )
    file, folder = home() / "convolution.yaml", home() / "runs" / "convolution"
    file.write_text(text, "utf-8")
    command("train", str(file), "--out", str(folder))
    lines = read_lines(folder)
    return {"record": lines, "sample": summary(rdlm.load(folder).generate(num=2, steps=6, seed=3))}


def evaluated() -> Any:
    """Return the evaluation of a tiny run."""
    folder = run("evaluated", RUNS["preset"])
    options = ["--sequences", "8", "--evaluations", "16", "--samples", "2", "--curve-calls", "4,12"]
    return json.loads(command("evaluate", str(folder), *options, "--out", str(home() / "evaluated"), "--json"))


# -- the HTTP service, in a process of its own ----------------------------------------------------


@functools.cache
def service() -> str:
    """Return the address of a service of the text model and the digits that runs until the end of this process."""
    import rdlm

    arguments = [sys.executable, "-m", "rdlm", "serve", "text8", "digits", "--port", "0", "--threads", "1", "--json"]
    paths = [str(Path(str(rdlm.__file__)).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment, cwd=FOLDER / "models", text=True)
    atexit.register(_end, process)
    assert process.stdout is not None
    said = ""
    while line := process.stdout.readline():
        said += line
        with contextlib.suppress(ValueError):
            return str(json.loads(said)["url"])
    raise RuntimeError(f"the service did not start: {said}")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait(10)


def post(path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Return status and text of an answer."""
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(service() + path, data, headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def answered(path: str, body: dict[str, Any]) -> Any:
    """Return the service's answer; of a refusal, its status and the field that it names."""
    status, text = post(path, body)
    if status != 200:
        return {"status": status, "param": json.loads(text)["error"]["param"]}
    if body.get("stream"):
        return {"text": "".join(event["choices"][0]["text"] for event in events(text) if event["choices"])}
    return json.loads(text)


def events(text: str) -> Iterator[Any]:
    """Yield the JSON objects of a stream of events."""
    for line in text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def watched(body: dict[str, Any]) -> dict[str, Any]:
    """Return how a sample takes shape: the steps of its frames, some of their numbers, and its end."""
    status, text = post("/v1/trajectory", body)
    found = list(_steady(list(events(text))))
    frames = [event for event in found if "certainty" in event]
    about = ("step", "time", "tokens", "certainty", "information")
    shown = [{name: frame.get(name) for name in about} for frame in frames[:2]]
    return {
        "status": status,
        "frames": len(frames),
        "steps": [frame["step"] for frame in frames],
        "first": shown,
        "end": found[-1],
        "digest": digest(frames),
    }


def concurrent() -> dict[str, bool]:
    """Return whether requests that are answered together get what they get alone."""
    bodies = [COMPLETIONS[name] for name in ("prompt", "n", "infill", "top_p")]
    alone = [_steady(answered("/v1/completions", body)) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(lambda body: _steady(answered("/v1/completions", body)), bodies))
    return {"equal": alone == together}


# -- the record -----------------------------------------------------------------------------------


def about() -> dict[str, str]:
    """Return what numbers depend on besides the program."""
    import torch

    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def record(only: str = "") -> dict[str, Any]:
    """Return the outputs of all cases whose name contains `only`; their names go to standard error."""
    answers = {}
    for name, ask in cases().items():
        if only in name:
            answers[name] = ask()
            print(name, file=sys.stderr)
    return answers


def differences(expected: Any, found: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each difference; keys that were added later are none."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in expected:
            if name not in found:
                yield f"{place}/{name}: missing"
            else:
                yield from differences(expected[name], found[name], f"{place}/{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif type(expected) is not type(found) or not (expected == found or _is_close(expected, found)):
        yield f"{place}: expected {_short(expected)}, found {_short(found)}"


def _is_close(expected: Any, found: Any) -> bool:
    """Return whether two floats differ by rounding alone."""
    return isinstance(expected, float) and math.isclose(expected, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def written(answers: dict[str, Any]) -> str:
    """Return a record as text, one case a line."""
    lines = [f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}" for name, value in answers.items()]
    return f'{{"about":{json.dumps(about())},\n"cases":{{\n' + ",\n".join(lines) + "\n}}\n"


def check(expected: dict[str, Any], answers: dict[str, Any]) -> int:
    """Print the differences from the record; return the exit code."""
    lines = list(differences({name: expected["cases"].get(name) for name in answers}, answers))
    if lines and expected["about"] != about():
        lines.append(f"the record was made with {expected['about']}, and this is {about()}")
    print("\n".join(lines) or f"{len(answers)} cases as recorded")
    return 1 if lines else 0


def main() -> int:
    """Write or check a record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    options = parser.parse_args()
    answers = record(options.only)
    if options.action == "check":
        return check(json.loads(options.file.read_text("utf-8")), answers)
    options.file.write_text(written(answers), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
