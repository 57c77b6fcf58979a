"""The card of a published model: what it is, how to use it, and what was measured, in the words of the measurement.

Published models: folders that hold what is needed to use a model and nothing more, and are read with suspicion.

NAME/
    config.json         format, configuration, corpus, type and fingerprint of the weights; size and SHA-256 of every
                        file below but the card, and its own
    model.safetensors   the weights: the moving average, unless a model was loaded without
    tokenizer.json      see `rdlm.data.tokenizer.from_json`
    curve.json          the measured information curve, where there is one
    evaluation.json     what `rdlm evaluate` found for these weights, where it was run
    README.md           the card

The same files make a model on the hub. Nothing in them can run code; a checksum finds damage, it does not prove who
wrote them.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor

from rdlm import __version__
from rdlm.config import RunConfig
from rdlm.errors import DamagedFileError, InputError, unknown
from rdlm.storage import checkpoint
from rdlm.storage import config_file as configfile
from rdlm.storage import measurements as record
from rdlm.storage.files import read_json, room, sha256_of, sync_folder

if TYPE_CHECKING:
    from rdlm.api.language_model import LanguageModel


USES = {
    "text": ("made = model.generate(num=3)", 'print(model.score(["some text"])[0])'),
    "dna": ("made = model.generate(num=3)", 'print(model.score(["ACGTACGT"])[0])'),
    "image": ("made = model.generate(num=9)  # a notebook shows the pictures",),
}


def card(
    model: LanguageModel, name: str, dtype: str, step: int | None, evaluations: Sequence[Mapping[str, Any]], stored: str
) -> str:
    """Return README.md; `stored` is the fingerprint of the weights as they are in the file."""
    lines = [
        "---",
        "library_name: rdlm",
        "tags:",
        "- rdlm",
        "- diffusion",
        "- riemannian-geometry",
        "---",
        "",
        f"# {_plain(name)}",
        "",
        *_what(model, step),
        "",
        "## Use",
        "",
        "```python",
        "import rdlm",
        "",
        f"model = rdlm.load({_place(name)})",
        *USES[model.kind],
        "```",
        "",
        *_storage(dtype),
        "",
        "## What was measured",
        "",
        *_measured(evaluations, stored),
        "",
    ]
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


FORMAT = 1
CONFIG, WEIGHTS, TOKENIZER, CARD = "config.json", "model.safetensors", "tokenizer.json", "README.md"
OPTIONAL = ("curve.json", record.NAME)
FILES = (CONFIG, WEIGHTS, TOKENIZER, *OPTIONAL, CARD)

AGAIN = "publish or download the model again"

Dtype = Literal["float32", "float16", "bfloat16"]
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def holds(path: Path) -> bool:
    """Return whether a folder is that of a published model, as far as the names of its files say."""
    return (path / CONFIG).is_file()


# -- writing -----------------------------------------------------------------------------------------


def write(model: LanguageModel, folder: Path, *, name: str | None = None, dtype: Dtype = "float32") -> Path:
    """Write a model into a folder of its own, whole or not at all, and return it; a published one there is replaced."""
    if dtype not in TYPES:
        raise unknown("type of weights", dtype, get_args(Dtype))
    folder = folder.expanduser().absolute()
    _check_replaceable(folder)
    weights = _rounded(model, dtype)
    with room(folder, "make room or choose another folder"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
        try:
            aside.chmod(0o755)
            _fill(aside, model, name or folder.name, weights, dtype)
            _exchange(aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def _check_replaceable(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: a model is published into a folder")
    others = sorted(found.name for found in folder.iterdir() if found.name not in FILES) if folder.is_dir() else []
    if others:
        raise InputError(f"{folder} holds other things than a published model, such as {others[0]}: choose another one")


def _exchange(new: Path, folder: Path) -> None:
    if folder.exists():
        old = new.with_name(f"{new.name}.old")
        os.rename(folder, old)
        os.rename(new, folder)
        shutil.rmtree(old)
    else:
        os.rename(new, folder)
    sync_folder(folder.parent)


def _rounded(model: LanguageModel, dtype: Dtype) -> dict[str, Tensor]:
    """Return the weights in the type of the file; what does not fit into it is an error."""
    found = {}
    for name, parameter in model.method.network.named_parameters():
        tensor = parameter.detach().cpu().to(TYPES[dtype]).contiguous()
        if not tensor.isfinite().all():
            fits = bool(parameter.isfinite().all())
            raise InputError(f"{name} {f'does not fit into {dtype}: choose another type' if fits else 'is not finite'}")
        found[name] = tensor
    return found


def _fill(folder: Path, model: LanguageModel, name: str, weights: Mapping[str, Tensor], dtype: Dtype) -> None:
    stored = record.fingerprint({key: tensor.float() for key, tensor in weights.items()})
    found = evaluations(model)
    save_file(dict(weights), folder / WEIGHTS, metadata={"format": "pt"})
    _write_json(folder / TOKENIZER, model.tokenizer.to_json())
    if model.folder is not None and (model.folder / "curve.json").is_file():
        _write_json(folder / "curve.json", read_json(model.folder / "curve.json"))
    if found:
        _write_json(folder / record.NAME, {"evaluations": found})
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in folder.iterdir()}
    step = step_of(model)
    content = {
        "library": "rdlm",
        "version": __version__,
        "format": FORMAT,
        "name": name,
        "step": step,
        "config": configfile.to_dict(_public(model.config)),
        "corpus": model.about,
        "weights": {"dtype": dtype, "fingerprint": stored},
        "files": files,
    }
    _write_json(folder / CONFIG, {**content, "sha256": _digest(content)})
    (folder / CARD).write_text(card(model, name, dtype, step, found, stored), "utf-8")
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes for its owner alone, and this is for others
        sync_folder(path)  # a file is flushed in the same way
    sync_folder(folder)


def _public(config: RunConfig) -> RunConfig:
    """Return the configuration without the place of its corpus on somebody's disk."""
    file = None if config.data.file is None else Path(config.data.file.name)
    return replace(config, data=replace(config.data, file=file))


