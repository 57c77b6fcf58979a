"""Checkpoints with arbitrary content and correct checksums, as an attacker would write them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rdlm.storage.manifest import with_checksum


def rewrite_state(path: Path, change: Callable[[dict[str, Any]], object] = lambda state: None) -> None:
    """Change state.json and update all checksums."""
    state = json.loads((path / "state.json").read_text())
    change(state)
    state.pop("sha256")
    for name, entry in state["files"].items():
        content = (path / name).read_bytes()
        entry.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    (path / "state.json").write_text(json.dumps(with_checksum(state)))
