"""A limit to what is made while a model is built from a description that nobody vouches for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from rdlm.errors import DamagedFileError

FACTORIES = {
    torch.empty, torch.zeros, torch.ones, torch.full, torch.eye, torch.arange, torch.linspace, torch.rand, torch.randn,
}  # fmt: skip
"""What makes new tensors, of a size that their arguments alone decide."""


class Allowance(TorchFunctionMode):
    """Inside its `with` block, a tensor too many, or one that brings all beyond `bytes`, is damage, and not made."""

    def __init__(self, bytes: int, tensors: int) -> None:
        super().__init__()
        self.left, self.tensors = bytes, tensors

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Return what `func` returns, after a rehearsal without memory where it makes a tensor."""
        given = dict(kwargs or {})
        if func in FACTORIES:
            rehearsed = {key: value for key, value in given.items() if key != "generator"}
            self.left -= int(func(*args, **{**rehearsed, "device": "meta"}).nbytes)
            self.tensors -= 1
            if self.left < 0 or self.tensors < 0:
                raise DamagedFileError("it describes a model that is larger than its files")
        return func(*args, **given)
