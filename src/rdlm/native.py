"""`kernel.c` compiled, where there is a compiler, once for a machine: it takes half a second and is kept in the caches.

A kept file ends in the checksum of what stands before it, which a loader of libraries does not mind. One that is
damaged, or that another user could have written, is never loaded but made again.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from rdlm.storage import cache_dir, open_plain, write_atomic

SOURCE: Final = Path(__file__).with_name("kernel.c")
OPTIONS: Final = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
"""Fast, but not at the price of a bit: products and sums are rounded one by one, as on every other device."""
PATIENCE: Final = 60.0
"""Seconds that a compiler may take."""

_log = logging.getLogger(__name__)


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions, or None where they cannot be had."""
    try:
        path = kept()
        if not _sound(path):
            write_atomic(path, _sealed(_compiled()))
        found = ctypes.CDLL(str(path))
        place, whole, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        found.rdlm_normals.argtypes = (place, place, whole, whole)
        found.rdlm_products.argtypes = (place, place, place, whole, whole)
        found.rdlm_polynomial.argtypes = (place, place, whole, place, whole)
        found.rdlm_add_ratio.argtypes = (place, whole, place, whole, place, whole, whole, whole, place, real)
    except (OSError, AttributeError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        _log.info("going on without the compiled kernel: %s", error)
        return None
    return found


def normals(keys: Tensor, count: int) -> Tensor | None:
    """Return `numbers.defined` in one pass; None without a kernel."""
    if (kernel := library()) is None:
        return None
    drawn = torch.empty(len(keys), count)
    kernel.rdlm_normals(drawn.data_ptr(), keys.data_ptr(), len(keys), count)
    return drawn


def polynomial(at: Tensor, coefficients: tuple[float, ...]) -> Tensor | None:
    """Return a polynomial, lowest power first, in one pass; None where the kernel does not serve."""
    if (kernel := _serving(at)) is None:
        return None
    at, numbers = at.contiguous(), _highest_first(coefficients)
    value = torch.empty_like(at)
    kernel.rdlm_polynomial(value.data_ptr(), at.data_ptr(), at.numel(), numbers, len(coefficients))
    return value


def add_ratio(total: Tensor, weight: Tensor, cosine: Tensor, coefficients: tuple[float, ...], farthest: float) -> bool:
    """Add `weight * ratio(1 - y) / y` with `y = sqrt((1 + cosine) / 2)` to `total` in one pass; return whether it did.

    The polynomial is of degree 9; cosines below `farthest` count as that.
    """
    if (kernel := _serving(total, weight, cosine)) is None:
        return False
    rows = [total.view(-1, total.shape[-1]), *(_adjacent(one).reshape(-1, one.shape[-1]) for one in (weight, cosine))]
    places = [number for one in rows for number in (one.data_ptr(), one.stride(0))]
    kernel.rdlm_add_ratio(*places, *rows[0].shape, _highest_first(coefficients), farthest)
    return True


def products(one: Tensor, other: Tensor) -> Tensor | None:
    """Return `<a, b>`, `<b, b>` and `<a, a>` of the rows of two matrices, [3, rows, 1], in one pass; None as above."""
    if (kernel := _serving(one, other)) is None:
        return None
    one, other = one.contiguous(), other.contiguous()
    found = torch.empty(3, len(one), 1)
    kernel.rdlm_products(found.data_ptr(), one.data_ptr(), other.data_ptr(), *one.shape)
    return found


def _serving(*inputs: Tensor) -> ctypes.CDLL | None:
    """Return the kernel, if all inputs are float32 on the CPU and no gradient is asked for."""
    grad = torch.is_grad_enabled()
    fit = all(one.dtype == torch.float32 and one.is_cpu and not (grad and one.requires_grad) for one in inputs)
    return library() if fit else None


def _adjacent(one: Tensor) -> Tensor:
    return one if one.stride(-1) == 1 else one.contiguous()


@lru_cache
def _highest_first(coefficients: tuple[float, ...]) -> ctypes.Array[ctypes.c_float]:
    return (ctypes.c_float * len(coefficients))(*reversed(coefficients))


def kept() -> Path:
    """Return where the compiled kernel is kept: by its source, its options and the kind of machine."""
    what = repr((SOURCE.read_bytes(), OPTIONS, platform.system(), platform.machine(), platform.libc_ver()))
    return cache_dir() / f"kernel-{hashlib.sha256(what.encode()).hexdigest()[:16]}.so"


def _compiled() -> bytes:
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or "clang"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.so"
        command = [*compiler, *OPTIONS, str(SOURCE), "-o", str(out), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
        return out.read_bytes()


def _sealed(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


def _sound(path: Path) -> bool:
    """Return whether a kept file is whole, and nobody else's."""
    try:
        with open_plain(path) as file:
            content, about = file.read(), os.fstat(file.fileno())
    except OSError:
        return False
    ours = about.st_uid in (os.getuid(), 0) and not about.st_mode & stat.S_IWOTH
    return ours and content == _sealed(content[:-32])
