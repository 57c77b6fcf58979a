"""Traces: which steps a figure shows, and what it shows of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import pyplot

from rdlm.api.output import Frame, draw, spaced


def frame(*certainty: float, text: str = "ab") -> Frame:
    return Frame(tuple(text), certainty, ())


FRAMES = [frame(0.1 * step, 0.05 * step) for step in range(10)] + [frame(1, 0.995)] * 20 + [frame(1, 1, text="cd")]


def test_steps_are_equally_spaced_and_end_where_all_tokens_are_certain() -> None:
    names, shown = zip(*spaced(FRAMES, 6), strict=True)
    assert names == ("1", "3", "5", "7", "9", "11", "sample")
    assert shown[1] is FRAMES[2] and shown[-1] is FRAMES[-1]


def test_every_step_is_shown_where_there_are_few() -> None:
    assert [name for name, _ in spaced(FRAMES, 100)] == [*map(str, range(1, 12)), "sample"]
    assert [name for name, _ in spaced([frame(0.5, 0.5), frame(1, 1)], 5)] == ["1", "sample"]


def test_a_token_that_becomes_uncertain_again_is_shown() -> None:
    frames = [frame(1, 1), frame(1, 1), frame(0.2, 1), frame(1, 1), frame(1, 1), frame(1, 1)]
    assert [name for name, _ in spaced(frames, 9)] == ["1", "2", "3", "4", "sample"]


def test_a_figure_has_the_letters_and_certainties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    draw(FRAMES[8:], tmp_path / "trace.png")
    axis = drawn[0].axes[0]
    assert [text.get_text() for text in axis.texts] == list("ab" * 3 + "cd")
    shades = axis.images[0].get_array().ravel().tolist()
    assert shades == pytest.approx([0.8, 0.4, 0.9, 0.45, 1, 0.995, 1, 1])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["1", "2", "3", "sample"]
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")
