"""Scores of texts: intervals, documents, windows, tokens, baselines, and what has no score."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdlm.api.language_model import LanguageModel
from rdlm.api.score import BUDGET, Effort, effort_for, encode_text, score, split_windows
from rdlm.config import MethodName, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.tokenizer import Bytes, Characters, Tokenizer, wordpiece
from rdlm.errors import DamagedFileError, InputError
from rdlm.evaluate.evaluate import describe_bound
from rdlm.methods import METHODS
from rdlm.methods.base import BoundEstimator
from rdlm.methods.bound import Setting

QUICK = Effort(nfe=6, draws=6)


def language_model(tokenizer: Tokenizer, length: int = 8, name: MethodName = "rdlm", **process: Any) -> LanguageModel:
    torch.manual_seed(0)
    config = RunConfig(
        method=name,
        model=TransformerConfig(width=16, layers=1, heads=2),
        process=ProcessConfig(levels=8, pairs=64, **process),
    )
    method = METHODS[name](config, tokenizer.size, 0, 0)
    method.network.eval()
    about = {"kind": "text", "length": length, "protocol": "toy", "classes": [], "signal": False}
    return LanguageModel("toy", method, tokenizer, config, about)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return language_model(Characters("abcdefgh "))


def test_characters_without_tokens_do_not_count() -> None:
    """Word pieces drop spaces and, if they are skipped, unknown words: these characters have no nats either."""
    model = language_model(wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s"]))
    assert encode_text(model, "the cats").chars == encode_text(model, " the   cats ").chars == 8
    assert encode_text(model, "the dog cats", "skip").chars == 8
    assert encode_text(model, "the dog cats", "replace").chars == 12


@pytest.mark.parametrize(("about", "said"), [({"classes": ["a", "b"]}, "label"), ({"signal": True}, "signal")])
def test_the_convention_of_a_bound_names_what_is_given(about: dict[str, Any], said: str) -> None:
    model = language_model(Characters("ab "))
    told = replace(model, about={**model.about, **about})
    plain, found = (describe_bound(one, Setting(8)) for one in (model, told))
    assert found == f"{plain}, given the {said} of each sequence" and plain.startswith("upper bound at 8 network calls")


def test_scores_have_intervals_and_units(model: LanguageModel) -> None:
    short, long = score(model, ["ab", "abc def"], QUICK)
    assert (short.tokens, short.chars, len(long.tokens)) == (("a", "b"), 2, 7)
    # An untrained network with evidence predicts all characters equally.
    assert long.nats.low < 7 * math.log(9) * 1.3 and long.nats.value > 7 * math.log(9) * 0.9
    assert long.bits_per_char == pytest.approx(long.nats.value / 7 / math.log(2))
    assert {"nats", "stderr", "chars", "bits_per_char", "claims_bound"} <= set(long.row())
    assert set(long.row(positions=True)) - set(long.row()) == {"positions", "tokens"}
    assert short.nats.stderr > 0 and short.nats.claims_bound


def test_texts_of_any_iterable_are_scored(model: LanguageModel) -> None:
    """A generator was read as no text."""
    texts = ["abab", "baba"]
    wanted = [found.nats.value for found in model.score(texts, seed=1)]
    assert [found.nats.value for found in model.score((text for text in texts), seed=1)] == wanted
    for wrong, name in ((None, "NoneType"), ([3], "int"), ([None], "NoneType"), (b"ab", "bytes"), ({"ab": 1}, "dict")):
        with pytest.raises(InputError, match=f"are lists of texts, got {name}"):
            model.score(wrong)
    with pytest.raises(InputError, match="are lists of texts, got Tensor"):
        model.score(torch.zeros(2, 8, dtype=torch.long))


def test_a_score_does_not_depend_on_other_texts(model: LanguageModel) -> None:
    alone = score(model, ["abc def"], Effort(6, draws=20, seed=1))[0].nats
    among = score(model, ["hhh", "abc def", "abcd"], Effort(6, draws=20, seed=2))[1].nats
    steps = score(model, ["abc def"], Effort(6, "steps", 150, seed=3))[0].nats
    for other in (among, steps):
        assert alone.value == pytest.approx(other.value, abs=4 * math.hypot(alone.stderr, other.stderr))


def test_the_sum_over_parts_is_the_whole(model: LanguageModel) -> None:
    text = "abc def gh abcd ef gh ab cd"  # 27 characters: windows of 8, 8, 8 and 3
    (whole,) = score(model, [text], Effort(6, draws=20, seed=4))
    assert (whole.windows, len(whole.tokens), whole.chars) == (4, 27, 27)
    parts = [score(model, [text[i : i + 8]], Effort(6, draws=20, seed=10 + i))[0].nats for i in range(0, 27, 8)]
    total = sum((p for p in parts[1:]), start=parts[0])
    assert whole.nats.value == pytest.approx(total.value, abs=4 * math.hypot(whole.nats.stderr, total.stderr))


def test_the_parts_of_a_long_document_add_up_by_steps(model: LanguageModel) -> None:
    """Sixty windows from three random steps each; ten parts of six windows, told apart by lines."""
    text = "abc def gh ab ef" * 30
    (whole,) = score(model, [text], Effort(6, "steps", 3, seed=5))
    parts = score(model, [text[i : i + 48] for i in range(0, 480, 48)], Effort(6, "steps", 3, seed=6))
    total = sum((p.nats for p in parts[1:]), start=parts[0].nats)
    assert whole.windows == 60 and sum(part.windows for part in parts) == 60
    assert whole.nats.value == pytest.approx(total.value, abs=4 * math.hypot(whole.nats.stderr, total.stderr))
    assert whole.nats.stderr < 0.05 * whole.nats.value


@pytest.mark.parametrize("estimator", ["path", "steps"])
@pytest.mark.parametrize("process", [{}, {"base": 3, "layout": "serial"}, {"window": 0.25}])
def test_the_shares_of_tokens_add_up(estimator: BoundEstimator, process: dict[str, Any]) -> None:
    model = language_model(Characters("abcdefgh "), **process)
    (found,) = score(model, ["abc def gh a"], Effort(6, estimator, 3))
    assert "".join(found.tokens) == "abc def gh a" and len(found.positions) == 12
    assert sum(found.positions) * math.log(2) == pytest.approx(found.nats.value)


def test_the_share_of_a_token_is_estimated_without_bias() -> None:
    """Both estimators, over many draws: each token's share agrees, though letters differ by more than their errors."""
    model = language_model(Characters("abc "), length=4)
    with torch.no_grad():  # a network that knows which letters are rare
        bias = dict(model.method.network.named_parameters())["head.bias"]
        bias.copy_(torch.tensor([2.0, 0.0, -2.0, 0.0]))
    found = {}
    for estimator, draws in (("path", 3), ("steps", 24)):
        scores = score(model, ["abca"] * 64, Effort(4, estimator, draws))  # type: ignore[arg-type]
        values = torch.tensor([one.positions for one in scores], dtype=torch.float64)
        found[estimator] = values.mean(0), values.std(0) / 8
    (path, path_error), (steps, steps_error) = found.values()
    assert bool(((path - steps).abs() < 5 * torch.hypot(path_error, steps_error)).all())
    assert float(path[2] - path[0]) > 5 * float(path_error.max())


