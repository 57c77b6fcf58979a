"""`rdlm publish`: export a trained model to a folder or to the Hugging Face hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rdlm.display.text_table import print_result, say
from rdlm.errors import InputError


@dataclass(frozen=True)
class Publish:
    """Write the averaged weights, configuration, tokenizer and model card to a folder, or push them to the hub.

    The card has the results of `rdlm evaluate` for these weights, if there are any. The optimizer state is not
    exported.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run (the best checkpoint by validation), a checkpoint or a published model."""
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER|user/name")]
    """A folder, or user/name on the hub; write ./a/b for a folder of that form."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of the weights in the file; 16-bit types are converted to float32 when loaded."""
    private: bool = False
    """Create a private model on the hub."""
    json: bool = False
    """Print one JSON object instead of the folder or address."""

    def run(self) -> int:
        """Publish, print the folder or address, and return 0."""
        import rdlm
        from rdlm.api import publish

        remote = publish.is_hub_name(self.target)
        if self.private and not remote:
            raise InputError(f"--private is for the hub (user/name), but {self.target} is a folder")
        model = rdlm.load(self.model)
        measured = [str(found["split"]) for found in publish.evaluations(model)]
        if not measured:
            say("these weights have not been evaluated; run rdlm evaluate to have results in the card")
        if remote:
            place = model.push_to_hub(self.target, private=self.private, dtype=self.dtype)
        else:
            place = str(model.save(Path(self.target), dtype=self.dtype))
        result = {"model": model.name, "place": place, "dtype": self.dtype, "evaluations": measured}
        print_result(result, place, self.json)
        return 0
