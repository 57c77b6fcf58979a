from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

from rdlm.api.orders import is_trained_for
from rdlm.config import OrderName
from rdlm.data.corpus import RECIPES
from rdlm.errors import InputError
from rdlm.methods.rdlm import Process
from rdlm.model.denoiser import Denoiser
from rdlm.model.network import build
from rdlm.model.ngram import check_ngram
from rdlm.presets import PRESETS, preset
from rdlm.process.order import named_schedule

# vocabulary, classes and signal of each preset's corpus; those of NAME-paper are those of NAME
CORPORA = {
    "demo": (27, 0, 0),
    "text8": (27, 0, 0),
    "text8-small": (27, 0, 0),
    "enwik8": (256, 0, 0),
    "lm1b": (30522, 0, 0),
    "lm1b-packed": (30522, 0, 0),
    "wikitext-2": (4096, 0, 0),
    "words": (30522, 0, 0),
    "textfile": (90, 0, 0),
    "own": (90, 0, 0),
    "digits": (17, 10, 0),
    "mnist": (256, 10, 0),
    "cifar10": (256, 10, 0),
    "cifar10-small": (256, 10, 0),
    "mnist-small": (256, 10, 0),
    "promoter": (4, 0, 1),
    "promoter-chr22": (4, 0, 0),
    "chr22": (4, 2, 0),
    "regulatory": (4, 4, 0),
}
PAPER = {"text8-paper": 92.4e6, "lm1b-paper": 110e6, "cifar10-paper": 28e6, "promoter-paper": 13.3e6}
OURS = sorted(name for name in PRESETS if not name.endswith("-paper"))


def parameters(name: str) -> int:
    """Return the size of a preset's network, built where it takes no memory."""
    config = preset(name)
    vocabulary, classes, signal = CORPORA[name.removesuffix("-paper")]
    process = Process.of(config.process, vocabulary, config.denoiser.head)
    parts = (process.layout, process.bridge, process.schedule)
    denoiser = Denoiser(config.denoiser, *parts, config.model.belief)
    with torch.device("meta"):
        network = build(config.model, denoiser.interface(classes, signal))
    codes = [] if process.codes is None else list(process.codes.parameters())
    return sum(p.numel() for p in [*network.parameters(), *codes])


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_with_the_size_that_its_docstring_states(name: str) -> None:
    assert preset(name).data.name in RECIPES
    text = PRESETS[name].__doc__ or ""
    stated = float(re.findall(r"([\d.]+)M parameters", text)[0])
    assert parameters(name) / 1e6 == pytest.approx(stated, abs=0.06 if stated < 100 else 0.6)
    assert re.search(rf"rdlm train {name}[ `]", text)
    assert re.search(r"Not measured here|[Mm]easured: ", text), "the metric, or that there is none"


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_sizes(name: str) -> None:
    assert parameters(name) == pytest.approx(PAPER[name], rel=0.02)


@pytest.mark.parametrize("name", OURS)
def test_our_presets_train_for_every_order_that_their_network_can_take(name: str) -> None:
    config = preset(name)
    assert config.process.order == "synchronous" and config.process.block == 0
    assert config.objective.proposal == "information" and not config.denoiser.timed
    takes_blocks = RECIPES[config.data.name].kind == "text"
    orders = [order for order in get_args(OrderName) if takes_blocks or order != "left-to-right"]
    assert all(is_trained_for(config, named_schedule(order, 16, 64)[0]) for order in orders)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith("-paper")])
def test_the_papers_presets_differ_from_ours_in_settings_alone(name: str) -> None:
    paper, ours = preset(name), preset(name.removesuffix("-paper"))
    assert paper.data == ours.data and paper.training == ours.training
    assert (paper.process.bridge, paper.process.path, paper.process.law) == ("logarithm", "switch", "normal")
    assert not paper.denoiser.evidence and paper.denoiser.timed and paper.objective.proposal == "interval"
    assert paper.model.belief == "none"


@pytest.mark.parametrize("name", ["demo", "text8", "text8-small", "textfile"])
def test_presets_of_characters_have_a_chain_below_the_network(name: str) -> None:
    model = preset(name).model
    assert (model.belief, model.order) == ("ngram", 6)
    for vocabulary in (2, 27, 400):
        check_ngram(vocabulary, model.order, model.chain_states)


def test_an_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown preset 'txt8': did you mean 'text8'"):
        preset("txt8")


def test_presets_need_no_torch(root: Path) -> None:
    code = (
        "import sys, rdlm.presets, rdlm.storage.config_file; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(root / "src")}, timeout=60, check=True)
