"""`rdlm doctor`: check the machine, the installation and the caches, and give advice."""

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

from rdlm.display.text_table import print_result, table
from rdlm.errors import DamagedFileError
from rdlm.storage.files import cache_dir

SPACE_WANTED = 1 << 30
"""Bytes that should be free for the caches (tables, corpora) and for the checkpoints of runs."""

SLACK = 0.05
"""Largest relative excess of the bound over the entropy in the self-test."""

SELF_TEST = 10.0
"""Limit of the self-test in seconds; it takes about one on an idle processor."""

LEFT_BEHIND = 3600.0
"""Age in seconds after which a partly written file counts as abandoned."""


@dataclass(frozen=True)
class Check:
    """The result of one check; a failed check that is required makes the command fail."""

    name: str
    ok: bool
    detail: str
    required: bool = True


@dataclass(frozen=True)
class Doctor:
    """Check this machine, this installation and its caches; exit with code 1 if something required is missing.

    The last checks are numerical: the maps of the sphere against their identities, and a likelihood bound against the
    entropy of a small source.
    """

    developer: bool = False
    """Also check the packages for tests and development."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print every check and return 0 if all required ones passed, else 1."""
        needed = [check for check in dependencies() if self.developer or not check.name.endswith("[dev]")]
        checks = [python(), *needed, torch_build(), threads(), cache(), runs()]
        checks += [leftovers(), tables(), corpora(), *self_test()]
        rows = [asdict(check) for check in checks]
        print_result({"checks": rows}, table(rows, ["name", "ok", "required", "detail"]), self.json)
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
        yield Check("rdlm", False, "not installed, runs from its source; run: make setup")
        return
    yield Check("rdlm", True, metadata.version("rdlm"))
    for requirement in requirements:
        yield dependency(requirement)


def in_checkout() -> bool:
    """Return whether this is a checkout of the repository, not an installed package."""
    return (Path(__file__).parents[3] / "constraints.txt").is_file()


def dependency(requirement: str) -> Check:
    """Return whether one requirement, such as `torch>=2.6` or `matplotlib; extra == 'viz'`, is met."""
    name, least = re.findall(r"^([\w.-]+)\s*(?:>=\s*([\d.]+))?", requirement)[0]
    extra = "".join(re.findall(r"extra == ['\"]([\w-]+)['\"]", requirement))
    label = f"{name} [{extra}]" if extra else name
    if in_checkout():
        advice = f"pip install -c constraints.txt -e '.[{extra}]'" if extra else "make setup"
    else:
        advice = f"pip install 'rdlm[{extra}]'" if extra else f"pip install --upgrade {name}"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(label, False, f"missing; run: {advice}", required=not extra)
    if release(version) < release(least):
        return Check(label, False, f"{version} is older than {least}; run: {advice}", required=not extra)
    return Check(label, True, version, required=not extra)


def release(version: str) -> list[int]:
    """Return the release numbers of a version, `2.13.0+cpu` as 2, 13, 0; empty for an empty string."""
    return [int(number) for number in re.split(r"[^\d.]", version)[0].split(".") if number]


