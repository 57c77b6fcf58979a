"""Published models: folders with the files of a model, written atomically and validated before use.

NAME/
    config.json         format, configuration, corpus, type and fingerprint of the weights; manifest of the files below
                        except the model card; its own checksum
    model.safetensors   the weights: the moving average, unless the model was loaded without it
    tokenizer.json      see `rdlm.data.tokenizer.from_json`
    curve.json          the measured information curve, if there is one
    evaluation.json     the results of `rdlm evaluate` for these weights, if there are any
    orders.json         the bounds by order of generation of these weights, if they were measured
    README.md           the model card

None of them can run code. A model on the Hugging Face hub has the same files: only these are downloaded, config.json
first, so that a model of another library is rejected before its weights are transferred. Downloaded models can be used
offline (HF_HUB_OFFLINE=1 forbids any request).
"""

from __future__ import annotations

import html
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor

from rdlm import __version__
from rdlm.api import orders
from rdlm.config import RunConfig
from rdlm.data.fetch import hub_errors, limited_downloads
from rdlm.data.tokenizer import normalisation_rule, to_standard
from rdlm.errors import InputError, unknown
from rdlm.storage import checkpoint, config_file, measurements
from rdlm.storage.files import (
    LARGEST_JSON,
    cache_dir,
    damaged,
    exchange,
    explained_write_errors,
    make_cache_dir,
    new_folder,
    read_json,
    sync,
)
from rdlm.storage.manifest import Manifest, with_checksum, without_checksum

if TYPE_CHECKING:
    from rdlm.api.language_model import LanguageModel

FORMAT = 1
CONFIG, WEIGHTS, TOKENIZER, CARD = "config.json", "model.safetensors", "tokenizer.json", "README.md"
OPTIONAL = (measurements.CURVE, measurements.NAME, orders.ORDERS)
FILES = (CONFIG, WEIGHTS, TOKENIZER, *OPTIONAL, CARD)

ADVICE = "publish or download the model again"

Dtype = Literal["float32", "float16", "bfloat16"]
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def is_published(path: Path) -> bool:
    """Return whether a folder has the configuration file of a published model."""
    return (path / CONFIG).is_file()


# -- writing -----------------------------------------------------------------------------------------


def write(model: LanguageModel, folder: Path, *, name: str | None = None, dtype: Dtype = "float32") -> Path:
    """Publish a model into a folder, atomically, and return the folder; an older published model is replaced."""
    if dtype not in TYPES:
        raise unknown("type of weights", dtype, get_args(Dtype))
    folder = folder.expanduser().absolute()
    _check_replaceable(folder)
    _check_name(name or folder.name)
    weights = _rounded(model, dtype)
    explained = explained_write_errors(folder, "free some disk space or choose another folder")
    with explained, new_folder(folder) as temporary:
        temporary.chmod(0o755)
        _write_files(temporary, model, name or folder.name, weights, dtype)
        exchange(temporary, folder) if folder.exists() else os.rename(temporary, folder)
        sync(folder.parent)
    return folder


