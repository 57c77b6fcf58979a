"""Training from Python: `rdlm.train(data="book.txt", minutes=3)`, optionally with a user-defined network or process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from torch import nn

from rdlm.api.language_model import LanguageModel, load
from rdlm.config import RunConfig
from rdlm.display.progress import say
from rdlm.errors import InputError
from rdlm.methods import build
from rdlm.presets import PRESETS, preset
from rdlm.process.bridge import Bridge, BridgeKind
from rdlm.process.schedule import Schedule, ScheduleName
from rdlm.storage import config_file
from rdlm.storage.own_classes import import_name, trusting
from rdlm.train.loop import train
from rdlm.train.record import Tracker, TrackerName


def train_model(
    data: str | Path | None = None,
    *,
    column: str | None = None,
    config: RunConfig | str | Path | None = None,
    network: type[nn.Module] | None = None,
    schedule: ScheduleName | type[Schedule] | None = None,
    bridge: BridgeKind | type[Bridge] | None = None,
    out: str | Path | None = None,
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
    chosen = _with_data_and_device(default, data, device)
    if column is not None:
        chosen = replace(chosen, data=replace(chosen.data, column=column))
    own = [one for one in (network, schedule, bridge) if isinstance(one, type)]
    chosen = _with_process(chosen, schedule, bridge)
    if network is not None:
        chosen = _with_network(chosen, network, told=config is None)
    given = set(config_file.difference(RunConfig() if isinstance(config, RunConfig) else default, chosen))
    folder = Path(out) if out is not None else Path("runs") / name
    with trusting(own):
        train(chosen, folder, build, minutes=minutes, given=given, accept_changes=accept_changes, track=track)
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


def _with_network(config: RunConfig, network: type[nn.Module], told: bool) -> RunConfig:
    """Return the configuration with a user-defined network, which has no block mask."""
    config = replace(config, model=replace(config.model, network_class=import_name(network)))
    if told and (config.objective.blockwise or config.process.block):
        say("an own network has no block mask: trained without objective.blockwise and process.block")
        config = replace(config, objective=replace(config.objective, blockwise=0.0))
        config = replace(config, process=replace(config.process, block=0))
    return config
