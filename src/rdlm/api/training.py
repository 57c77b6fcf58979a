"""Training from Python, `rdlm.train(data="book.txt", minutes=3)`, and fine-tuning, here and in `rdlm train --init`.

A run takes network, method, process and tokens of an initial model, unless the user gives others, and its weights.
Tokens are matched by their text: their rows of the input, of the output and of the codes are copied, and those of new
tokens are random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, nn

from rdlm.api.language_model import LanguageModel, describe, find, load
from rdlm.config import DataConfig, RunConfig
from rdlm.data.store import Corpus
from rdlm.data.tokenizer import Bytes, Characters, Levels, Tokenizer, to_standard
from rdlm.display.text_table import say
from rdlm.errors import InputError
from rdlm.methods import build
from rdlm.methods.base import Method
from rdlm.methods.rdlm import total_noise
from rdlm.model.belief import WEIGHTS, BeliefNetwork
from rdlm.presets import PRESETS, preset
from rdlm.process.bridge import Bridge, BridgeKind
from rdlm.process.schedule import Schedule, ScheduleName
from rdlm.storage import config_file
from rdlm.storage.files import cache_dir, make_cache_dir, write_atomic
from rdlm.storage.own_classes import import_name, trusting
from rdlm.train.fit import MOST_ONE_HOT
from rdlm.train.loop import train
from rdlm.train.record import Tracker, TrackerName
from rdlm.train.run import Build


def train_model(
    data: str | Path | None = None,
    *,
    column: str | None = None,
    config: RunConfig | str | Path | None = None,
    network: type[nn.Module] | None = None,
    schedule: ScheduleName | type[Schedule] | None = None,
    bridge: BridgeKind | type[Bridge] | None = None,
    out: str | Path | None = None,
    init: str | Path | None = None,
    minutes: float | None = None,
    device: str | None = None,
    accept_changes: bool = False,
    track: Sequence[TrackerName | Tracker] = (),
) -> LanguageModel:
    """Train a model, or continue the run in the folder `out`, and return it with the averaged weights.

    `data` is a file or folder of text, CSV, JSONL, FASTA, images or an array, or hf://NAME of the Hugging Face hub, as
    in `rdlm train --data`; `column` chooses one of a CSV or JSONL file or of a dataset. `config` is a configuration,
    the name of a preset or a YAML file; by default, the preset for your own data, or else the demo.
    `out` is runs/NAME by default; the returned model's `folder` is its checkpoint in there. With `minutes`, the size of
    the network and the training are chosen by the time, except for the keys of a given configuration.

    `init` is a run or model to start from, as in `rdlm train --init`: unless `config` is a RunConfig or a file, the
    network, the process and the tokens are those of the model, too.

    `track` has trackers for the record of the run: "wandb", or objects with `write(kind, step, values)` and
    `close(code)`.

    User-defined classes are constructed like those of rdlm:

    | argument | class | built as |
    |---|---|---|
    | `network` | `torch.nn.Module`; see `rdlm.model.network.build` | `MyNetwork(config.model, interface)` |
    | `schedule` | derived from `rdlm.process.schedule.Schedule` | `MySchedule(total)` |
    | `bridge` | derived from `rdlm.process.bridge.Bridge`, with its own `pull` and `slope` | as `Bridge` is |

    The run stores their import names; it is loaded by `rdlm.load(out, trust=[MyNetwork])` only.
    """
    name, default = _configuration(config, data)
    complete = isinstance(config, RunConfig) or str(config).endswith((".yaml", ".yml"))  # with a value for every key
    if init is not None and not complete:
        default = initial_configuration(default, str(init))
    chosen = _with_data_and_device(default, data, device)
    if column is not None:
        chosen = replace(chosen, data=replace(chosen.data, column=column))
    own = [one for one in (network, schedule, bridge) if isinstance(one, type)]
    chosen = _with_process(chosen, schedule, bridge)
    if network is not None:
        chosen = _with_network(chosen, network, adapt=not complete)
    given = set(config_file.difference(RunConfig() if isinstance(config, RunConfig) else default, chosen))
    folder = Path(out) if out is not None else Path("runs") / name
    with trusting(own):
        make, given = (build, given) if init is None else (starting_from(str(init)), {*given, "model"})
        train(chosen, folder, make, minutes=minutes, given=given, accept_changes=accept_changes, track=track)
    return load(folder, trust=own, device=chosen.training.device)


def _configuration(config: RunConfig | str | Path | None, data: str | Path | None) -> tuple[str, RunConfig]:
    """Return the name of a run and its configuration."""
    if isinstance(config, RunConfig):
        return config.data.name, config
    source = str(config or ("demo" if data is None else "own"))
    if source in PRESETS or not source.endswith((".yaml", ".yml")):
        return source, preset(source)
    return Path(source).stem, config_file.read(Path(source))


def _with_data_and_device(config: RunConfig, data: str | Path | None, device: str | None) -> RunConfig:
    if data is not None and str(data).startswith("hf://"):
        config = replace(config, data=replace(config.data, hub=str(data)))
    elif data is not None:
        config = replace(config, data=replace(config.data, file=Path(data)))
    return config if device is None else replace(config, training=replace(config.training, device=device))


def _with_process(
    config: RunConfig, schedule: ScheduleName | type[Schedule] | None, bridge: BridgeKind | type[Bridge] | None
) -> RunConfig:
    """Return the configuration with a schedule and a bridge, by rdlm's name or by import name."""
    process = config.process
    for key, value, names in (("schedule", schedule, get_args(ScheduleName)), ("bridge", bridge, get_args(BridgeKind))):
        if isinstance(value, type):
            process = replace(process, **{f"{key}_class": import_name(value)})  # type: ignore[arg-type]
        elif value is not None:
            if value not in names:
                raise InputError(f"{key} must be {', '.join(names)} or a class of your own, got {value!r}")
            process = replace(process, **{key: value})  # type: ignore[arg-type]
    if process != config.process and config.method != "rdlm":
        raise InputError(f"a schedule or bridge is for the method rdlm; this configuration has {config.method}")
    return replace(config, process=process)


