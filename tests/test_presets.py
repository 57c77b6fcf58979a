from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rdlm.data.corpus import RECIPES
from rdlm.errors import InputError
from rdlm.methods.rdlm import Process
from rdlm.model.denoiser import Denoiser
from rdlm.model.network import build
from rdlm.presets import PRESETS, preset

# vocabulary, classes and signal of each preset's corpus
CORPORA = {
    "demo": (27, 0, 0),
    "text8": (27, 0, 0),
    "text8-small": (27, 0, 0),
    "enwik8": (256, 0, 0),
    "lm1b": (30522, 0, 0),
    "lm1b-packed": (30522, 0, 0),
    "wikitext-2": (2048, 0, 0),
    "textfile": (90, 0, 0),
    "digits": (17, 10, 0),
    "mnist": (256, 10, 0),
    "cifar10": (256, 10, 0),
    "promoter": (4, 0, 1),
    "promoter-chr22": (4, 0, 0),
    "regulatory": (4, 4, 0),
}
PAPER = {"text8": 92.4e6, "lm1b": 110e6, "cifar10": 28e6, "promoter": 13.3e6}


def parameters(name: str) -> int:
    """Return the size of a preset's network, built where it takes no memory."""
    config = preset(name)
    vocabulary, classes, signal = CORPORA[name]
    process = Process.of(config.process, vocabulary)
    denoiser = Denoiser(config.denoiser, process.layout, process.bridge, process.schedule)
    with torch.device("meta"):
        network = build(config.model, denoiser.interface(classes, signal))
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_with_the_size_that_its_docstring_states(name: str) -> None:
    assert preset(name).data.name in RECIPES
    text = PRESETS[name].__doc__ or ""
    stated = float(re.findall(r"([\d.]+)M parameters", text)[0])
    assert parameters(name) / 1e6 == pytest.approx(stated, abs=0.06 if stated < 100 else 0.6)
    assert f"rdlm train {name}" in text


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_sizes(name: str) -> None:
    assert parameters(name) == pytest.approx(PAPER[name], rel=0.02)


def test_an_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown preset 'txt8': did you mean 'text8'"):
        preset("txt8")


def test_presets_need_no_torch(root: Path) -> None:
    code = (
        "import sys, rdlm.presets, rdlm.storage.config_file; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(root / "src")}, timeout=60, check=True)
