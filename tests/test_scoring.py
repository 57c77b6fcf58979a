"""Scores of texts: intervals, documents, windows, and what has no score."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdlm.config import ProcessConfig, RunConfig
from rdlm.data.tokenizer import Bytes, Characters, Tokenizer
from rdlm.errors import DamagedFileError, InputError
from rdlm.language_model import LanguageModel
from rdlm.method.rdlm import Rdlm
from rdlm.model.config import TransformerConfig
from rdlm.scoring import Effort, encode, score, score_document, windows

QUICK = Effort(calls=6, draws=6)


def language_model(tokenizer: Tokenizer, length: int = 8, **process: object) -> LanguageModel:
    torch.manual_seed(0)
    config = RunConfig(
        model=TransformerConfig(width=16, layers=1, heads=2), process=ProcessConfig(levels=8, pairs=64, **process)
    )  # type: ignore[arg-type]
    method = Rdlm(config, tokenizer.size)
    method.network.eval()
    about = {"kind": "text", "length": length, "protocol": "toy", "classes": [], "signal": False}
    return LanguageModel("toy", method, tokenizer, config, about)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return language_model(Characters("abcdefgh "))


def test_scores_have_intervals_and_units(model: LanguageModel) -> None:
    short, long = score(model, ["ab", "abc def"], QUICK)
    assert (short.tokens, short.chars, long.tokens) == (2, 2, 7)
    # An untrained network with evidence knows no more than that all characters are alike.
    assert long.nats.low < 7 * math.log(9) * 1.3 and long.nats.value > 7 * math.log(9) * 0.9
    assert long.bits_per_char == pytest.approx(long.nats.value / 7 / math.log(2))
    assert {"nats", "stderr", "chars", "bits_per_char"} <= set(long.row())
    assert short.nats.stderr > 0 and short.nats.claims_bound


def test_a_text_scores_alike_in_any_company(model: LanguageModel) -> None:
    alone = score(model, ["abc def"], Effort(6, draws=40, seed=1))[0].nats
    among = score(model, ["hhh", "abc def", "abcd"], Effort(6, draws=40, seed=2))[1].nats
    steps = score(model, ["abc def"], Effort(6, "steps", 400, seed=3))[0].nats
    for other in (among, steps):
        assert alone.value == pytest.approx(other.value, abs=4 * math.hypot(alone.stderr, other.stderr))


def test_the_sum_over_parts_is_the_whole(model: LanguageModel) -> None:
    text = "abc def gh abcd ef gh ab cd"  # 27 characters: windows of 8, 8, 8 and 3
    effort = Effort(6, draws=20, seed=4)
    whole = score_document(model, text, effort)
    assert (whole.windows, whole.tokens, whole.chars) == (4, 27, 27)
    parts = [score(model, [text[i : i + 8]], Effort(6, draws=20, seed=10 + i))[0].nats for i in range(0, 27, 8)]
    total = sum((p for p in parts[1:]), start=parts[0])
    assert whole.nats.value == pytest.approx(total.value, abs=4 * math.hypot(whole.nats.stderr, total.stderr))


def test_a_long_document_by_steps_and_by_paths(model: LanguageModel) -> None:
    text = "abc def gh ab ef" * 20 + "abc"
    steps = score_document(model, text, Effort(6, "steps", 20))
    paths = score_document(model, text, Effort(6, "path", 3))
    assert steps.windows == paths.windows == 41
    assert steps.nats.value == pytest.approx(
        paths.nats.value, abs=4 * math.hypot(steps.nats.stderr, paths.nats.stderr)
    )


@given(st.integers(2, 100), st.integers(3, 20))
def test_windows_cover_everything_once(tokens: int, length: int) -> None:
    parts = windows(torch.arange(tokens), length)
    assert torch.equal(torch.cat(parts), torch.arange(tokens))
    assert all(2 <= len(part) <= length for part in parts)
    assert all(len(part) == length for part in parts[:-2])


def test_progress_adds_up(model: LanguageModel) -> None:
    seen: list[int] = []
    score(model, ["abc", "abcd", "efg"], QUICK, advance=seen.append)
    assert sum(seen) == 3 * QUICK.cost


def test_unknown_characters(model: LanguageModel) -> None:
    with pytest.raises(InputError, match="'X' at position 1"):
        score(model, ["aXb"], QUICK)
    assert encode(model, "aXb", "skip").ids.tolist() == [0, 1]
    assert encode(model, "aXb", "replace").ids.tolist() == [0, 8, 1]
    assert encode(model, "aXb", "skip").chars == 2


def test_bytes_count_characters_not_tokens() -> None:
    found = encode(language_model(Bytes(), base=16), "a\N{LATIN SMALL LETTER E WITH ACUTE}")
    assert (len(found.ids), found.chars) == (3, 2)


@pytest.mark.parametrize("text", ["", "a"])
def test_texts_below_two_tokens_are_refused(model: LanguageModel, text: str) -> None:
    with pytest.raises(InputError, match="at least 2 tokens"):
        score(model, [text], QUICK)
    with pytest.raises(InputError, match="at least 2 tokens"):
        score_document(model, text, QUICK)


def test_a_text_longer_than_the_model_is_a_document(model: LanguageModel) -> None:
    with pytest.raises(InputError, match="as a document"):
        score(model, ["abcdefgha"], QUICK)


def test_weights_that_are_not_finite_score_nothing() -> None:
    broken = language_model(Characters("abc "))
    name, parameter = next(iter(broken.method.network.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[0] = math.nan
    with pytest.raises(DamagedFileError, match=name):
        score(broken, ["abc"], QUICK)


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(InputError, match="3 draws"):
        Effort(draws=2)
    with pytest.raises(InputError, match="network call"):
        Effort(calls=0)
