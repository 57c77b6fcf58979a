"""`rdlm generate`: samples of a trained model, under any condition."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rdlm.cli import ModelOptions
from rdlm.config import SamplingOptions, attribute_docstrings
from rdlm.display.text_table import say
from rdlm.errors import InputError
from rdlm.storage.files import check_output

if TYPE_CHECKING:
    from rdlm.api.generate import Generation
    from rdlm.api.language_model import LanguageModel


HELP = attribute_docstrings(SamplingOptions)


@dataclass(frozen=True)
class Generate(ModelOptions, SamplingOptions):
    """Sample from a trained model: text, images or DNA."""

    model: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """A packaged model (text8, the default), the folder of a run, a checkpoint or a published model, or user/name on
    the hub."""
    num: Annotated[int, tyro.conf.arg(aliases=["-n", "--samples"], help=HELP["num"])] = 1
    steps: Annotated[int | None, tyro.conf.arg(aliases=["--nfe"], help=HELP["steps"])] = None
    normalise: bool = False
    """Convert prompt, suffix and infill to the model's alphabet first, and report the changes."""
    out: Path | None = None
    """Output file: text, FASTA for DNA, a PNG of all samples for images."""
    trace: Path | None = None
    """Output file of an animation of the first sample: .html, or .gif with pillow."""
    overwrite: bool = False
    """Overwrite existing files of --out and --trace."""
    json: bool = False
    """Print one JSON object instead of the samples."""

    def run(self) -> int:
        """Sample, write, report, and return 0."""
        if self.trace is not None and self.trace.suffix.lower() not in (".html", ".htm", ".gif"):
            raise InputError(f"--trace {self.trace}: a trace is written as .html or .gif")
        for name, path in (("--out", self.out), ("--trace", self.trace)):
            if path is not None:
                check_output(name, path, self.overwrite)
        if self.trace is not None and self.trace.suffix.lower() == ".gif" and find_spec("PIL") is None:
            raise InputError("--trace: a GIF needs pillow: pip install 'rdlm[viz]'; a trace as .html does not")
        from rdlm.api.generate import generate
        from rdlm.display.progress import bar

        model = self.load(self.model)
        if model.kind == "image" and self.out is None:
            raise InputError("images need a file: --out samples.png")
        options = SamplingOptions(**{one.name: getattr(self, one.name) for one in fields(SamplingOptions)})
        options = self._normalised(model, options) if self.normalise else options
        with bar(None, "generate", "step") as progress:

            def report(done: int, total: int) -> None:
                progress.total = total
                progress.update(done - progress.n)

            generation = generate(model, options, trace=self.trace is not None, progress=report)
        self._write(model, generation)
        self._report(model, generation)
        return 0

    def _normalised(self, model: LanguageModel, options: SamplingOptions) -> SamplingOptions:
        """Return the options with known text in the model's alphabet; the gaps of an infill stay."""
        from rdlm.data.tokenizer import check_rule, normalised

        rule = check_rule(model.tokenizer)

        gap = "" if options.infill is None else options.gap
        given = (options.prompt, options.suffix, options.infill or "")
        changed = normalised(model.tokenizer, "".join(given), gap)[1]
        say(f"normalised ({rule}): {changed or 'nothing to change'}")
        prompt, suffix, infill = (normalised(model.tokenizer, text, gap)[0] for text in given)
        return replace(options, prompt=prompt, suffix=suffix, infill=None if options.infill is None else infill)

    def _write(self, model: LanguageModel, generation: Generation) -> None:
        from rdlm.api.output import write_animation, write_samples

        if self.out is not None:
            write_samples(model, generation, self.out)
            say(f"wrote {self.out}")
        if self.trace is not None and generation.trace is not None:
            write_animation(generation.trace, self.trace)
            say(f"wrote {self.trace}")

    def _report(self, model: LanguageModel, generation: Generation) -> None:
        from rdlm.display.text_table import print_json

        order = generation.order
        for notice in order.notices if order is not None else ():
            say(notice)
        if self.json:
            image = model.kind == "image"
            samples = [
                {"seed": sample.seed, **({"file": str(self.out)} if image else {"text": sample.text})}
                for sample in generation.samples
            ]
            result: dict[str, object] = {
                "samples": samples,
                "steps": generation.options.steps,
                "network_calls": generation.network_calls,
                "order": None if order is None else order.name,
                "block": None if order is None else order.block,
            }
            result |= {"solver": self.solver, "grid": self.grid, "invalid_codes": generation.invalid_codes}
            print_json(result | {"claims_bound": generation.claims_bound, "model": model.name})
            return
        if self.out is None:
            for sample in generation.samples:
                print(sample.text)
        if generation.invalid_codes:
            say(f"{generation.invalid_codes} codes of no token were drawn again")
