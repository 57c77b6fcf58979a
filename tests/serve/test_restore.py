"""`/v1/restore` returns what `model.restore` returns, refuses what is wrong with its place, and shares the engine."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from running import LENGTH, Served, save, serving

import rdlm
from rdlm.api.reading_likelihood import observation_bound, pseudo_log_likelihood
from rdlm.api.restore import read_text_through
from rdlm.data.evidence import from_json_lines
from rdlm.data.tokenizer import TEXT8_ALPHABET, wordpiece
from rdlm.serve.schema import LONGEST_TEXT, MOST_TOKENS
from rdlm.serve.texts import positions

TEXT = "th? k[ai]ng of"
LONG = "the ?uick brown f[ao]x jumps over the lazy dog"


def restored(served: Served, **body: Any) -> dict[str, Any]:
    answer = served.post("/v1/restore", {"model": "together", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_case_and_punctuation_are_kept(served: Served) -> None:
    found = restored(served, text="The, KING 7!")
    assert found["text"] == found["read"] == "The, KING 7!"
    assert [place["symbol"] for place in found["positions"]][:4] == ["t", "h", "e", None]


@pytest.mark.parametrize("text", [TEXT, LONG])
@pytest.mark.parametrize(
    "channel", [None, "symmetric", "keyboard", {"t": {"t": 0.5, "f": 0.5}, "o": {"o": 0.9, "a": 0.1}}], ids=str
)
def test_a_restoration_is_that_of_the_model(served: Served, runs: Path, text: str, channel: Any) -> None:
    found = restored(served, text=text, channel=channel, error=0.2, samples=2, steps=4, seed=3)
    matrix = channel
    if isinstance(channel, dict):
        matrix = torch.eye(len(TEXT8_ALPHABET), dtype=torch.float64)
        for true, law in channel.items():
            matrix[TEXT8_ALPHABET.index(true)] = 0
            for read, probability in law.items():
                matrix[TEXT8_ALPHABET.index(true), TEXT8_ALPHABET.index(read)] = probability
    wanted = rdlm.load(runs / "together").restore(
        text, matrix, 0.2 if isinstance(channel, str) else None, samples=2, steps=4, seed=3
    )
    assert found["text"] == wanted.text and found["read"] == wanted.read and found["object"] == "restoration"
    assert found["samples"] == list(wanted.samples) and len(found["samples"]) == 2
    shown = torch.tensor([place["probability"] for place in found["positions"]])
    torch.testing.assert_close(shown, wanted.certainty, atol=1e-5, rtol=0)
    assert found["positions"][4]["symbol"] == found["text"][4]
    assert found["error"] == (0.2 if isinstance(channel, str) else None)


def test_evidence_per_position(served: Served, runs: Path) -> None:
    rows = [{"t": 0.9, "f": 0.1}, {"h": 0.6, "rest": 0.4}, {" ": 0.5, "e": 0.5}]
    found = restored(served, evidence=rows)
    lines = '{"t": 0.9, "f": 0.1}\n{"h": 0.6, "rest": 0.4}\n{" ": 0.5, "e": 0.5}'
    wanted = rdlm.load(runs / "together").restore(from_json_lines(lines, TEXT8_ALPHABET).evidence)
    assert found["text"] == wanted.text and found["read"] == "th "
    assert [set(place["alternatives"]) <= set(wanted.symbols) for place in found["positions"]] == [True] * 3


def test_passes_refine_and_an_unknown_error_rate_is_estimated(served: Served, runs: Path) -> None:
    model = rdlm.load(runs / "together")
    found = restored(served, text=TEXT, passes=2, steps=3, seed=1)
    assert found["calls"] == 6 and found["text"] == model.restore(TEXT, passes=2, steps=3, seed=1).text
    rate = restored(served, text=LONG, channel="symmetric", error="auto")["error"]
    assert rate == pytest.approx(read_text_through(model, LONG, "symmetric", "auto")[1].value, rel=1e-3)


def test_the_likelihood_of_a_reading_has_the_name_of_what_it_is(served: Served, runs: Path) -> None:
    model = rdlm.load(runs / "together")
    reading, _ = read_text_through(model, TEXT, "symmetric", 0.1)
    bound = restored(served, text=TEXT, channel="symmetric", likelihood="bound", seed=2)["likelihood"]
    wanted = observation_bound(model, reading.evidence, seed=2)
    assert bound["claims_bound"] is True and bound["nats"] == pytest.approx(wanted.value, rel=1e-4)
    assert bound["low"] < bound["nats"] < bound["high"] and "upper bound" in bound["kind"]
    pseudo = restored(served, text=TEXT, channel="symmetric", likelihood="pseudo")["likelihood"]
    assert pseudo["claims_bound"] is False and "pseudo" in pseudo["kind"]
    assert pseudo["nats"] == pytest.approx(-pseudo_log_likelihood(model, reading.evidence), rel=1e-4)


def test_concurrent_requests_do_not_change_a_restoration(served: Served) -> None:
    bodies = [{"text": text, "samples": 1, "steps": 8, "seed": seed} for seed, text in enumerate([TEXT, LONG] * 3)]
    alone = [restored(served, **body) for body in bodies]
    with ThreadPoolExecutor(7) as crowd:
        sampling = crowd.submit(served.text, model="together", prompt="a", seed=1)
        assert list(crowd.map(lambda body: restored(served, **body), bodies)) == alone
        assert sampling.result() == served.text(model="together", prompt="a", seed=1)


WANTED = [("The 2 c?t[sz]", True), ("the two c?t[sz]", False)]
MISTAKES = [
    ({}, "give either text", "text"),
    ({"text": "a?", "evidence": [{"a": 1}]}, "give either text", "text"),
    ({"text": ""}, "the text is empty", "text"),
    ({"text": "a[]"}, "'[' at position 1 has no alternatives", "text"),
    ({"text": "a" * (MOST_TOKENS + 1)}, f"at most {MOST_TOKENS} positions", "text"),
    ({"text": "??", "channel": "symmetric", "error": "auto"}, "without readable symbols", "text"),
    ({"text": "ab", "channel": "morse"}, "channel: ", "channel"),
    ({"text": "ab", "channel": {"a": {"a": 0.5}}}, "the row of 'a' sums to 0.5", "channel"),
    ({"text": "ab", "channel": {"a": {"A": 1}}}, "'A' is not a symbol", "channel"),
    ({"text": "ab", "error": 1.5}, "error: ", "error"),
    ({"text": "ab", "error": "often"}, "error: ", "error"),
    ({"text": "ab", "samples": 17}, "samples: ", "samples"),
    ({"text": "ab", "order": "upwards"}, "order: ", "order"),
    ({"text": "a" * (LENGTH + 1), "likelihood": "bound"}, f"at most {LENGTH} positions", "likelihood"),
    ({"evidence": []}, "evidence: ", "evidence"),
    ({"evidence": [{"a": 1}] * (MOST_TOKENS + 1)}, "evidence: ", "evidence"),
    ({"evidence": [{"a": 1.0}, {}]}, "line 2 must be an object", "evidence"),
    ({"evidence": [{"a": 1.0}, {"b": "x"}]}, "evidence: item 1: ", "evidence"),
    ({"evidence": [{"a": 1.0}, {"b": 0.7, "c": 0.7}]}, "position 1: the probabilities sum to 1.4", "evidence"),
    ({"evidence": [{"a": -0.5}]}, "position 0: p('a') must be a probability", "evidence"),
    ({"evidence": [{"a": 1.0}, {"\u2603": 1.0}]}, "position 1: '\u2603' is not a symbol", "evidence"),
    ({"evidence": [{"a": 1.0}], "channel": "symmetric"}, "evidence has the probabilities already", "channel"),
    ({"evidence": [{"a": 1.0}], "normalise": True}, "only a text is normalised", "normalise"),
    ({"text": "ab", "model": "baseline"}, "needs a model of the method 'rdlm'", "model"),
]


def test_a_reading_is_normalised_if_asked(served: Served) -> None:
    found, plain = (restored(served, text=text, normalise=normalise) for text, normalise in WANTED)
    assert found["normalised"] == "1 case changed, 1 digits spelled" and plain["normalised"] is None
    assert {**found, "normalised": None} == plain


@pytest.mark.parametrize(("body", "message", "param"), MISTAKES, ids=lambda value: str(value)[:40])
def test_mistakes_are_refused_with_their_place(served: Served, body: dict[str, Any], message: str, param: str) -> None:
    answer = served.post("/v1/restore", {"model": "together", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and message in error["message"], error


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('{"evidence": [{"a": NaN}]}', "NaN is not a JSON number"),
        ('{"evidence": [{"a": 1e999}]}', "evidence: item 0: "),
        ('{"evidence": ' + "[" * 20_000, "nested too deeply"),
        ('{"evidence": [{' + ",".join(f'"{i}": 0' for i in range(1025)) + "}]}", "at most 1024 are read"),
    ],
    ids=["nan", "infinity", "nested", "fields"],
)
def test_numbers_that_are_none_and_deep_bodies_are_refused(served: Served, raw: str, message: str) -> None:
    answer = served.post("/v1/restore", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


def test_models_state_whether_they_restore(served: Served) -> None:
    found = {model["id"]: model["rdlm"]["restore"] for model in served.get("/v1/models").json()["data"]}
    assert found["together"] == {"available": True, "reason": None}
    assert found["baseline"]["available"] is False and "'mdlm'" in found["baseline"]["reason"]


def test_the_schema_describes_the_fields(served: Served) -> None:
    about = served.get("/openapi.json").json()["paths"]["/v1/restore"]["post"]
    fields = about["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert {"text", "evidence", "channel", "error", "passes", "samples", "likelihood"} <= set(fields)
    assert all("description" in field for field in fields.values())


@given(st.text("ab[]\\?\n", max_size=40))
def test_positions_are_counted_as_an_expression_counts_them(text: str) -> None:
    assert positions(text) == len(re.findall(r"\\[\s\S]|\[[^\]]*\]|[\s\S]", text))


@pytest.mark.parametrize("text", ["[" * LONGEST_TEXT, "[" * (LONGEST_TEXT - 1) + "]", "[]" * (LONGEST_TEXT // 2)])
def test_positions_take_linear_time(text: str) -> None:
    """The expression took most of a second of the event loop for brackets that are never closed."""
    begin = time.process_time()
    positions(text)
    assert time.process_time() - begin < 0.2


def test_words_are_restored_by_a_model_of_word_pieces(tmp_path: Path) -> None:
    pieces = wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "hat", "sat", "."])
    run = save(tmp_path / "pieces", pieces, codes="learned", dimension=4)
    reading = {"text": "Thx c[ao]t sat.", "channel": "symmetric", "error": 0.1, "samples": 1, "steps": 4}
    with serving(str(run)) as served:
        card = served.get("/v1/models").json()["data"][0]
        found = served.post("/v1/restore", reading).json()
        matrix = served.post("/v1/restore", reading | {"channel": {"e": {"e": 0.5, "x": 0.5}}}).json()
        refused = served.post("/v1/restore", {"evidence": [{"the": 1}]})
        long = served.post("/v1/restore", {"text": "the " * 5000})
    assert card["rdlm"]["restore"] == {"available": True, "reason": None}
    wanted = rdlm.load(run).restore("Thx c[ao]t sat.", "symmetric", 0.1, samples=1, steps=4)
    assert found["text"] == wanted.text == "The cat sat." and found["samples"] == list(wanted.samples)
    assert [place["symbol"] for place in found["positions"]] == ["the"] * 3 + [None] + ["cat"] * 3 + [None] + [
        "sat"
    ] * 3 + [None]
    assert matrix["text"] == "The cat sat."
    assert refused.status_code == 400 and "word pieces" in refused.json()["error"]["message"]
    assert long.status_code == 400 and "at most" in long.json()["error"]["message"]