def step_of(model: LanguageModel) -> int | None:
    """Return the step of training that a model's files name; None for a model that came from no file."""
    if model.folder is None:
        return None
    if holds(model.folder):
        return describe(model.folder)["step"]  # type: ignore[no-any-return]
    return int(checkpoint.describe(model.folder)["step"])


def evaluations(model: LanguageModel) -> list[dict[str, Any]]:
    """Return what `rdlm evaluate` left for a model's very weights: in its run's folder, or in the published one."""
    folder = model.folder
    if folder is None:
        return []
    weights = record.fingerprint(model.method.network)
    if holds(folder):
        state = describe(folder)
        if record.NAME not in state["files"] or state["weights"]["fingerprint"] != weights:
            return []
        file = folder / record.NAME
        listed = read_json(file).get("evaluations")
        return [record.checked(one, file) for one in (listed if isinstance(listed, list) else [None])]
    files = [folder.parent / f"evaluation-{split}" / record.NAME for split in ("validation", "test")]
    found = [record.read(file) for file in files if file.is_file()]
    return [one for one in found if one.get("weights") == weights]


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# -- reading -----------------------------------------------------------------------------------------


def describe(path: Path) -> dict[str, Any]:
    """Return config.json after checking its own checksum and its format; another library's is an error."""
    file = path / CONFIG
    state = read_json(file, checkpoint.LARGEST_STATE)
    if state.get("library") != "rdlm":
        raise InputError(f"{path} is no model of rdlm: its {CONFIG} is another library's")
    if state.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {state.get('format')!r}, this version reads {FORMAT}: "
            "open it with the version of rdlm that wrote it"
        )
    try:
        genuine = state.pop("sha256", None) == _digest(state)
    except RecursionError as error:  # what was just deep enough to be read may be too deep to be written
        _refuse(file, str(error))
    if not genuine:
        _refuse(file, "its own checksum differs")
    weights, step = state.get("weights"), state.get("step")
    weights = weights if isinstance(weights, dict) else {}
    # What stands for a name may be of a kind that cannot be looked up in a dictionary.
    if weights.get("dtype") not in list(TYPES) or not isinstance(weights.get("fingerprint"), str):
        _refuse(file, "it does not say the type and the fingerprint of the weights")
    if not isinstance(state.get("name"), str) or not (step is None or type(step) is int):
        _refuse(file, "its name or its step is missing")
    return state


def verify(path: Path) -> dict[str, Any]:
    """Return config.json after comparing every file with its size and its checksum."""
    state = describe(path)
    files = state.get("files")
    if not isinstance(files, dict) or not {WEIGHTS, TOKENIZER} <= set(files) <= {WEIGHTS, TOKENIZER, *OPTIONAL}:
        _refuse(path / CONFIG, "its list of files is not that of a published model")
    for name, entry in files.items():
        try:
            checkpoint.check_size(path / name, entry)
        except DamagedFileError as error:
            raise DamagedFileError(f"{error}; {AGAIN}") from None
        if sha256_of(path / name) != entry.get("sha256"):
            _refuse(path / name, "its checksum differs")
    return state


def read_weights(path: Path, state: Mapping[str, Any], template: checkpoint.Tensors) -> dict[str, Tensor]:
    """Return the weights, of the template's names and shapes, in the type in which the file has them."""
    stored = TYPES[state["weights"]["dtype"]]
    like = {name: torch.empty_like(wanted, dtype=stored, device="meta") for name, wanted in template.items()}
    return checkpoint.read_part(path, Path(WEIGHTS).stem, like)


def _refuse(path: Path, reason: str) -> NoReturn:
    raise DamagedFileError(f"{path} is damaged: {reason}; {AGAIN}")
