"""A trained model with everything needed to use it: method, tokenizer, and what it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rdlm import configfile
from rdlm.config import RunConfig
from rdlm.data import tokenizer as tokenizers
from rdlm.data.tokenizer import Tokenizer
from rdlm.errors import InputError
from rdlm.method import METHODS
from rdlm.method.base import Method
from rdlm.method.rdlm import Rdlm
from rdlm.training import checkpoint, folder

if TYPE_CHECKING:
    from rdlm.generation import Generation
    from rdlm.scoring import Score


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A method with trained weights, ready to generate and to score; `rdlm.load` returns one."""

    name: str
    method: Method
    tokenizer: Tokenizer
    config: RunConfig
    about: dict[str, Any]
    """What the checkpoint says of the corpus: protocol, kind (text, image, dna), length, image shape, classes."""
    folder: Path | None = None
    """The checkpoint's folder, where an evaluation may leave its measured curve."""

    @property
    def rdlm(self) -> Rdlm:
        """Return the method of a model of this package's own kind; an error for a rival's."""
        if not isinstance(self.method, Rdlm):
            raise InputError(f"{self.name} is a model of the method {self.config.method!r}; this serves 'rdlm' alone")
        return self.method

    @property
    def kind(self) -> str:
        """Return what a sequence is: text, image or dna."""
        return str(self.about["kind"])

    @property
    def length(self) -> int:
        """Return the number of tokens of a training sequence."""
        return int(self.about["length"])

    def generate(self, **options: Any) -> Generation:
        """Return samples; the options are the fields of `rdlm.sampler.request.Request`, such as num, steps, prompt."""
        from rdlm.generation import generate

        return generate(self, **options)

    def score(self, texts: Sequence[str], **options: Any) -> list[Score]:
        """Return the likelihood bound of each text with its interval; options as in `rdlm.scoring.score`."""
        from rdlm.scoring import score

        return score(self, texts, **options)


def load(run: str | Path, *, averaged: bool = True) -> LanguageModel:
    """Return the model of a run's best checkpoint, or of a checkpoint folder; with the moving average of its weights.

    Nothing in the files is executed; names, shapes and checksums are compared before a number is used.
    """
    path = _checkpoint_of(Path(run).expanduser())
    state = checkpoint.verify(path)
    config, about = configfile.from_dict(state["config"]), state["corpus"]
    tokenizer = tokenizers.from_json(checkpoint.read_json(path / "tokenizer.json"))
    method = METHODS[config.method](config, tokenizer.size, len(about["classes"]), int(about["signal"]))
    part = "ema" if averaged else "network"
    wanted = {name: parameter.detach() for name, parameter in method.network.named_parameters()}
    weights = checkpoint.read_part(path, part, wanted)
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(weights[name])
    method.load_state(checkpoint.read_part(path, "method", method.state()))
    method.network.eval()
    return LanguageModel(path.parent.name, method, tokenizer, config, about, path)


def _checkpoint_of(path: Path) -> Path:
    if not path.is_dir():
        raise InputError(f"{path} is not a folder: give the folder of a run (rdlm train makes one) or of a checkpoint")
    return path if (path / "state.json").is_file() else folder.pointed(path)
