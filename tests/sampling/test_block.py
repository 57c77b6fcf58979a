from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdlm.errors import InputError
from rdlm.sampling.prompt import stretches


@given(st.integers(1, 300), st.integers(1, 40), st.data())
def test_windows_cover_every_position_once(length: int, context: int, data: st.DataObject) -> None:
    block = data.draw(st.none() | st.integers(1, context))
    written = 0
    for begin, fresh, end in stretches(length, context, block):
        assert fresh == written and begin <= fresh < end
        assert end - begin == min(context, end)
        written = end
    assert written == length


@pytest.mark.parametrize("block", [0, 9])
def test_a_block_fits_its_window(block: int) -> None:
    with pytest.raises(InputError, match="1 to 8 tokens"):
        list(stretches(20, 8, block))
