"""A trained model with everything needed to use it: method, tokenizer, and what it was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdlm.config import RunConfig
from rdlm.data.tokenizer import Tokenizer
from rdlm.method.rdlm import Rdlm


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A method with trained weights, ready to generate and to score; `rdlm.load` returns one."""

    name: str
    method: Rdlm
    tokenizer: Tokenizer
    config: RunConfig
    about: dict[str, Any]
    """What the checkpoint says of the corpus: protocol, kind (text, image, dna), length, image shape, classes."""
    folder: Path | None = None
    """The checkpoint's folder, where an evaluation may leave its measured curve."""

    @property
    def kind(self) -> str:
        """Return what a sequence is: text, image or dna."""
        return str(self.about["kind"])

    @property
    def length(self) -> int:
        """Return the number of tokens of a training sequence."""
        return int(self.about["length"])
