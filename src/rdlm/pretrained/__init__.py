"""The models in the box: published models that come with the package, each in a folder of its own here."""

from __future__ import annotations

from pathlib import Path

from rdlm.errors import InputError, unknown

FOLDER = Path(__file__).parent
"""Where the models are."""

TEXT = "text8"
"""The model that is meant where none is named."""


def names() -> tuple[str, ...]:
    """Return the names of the models in the box; none where the package came without."""
    return tuple(sorted(found.parent.name for found in FOLDER.glob("*/config.json")))


def path(name: str = TEXT) -> Path:
    """Return the folder of a model in the box; an error says what to do where it is not there."""
    if not names():
        raise InputError(
            "this installation has no model in the box: name the folder of a run (rdlm demo makes runs/demo in "
            "minutes), of a published model, or a hub model such as user/name"
        )
    if name not in names():
        raise unknown("model in the box", name, names())
    return FOLDER / name
