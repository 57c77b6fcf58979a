"""Likelihoods of continuations: exact where one call decodes one token from left to right, bounds elsewhere."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch

from rdlm.api.language_model import LanguageModel
from rdlm.api.orders import choose_order
from rdlm.api.score import (
    Effort,
    conditionals,
    encode_text,
    exact_order,
    not_exact_because,
    order_for,
    score,
    score_continuations,
)
from rdlm.config import ObjectiveConfig, OrderChoice
from rdlm.data.tokenizer import Characters
from rdlm.errors import InputError
from tests.api.test_restore import ALPHABET, chain_law, markov_model
from tests.api.test_score import language_model

PROMPT, TEXT = "abc", "dea"


def markov_nats(text: str, before: str = "") -> float:
    """-log p(text | before) of the chain of `markov_model`."""
    first, move = chain_law()
    ids = [ALPHABET.index(letter) for letter in before + text]
    terms = [first[ids[0]].log(), *(move[a, b].log() for a, b in itertools.pairwise(ids))]
    return -float(sum(terms[len(before) :]))


def chosen(model: LanguageModel, order: OrderChoice, nfe: int, block: int | None = None, **more: Any) -> Effort:
    found = choose_order(model, order, nfe, model.length, block, **more)
    return Effort(found.nfe, "path", 6, order=found)


@pytest.mark.parametrize(("order", "block"), [("left-to-right", 0), ("strided", None)])
def test_with_an_exact_posterior_the_value_is_that_of_the_source(order: OrderChoice, block: int | None) -> None:
    """On every path; prompts that are not clamped, or clamped with offsets of their own, fail."""
    model = markov_model()
    (found,) = score(model, [TEXT], chosen(model, order, 6, block), prompts=[PROMPT])
    assert found.nats.value == pytest.approx(markov_nats(TEXT, PROMPT), abs=2e-3)
    assert found.nats.stderr < 1e-3 and found.exact == (order == "left-to-right")
    assert abs(markov_nats(TEXT, PROMPT) - markov_nats(TEXT)) > 0.05  # the prompt matters


@pytest.mark.parametrize(("order", "window"), [("synchronous", None), ("random", 0.5)])
def test_other_bounds_lie_above_the_entropy_of_the_source(order: OrderChoice, window: float | None) -> None:
    """Tokens take several steps together, so the sampler's law is not the source's; its mean bound is above."""
    model = markov_model()
    texts = ["".join(letters) for letters in itertools.product(ALPHABET, repeat=2)]
    found = score(model, texts, chosen(model, order, 12, window=window), prompts=[PROMPT] * len(texts))
    assert all(one.exact is False and one.nats.claims_bound for one in found)
    law = torch.tensor([math.exp(-markov_nats(text, PROMPT)) for text in texts])
    assert float(law.sum()) == pytest.approx(1, abs=1e-6)
    mean = float(sum(p * one.nats.value for p, one in zip(law, found, strict=True)))
    error = math.hypot(*(float(p) * one.nats.stderr for p, one in zip(law, found, strict=True)))
    entropy = float((law * -law.log()).sum())
    assert entropy < mean + 4 * error and mean < entropy + 1


@pytest.mark.parametrize("block", [1, 0])
def test_conditionals_are_the_shares_of_the_score(block: int) -> None:
    model = language_model(Characters("abcdefgh "))
    order = choose_order(model, "left-to-right", 8, 8, block)
    assert not_exact_because(model, order, 8) is None
    (whole,) = score(model, ["abc dega"], Effort(8, "path", 3, order=order))
    ids = encode_text(model, "abc dega").ids
    law = conditionals(model, ids[None], order)[0]
    torch.testing.assert_close(law.exp().sum(-1), torch.ones(8, dtype=torch.float64), atol=1e-5, rtol=0)
    bits = -law.gather(-1, ids[:, None])[:, 0] / math.log(2)
    torch.testing.assert_close(bits, torch.tensor(whole.positions, dtype=torch.float64), atol=1e-4, rtol=0)
    (rest,) = score(model, ["dega"], Effort(8, "path", 3, order=order), prompts=["abc "])
    assert rest.exact is True and rest.nats.stderr == 0
    assert rest.nats.value == pytest.approx(sum(whole.positions[4:]) * math.log(2), abs=1e-4)


def test_autoregression_follows_the_chain_rule() -> None:
    model = language_model(Characters("abcdefgh "), name="autoregressive")
    whole, first = (one.nats.value for one in score(model, ["abc dega", "abc "]))
    (rest,) = score(model, ["dega"], prompts=["abc "])
    assert rest.exact is True and rest.nats.value == pytest.approx(whole - first, abs=1e-5)
    assert len(rest.positions) == 4 and rest.tokens == tuple("dega")


def test_a_long_continuation_is_scored_behind_what_fits() -> None:
    model = language_model(Characters("abcdefgh "))
    order = choose_order(model, "left-to-right", 8, 8, 1)
    effort = Effort(8, "path", 3, order=order)
    (found,) = score(model, ["abcdefghabcdefgh"], effort, prompts=["gh "])
    assert found.windows == 4 and len(found.positions) == 16
    ids = encode_text(model, "gh abcdefghabcdefgh").ids
    first = conditionals(model, ids[None, :8], order)[0]
    second = conditionals(model, ids[None, 4:12], order)[0]
    wanted = [-first[at, ids[at]] for at in range(3, 8)] + [-second[at - 4, ids[at]] for at in range(8, 12)]
    got = torch.tensor(found.positions[:9], dtype=torch.float64) * math.log(2)
    torch.testing.assert_close(got, torch.stack(wanted), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("order", "nfe", "block", "reason"),
    [
        ("synchronous", 8, None, "moves all tokens together"),
        ("strided", 8, None, "random order"),
        ("left-to-right", 4, None, "4 calls for 8 tokens decode several tokens in one call: use 8 calls"),
        ("left-to-right", 8, 4, "several tokens in one call|8 calls"),
    ],
)
def test_orders_without_conditionals_give_the_reason(order: OrderChoice, nfe: int, block: int, reason: str) -> None:
    model = language_model(Characters("abcdefgh "))
    found = not_exact_because(model, choose_order(model, order, nfe, 8, block), 8)
    assert found is not None and any(part in found for part in reason.split("|"))


def test_other_reasons() -> None:
    mixture = language_model(Characters("abc "), path="constant")
    digits = language_model(Characters("abcdefgh "), base=3, layout="serial")
    baseline = language_model(Characters("abc "), name="mdlm")
    for model, reason in ((mixture, "mixture of paths"), (digits, "digits")):
        order = choose_order(model, "left-to-right", 8, 8, 0)
        assert reason in str(not_exact_because(model, order, 8))
    assert "'mdlm'" in str(not_exact_because(baseline, order_for(baseline), 8))
    with pytest.raises(InputError, match="'mdlm' does not decode tokens from left to right"):
        score(baseline, ["ab"], prompts=["c"])


def test_an_exact_order_is_one_that_the_model_was_trained_for() -> None:
    model = language_model(Characters("abc "))
    for objective, block in ((ObjectiveConfig(), None), (ObjectiveConfig(blockwise=0.5), 1)):
        config = dataclasses.replace(model.config, objective=objective)
        found = exact_order(dataclasses.replace(model, config=config), 8)
        assert (None if found is None else found.block) == block


def test_mistakes() -> None:
    model = language_model(Characters("abc "))
    with pytest.raises(InputError, match="are lists of texts"):
        score(model, "abc")
    with pytest.raises(InputError, match="one prompt for each text"):
        score(model, ["ab"], prompts=["a", "b"])
    with pytest.raises(InputError, match="at least 2 tokens together"):
        score(model, ["a"], prompts=[""])
    assert score_continuations(model, []) == []


@pytest.mark.parametrize("block", [1, 0])
def test_one_path_is_walked_where_all_are_the_same(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model(Characters("abcdefgh "))
    effort, seen = Effort(8, "path", 3, order=choose_order(model, "left-to-right", 8, 8, block)), []
    assert not dataclasses.replace(effort, estimator="steps").is_exact(model, 8)
    assert not chosen(model, "left-to-right", 4, block).is_exact(model, 8)
    (found,) = score(model, ["abc dega"], effort, advance=seen.append)
    assert sum(seen) == effort.cost(model, 1) == effort.passes(model)
    monkeypatch.setattr(Effort, "is_exact", lambda self, model, length: False)
    (walked,) = score(model, ["abc dega"], effort, advance=seen.append)
    assert sum(seen) == 4 * effort.passes(model) == effort.passes(model) + effort.cost(model, 1)
    assert walked.nats == found.nats and walked.positions == found.positions
