"""Certify an estimator of likelihoods, of any framework, against sources of known entropy.

    import rdlm

    def estimator(oracle):                      # nats per sequence, from exact posteriors
        return oracle.surprise(oracle.left_to_right()).sum(-1)

    print(rdlm.certify(estimator))              # entropy, estimate, interval and verdict on every source

In a test: `from rdlm.certify import floor`, then `floor(estimator)`. The guide is docs/guides/certify.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rdlm.certify.certificate_page import Certificate
from rdlm.certify.checks import LAWS, Finding, Plan, Sampler, check_floor, default_sources, findings
from rdlm.certify.gallery import Estimator, masked_continuous
from rdlm.certify.oracle import LearnedOracle, Network, Oracle, train_network
from rdlm.data.sources import Source
from rdlm.errors import InputError, unknown

__all__ = ["Certificate", "Estimator", "Finding", "LearnedOracle", "Oracle", "certify", "floor"]

SECONDS = 120.0
"""Time limit of one check on one source, for estimators that are given by name."""

STARTUP = 300.0
"""Time limit for a new process to import this package."""

GUARD = 'a script that calls rdlm.certify needs `if __name__ == "__main__":` before its calls'
"""Advice for a process that did not start: it imports the script that starts it."""

Factory = Callable[[int, int], torch.nn.Module]
"""Maps vocabulary and length to a network with `forward(ids, mask, t)`."""


def certify(
    estimator: Estimator | str | None = None,
    *,
    model: Factory | str | None = None,
    sampler: Sampler | str | None = None,
    sources: Sequence[Source] | None = None,
    laws: Sequence[str] = tuple(LAWS),
    samples: int = Plan.samples,
    seed: int = 0,
    resolution: float = Plan.resolution,
    train_steps: int = 600,
    seconds: float = SECONDS,
) -> Certificate:
    """Return the certificate of an estimator, which maps an `Oracle` to nats per sequence.

    A string `module:function` or `file.py:function` is imported and run in a process of its own with a time limit of
    `seconds` for each check on each source; a function runs in this process, without a limit. With a `model`, networks
    are trained on every source for `train_steps` steps and take the place of the exact posteriors of erased tokens;
    the default estimator is then the bound of masked diffusion.
    """
    for law in laws:
        if law not in LAWS:
            raise unknown("check", law, LAWS)
    if estimator is None and model is None:
        raise InputError("give an estimator, or a model, or both")
    request = Request(
        estimator or masked_continuous, model, sampler, sources, tuple(laws), samples, seed, resolution, train_steps
    )
    request.plan()  # checks the settings
    named = any(isinstance(part, str) for part in (estimator, model, sampler))
    found = _in_child(request, seconds) if named else request.findings()
    return Certificate(_name(estimator, model), tuple(found), samples, seed, resolution)


def floor(
    estimator: Estimator,
    *sources: Source,
    samples: int = Plan.samples,
    seed: int = 0,
    resolution: float = Plan.resolution,
) -> None:
    """Raise AssertionError unless the estimator is a bound on every source, by default on all of `default_sources`."""
    plan = Plan(samples, seed, resolution)
    for source in sources or default_sources():
        found = check_floor(estimator, source, plan)
        if found.outcome != "held":
            text = f"{found.value:.4f} ± {found.stderr:.4f} nats against an entropy of {found.limit:.4f}"
            raise AssertionError(f"{_name(estimator, None)} on {found.source}: {found.verdict} ({text})")


def _name(estimator: Estimator | str | None, model: Factory | str | None) -> str:
    parts = [
        part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)
        for part in (estimator, model)
        if part
    ]
    return " with ".join(parts)


class _Trained:
    """Makes oracles whose network is trained once per source."""

    def __init__(self, factory: Factory, steps: int, seed: int) -> None:
        self._factory, self._steps, self._seed = factory, steps, seed
        self._networks: dict[str, Network] = {}

    def __call__(self, source: Source, tokens: Tensor, generator: torch.Generator) -> Oracle:
        if source.name not in self._networks:
            torch.manual_seed(self._seed)  # of the network's initial weights
            network = self._factory(source.states, source.length)
            if not isinstance(network, torch.nn.Module):
                raise InputError(
                    f"a model is a function of vocabulary and length that returns a torch module, got {network!r}"
                )
            train_network(network, source, self._steps, seed=self._seed)
            self._networks[source.name] = network.eval()
        return LearnedOracle(self._networks[source.name], source, tokens, generator)


@dataclass(frozen=True)
class Request:
    """The arguments of `certify`; names are resolved in the process that runs them."""

    estimator: Estimator | str
    model: Factory | str | None
    sampler: Sampler | str | None
    sources: Sequence[Source] | None
    laws: tuple[str, ...]
    samples: int
    seed: int
    resolution: float
    train_steps: int

    def plan(self) -> Plan:
        """Return the settings, without model and sampler."""
        return Plan(self.samples, self.seed, self.resolution)

    def findings(self) -> Iterator[Finding]:
        """Import what is named and yield every finding."""
        estimator, model, sampler = (_resolve(part) for part in (self.estimator, self.model, self.sampler))
        plan, laws = replace(self.plan(), sampler=sampler), self.laws
        if model is not None:
            plan = replace(plan, oracle=_Trained(model, self.train_steps, self.seed))
            # Networks trained on differently numbered sources are different networks.
            laws = tuple(law for law in laws if law != "relabelling")
        yield from findings(estimator, plan, self.sources, laws)


# -- functions by name, in a process of their own ----------------------------------------------------------------------


def _resolve(part: Any) -> Any:
    return load_function(part) if isinstance(part, str) else part


def load_function(name: str) -> Callable[..., Any]:
    """Return the function `module:function` (modules of the current folder included) or `file.py:function`."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise InputError(f"name a function as module:function or file.py:function, got {name!r}")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"importing {place} failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise unknown(f"function of {place}", attribute, [key for key in vars(module) if not key.startswith("_")])
    function = getattr(module, attribute)
    if not callable(function):
        raise InputError(f"{name} is {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


def _load_module(place: str) -> types.ModuleType:
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    if importlib.util.find_spec(place.partition(".")[0]) is None:
        raise InputError(
            f"there is no module {place!r} in {folder} or in the environment; a file is named file.py:function"
        )
    return importlib.import_module(place)


def _load_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))  # for its imports of neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _place(request: Request, done: int) -> str:
    """Return the place of a failure in words."""
    listed = [source.name for source in (default_sources() if request.sources is None else request.sources)]
    return f"on the source {listed[done]}" if done < len(listed) else f"after {done} findings"


