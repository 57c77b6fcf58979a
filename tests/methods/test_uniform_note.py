"""The note on a bound that is worse than the uniform code."""

from __future__ import annotations

import math

import pytest

from rdlm.config import DenoiserConfig, RunConfig
from rdlm.methods.bound import uniform_note

BLIND = RunConfig(denoiser=DenoiserConfig(evidence=False))
HARDLY, LATE = "the network is hardly trained", "without evidence, late steps are charged"


@pytest.mark.parametrize(
    ("bits", "config", "late", "wanted"),
    [
        (2.9, RunConfig(), True, None),
        (3.0, RunConfig(), True, f"no better than guessing (1.50 bits per character): {HARDLY}"),
        (3.1, RunConfig(), True, f"worse than guessing (1.50 bits per character): {HARDLY}"),
        (3.1, BLIND, True, f"worse than guessing (1.50 bits per character): {LATE}"),
        (3.1, BLIND, False, f"worse than guessing (1.50 bits per character): {HARDLY}"),
        (2.9, BLIND, True, None),
        (3.1, RunConfig(method="mdlm", denoiser=BLIND.denoiser), True, HARDLY),
        (math.inf, RunConfig(), True, HARDLY),
    ],
)
def test_the_uniform_code_is_the_limit(bits: float, config: RunConfig, late: bool, wanted: str | None) -> None:
    """Eight tokens have 3 bits each; here a token has two characters."""
    found = uniform_note(bits * 10 * math.log(2), 10, 8, config, "bits per character", 20, late)
    assert (found is None) == (wanted is None)
    assert wanted is None or (found is not None and wanted in found)
