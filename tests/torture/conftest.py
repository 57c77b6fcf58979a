"""The campaign's modules are imported by the tests here, which run a little of it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
