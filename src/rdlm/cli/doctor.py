"""`rdlm doctor`: what this machine has, what is missing, what is damaged, and what to do about it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from rdlm.display.tables import print_json, table
from rdlm.errors import DamagedFileError
from rdlm.storage.files import cache_dir

SPACE_WANTED = 1 << 30
"""Bytes that should be free for the tables and corpora of the caches, and for the checkpoints of runs."""

SLACK = 0.05
"""Share of the entropy by which the bound of the self-test may exceed it."""

SELF_TEST = 10.0
"""Seconds that the self-test may take; it takes about one where a processor is free."""

LEFT_BEHIND = 3600.0
"""Seconds after which a file that is still half-written belongs to nobody."""


@dataclass(frozen=True)
class Check:
    """One question to the machine: a failed check that is required makes the command fail."""

    name: str
    ok: bool
    detail: str
    required: bool = True


@dataclass(frozen=True)
class Doctor:
    """Check this machine, this installation and its caches; exit with 1 if something required is missing.

    The last checks compute: the sphere's maps against their identities, and a likelihood bound against the entropy of a
    small source, which it must not fall below.
    """

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print every check and return 0 if all required ones passed, else 1."""
        checks = [python(), *dependencies(), torch_build(), threads(), cache(), runs()]
        checks += [leftovers(), tables(), corpora(), *self_test()]
        rows = [asdict(check) for check in checks]
        if self.json:
            print_json({"checks": rows})
        else:
            print(table(rows, ["name", "ok", "required", "detail"]))
        return int(any(check.required and not check.ok for check in checks))


def python() -> Check:
    """Return whether this Python is recent enough."""
    ok = sys.version_info >= (3, 11)
    advice = "" if ok else "; install Python 3.11 or later"
    machine = f"{platform.system()} {platform.machine()}"
    return Check("python", ok, f"{platform.python_version()} on {machine}{advice}")


def dependencies() -> Iterator[Check]:
    """Yield a check for each dependency and each package of an extra, as the package declares them."""
    try:
        requirements = metadata.requires("rdlm") or []
    except metadata.PackageNotFoundError:
        yield Check("rdlm", False, "runs from its source without being installed; run: make setup")
        return
    yield Check("rdlm", True, metadata.version("rdlm"))
    for requirement in requirements:
        yield dependency(requirement)


def dependency(requirement: str) -> Check:
    """Return whether one requirement, such as `torch>=2.6` or `matplotlib; extra == 'viz'`, is met."""
    name, least = re.findall(r"^([\w.-]+)\s*(?:>=\s*([\d.]+))?", requirement)[0]
    extra = "".join(re.findall(r"extra == ['\"]([\w-]+)['\"]", requirement))
    label = f"{name} [{extra}]" if extra else name
    advice = f"pip install -c constraints.txt -e '.[{extra}]'" if extra else "make setup"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(label, False, f"missing; run: {advice}", required=not extra)
    if release(version) < release(least):
        return Check(label, False, f"{version} is older than {least}; run: {advice}", required=not extra)
    return Check(label, True, version, required=not extra)


def release(version: str) -> list[int]:
    """Return the numbers of a version's release, `2.13.0+cpu` as 2, 13, 0; of no version, nothing."""
    return [int(number) for number in re.split(r"[^\d.]", version)[0].split(".") if number]


