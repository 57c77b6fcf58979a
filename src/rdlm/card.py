"""The card of a published model: what it is, how to use it, and what was measured, in the words of the measurement."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rdlm.evaluation import record

if TYPE_CHECKING:
    from rdlm.language_model import LanguageModel

USES = {
    "text": ('made = model.generate(num=3)', 'print(model.score(["some text"])[0])'),
    "dna": ('made = model.generate(num=3)', 'print(model.score(["ACGTACGT"])[0])'),
    "image": ('made = model.generate(num=9)  # a notebook shows the pictures',),
}  # fmt: skip


def card(
    model: LanguageModel, name: str, dtype: str, step: int | None, evaluations: Sequence[Mapping[str, Any]], stored: str
) -> str:
    """Return README.md; `stored` is the fingerprint of the weights as they are in the file."""
    lines = [
        "---", "library_name: rdlm", "tags:", "- rdlm", "- diffusion", "- riemannian-geometry", "---", "",
        f"# {_plain(name)}", "", *_what(model, step), "",
        "## Use", "", "```python", "import rdlm", "", f"model = rdlm.load({_place(name)})",
        *USES[model.kind], "```", "", *_storage(dtype), "",
        "## What was measured", "", *_measured(evaluations, stored), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _what(model: LanguageModel, step: int | None) -> Iterator[str]:
    about, licence = model.about, model.about.get("licence")
    trained = "" if step is None else f" It was trained for {step:,} steps."
    yield (
        f"A model of {model.kind} by the method {_plain(model.config.method)}, with {model.parameters:,} parameters, "
        f"for sequences of {model.length} tokens of a vocabulary of {model.tokenizer.size}.{trained}"
    )
    yield ""
    yield f"Its corpus is {_plain(about['protocol'])}{f' (licence: {_plain(licence)})' if licence else ''}."
    if about["classes"]:
        yield f"It knows the classes {', '.join(map(_plain, about['classes']))}."


def _storage(dtype: str) -> Iterator[str]:
    yield "The weights are in safetensors, and no file can run code."
    if dtype != "float32":
        yield f"They are rounded to {dtype}, which halves the file, and are loaded as float32."


def _measured(evaluations: Sequence[Mapping[str, Any]], stored: str) -> Iterator[str]:
    if not evaluations:
        yield "Nothing: these weights came without an evaluation. `rdlm evaluate` makes one."
        return
    yield "By `rdlm evaluate`, with 95% intervals. A bound is one on the likelihood of the sampler that its row names."
    for evaluation in evaluations:
        facts = f"Split {_plain(evaluation['split'])} of {_plain(evaluation['protocol'])}"
        counts = [f"{evaluation[key]} {key}" for key in ("sequences", "evaluations", "samples") if key in evaluation]
        yield ""
        yield f"{facts}{': ' if counts else ''}{', '.join(map(_plain, counts))}."
        if evaluation.get("weights") != stored:
            yield "Measured before the weights were rounded to the type in which they are stored here."
        yield ""
        yield "| metric | value | unit | is it a bound? | convention |"
        yield "|---|---|---|---|---|"
        for name, metric in evaluation["metrics"].items():
            what = f"{_plain(metric['unit'])} | {record.standing(evaluation, metric)} | {_plain(metric['convention'])}"
            yield f"| {_plain(name)} | {record.interval(metric)} | {what} |"


def _place(name: str) -> str:
    return json.dumps(name if "/" in name else f"path/to/{name}")


def _plain(text: object) -> str:
    """Return a text that neither Markdown nor HTML takes for markup."""
    escaped = html.escape(" ".join(str(text).split()), quote=False)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|" else letter for letter in escaped)