def torch_build() -> Check:
    """Return whether torch can be imported, and its devices."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("torch build", False, f"cannot be imported ({error}); run: make clean setup")
    devices = ["cpu"]
    devices += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return Check("torch build", True, f"{torch.__version__}, devices: {', '.join(devices)}")


def threads() -> Check:
    """Return whether torch uses no more threads than there are processors."""
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
    """Return whether the cache folder is writable, and its free space."""
    return _disk("cache", cache_dir(), "set RDLM_CACHE to a writable folder on a disk with free space")


def runs() -> Check:
    """Return whether the folder of runs in the working directory is writable, and its free space."""
    return _disk("runs", Path("runs"), "give rdlm train another --out", required=False)


def _disk(name: str, folder: Path, advice: str, required: bool = True) -> Check:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(1 << 16))
            file.flush()
    except OSError as error:
        return Check(name, False, f"{folder} cannot be written ({error.strerror}); {advice}", required)
    free = shutil.disk_usage(existing).free
    short = "" if free >= SPACE_WANTED else f"; free some space, or {advice}"
    return Check(name, not short, f"{folder}, {free / 1e9:.1f} GB free{short}", required)


def leftovers() -> Check:
    """Return whether the caches have partly written files of killed processes."""
    now = time.time()
    found = [path for path in cache_dir().glob("*/.*.part") if now - path.lstat().st_mtime > LEFT_BEHIND]
    advice = f" left by killed processes; delete {cache_dir()}/*/.*.part" if found else ""
    return Check("leftovers", not found, f"{len(found)} files{advice}", required=False)


def tables() -> Check:
    """Return whether every cached table of a law is intact; a damaged one is rebuilt when needed."""
    try:
        from rdlm.storage import tables as stored
    except (ImportError, OSError) as error:
        return Check("tables", False, f"cannot be checked ({error})", required=False)
    found = sorted(cache_dir("tables").glob("[!.]*.safetensors"))
    return _kept("tables", [(path, stored.check) for path in found], "will be rebuilt")


def corpora() -> Check:
    """Return whether every prepared corpus is intact; the content of unchanged files is not read again."""
    try:
        from rdlm.data import store
    except (ImportError, OSError) as error:
        return Check("corpora", False, f"cannot be checked ({error})", required=False)
    found = sorted(path.parent for path in cache_dir("data").glob("[!.]*/meta.json"))
    return _kept("corpora", [(path, store.read) for path in found], "must be deleted and prepared again")


def _kept(name: str, checks: list[tuple[Path, Callable[[Path], object]]], advice: str) -> Check:
    reasons = []
    for path, check in checks:
        try:
            check(path)
        except DamagedFileError as error:
            reasons.append(str(error))
    damage = f"; {len(reasons)} damaged, which {advice}: {'; '.join(reasons)}" if reasons else ", all intact"
    return Check(name, not reasons, f"{len(checks)} cached{damage}", required=False)


def self_test() -> Iterator[Check]:
    """Yield the numerical checks, and whether they took no longer than expected."""
    begin = time.monotonic()
    yield geometry()
    yield certificate()
    seconds = time.monotonic() - begin
    ok = seconds <= SELF_TEST
    advice = "" if ok else f"; more than {SELF_TEST:g} s: the machine is busy, or there are too many threads"
    yield Check("self-test", ok, f"{seconds:.1f} s{advice}", required=False)


def geometry() -> Check:
    """Return whether the maps of the sphere, Eq. (3), Eq. (4) and Eq. (5), satisfy their identities in float64."""
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
    advice = "" if ok else "; torch returns wrong results on this machine: reinstall with make clean setup"
    return Check("geometry", ok, f"largest error {float(errors[worst]):.1e} ({worst}){advice}")


def certificate() -> Check:
    """Return whether the bound of a small source, Eq. (28), is at most slightly above its entropy, and not below."""
    try:
        import torch

        from rdlm.data import sources
        from rdlm.likelihood.certificate import CERTAINTY, Case, measure
        from rdlm.process.path import Mixture, masked_path
        from rdlm.process.schedule import Geometric
    except (ImportError, OSError) as error:
        return Check("certificate", False, f"cannot be imported ({error})")
    case = Case(sources.skewed(3), "masked", Mixture((masked_path(3, Geometric().total),)), steps=64)
    bound = measure(case, 2000, torch.Generator().manual_seed(0)).bound
    entropy, margin = case.source.entropy, CERTAINTY * bound.stderr
    ok = entropy - margin <= bound.value <= (1 + SLACK) * entropy + margin
    advice = "" if ok else "; torch returns wrong results on this machine: reinstall with make clean setup"
    return Check("certificate", ok, f"bound {bound.value:.4f} ± {margin:.4f}, entropy {entropy:.4f} nats{advice}")