def test_a_long_document_by_steps_and_by_paths(model: LanguageModel) -> None:
    text = "abc def gh ab ef" * 20 + "abc"
    (steps,) = score(model, [text], Effort(6, "steps", 20))
    (paths,) = score(model, [text], Effort(6, "path", 3))
    assert steps.windows == paths.windows == 41
    assert steps.nats.value == pytest.approx(paths.nats.value, abs=4 * math.hypot(steps.nats.stderr, paths.nats.stderr))


def test_effort_is_what_the_budget_allows(model: LanguageModel) -> None:
    assert effort_for(model, 1) == Effort(64, "path", 4)
    for windows_in_all in (200, 2000, 20_000):
        effort = effort_for(model, windows_in_all)
        assert effort.estimator == "steps" and 3 <= effort.draws <= 64
        assert effort.draws == 3 or effort.cost(model, windows_in_all) <= BUDGET
    mixture = language_model(Characters("abc "), path="constant")
    assert Effort(6).cost(mixture, 5) == 2 * Effort(6).cost(model, 5) == 2 * 5 * 4 * 6


@pytest.mark.parametrize("name", ["mdlm", "udlm", "sedd", "autoregressive", "fisher_flow"])
def test_baselines_score_by_their_own_bound(name: MethodName) -> None:
    model = language_model(Characters("abcdefgh "), name=name)
    seen: list[int] = []
    effort = effort_for(model, 2, nfe=8)
    (found,) = score(model, ["abc def gh a"], effort, advance=seen.append)
    assert sum(seen) == effort.cost(model, 2)
    assert found.windows == 2 and found.positions == ()
    assert found.nats.claims_bound == (name != "fisher_flow")
    if name == "autoregressive":  # which is exact
        ids = encode_text(model, "abc def gh a").ids
        exact = -float(model.method.log_likelihood(ids[None, :8]) + model.method.log_likelihood(ids[None, 8:]))  # type: ignore[attr-defined]
        assert found.nats.value == pytest.approx(exact, rel=1e-6) and found.nats.stderr < 1e-9
    if name != "fisher_flow":  # an untrained network knows nothing, and the bounds say so
        assert found.nats.high > 0.95 * 12 * math.log(9)
    other = "steps" if name == "fisher_flow" else "path"
    with pytest.raises(InputError, match=name):
        score(model, ["abc"], Effort(8, other))  # type: ignore[arg-type]


@given(st.integers(2, 100), st.integers(3, 20))
def test_windows_cover_everything_once(tokens: int, length: int) -> None:
    parts = split_windows(torch.arange(tokens), length)
    assert torch.equal(torch.cat(parts), torch.arange(tokens))
    assert all(2 <= len(part) <= length for part in parts)
    assert all(len(part) == length for part in parts[:-2])


def test_progress_adds_up(model: LanguageModel) -> None:
    seen: list[int] = []
    score(model, ["abc", "abcd", "efg"], QUICK, advance=seen.append)
    assert sum(seen) == QUICK.cost(model, 3)
    seen.clear()
    effort = Effort(6, "steps", 4)
    score(model, ["abc", "abcdefgh" * 9], effort, advance=seen.append)
    assert sum(seen) == effort.cost(model, 10)


def test_unknown_characters(model: LanguageModel) -> None:
    with pytest.raises(InputError, match="'X' at position 1"):
        score(model, ["aXb"], QUICK)
    assert encode_text(model, "aXb", "skip").ids.tolist() == [0, 1]
    assert encode_text(model, "aXb", "replace").ids.tolist() == [0, 8, 1]
    assert encode_text(model, "aXb", "skip").chars == 2


def test_bytes_count_characters_not_tokens() -> None:
    found = encode_text(language_model(Bytes(), base=16), "a\N{LATIN SMALL LETTER E WITH ACUTE}")
    assert (len(found.ids), found.chars) == (3, 2)


@pytest.mark.parametrize("text", ["", "a"])
def test_texts_below_two_tokens_are_refused(model: LanguageModel, text: str) -> None:
    with pytest.raises(InputError, match="at least 2 tokens"):
        score(model, [text], QUICK)


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
        Effort(nfe=0)
