"""A limit on the memory that building a model from an untrusted configuration may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from rdlm.errors import DamagedFileError

FACTORIES = {
    torch.empty,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.eye,
    torch.arange,
    torch.linspace,
    torch.rand,
    torch.randn,
}
"""Functions that allocate a tensor whose size depends on their arguments alone."""


class AllocationLimit(TorchFunctionMode):
    """Context manager: raise DamagedFileError before more than `bytes` bytes or `tensors` tensors are allocated.

    A checkpoint of a few kilobytes can claim a network of terabytes. The size of each tensor is computed on the meta
    device, which allocates nothing, before the tensor itself is created.
    """

    def __init__(self, bytes: int, tensors: int) -> None:
        super().__init__()
        self.bytes_left, self.tensors_left = bytes, tensors

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`; if it allocates a tensor, subtract its size from the limit first."""
        given = dict(kwargs or {})
        if func in FACTORIES:
            sized = {key: value for key, value in given.items() if key != "generator"}
            self.bytes_left -= int(func(*args, **{**sized, "device": "meta"}).nbytes)
            self.tensors_left -= 1
            if self.bytes_left < 0 or self.tensors_left < 0:
                raise DamagedFileError("it describes a model that is larger than its files")
        return func(*args, **given)