def _check_name(name: str) -> None:
    """Raise InputError for a name that is not text, such as that of a folder with other bytes than UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"the name {name!r} is not valid Unicode: choose another one") from None


def _check_replaceable(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        kind = "symbolic link" if folder.is_symlink() else "file"
        raise InputError(f"{folder} is a {kind}: give a folder to publish the model into")
    others = sorted(found.name for found in folder.iterdir() if found.name not in FILES) if folder.is_dir() else []
    if others:
        raise InputError(
            f"{folder} has files that are not of a published model, such as {others[0]}: choose another folder"
        )


def _rounded(model: LanguageModel, dtype: Dtype) -> dict[str, Tensor]:
    """Return the weights in the type of the file; InputError if a weight is out of its range."""
    found = {}
    for name, parameter in model.method.network.state_dict().items():
        kind = TYPES[dtype] if parameter.is_floating_point() else parameter.dtype
        tensor = parameter.detach().cpu().to(kind).contiguous()
        if not tensor.isfinite().all():
            finite = bool(parameter.isfinite().all())
            reason = f"does not fit into {dtype}: choose another type" if finite else "is not finite"
            raise InputError(f"{name} {reason}")
        found[name] = tensor
    return found


def _write_files(folder: Path, model: LanguageModel, name: str, weights: Mapping[str, Tensor], dtype: Dtype) -> None:
    fingerprint = measurements.fingerprint(
        {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in weights.items()}
    )
    found, by_order = evaluations(model), order_bounds(model)
    save_file(dict(weights), folder / WEIGHTS, metadata={"format": "pt"})
    _write_json(folder / TOKENIZER, to_standard(model.tokenizer))
    if model.folder is not None and (model.folder / measurements.CURVE).is_file():
        _write_json(folder / measurements.CURVE, read_json(model.folder / measurements.CURVE))
    if found:
        _write_json(folder / measurements.NAME, {"evaluations": found})
    if by_order is not None:
        _write_json(folder / orders.ORDERS, by_order)
    step = step_of(model)
    content = {
        "library": "rdlm",
        "version": __version__,
        "format": FORMAT,
        "name": name,
        "step": step,
        "config": config_file.to_dict(_public(model.config)),
        "corpus": model.about,
        "weights": {"dtype": dtype, "fingerprint": fingerprint},
        "files": Manifest.of(folder).files,
    }
    _write_json(folder / CONFIG, with_checksum(content))
    results = [*_results(found, fingerprint), *_order_table(by_order, fingerprint)]
    (folder / CARD).write_text(_card(model, name, dtype, step, results), "utf-8")
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors creates files that only their owner can read
        sync(path)
    sync(folder)


def _public(config: RunConfig) -> RunConfig:
    """Return the configuration with the file names, but not the paths, of its corpus and its tokenizer."""
    file = None if config.data.file is None else Path(config.data.file.name)
    tokenizer = config.data.tokenizer
    if tokenizer is not None and not tokenizer.startswith("hf://"):
        tokenizer = Path(tokenizer).name
    return replace(config, data=replace(config.data, file=file, tokenizer=tokenizer))


def step_of(model: LanguageModel) -> int | None:
    """Return the training step of a model's weights; None for a model without files."""
    if model.folder is None:
        return None
    if is_published(model.folder):
        return describe(model.folder)["step"]  # type: ignore[no-any-return]
    return int(checkpoint.describe(model.folder)["step"])


def evaluations(model: LanguageModel) -> list[dict[str, Any]]:
    """Return the results of `rdlm evaluate` for exactly these weights, from the run folder or the published model."""
    folder = model.folder
    if folder is None:
        return []
    weights = measurements.fingerprint(model.method.network)
    if is_published(folder):
        state = describe(folder)
        if measurements.NAME not in state["files"] or state["weights"]["fingerprint"] != weights:
            return []
        file = folder / measurements.NAME
        listed = read_json(file).get("evaluations")
        return [measurements.checked(one, file) for one in (listed if isinstance(listed, list) else [None])]
    files = [folder.parent / f"evaluation-{split}" / measurements.NAME for split in ("validation", "test")]
    found = [measurements.read(file) for file in files if file.is_file()]
    return [one for one in found if one.get("weights") == weights]


def order_bounds(model: LanguageModel) -> dict[str, Any] | None:
    """Return the content of orders.json for exactly these weights; None if they were not measured."""
    if model.folder is None or not (model.folder / orders.ORDERS).is_file():
        return None
    found = orders.read_orders(model.folder / orders.ORDERS)
    weights = measurements.fingerprint(model.method.network)
    if is_published(model.folder):  # measured before the weights were rounded for storage
        return found if describe(model.folder)["weights"]["fingerprint"] == weights else None
    return found if found["weights"] == weights else None


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")


# -- reading -----------------------------------------------------------------------------------------


def describe(path: Path) -> dict[str, Any]:
    """Return config.json after checking its checksum and format; InputError for the file of another library."""
    file = path / CONFIG
    state = read_json(file, checkpoint.LARGEST_STATE)
    if state.get("library") != "rdlm":
        raise InputError(f"{path} is not a model of rdlm: its {CONFIG} is another library's")
    if state.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {state.get('format')!r}, this version reads {FORMAT}: "
            "open it with the version of rdlm that wrote it"
        )
    state = without_checksum(file, state, ADVICE)
    weights, step = state.get("weights"), state.get("step")
    weights = weights if isinstance(weights, dict) else {}
    # A list, since a value of the file may not be hashable.
    if weights.get("dtype") not in list(TYPES) or not isinstance(weights.get("fingerprint"), str):
        raise damaged(file, "the type or the fingerprint of the weights is missing", ADVICE)
    if not isinstance(state.get("name"), str) or not (step is None or type(step) is int):
        raise damaged(file, "its name or its step is missing", ADVICE)
    return state