def _with_network(config: RunConfig, network: type[nn.Module], adapt: bool) -> RunConfig:
    """Return the configuration with a user-defined network, which has no block mask; `adapt` one without blocks."""
    config = replace(config, model=replace(config.model, network_class=import_name(network)))
    if adapt and (config.objective.blockwise or config.process.block):
        say("an own network has no block mask: trained without objective.blockwise and process.block")
        config = replace(config, objective=replace(config.objective, blockwise=0.0))
        config = replace(config, process=replace(config.process, block=0))
    return config


# -- fine-tuning ------------------------------------------------------------------------------------

OF_USER = ("own", "textfile")
"""Corpora of the user, whose tokens can be chosen."""

TOKEN_AXIS = {
    **dict.fromkeys(["input.weight", "input.previous", "head.weight", "head.bias", "codes.weight"], 0),
    **dict.fromkeys(["outer.weight", "outer.bias"], 0),  # of the convolution
    "belief.emission": 1,
}
"""Name of a parameter, without the inference layer's prefix -> its axis with an entry per token."""

NAMED = 40
"""New tokens that are named; of more, their number."""


def initial_configuration(config: RunConfig, name: str) -> RunConfig:
    """Return a configuration with everything but data and training of a model, and its tokens and length for own text.

    What was chosen for the number of tokens is chosen again.
    """
    path = find(name)
    own, about, tokenizer = describe(path)
    process = own.process
    if own.method == "rdlm" and process.total == total_noise(replace(process, total=None), tokenizer.size):
        process = replace(process, total=None)
    if own.method == "rdlm" and process.codes == "onehot" and process.base is None and tokenizer.size <= MOST_ONE_HOT:
        process = replace(process, codes="auto")
    data = config.data
    if data.name in OF_USER and about["kind"] == "text":
        data = replace(_with_tokens(data, own.data, tokenizer, path), length=about["length"])
    return replace(own, process=process, data=data, training=config.training)


def _with_tokens(data: DataConfig, own: DataConfig, tokenizer: Tokenizer, path: Path) -> DataConfig:
    """Return the options of a text whose tokens are those of a model, extended by new characters."""
    if isinstance(tokenizer, Characters):
        return replace(data, alphabet=tokenizer.alphabet, unknown="extend")
    if isinstance(tokenizer, Bytes):
        return replace(data, tokenizer="bytes")
    if own.tokenizer == "wordpiece" or str(own.tokenizer).startswith("hf://"):
        return replace(data, tokenizer=own.tokenizer)
    return replace(data, tokenizer=str(_kept(path / "tokenizer.json")))


def _kept(file: Path) -> Path:
    """Return a copy of a tokenizer in the cache: checkpoints are removed as their run goes on."""
    content = file.read_bytes()
    copy = cache_dir("tokenizers") / f"{hashlib.sha256(content).hexdigest()[:12]}.json"
    if not copy.exists():  # its time of modification identifies prepared data
        make_cache_dir("tokenizers")
        write_atomic(copy, content)
    return copy


