"""Times a training step on split tokens, packed against serial: `python benchmarks/layout.py [--json]`.

The shapes are those of LM1B: 30,522 word pieces as ten base-3 digits, 128 tokens. The serial layout, the paper's, has
1,280 positions; the packed one has 128 positions of ten spheres, with the same head over digits or with a head over
tokens, whose matrix of 30,522 rows weighs less the larger the network is. Network, batch and thread are the same. The
steps take turns and processor seconds are counted, so that a busy machine says what an idle one would; what counts is
the median of the ratios within a turn.
Target: 8 at the network's size in the paper (`--width 768 --layers 12 --steps 3`, two minutes).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Literal

import torch

from rdlm.codec import Layout
from rdlm.config import DenoiserConfig, ProcessConfig, RunConfig
from rdlm.data.batch import Batch
from rdlm.method.rdlm import Rdlm
from rdlm.model.config import TransformerConfig
from rdlm.model.network import parameter_count
from rdlm.randomness import Draw
from rdlm.report import print_json, table

VOCABULARY, BASE, LENGTH = 30522, 3, 128
TARGET = 8.0
SERIAL = "serial, digit head"
CASES: dict[str, tuple[Layout, Literal["token", "digit"]]] = {
    SERIAL: ("serial", "digit"),
    "packed, digit head": ("packed", "digit"),
    "packed, token head": ("packed", "token"),
}


class Trainee:
    """A method in one layout with its optimiser."""

    def __init__(self, layout: Layout, head: Literal["token", "digit"], model: TransformerConfig) -> None:
        torch.manual_seed(0)
        process = ProcessConfig(base=BASE, layout=layout, levels=64, pairs=1024)
        config = RunConfig(process=process, denoiser=DenoiserConfig(head=head), model=model)
        self.method = Rdlm(config, VOCABULARY)
        self.optimizer = torch.optim.AdamW(self.method.network.parameters(), 3e-4)
        self.seconds: list[float] = []

    def step(self, batch: Batch, number: int) -> None:
        """Take one step of training and note its processor seconds: on one thread those of an idle machine."""
        began = time.process_time()
        self.optimizer.zero_grad()
        self.method.loss(batch, Draw(0, number)).backward()
        torch.nn.utils.clip_grad_norm_(self.method.network.parameters(), 1.0)
        self.optimizer.step()
        self.seconds.append(time.process_time() - began)


def measure(model: TransformerConfig, batch_size: int, steps: int) -> list[dict[str, object]]:
    """Return a row per case from `steps` turns, after one that is not counted."""
    trainees = {name: Trainee(*case, model) for name, case in CASES.items()}
    generator = torch.Generator().manual_seed(0)
    for number in range(steps + 1):
        batch = Batch(torch.randint(VOCABULARY, (batch_size, LENGTH), generator=generator))
        for trainee in trainees.values():
            trainee.step(batch, number)
    serial = trainees[SERIAL].seconds[1:]
    return [row(name, trainee, serial, batch_size) for name, trainee in trainees.items()]


def row(name: str, trainee: Trainee, serial: list[float], batch_size: int) -> dict[str, object]:
    seconds = trainee.seconds[1:]
    ratios = [slow / fast for slow, fast in zip(serial, seconds, strict=True)]
    return {
        "layout": name,
        "positions": LENGTH * trainee.method.process.codec.positions,
        "parameters": parameter_count(trainee.method.network),
        "seconds": statistics.median(seconds),
        "tokens/s": batch_size * LENGTH / statistics.median(seconds),
        "faster": statistics.median(ratios),
        "from": min(ratios),
        "to": max(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--width", type=int, default=256, help="width of the network")
    parser.add_argument("--layers", type=int, default=6, help="blocks of the network")
    parser.add_argument("--batch", type=int, default=2, help="sequences per step")
    parser.add_argument("--steps", type=int, default=7, help="turns that are counted")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = TransformerConfig(width=arguments.width, layers=arguments.layers, heads=arguments.width // 64)
    rows = measure(model, arguments.batch, arguments.steps)
    if arguments.json:
        shape = {"width": arguments.width, "layers": arguments.layers, "batch": arguments.batch}
        print_json({**shape, "rows": rows, "target": TARGET, "load": os.getloadavg()[0]})
    else:
        print(table(rows, list(rows[0])))


if __name__ == "__main__":
    main()
