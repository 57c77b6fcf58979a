"""Pretrained models that are part of the package: published models, one folder each."""

from __future__ import annotations

from pathlib import Path

from rdlm.errors import InputError, unknown

FOLDER = Path(__file__).parent

DEFAULT = "text8"


def names() -> tuple[str, ...]:
    """Return the names of the packaged models; none if the package was installed without them."""
    return tuple(sorted(found.parent.name for found in FOLDER.glob("*/config.json")))


def path(name: str = DEFAULT) -> Path:
    """Return the folder of a packaged model."""
    if not names():
        raise InputError(
            "this installation has no packaged model: give the folder of a run (rdlm demo creates runs/demo in "
            "minutes), of a published model, or a model on the hub (user/name)"
        )
    if name not in names():
        raise unknown("packaged model", name, names())
    return FOLDER / name
