"""`make audit`: look up known vulnerabilities of all versions that constraints.txt pins, with pip-audit.

pip-audit is not a dependency of this package: install it into .venv or anywhere on the PATH. The exit code is 0 if
every pinned version was looked up and none is known to be vulnerable, 1 if one is, and 2 if pip-audit or the database
of advisories (PyPI's) was not available for all of them.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PINS = Path(__file__).parents[1] / "constraints.txt"


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
    """Print a line for each vulnerability and a summary, and return the exit code."""
    program = command()
    if program is None:
        print("audit: pip-audit is not installed: .venv/bin/pip install pip-audit", file=sys.stderr)
        return 2
    found = audit(program)
    if found is None:
        return 2
    skipped = [entry["name"] for entry in found if "skip_reason" in entry]
    known = [(entry["name"], entry["version"], flaw) for entry in found for flaw in entry.get("vulns", [])]
    for name, version, flaw in known:
        fixed = ", ".join(flaw.get("fix_versions", [])) or "no version yet"
        print(f"audit: {name} {version}: {flaw['id']}, fixed in {fixed}")
    print(f"audit: {len(found) - len(skipped)} of {len(found)} pinned packages looked up, {len(known)} vulnerabilities")
    if skipped:
        print(f"audit: not in the database that could be reached: {', '.join(skipped)}", file=sys.stderr)
    return 1 if known else 2 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
