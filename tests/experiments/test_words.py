"""The analysis of words: configurations of its rows, and words that are right."""

from __future__ import annotations

import pytest
import torch

from experiments.words import ROWS, _right, configuration, misread
from rdlm.config import TransformerConfig


@pytest.mark.parametrize("name", ROWS)
def test_rows_differ_in_process_method_and_layer_alone(name: str) -> None:
    first, config = configuration("masked", "wordpiece", 0), configuration(name, "wordpiece", 0)
    assert config.data == first.data and config.training == first.training and config.objective == first.objective
    assert isinstance(config.model, TransformerConfig) and isinstance(first.model, TransformerConfig)
    assert (config.model.width, config.model.layers) == (first.model.width, first.model.layers)
    assert (config.model.belief == "bigram") == name.endswith("above bigrams")
    assert config.model.tie == (config.process.base is None)


def test_letters_are_misread_at_the_rate_and_nothing_else_is() -> None:
    text = "the cat, sat. 19 " * 400
    found = misread(text, 0.1, torch.Generator().manual_seed(0))
    letters = [(old, new) for old, new in zip(text, found, strict=True) if old.isalpha()]
    wrong = sum(old != new for old, new in letters) / len(letters)
    assert abs(wrong - 0.1) < 5 * (0.09 / len(letters)) ** 0.5
    assert all(old == new for old, new in zip(text, found, strict=True) if not old.isalpha())
    assert misread(text, 0.0, torch.Generator()) == text


def test_a_word_is_right_if_all_of_its_letters_are() -> None:
    assert _right("the cat, sat 19.", "the cut, sat 18.") == [True, False, True]
