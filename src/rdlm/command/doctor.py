"""`rdlm doctor`: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata

from rdlm.report import print_json, table
from rdlm.storage import cache_dir

SPACE_WANTED = 1 << 30  # bytes for the tables and corpora that the caches hold


@dataclass(frozen=True)
class Check:
    """One question to the machine: a failed check that is required makes the command fail."""

    name: str
    ok: bool
    detail: str
    required: bool = True


@dataclass(frozen=True)
class Doctor:
    """Check this machine and this installation; exit with 1 if something required is missing."""

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print every check and return 0 if all required ones passed, else 1."""
        checks = [python(), *dependencies(), torch_build(), threads(), cache(), geometry()]
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
    folder = cache_dir()
    standing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=standing):
            pass
    except OSError as error:
        return Check("cache", False, f"{folder} cannot be written ({error.strerror}); set RDLM_CACHE")
    free = shutil.disk_usage(standing).free
    advice = "" if free >= SPACE_WANTED else "; free some, or set RDLM_CACHE to a folder on a larger disk"
    return Check("cache", free >= SPACE_WANTED, f"{folder}, {free / 1e9:.1f} GB free{advice}")


def geometry() -> Check:
    """Return whether the sphere's maps, Eq. (3), Eq. (4) and Eq. (5), keep their identities in float64."""
    try:
        import torch

        from rdlm.geometry import sphere
    except (ImportError, OSError) as error:
        return Check("geometry", False, f"cannot be imported ({error})")
    generator = torch.Generator().manual_seed(0)
    x, y = torch.nn.functional.normalize(
        torch.randn(2, 16, 28, dtype=torch.float64, generator=generator), dim=-1
    )
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
