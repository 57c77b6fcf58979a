"""A pretended accelerator: the meta device, with the rules of a real one.

`FakeTensorMode` with a fake CUDA device makes tensors of the CPU fake, too, from which the sampler reads its plan; and
a build of torch without CUDA cannot index fake CUDA tensors. So tests use the meta device, and the mode below adds what
it does not check: operations that mix devices and generators of the wrong device are errors, and every read of a value
by the host is counted (it gives zeros).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
COPIES = ("_to_copy", "copy_")


class DeviceError(RuntimeError):
    """An operation that a real accelerator would refuse."""


SEEDS: set[int] = set()
"""Seeds of generators that pass for those of the meta device: operations get generators without their Python class."""


class MetaGenerator(torch.Generator):
    """A generator that passes for one of the meta device."""

    device = META  # type: ignore[assignment]

    def manual_seed(self, seed: int) -> torch.Generator:
        SEEDS.add(seed)
        return super().manual_seed(seed)


class Accelerator(TorchDispatchMode):
    """Context manager: count the reads of the host from the meta device, and refuse mixed devices."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = func.overloadpacket.__name__, kwargs or {}
        leaves = tree_leaves((args, options))
        tensors = [one for one in leaves if isinstance(one, Tensor)]
        there = [one for one in tensors if one.device == META]
        if there and name == "_local_scalar_dense":
            self.reads.append("item")
            return there[0].new_zeros((), device="cpu").item()
        if name in COPIES and self._is_read(name, args, options):
            self.reads.append("cpu")
            return args[0] if name == "copy_" else torch.zeros(args[0].shape, dtype=options.get("dtype", args[0].dtype))
        here = [one for one in tensors if one.device != META and one.ndim]
        if there and here and name not in COPIES:
            raise DeviceError(
                f"{name} mixes the device with the CPU: {[(str(t.device), list(t.shape)) for t in tensors]}"
            )
        on_device = bool(there) or options.get("device") == META
        if any(isinstance(one, torch.Generator) and _is_of_cpu(one) == on_device for one in leaves):
            raise DeviceError(f"{name} draws on one device from a generator of another")
        return func(*args, **options)

    @staticmethod
    def _is_read(name: str, args: Any, options: dict[str, Any]) -> bool:
        if name == "copy_":
            return args[0].device != META and args[1].device == META
        return args[0].device == META and options.get("device", META) != META


def _is_of_cpu(generator: torch.Generator) -> bool:
    return generator.initial_seed() not in SEEDS
