"""Helpers to serve small untrained models by the command `rdlm serve`."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx2
import torch

from rdlm.config import ObjectiveConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.tokenizer import TEXT8_ALPHABET, Characters, Tokenizer
from rdlm.methods import METHODS
from rdlm.storage import checkpoint, config_file, run_folder

LENGTH = 16


def save(
    run: Path,
    tokenizer: Tokenizer | None = None,
    method: str = "rdlm",
    width: int = 16,
    corpus: Mapping[str, Any] | None = None,
    network: TransformerConfig | None = None,
    objective: ObjectiveConfig | None = None,
    **process: Any,
) -> Path:
    """Write the folder of a run with an untrained network; `corpus` overrides the description of its data."""
    tokenizer = tokenizer or Characters(TEXT8_ALPHABET)
    config = RunConfig(
        method=method,
        process=ProcessConfig(**process),
        objective=objective or ObjectiveConfig(prefix=0.5),
        model=network or TransformerConfig(width=width, layers=1, heads=2, time_width=8),
    )
    about = {
        "name": "toy",
        "protocol": "toy",
        "classes": [],
        "image": None,
        "signal": False,
        "kind": "text",
        "length": LENGTH,
        **(corpus or {}),
    }
    torch.manual_seed(0)
    made = METHODS[method](config, tokenizer.size, len(about["classes"]), 0)
    for parameter in made.network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    weights = {name: parameter.detach() for name, parameter in made.network.named_parameters()}
    parts = {"network": made.network.state_dict(), "ema": weights, "optimizer": {}, "method": made.state()}
    run.mkdir()
    described = {"counters": {}, "config": config_file.to_dict(config), "corpus": about}
    checkpoint.save(run, 7, parts, described, tokenizer.to_json())
    run_folder.update_pointers(run, 7, None)
    return run


@dataclass(frozen=True)
class Served:
    """A running service."""

    url: str
    process: subprocess.Popen[str]
    token: str | None = None

    def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        given = {"json": body} if body is not None else {}
        return httpx2.post(self.url + path, timeout=60, **given, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=60, **options)

    def text(self, **body: Any) -> str:
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def counted(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        lines = self.get("/metrics", headers=headers).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + " ", name + "{")))


@contextmanager
def serving(
    *arguments: str,
    messages: IO[str] | None = None,
    program: Sequence[str] = ("-m", "rdlm"),
    cwd: Path | None = None,
    prepare: Callable[[], None] | None = None,
    **environment: str,
) -> Iterator[Served]:
    """Start `rdlm serve`, wait until it is ready, and terminate it at the end; its log goes to `messages`.

    The new process calls `prepare` first.
    """
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, *program, "serve", *arguments, "--port", "0", "--json"]
    inherited = {name: value for name, value in os.environ.items() if name != "RDLM_TOKEN"}
    process = subprocess.Popen(
        command,
        env={**inherited, "PYTHONPATH": source, **environment},
        stdout=subprocess.PIPE,
        stderr=messages,
        text=True,
        cwd=cwd,
        preexec_fn=prepare,
    )
    try:
        assert process.stdout is not None
        # One JSON object over several lines, which ends with a line "}"; empty if the service does not start.
        announced = "".join(itertools.takewhile(lambda line: line != "}\n", process.stdout))
        assert announced, f"rdlm serve ended with {process.wait()}"
        yield Served(json.loads(announced + "}")["url"], process, environment.get("RDLM_TOKEN"))
    finally:
        process.terminate()
        process.wait(timeout=30)
        if process.stdout is not None:
            process.stdout.close()
