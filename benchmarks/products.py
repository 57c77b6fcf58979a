"""The network against its matrix products, which are recorded in one step and replayed back to back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.fixtures import LETTERS, NETWORK, tokens
from benchmarks.measure import Figure, Work, alternate, at_most
from rdlm.config import Interface
from rdlm.model.network import build

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "attention")
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Recorder(TorchDispatchMode):
    """Records every matrix product, attention included, with its arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and record it if it is a product."""
        name = func.overloadpacket.__name__
        if name in PRODUCTS or "attention" in name:
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def replay(self) -> None:
        """Call all recorded operations again in order."""
        with torch.no_grad():
            for function, args, kwargs in self.calls:
                function(*args, **kwargs)


def products(quick: bool) -> list[Figure]:
    """Measure the network's training step, eager and compiled, over its products alone."""
    ids = tokens(LETTERS, 2 if quick else 16, 256)
    features, time = functional.one_hot(ids, LETTERS).float(), torch.rand(len(ids))
    torch.manual_seed(0)
    network = build(NETWORK, Interface(LETTERS, LETTERS))

    def step(call: Callable[..., Tensor]) -> None:
        network.zero_grad()
        functional.cross_entropy(call(features, time).flatten(0, 1), ids.flatten()).backward()

    recorder = Recorder()
    with recorder:
        step(network)
    works: dict[str, Work] = {"eager": lambda: step(network)}
    compiled, note = (None, "not compiled in quick mode") if quick else _compiled(network, step)
    if compiled is not None:
        works["compiled"] = lambda: step(compiled)
    taken = alternate(works | {"products": recorder.replay}, 3 if quick else 5)
    figures = [
        Figure.of(f"the network's step, {name}", "its matrix products", taken[name], taken["products"])
        for name in works
    ]
    best = min(figures, key=lambda figure: figure.ratio)
    name = "the network's step, the better of the two" if len(figures) > 1 else figures[0].name
    chosen = Figure(name, best.against, best.ratios, at_most(1.35), best.seconds, note or best.name.rpartition(" ")[2])
    return [*figures, chosen] if len(figures) > 1 else [chosen]


def _compiled(
    network: nn.Module, step: Callable[[Callable[..., Tensor]], None]
) -> tuple[Callable[..., Tensor] | None, str]:
    """Return the compiled network after a first step, or None and the reason."""
    if shutil.which("c++") is None and shutil.which("g++") is None and shutil.which("clang++") is None:
        return None, "not compiled: no C++ compiler was found"
    compiled = torch.compile(network)
    try:
        step(compiled)
    except BackendCompilerFailed:  # its message has a thousand lines, none of them useful here
        where = " in a folder with a space in its name" if " " in torch.__file__ else ""
        return None, f"not compiled: torch's compiler failed{where}"
    return compiled, ""