def verify(path: Path) -> dict[str, Any]:
    """Return config.json after comparing every file with its recorded size and checksum."""
    state = describe(path)
    manifest = Manifest.parse(
        path / CONFIG, state.get("files"), required=(WEIGHTS, TOKENIZER), optional=OPTIONAL, advice=ADVICE
    )
    manifest.check_sizes()
    manifest.check_memory()
    manifest.verify()
    return state


def read_weights(path: Path, state: Mapping[str, Any], template: checkpoint.Tensors) -> dict[str, Tensor]:
    """Return the weights in the type of the file; names and shapes must equal the template's."""
    dtype = TYPES[state["weights"]["dtype"]]
    stored = {
        name: torch.empty_like(tensor, dtype=dtype if tensor.is_floating_point() else tensor.dtype, device="meta")
        for name, tensor in template.items()
    }
    return checkpoint.read_part(path, Path(WEIGHTS).stem, stored)


# -- the model card ---------------------------------------------------------------------------------


KINDS = {"text": "A text model", "image": "An image model", "dna": "A DNA model"}
USES = {
    "text": ("samples = model.generate(num=3)", 'print(model.score(["some text"])[0])'),
    "dna": ("samples = model.generate(num=3)", 'print(model.score(["ACGTACGT"])[0])'),
    "image": ("samples = model.generate(num=9)  # displayed as images in a notebook",),
}


FRONT_MATTER = """---
library_name: rdlm
tags:
- rdlm
- diffusion
- riemannian-geometry
---"""


def _card(model: LanguageModel, name: str, dtype: str, step: int | None, results: Sequence[str]) -> str:
    """Return README.md with the paragraphs of its section of results."""
    argument = json.dumps(name if "/" in name else f"path/to/{name}")
    use = ["```python", "import rdlm", "", f"model = rdlm.load({argument})", *USES[model.kind], "```"]
    storage = "The weights are stored as safetensors; no file can run code."
    if dtype != "float32":
        storage += f"\nThey are rounded to {dtype}, which halves the file size, and are loaded as float32."
    paragraphs = [FRONT_MATTER, f"# {_plain(name)}", *_summary(model, step), "## Use", "\n".join(use), storage]
    return "\n\n".join([*paragraphs, "## Evaluation", *results]) + "\n"


def _summary(model: LanguageModel, step: int | None) -> Iterator[str]:
    about, licence = model.about, model.about.get("licence")
    trained = "" if step is None else f" It was trained for {step:,} step{'s' * (step != 1)}."
    yield (
        f"{KINDS[model.kind]} trained with the method {_plain(model.config.method)}: {model.parameters:,} parameters, "
        f"sequences of {model.length} tokens, a vocabulary of {model.tokenizer.size}.{trained}"
    )
    corpus = f"Training corpus: {_plain(about['protocol'])}{f' (licence: {_plain(licence)})' if licence else ''}."
    if rule := normalisation_rule(model.tokenizer):
        corpus += f"\nNormalisation of texts (`--normalise`): {rule}."
    if about["classes"]:
        names = ", ".join(map(_plain, about["classes"]))
        corpus += f"\nClasses: {names}. Bounds are those of sequences given their class."
    yield corpus


BEFORE_ROUNDING = "\nMeasured before the weights were rounded for storage."


def _results(evaluations: Sequence[Mapping[str, Any]], fingerprint: str) -> Iterator[str]:
    if not evaluations:
        yield "These weights have not been evaluated; `rdlm evaluate` does it."
        return
    yield "Results of `rdlm evaluate` with 95% intervals. A bound is on the likelihood of the sampler named in its row."
    for evaluation in evaluations:
        facts = f"Split {_plain(evaluation['split'])} of {_plain(evaluation['protocol'])}"
        counts = [f"{evaluation[key]} {key}" for key in ("sequences", "evaluations", "samples") if key in evaluation]
        late = "" if evaluation.get("weights") == fingerprint else BEFORE_ROUNDING
        yield f"{facts}{': ' if counts else ''}{', '.join(map(_plain, counts))}.{late}"
        rows = ["| metric | value | unit | is it a bound? | convention |", "|---|---|---|---|---|"]
        for name, metric in evaluation["metrics"].items():
            label = measurements.bound_label(evaluation, metric)
            cells = [_plain(name), measurements.interval(metric), _plain(metric["unit"]), label]
            rows.append(f"| {' | '.join(cells)} | {_plain(metric['convention'])} |")
        yield "\n".join(rows)


