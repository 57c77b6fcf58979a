"""`rdlm generate`: samples of a trained model, under any condition."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rdlm.errors import InputError

if TYPE_CHECKING:
    from rdlm.api.generate import Generation
    from rdlm.api.language_model import LanguageModel
    from rdlm.api.request import Request


@dataclass(frozen=True)
class Generate:
    """Sample from a trained model: text, images or DNA."""

    model: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """Folder of a run, checkpoint or a published model, or user/name on the hub; if not given, the model in the box."""
    num: int = 1
    """Number of samples."""
    length: int | None = None
    """Tokens of a sample; past the model's own length, windows slide along it."""
    steps: int | None = None
    """Steps of the walk; the model's own number if not given: 64, or one for each chunk."""
    solver: Literal["mixture", "drift", "heun", "corrector", "deterministic", "euler"] = "mixture"
    """What a step does; heun and corrector call the network twice in each."""
    grid: Literal["time", "log", "information"] = "time"
    """Where the steps are: uniform in time, in equal ratios of noise, or with equal information as evaluated."""
    prompt: str = ""
    """Text that samples begin with."""
    suffix: str = ""
    """Text that samples end with."""
    infill: str | None = None
    """Text in which every gap is one open token, such as "the ____ of"."""
    gap: str = "_"
    """The character that stands for a gap."""
    regex: str | None = None
    """Regular expression that every whole sample matches."""
    ban: str = ""
    """Tokens that must not occur."""
    label: str | None = None
    """Class to sample, by its name or number."""
    guidance: float = 1.0
    """Weight of the class: 0 ignores it, 1 is the model as trained, more exaggerates it."""
    temperature: float = 1.0
    """Below 1, likely tokens become likelier."""
    top_k: int | None = None
    """Draw from so many of the likeliest tokens."""
    top_p: float | None = None
    """Draw from the likeliest tokens that together have this probability."""
    greedy: bool = False
    """Take the likeliest token in the last step."""
    window: float | None = None
    """Part of the walk in which one position runs; 1: all of them run together. The model's own if not given."""
    order: Literal["random", "strided", "left_to_right"] | None = None
    """Order in which positions run in windows; the model's own if not given."""
    block: int | None = None
    """Tokens of a chunk; one chunk follows another; 0: none. If not given, the model's own, unless a window
    or an order is named, or known tokens lie ahead."""
    stride: int | None = None
    """Tokens that each window adds past the model's length; half of that length if not given."""
    seed: int = 0
    """Seed of the first sample; the next ones count up."""
    batch: int = 16
    """Samples that are walked together; it does not change them."""
    out: Path | None = None
    """File of the samples: text, FASTA for DNA, a PNG with all of them for images."""
    trace: Path | None = None
    """File that shows how the first sample takes shape: .html, or .gif where pillow is installed."""
    json: bool = False
    """Print one JSON object instead of the samples."""

    def run(self) -> int:
        """Sample, write, report, and return 0."""
        if self.trace is not None and self.trace.suffix.lower() not in (".html", ".htm", ".gif"):
            raise InputError(f"--trace {self.trace}: a trace is written as .html or .gif")
        import rdlm
        from rdlm.api.generate import generate
        from rdlm.display.progress import bar

        request = self._request()
        model = rdlm.load(self.model)
        if model.kind == "image" and self.out is None:
            raise InputError("images need a file: --out samples.png")
        with bar(None, "generate", "step") as progress:

            def report(done: int, total: int) -> None:
                progress.total = total
                progress.update(done - progress.n)

            generation = generate(model, request, progress=report)
        self._write(model, generation)
        self._report(model, generation)
        return 0

    def _request(self) -> Request:
        from rdlm.api.request import Request

        return Request(
            num=self.num,
            length=self.length,
            steps=self.steps,
            solver=self.solver,
            grid=self.grid,
            seed=self.seed,
            prompt=self.prompt,
            suffix=self.suffix,
            infill=self.infill,
            gap=self.gap,
            ban=self.ban,
            regex=self.regex,
            label=self.label,
            guidance=self.guidance,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            greedy=self.greedy,
            window=self.window,
            order=self.order,
            block=self.block,
            stride=self.stride,
            batch=self.batch,
            trace=self.trace is not None,
        )

    def _write(self, model: LanguageModel, generation: Generation) -> None:
        from rdlm.api import render

        if self.out is not None:
            render.write_samples(model, generation, self.out)
            print(f"rdlm: wrote {self.out}", file=sys.stderr)
        if self.trace is not None and generation.trace is not None:
            render.write_animation(generation.trace, self.trace)
            print(f"rdlm: wrote {self.trace}", file=sys.stderr)

    def _report(self, model: LanguageModel, generation: Generation) -> None:
        from rdlm.display.tables import print_json

        if self.json:
            image = model.kind == "image"
            samples = [
                {"seed": sample.seed, **({"file": str(self.out)} if image else {"text": sample.text})}
                for sample in generation.samples
            ]
            print_json(
                {
                    "samples": samples,
                    "steps": generation.request.steps,
                    "network_calls": generation.network_calls,
                    "solver": self.solver,
                    "grid": self.grid,
                    "invalid_codes": generation.invalid_codes,
                    "claims_bound": generation.claims_bound,
                    "model": model.name,
                }
            )
            return
        if self.out is None:
            for sample in generation.samples:
                print(sample.text)
        if generation.invalid_codes:
            print(f"rdlm: {generation.invalid_codes} codes spelled no token and were chosen anew", file=sys.stderr)