def _child(connection: Connection, request: Request) -> None:
    """Send True when ready to import what the user named, then every finding, then None; or the text of an error.

    What the estimator prints goes to standard error: standard output is the report, with --json one object.
    """
    os.dup2(2, 1)
    torch.set_num_threads(1)  # many small operations, for which more threads are slower
    connection.send(True)
    try:
        for finding in request.findings():
            connection.send(finding)
        connection.send(None)
    except InputError as error:
        connection.send(str(error))


def _in_child(request: Request, seconds: float) -> Iterator[Finding]:
    """Yield the findings of a process that is ended when one of them takes longer than `seconds`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, request), daemon=True)
    process.start()
    theirs.close()
    done, starting = 0, True
    try:
        while True:
            limit = STARTUP if starting else seconds
            if not ours.poll(limit):
                raise InputError(f"stopped {_place(request, done)}: one check took longer than {limit:g} seconds")
            try:
                found = ours.recv()
            except EOFError:
                process.join()
                place = f"before it started; {GUARD}" if starting else _place(request, done)
                raise InputError(f"the process ended with exit code {process.exitcode} {place}") from None
            if isinstance(found, str):
                raise InputError(found)
            if found is None:
                return
            starting = False
            if isinstance(found, Finding):
                done += 1
                yield found
    finally:
        process.kill()
        process.join()
        ours.close()


class _CallableModule(types.ModuleType):
    """Lets `rdlm.certify` be the function and the module that holds `floor`."""

    def __call__(self, *arguments: Any, **options: Any) -> Certificate:
        return certify(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
