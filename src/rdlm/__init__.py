"""Riemannian diffusion language models.

The public names are loaded on first use, so that `import rdlm` and the command line's help stay fast.
To add one: put `"name": "rdlm.module"` into `_HOME`, and `from rdlm.module import name as name` under
`TYPE_CHECKING`, where type checkers and editors find it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdlm.api.language_model import LanguageModel as LanguageModel
    from rdlm.api.language_model import load as load
    from rdlm.api.restore import restore as restore
    from rdlm.api.training import train_model as _train_model
    from rdlm.certify import certify as certify

    train = _train_model

__version__ = "0.2.0.dev0"

_HOME: dict[str, str] = {
    "LanguageModel": "rdlm.api.language_model",
    "certify": "rdlm.certify",  # a module that can be called
    "load": "rdlm.api.language_model",
    "restore": "rdlm.api.restore",
    "train": "rdlm.train",  # a module that can be called, too
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOME[name])
    return module if _HOME[name] == f"rdlm.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
