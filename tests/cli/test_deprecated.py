"""Flags, values and configuration keys of version 0.1.0 are accepted, with a notice that names the new ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.registry import REGISTRY
from rdlm.cli.main import main
from rdlm.config import RunConfig
from rdlm.deprecated import renamed_configuration, renamed_flags
from rdlm.methods import METHODS
from rdlm.storage import config_file

OLD: dict[str, dict[str, list[str] | None]] = json.loads((Path(__file__).parent / "flags-0.1.0.json").read_text())
"""Flags of every command of version 0.1.0 -> their values, where those are names."""

LISTS = {("compare", "--methods"): list(METHODS), ("bench", "--only"): list(REGISTRY)}
"""Flags that take a list, whose parts the parser does not check."""


FlagsOf = Callable[[str], dict[str, list[str] | None]]


@pytest.mark.parametrize("command", OLD)
def test_every_flag_of_the_last_version_is_accepted(
    command: str, flags_of: FlagsOf, capsys: pytest.CaptureFixture[str]
) -> None:
    present = flags_of(command)
    for old, values in OLD[command].items():
        for value in values or ["1"]:
            flag, *given = renamed_flags([old, value])
            assert flag in present, f"rdlm {command} {old} has become {flag}, which does not exist"
            allowed = LISTS.get((command, flag), present[flag])
            assert allowed is None or values is None or given[0] in allowed, f"rdlm {command} {flag} {given[0]}"
            changed = [flag, *given] != [old, value]
            assert changed == ("is deprecated" in capsys.readouterr().err)


@pytest.mark.parametrize("command", ["generate", "score", "evaluate"])
def test_steps_and_nfe_are_one_flag(command: str, flags_of: FlagsOf) -> None:
    assert {"--steps", "--nfe"} <= set(flags_of(command))


def test_a_notice_names_the_new_flag(capsys: pytest.CaptureFixture[str]) -> None:
    old = ["--flow.cut=0.1", "--training.validation_calls", "8", "--methods=masked,rdlm", "--order", "spread", "spread"]
    new = ["--fisher-flow.cut=0.1", "--training.validation-nfe", "8", "--methods=mdlm,rdlm", "--order", "strided"]
    assert renamed_flags(old) == [*new, "spread"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "rdlm: --flow.cut is deprecated and will be removed in the next version; use --fisher-flow.cut"
    assert len(lines) == 4


def test_the_command_line_translates_before_it_parses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--calls", "0"]) == 2
    assert "--nfe" in capsys.readouterr().err


def test_an_old_configuration_is_read() -> None:
    old = {
        "method": "score_entropy",
        "process": {"chunk": 2, "order": "spread"},
        "objective": {"chunked": 0.5, "chunks": [1, 2]},
        "training": {"rate": 1e-3, "validation_calls": 4},
        "flow": {"cut": 0.2},
        "discrete": {"order": "spread"},
    }
    new = renamed_configuration(old)
    assert new["method"] == "sedd" and new["fisher_flow"] == {"cut": 0.2} and new["discrete"] == {"order": "strided"}
    assert new["process"] == {"block": 2, "order": "strided"}
    for section, values in new.items():
        assert isinstance(values, str) or set(values) <= set(getattr(RunConfig(), section).__dataclass_fields__)
    assert renamed_configuration(new) == new


def test_a_denoiser_stored_before_it_had_the_key_time_has_a_time_input() -> None:
    old = {"features": "evidence", "top": 8, "evidence": True, "head": "token"}
    assert config_file.from_dict({"denoiser": old}).denoiser.timed
    assert not config_file.from_dict({"denoiser": {"features": "evidence"}}).denoiser.timed
    assert not config_file.from_dict({"denoiser": old | {"time": None}}).denoiser.timed
    assert not config_file.from_dict(config_file.to_dict(RunConfig())).denoiser.timed
