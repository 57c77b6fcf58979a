"""`make audit`: licences of all packages that constraints.txt pins, and known vulnerabilities, with pip-audit.

Licences and versions are those of the installed packages, without a network. Vulnerabilities need pip-audit, which is
not a dependency of this package (install it into .venv or anywhere on the PATH), and a network. The exit code is 0 if
every pinned version was looked up and none is known to be vulnerable, 1 if one is, and 2 if something could not be
checked; what that is, and why, is printed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PINS = Path(__file__).parents[1] / "constraints.txt"


def pins() -> dict[str, str]:
    """Return the pinned version of each package."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", PINS.read_text(), re.MULTILINE))


def licence(name: str) -> str | None:
    """Return the licence of an installed package by its metadata; None if they have none."""
    about = importlib.metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return expression
    classified = [entry.rpartition(" :: ")[2] for entry in about.get_all("Classifier", []) if "License ::" in entry]
    stated = (about.get("License") or "").strip().partition("\n")[0]
    return ", ".join(sorted(classified)) or stated[:60] or None


def licences(pinned: dict[str, str]) -> bool:
    """Print the packages of each licence, and what could not be found; return whether everything was."""
    found, absent = defaultdict(list), []
    for name, version in pinned.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            absent.append(f"{name} (not installed)")
            continue
        if installed.partition("+")[0] != version.partition("+")[0]:
            absent.append(f"{name} ({installed} is installed, not {version})")
        found[licence(name) or "unknown"].append(name)
    for kind, names in sorted(found.items()):
        print(f"audit: {kind}: {', '.join(names)}")
    absent += [f"{name} (no licence in its metadata)" for name in found["unknown"]]
    not_checked("licence or version", absent)
    return not absent


def not_checked(what: str, names: Sequence[str], reason: str = "") -> None:
    """Print the packages of which something could not be checked."""
    if names:
        print(f"audit: NOT CHECKED, {what} of {len(names)}{reason}: {', '.join(names)}", file=sys.stderr)


def command() -> list[str] | None:
    """Return the command of pip-audit, or None if it is not installed."""
    if importlib.util.find_spec("pip_audit"):
        return [sys.executable, "-m", "pip_audit"]
    found = shutil.which("pip-audit")
    return None if found is None else [found]


def audit(program: list[str]) -> list[dict[str, Any]] | None:
    """Return the result of pip-audit for each pinned package, or None if it failed."""
    options = ["--disable-pip", "--no-deps", "--format", "json", "--progress-spinner", "off", "-r", str(PINS)]
    answer = subprocess.run([*program, *options], capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(answer.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        print(f"audit: pip-audit failed: {answer.stderr.strip()[-500:]}", file=sys.stderr)
        return None
    return found


def main() -> int:
    """Print licences, a line for each vulnerability and a summary, and return the exit code."""
    pinned = pins()
    known_licences = licences(pinned)
    program = command()
    if program is None:
        print("audit: pip-audit is not installed: .venv/bin/pip install pip-audit", file=sys.stderr)
    found = None if program is None else audit(program)
    if found is None:
        not_checked("vulnerabilities", list(pinned), " (no pip-audit, or no database)")
        return 2
    skipped = [entry["name"] for entry in found if "skip_reason" in entry]
    known = [(entry["name"], entry["version"], flaw) for entry in found for flaw in entry.get("vulns", [])]
    for name, version, flaw in known:
        fixed = ", ".join(flaw.get("fix_versions", [])) or "no version yet"
        print(f"audit: {name} {version}: {flaw['id']}, fixed in {fixed}")
    print(f"audit: {len(found) - len(skipped)} of {len(found)} pinned packages looked up, {len(known)} vulnerabilities")
    not_checked("vulnerabilities", skipped, " (not in the database that could be reached)")
    return 1 if known else 2 if skipped or not known_licences else 0


if __name__ == "__main__":
    sys.exit(main())