def _order_table(found: Mapping[str, Any] | None, fingerprint: str) -> Iterator[str]:
    """Yield the bounds by order and number of network calls."""
    if found is None:
        return
    bounds = orders.bounds_of(found)
    calls = sorted({bound.calls for bound in bounds})
    yield "## Bounds by order"
    yield (
        f"Upper bounds in {_plain(found['unit'])} with 95% intervals, by order of generation and network calls, on "
        f"{found['sequences']} sequences of the split {_plain(found['split'])} of {_plain(found['protocol'])}. "
        f"`--order auto` takes the best one.{'' if found['weights'] == fingerprint else BEFORE_ROUNDING}"
    )
    rows = [f"| order | {' | '.join(f'{count} calls' for count in calls)} |", f"|---{'|---' * len(calls)}|"]
    for order in dict.fromkeys(bound.order for bound in bounds):
        cells = {one.calls: f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in bounds if one.order == order}
        rows.append(f"| {order} | {' | '.join(cells.get(count, '') for count in calls)} |")
    yield "\n".join(rows)


def _plain(text: object) -> str:
    """Return a text with the markup of Markdown and HTML escaped."""
    escaped = html.escape(" ".join(str(text).split()), quote=False)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|" else letter for letter in escaped)


# -- the hub ---------------------------------------------------------------------------------------------------------

_NAME_PART = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_HUB_NAME = re.compile(f"{_NAME_PART}/{_NAME_PART}", re.ASCII)


def is_hub_name(text: str) -> bool:
    """Return whether a text has the form user/name and is not a path into an existing folder."""
    return _is_valid_hub_name(text) and not Path(text.partition("/")[0]).is_dir()


def _is_valid_hub_name(text: str) -> bool:
    return _HUB_NAME.fullmatch(text) is not None and len(text) <= 96 and not any(pair in text for pair in ("--", ".."))


def check_hub_name(text: str) -> None:
    """Raise InputError for a text that is not a valid name on the hub."""
    if not _is_valid_hub_name(text):
        raise InputError(f"{text!r} is not a name on the hub: use user/name, with letters, digits, '-', '_' and '.'")


def download(name: str) -> Path:
    """Return the cache folder with the newest files of a hub model, or with those downloaded before if offline."""
    check_hub_name(name)
    from huggingface_hub import snapshot_download

    folder = cache_dir("hub", *name.split("/"))
    with hub_errors(f"{name} is not a folder, and was not downloaded from the hub"):
        make_cache_dir("hub")
        most = LARGEST_JSON
        for files in ([CONFIG], list(FILES)):
            with limited_downloads(name, most):
                snapshot_download(
                    name, local_dir=folder, allow_patterns=files, library_name="rdlm", library_version=__version__
                )
            if not is_published(folder):
                raise InputError(f"{name} on the hub is not a model of rdlm: it has no {CONFIG}")
            stated = describe(folder)["files"].values()
            most = max(LARGEST_JSON, *(entry["bytes"] for entry in stated))
    return folder


def push(
    model: LanguageModel, name: str, *, private: bool = False, dtype: Dtype = "float32", message: str | None = None
) -> str:
    """Publish a model as user/name and return its address; the repository is created if it does not exist."""
    check_hub_name(name)
    from huggingface_hub import create_repo, upload_folder

    with tempfile.TemporaryDirectory(prefix="rdlm-") as temporary:
        folder = write(model, Path(temporary) / "model", name=name, dtype=dtype)
        with hub_errors(f"{name} was not pushed to the hub"):
            address = create_repo(name, private=private, exist_ok=True)
            upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message=message or f"Publish {name} with rdlm {__version__}",
                delete_patterns=list(OPTIONAL),
            )
    return str(address)