def starting_from(name: str) -> Build:
    """Return `build` with the weights of a model in place of the random ones; what is new is stated once."""
    model, told = load(name), False

    def started(config: RunConfig, corpus: Corpus) -> Method:
        nonlocal told
        if "image" in (kinds := {model.kind, corpus.kind}) and len(kinds) > 1:
            raise InputError(f"{name} is a model of the kind {model.kind}, and the data are of the kind {corpus.kind}")
        method = build(config, corpus)
        old, new = _ids(model.tokenizer), _ids(corpus.tokenizer)
        missing = copy_weights(model.method.network, method.network, old, new)
        if not told:
            say(f"weights of {name}{', but these are new: ' + ', '.join(missing) if missing else ''}")
            if old != new:
                say(_compared(name, old, new))
        told = True
        return method

    return started


def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return token -> id, with the names of a tokenizer.json; levels of another number have other meanings."""
    vocabulary: dict[str, int] = to_standard(tokenizer)["model"]["vocab"]
    if isinstance(tokenizer, Levels):
        return {f"{token} of {tokenizer.size}": i for token, i in vocabulary.items()}
    return vocabulary


def _compared(name: str, old: Collection[str], new: Collection[str]) -> str:
    """Return a sentence on the tokens of a model that are kept, and on new ones."""
    added = [token for token in new if token not in old]
    kept = len(new) - len(added)
    listed = f": {' '.join(map(_printed, added))}" if 0 < len(added) <= NAMED else ""
    new_ones = f"{len(added):,} token{'s are' if len(added) != 1 else ' is'} new{listed}"
    return f"{kept:,} of the {len(old):,} tokens of {name} are kept, {new_ones}"


def _printed(token: str) -> str:
    return token if token.isprintable() and not token.isspace() else repr(token)


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module, old: dict[str, int], new: dict[str, int]) -> list[str]:
    """Copy the parameters of equal name and shape, and return the names of the others of the target.

    `old` and `new` are the ids of the tokens of both networks; those of equal name keep their rows. A network with an
    inference layer can start from one without it, and the other way round: its head has `WEIGHTS` more outputs, behind
    those of the tokens, which start as they were initialised.
    """
    given, own = _parameters(source), _parameters(target)
    more = WEIGHTS * (isinstance(target, BeliefNetwork) - isinstance(source, BeliefNetwork))
    shared = [(old[token], i) for token, i in new.items() if token in old]
    rows = torch.tensor(shared, dtype=torch.long).view(-1, 2).unbind(1)
    changed = old != new
    missing = []
    for name, parameter in own.items():
        if name not in given:
            missing.append(name)
        elif name in TOKEN_AXIS and (changed or len(given[name]) != len(parameter)):
            axis = TOKEN_AXIS[name]
            pair = given[name].movedim(axis, 0), parameter.movedim(axis, 0)
            if not _copy_rows(*pair, rows, (len(old), len(new)), more):
                missing.append(name)
        elif given[name].shape == parameter.shape:
            parameter.copy_(given[name])
        else:
            missing.append(name)
    layers = {name: parameter.numel() for name, parameter in own.items() if name not in TOKEN_AXIS}
    if 2 * sum(layers[name] for name in missing if name in layers) > sum(layers.values()):
        raise InputError(
            "most weights of the given model do not fit this network: leave out the options of the network, model.*, "
            "which are those of the given model by default"
        )
    return missing


def _parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by their names in the network without its inference layer."""
    return {name.removeprefix("network."): parameter for name, parameter in network.named_parameters()}


def _copy_rows(source: Tensor, target: Tensor, rows: tuple[Tensor, ...], sizes: tuple[int, int], more: int) -> bool:
    """Copy the rows of the shared tokens, and those behind the tokens; return whether there are rows of tokens."""
    behind = len(source) - sizes[0], len(target) - sizes[1]
    fits = min(behind) >= 0 and behind[1] - behind[0] in (0, more) and max(behind) <= 1 + WEIGHTS
    if not fits or source.shape[1:] != target.shape[1:]:
        same = source.shape == target.shape and not fits  # an axis of something else, such as coordinates of codes
        if same:
            target.copy_(source)
        return same
    target[rows[1]] = source[rows[0]]
    common = min(behind)
    target[sizes[1] : sizes[1] + common] = source[sizes[0] : sizes[0] + common]
    return True
