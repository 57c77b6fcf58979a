from __future__ import annotations

import pytest
import torch

from rdlm.errors import DamagedFileError
from rdlm.storage.checkpoint import AllocationLimit


def test_sizes_are_counted_before_anything_is_allocated() -> None:
    with AllocationLimit(1000, 9), pytest.raises(DamagedFileError, match="larger than its files"):
        torch.empty(1 << 50)
    with AllocationLimit(1000, 9) as limit:
        torch.nn.Linear(10, 10)
        assert limit.bytes_left == 1000 - 4 * 110
        with pytest.raises(DamagedFileError, match="larger"):
            torch.nn.Linear(20, 20)
    with AllocationLimit(1000, 2), pytest.raises(DamagedFileError, match="larger"):
        [torch.zeros(1) for _ in range(3)]