def torch_build() -> Check:
    """Return whether torch can be imported and computes, and the devices that it sees."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("torch build", False, f"cannot be imported ({error}); run: make clean setup")
    devices = ["cpu"]
    devices += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return Check("torch build", True, f"{torch.__version__}, devices: {', '.join(devices)}")


def threads() -> Check:
    """Return whether torch uses no more threads than there are processors to run them."""
    try:
        import torch
    except (ImportError, OSError):
        return Check("threads", False, "unknown without torch", required=False)
    used = torch.get_num_threads()
    available = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    given = os.environ.get("OMP_NUM_THREADS", "unset")
    detail = f"{used} of {available} processors, OMP_NUM_THREADS {given}"
    advice = "" if used <= available else f"; set OMP_NUM_THREADS={available}"
    return Check("threads", used <= available, detail + advice, required=False)


def cache() -> Check:
    """Return whether the folder of caches can be written, and the space left there; leaves nothing behind."""
    return _disk("cache", cache_dir(), "set RDLM_CACHE to a folder that can be written, on a disk with room")


def runs() -> Check:
    """Return whether runs can be written where this command was started, and the space left there."""
    return _disk("runs", Path("runs"), "give rdlm train another --out", required=False)


def _disk(name: str, folder: Path, advice: str, required: bool = True) -> Check:
    standing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=standing) as file:
            file.write(bytes(1 << 16))
            file.flush()
    except OSError as error:
        return Check(name, False, f"{folder} cannot be written ({error.strerror}); {advice}", required)
    free = shutil.disk_usage(standing).free
    short = "" if free >= SPACE_WANTED else f"; free some, or {advice}"
    return Check(name, not short, f"{folder}, {free / 1e9:.1f} GB free{short}", required)


def leftovers() -> Check:
    """Return whether the caches are free of what killed processes left half-written."""
    now = time.time()
    found = [path for path in cache_dir().glob("*/.*.part") if now - path.lstat().st_mtime > LEFT_BEHIND]
    advice = f" left half-written by killed processes; delete {cache_dir()}/*/.*.part" if found else ""
    return Check("leftovers", not found, f"{len(found)} files{advice}", required=False)


def tables() -> Check:
    """Return whether every kept table of a law is whole; a damaged one would be built again."""
    try:
        from rdlm.storage.tables import check
    except (ImportError, OSError) as error:
        return Check("tables", False, f"cannot be checked ({error})", required=False)
    found = sorted((cache_dir() / "tables").glob("[!.]*.safetensors"))
    return _kept("tables", [(path, check) for path in found], "will be built again")


def corpora() -> Check:
    """Return whether every prepared corpus is as it was written; the content of unchanged files is not read again."""
    try:
        from rdlm.data import store
    except (ImportError, OSError) as error:
        return Check("corpora", False, f"cannot be checked ({error})", required=False)
    found = sorted(path.parent for path in (cache_dir() / "data").glob("[!.]*/meta.json"))
    return _kept("corpora", [(path, store.read) for path in found], "must be deleted and got again")


def _kept(name: str, checks: list[tuple[Path, Callable[[Path], object]]], advice: str) -> Check:
    reasons = []
    for path, check in checks:
        try:
            check(path)
        except DamagedFileError as error:
            reasons.append(str(error))
    damage = f"; {len(reasons)} damaged, which {advice}: {'; '.join(reasons)}" if reasons else ", all whole"
    return Check(name, not reasons, f"{len(checks)} kept{damage}", required=False)


def self_test() -> Iterator[Check]:
    """Yield the checks that compute, and whether they took no longer than they should."""
    begin = time.monotonic()
    yield geometry()
    yield certificate()
    seconds = time.monotonic() - begin
    ok = seconds <= SELF_TEST
    advice = "" if ok else f"; more than {SELF_TEST:g} s: this machine is busy, or threads are in each other's way"
    yield Check("self-test", ok, f"{seconds:.1f} s{advice}", required=False)


def geometry() -> Check:
    """Return whether the sphere's maps, Eq. (3), Eq. (4) and Eq. (5), keep their identities in float64."""
    try:
        import torch

        from rdlm.geometry import sphere
    except (ImportError, OSError) as error:
        return Check("geometry", False, f"cannot be imported ({error})")
    generator = torch.Generator().manual_seed(0)
    x, y = torch.nn.functional.normalize(torch.randn(2, 16, 28, dtype=torch.float64, generator=generator), dim=-1)
    tangent = sphere.logarithm(x, y)
    corner = torch.eye(2, dtype=torch.float64)
    errors = {
        "exp log y = y": (sphere.exponential(x, tangent) - y).abs().max(),
        "|log y| = d(x, y)": (tangent.norm(dim=-1) - sphere.distance(x, y)).abs().max(),
        "d(e1, e2) = pi/2": (sphere.distance(corner[0], corner[1]) - torch.pi / 2).abs(),
    }
    worst = max(errors, key=lambda name: float(errors[name].nan_to_num(torch.inf)))
    ok = bool(errors[worst] < 1e-12)
    advice = "" if ok else "; torch computes wrongly on this machine: reinstall with make clean setup"
    return Check("geometry", ok, f"largest error {float(errors[worst]):.1e} ({worst}){advice}")


def certificate() -> Check:
    """Return whether the bound of a small source, Eq. (28), lies at its entropy: not below it, and not far above."""
    try:
        import torch

        from rdlm.data import sources as source
        from rdlm.likelihood.certificate import CERTAINTY, Case, measure
        from rdlm.process.path import Mixture, masked_path
        from rdlm.process.schedule import Geometric
    except (ImportError, OSError) as error:
        return Check("certificate", False, f"cannot be imported ({error})")
    case = Case(source.skewed(3), "masked", Mixture((masked_path(3, Geometric().total),)), steps=64)
    bound = measure(case, 2000, torch.Generator().manual_seed(0)).bound
    entropy, margin = case.source.entropy, CERTAINTY * bound.stderr
    ok = entropy - margin <= bound.value <= (1 + SLACK) * entropy + margin
    advice = "" if ok else "; torch computes wrongly on this machine: reinstall with make clean setup"
    return Check("certificate", ok, f"bound {bound.value:.4f} ± {margin:.4f}, entropy {entropy:.4f} nats{advice}")
