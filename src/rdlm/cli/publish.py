"""`rdlm publish`: a trained model as a folder that others can use, or on the Hugging Face hub."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rdlm.display.tables import print_json
from rdlm.errors import InputError


@dataclass(frozen=True)
class Publish:
    """Write a model's averaged weights, configuration, tokenizer and card into a folder, or push them to the hub.

    The card quotes what `rdlm evaluate` found for these very weights, if it was run; the optimizer stays behind.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run (its best checkpoint by validation), of a checkpoint or of a published model."""
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER|user/name")]
    """A folder, or a name on the hub; write ./a/b for a folder b in a new folder a."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of the weights in the file; half-size types are loaded back as float32."""
    private: bool = False
    """Make a new model on the hub private."""
    json: bool = False
    """Print one JSON object instead of the place."""

    def run(self) -> int:
        """Publish, print the place, and return 0."""
        import rdlm
        from rdlm.api import hub
        from rdlm.api import publish as publication

        remote = hub.is_name(self.target)
        if self.private and not remote:
            raise InputError(f"--private is for the hub, and {self.target} is a folder: a name there is user/name")
        model = rdlm.load(self.model)
        measured = [str(found["split"]) for found in publication.evaluations(model)]
        if not measured:
            print("rdlm: no evaluation of these weights: the card says so; rdlm evaluate makes one", file=sys.stderr)
        if remote:
            place = model.push_to_hub(self.target, private=self.private, dtype=self.dtype)
        else:
            place = str(model.save(Path(self.target), dtype=self.dtype))
        if self.json:
            print_json({"model": model.name, "place": place, "dtype": self.dtype, "evaluations": measured})
        else:
            print(place)
        return 0
