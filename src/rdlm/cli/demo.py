"""`rdlm demo`: train a small model, measure the bound of every order of generation, and draw samples, in minutes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdlm.cli.evaluate import Evaluate
from rdlm.display.text_table import print_json, say, table
from rdlm.errors import InputError
from rdlm.presets import preset

if TYPE_CHECKING:
    from rdlm.api.generate import Generation
    from rdlm.api.output import Frame
    from rdlm.train.loop import Result

FEW_CALLS = (8, 16)
"""Numbers of network calls at which every order is measured beside --nfe."""

EVALUATIONS = 512
"""Sequences that pass through the network for each bound."""

SAMPLES = 3
"""Samples of each order."""

ERROR = 0.1
"""Share of characters that are misread in the restored text."""

TEXT_ROWS = 9
"""Steps of the sample that is printed."""


@dataclass(frozen=True)
class Demo:
    """Train a small character model of English, measure its bound for every order of generation, and sample from it.

    After a few minutes on two cores, samples consist of words without meaning. The same command continues the training.
    """

    minutes: float = 4.0
    """Minutes of training."""
    nfe: int = 64
    """Network calls per sample, and largest number of calls for which bounds are measured."""
    out: Path = Path("runs/demo")
    """Folder of the run."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        """Train, measure, generate, draw, print, and return the exit code."""
        if not self.minutes > 0 or self.nfe < 1:
            raise InputError(f"--minutes and --nfe must be positive, got {self.minutes:g} and {self.nfe}")
        logging.basicConfig(format="rdlm: %(message)s")
        say(f"training for {self.minutes:g} minutes in {self.out}")
        began = time.monotonic()  # before torch is imported
        from rdlm.methods import build
        from rdlm.train.loop import train

        ended = train(preset("demo"), self.out, build, minutes=self.minutes, began=began)
        say(f"trained {ended.steps} steps in {ended.seconds:.0f} seconds; measuring the bound of every order")
        calls = ",".join(str(nfe) for nfe in {*FEW_CALLS, self.nfe} if nfe <= self.nfe)
        plan = Evaluate(str(self.out), orders=True, curve_nfe=calls, sequences=EVALUATIONS, evaluations=EVALUATIONS)
        bounds = plan.measure_orders()
        say("drawing samples")
        self._report(ended, bounds, self._sample(bounds["rows"]), self._restore())
        return 0

    def _sample(self, rows: list[dict[str, Any]]) -> list[Generation]:
        """Return samples of the synchronous order and of the best other one, and draw the first synchronous sample."""
        import rdlm
        from rdlm.api.output import draw, write_animation

        model = rdlm.load(self.out)
        first = model.generate(num=SAMPLES, steps=self.nfe, order="synchronous", trace=True)
        assert first.trace is not None
        if _can_draw():
            draw(first.trace.frames, self.out / "denoising.png")
        else:
            say("no figure of the sample without matplotlib: pip install 'rdlm[viz]'")
        write_animation(first.trace, self.out / "denoising.html")
        other = _best(row for row in rows if row["order"] != "synchronous")
        return [
            first,
            model.generate(num=SAMPLES, steps=other["calls"], order=other["order"], block=other["block"]),
        ]

    def _restore(self) -> dict[str, str]:
        """Return a held-out text, the same with some letters replaced at random, and the latter restored."""
        import torch

        import rdlm
        from rdlm.data.channels import symmetric
        from rdlm.random import generator_of
        from rdlm.train.run import held_out, load_corpus

        model = rdlm.load(self.out)
        ids = held_out(load_corpus(model.config), model.length, 1, 0).ids[0]
        alphabet = model.tokenizer.decode(range(model.tokenizer.size))
        misread = torch.multinomial(symmetric(alphabet, ERROR)[ids], 1, generator=generator_of("demo restore"))
        truth, read = (model.tokenizer.decode(row.tolist()) for row in (ids, misread[:, 0]))
        return {"truth": truth, "read": read, "restored": model.restore(read, channel="symmetric", error=ERROR).text}

    def _files(self) -> dict[Path, str]:
        figure = {self.out / "denoising.png": "how the first synchronous sample gains certainty, step by step"}
        return {
            **(figure if _can_draw() else {}),
            self.out / "denoising.html": "the same as an animation, with the states on the sphere",
            self.out / "report.html": "the training",
        }

    def _report(
        self, ended: Result, bounds: dict[str, Any], samples: list[Generation], restored: dict[str, str]
    ) -> None:
        if self.json:
            texts = [{**_how(made), "samples": [one.text for one in made.samples]} for made in samples]
            files = [str(path) for path in self._files()]
            about = {"orders": bounds, "generated": texts, "restoration": restored, "files": files}
            print_json({**ended.to_json(), **about})
            return
        model, trace = samples[0].model, samples[0].trace
        assert model is not None and trace is not None
        print(f"\nUpper bounds on held-out text after {ended.steps} training steps, by order of generation and calls:")
        print(f"{bounds['unit']}, lower is better; the uniform code has {math.log2(model.tokenizer.size):.2f}.\n")
        print(orders_table(bounds["rows"]))
        if ended.note is not None:
            print(f"note: {ended.note}")
        print(f"\nA synchronous sample in {len(trace.frames) - 1} steps; a dot is a character with less than 50%:\n")
        print(text_frames(trace.frames))
        for made in samples:
            print(f"\nSamples, not selected, of order {_described(made, bounds)}:\n")
            print("\n".join(f"  {sample.text}" for sample in made.samples))
        print(f"\nA held-out text of which {ERROR:.0%} of the characters were replaced at random, restored:\n")
        print("\n".join(f"  {name:>8}  {text}" for name, text in restored.items()))
        print("\nFiles:\n")
        print("\n".join(f"  {path}  {content}" for path, content in self._files().items()))


def _can_draw() -> bool:
    return find_spec("matplotlib") is not None


def _best(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return min(rows, key=lambda row: (row["value"], row["calls"]))


def _described(made: Generation, bounds: dict[str, Any]) -> str:
    """Return the order of samples, its network calls and its bound."""
    own = _how(made)
    bound = next(row for row in bounds["rows"] if row["order"] == own["order"] and row["calls"] == own["calls"])
    best = ", the best of the table" if bound is _best(bounds["rows"]) else ""
    return f"{own['order']} in {own['calls']} calls, {bound['value']:.2f} {bounds['unit']}{best}"


def _how(made: Generation) -> dict[str, Any]:
    assert made.order is not None  # None for baselines alone
    return {"order": made.order.name, "block": made.order.block, "calls": made.network_calls}


def orders_table(rows: list[dict[str, Any]]) -> str:
    """Return bounds with half-widths of their intervals as a table: a row for each order, a column for the calls."""
    calls = sorted({row["calls"] for row in rows})
    found: dict[str, dict[str, object]] = {}
    for row in rows:
        cell = f"{row['value']:.2f} ± {(row['high'] - row['low']) / 2:.2f}"
        found.setdefault(row["order"], {"order": row["order"]})[f"{row['calls']} calls"] = cell
    return table(list(found.values()), ["order", *(f"{nfe} calls" for nfe in calls)])


def text_frames(frames: list[Frame]) -> str:
    """Return the most likely characters at some steps, with dots for those that have less than 50%, as lines."""
    from rdlm.api.output import spaced

    lines = []
    for name, frame in spaced(frames, TEXT_ROWS):
        pairs = zip(frame.tokens, frame.certainty, strict=True)
        text = "".join(token if certainty >= 0.5 else "." for token, certainty in pairs)
        lines.append(f"  {name:>6}  {text}")
    return "\n".join(lines)
