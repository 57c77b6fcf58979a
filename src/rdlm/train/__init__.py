"""Training: the loop, data parallelism, runs that resume from checkpoints, and their record.

`rdlm.train(data, ...)` is the function `rdlm.api.training.train_model`, which describes the arguments.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class _CallableModule(types.ModuleType):
    """Lets `rdlm.train` be this package and, called, the function `rdlm.api.training.train_model`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        # Imported by name, because api is a layer above this one.
        return importlib.import_module("rdlm.api.training").train_model(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
