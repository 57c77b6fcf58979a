"""The packages at the root of the repository, `benchmarks` and `experiments`, which the wheel does not contain."""

from __future__ import annotations

import sys
from pathlib import Path

import rdlm
from rdlm.errors import InputError


def require_checkout(command: str, package: str) -> None:
    """Make a root package of the source checkout importable; outside of a checkout this is an InputError."""
    root = Path(rdlm.__file__).parents[2]
    if not (root / package / "__init__.py").is_file():
        raise InputError(
            f"rdlm {command} needs a checkout of the repository: its folder {package}/ is not part of the installed "
            "package. Clone the repository, or unpack the source distribution of rdlm "
            f"{rdlm.__version__}; run `make setup` there, then `.venv/bin/rdlm {command}`"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
