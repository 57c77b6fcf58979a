from __future__ import annotations

import pytest

from rdlm.errors import DamagedFileError, InputError, unknown


def test_a_near_name_is_suggested() -> None:
    error = unknown("law", "exct", ["normal", "exact", "simulated"])
    assert isinstance(error, InputError)
    assert str(error) == "unknown law 'exct': did you mean 'exact'?"


def test_several_near_names_are_suggested() -> None:
    assert "did you mean 'text' or 'text8'?" in str(unknown("corpus", "text9", ["text", "text8", "promoter"]))


def test_a_far_name_lists_all_choices_in_order() -> None:
    assert str(unknown("law", "zzz", ["normal", "exact"])) == "unknown law 'zzz': known: exact, normal"


def test_the_two_errors_are_told_apart() -> None:
    assert not issubclass(InputError, DamagedFileError)
    assert not issubclass(DamagedFileError, InputError)


@pytest.mark.parametrize("kind", [InputError, DamagedFileError])
def test_a_message_that_quotes_megabytes_is_shortened(kind: type[Exception]) -> None:
    text = str(kind(f"the alphabet {'x' * 5_000_000} is too long"))
    assert text.startswith("the alphabet xxx") and text.endswith("xxx is too long") and len(text) < 4000
    assert str(kind("short")) == "short"
