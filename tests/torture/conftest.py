"""Makes the modules of the folder `torture` importable: the tests here run a small part of its campaign."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "torture"))
