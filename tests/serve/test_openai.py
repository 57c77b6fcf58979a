"""The official client speaks with the service as with OpenAI's."""

from __future__ import annotations

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from running import LENGTH, Served, serving

import rdlm
from rdlm.api.score import Effort, order_for, score
from rdlm.cli import main as cli
from rdlm.config import SamplingOptions
from rdlm.data.tokenizer import TEXT8_ALPHABET, Characters
from rdlm.serve import openai as openai_requests
from rdlm.serve.schema import MOST_TOKENS, CompletionBody


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none needed", max_retries=0, timeout=60)


def test_models_are_listed_and_described(client: openai.OpenAI) -> None:
    found = {model.id: model for model in client.models.list()}
    assert list(found) == ["together", "ordered", "baseline", "classed", "blockwise", "taught", "causal"]
    own = found["together"].model_dump()["rdlm"]
    assert own["length"] == LENGTH and own["kind"] == "text" and own["steps"] == 8 and own["gap"] == "_"
    assert "".join(own["vocabulary"]) == " abcdefghijklmnopqrstuvwxyz"
    assert client.models.retrieve("baseline").model_dump()["rdlm"]["method"] == "mdlm"
    with pytest.raises(openai.NotFoundError, match="unknown model 'togethr': did you mean 'together'"):
        client.models.retrieve("togethr")


def test_a_completion_is_what_generate_makes(client: openai.OpenAI, runs: Path) -> None:
    made = client.completions.create(model="together", prompt="abc", seed=5, n=2, max_tokens=10)
    model = rdlm.load(runs / "together")
    wanted = model.generate(num=2, prompt="abc", seed=5, steps=8)
    assert ["abc" + choice.text for choice in made.choices] == [sample.text[:13] for sample in wanted.samples]
    assert [choice.index for choice in made.choices] == [0, 1]
    assert made.choices[0].finish_reason == "length" and made.choices[0].logprobs is None
    assert made.usage is not None and made.usage.total_tokens == 3 + 20 and made.object == "text_completion"


@pytest.mark.parametrize("model", ["together", "ordered", "blockwise"])
@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"max_tokens": 50}, {"stop": ["e", "zz"]}, {"echo": True}], ids=str)
def test_the_pieces_of_a_stream_add_up(client: openai.OpenAI, model: str, extra: dict[str, object]) -> None:
    options = {"model": model, "prompt": "the ", "seed": 3, **extra}
    whole = client.completions.create(**options)
    texts = [""] * len(whole.choices)
    reasons: dict[int, str | None] = {}
    for block in client.completions.create(**options, stream=True):
        for choice in block.choices:
            assert reasons.get(choice.index) is None  # nothing comes after the end
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert list(reasons.values()) == [choice.finish_reason for choice in whole.choices]


def test_ordered_text_is_streamed_while_it_is_sampled(client: openai.OpenAI) -> None:
    blocks = list(client.completions.create(model="ordered", prompt="a", seed=1, stream=True, extra_body={"steps": 30}))
    pieces = [block.choices[0].text for block in blocks]
    assert pieces[0] == "" and sum(bool(piece) for piece in pieces) > 5


def test_usage_comes_with_a_stream_where_asked_for(client: openai.OpenAI) -> None:
    blocks = list(
        client.completions.create(model="together", prompt="ab", stream=True, stream_options={"include_usage": True})
    )
    assert blocks[-1].choices == [] and blocks[-1].usage is not None and blocks[-1].usage.prompt_tokens == 2


def test_a_suffix_is_kept_on_the_other_side(client: openai.OpenAI, runs: Path) -> None:
    made = client.completions.create(model="together", prompt="ab", suffix="yz", seed=4).choices[0].text
    assert len(made) == LENGTH - 4
    wanted = rdlm.load(runs / "together").generate(prompt="ab", suffix="yz", seed=4, steps=8).samples[0].text
    assert "ab" + made + "yz" == wanted


def test_gaps_are_filled(client: openai.OpenAI) -> None:
    made = client.completions.create(model="together", prompt="", extra_body={"infill": "th_ k__g"}).choices[0].text
    assert re.fullmatch("th. k..g", made)


def test_several_prompts_are_several_requests(client: openai.OpenAI) -> None:
    both = client.completions.create(model="together", prompt=["a", "bcd"], n=2, seed=9).choices
    for place, prompt in enumerate(("a", "bcd")):
        alone = client.completions.create(model="together", prompt=prompt, n=2, seed=9).choices
        assert [choice.text for choice in alone] == [choice.text for choice in both[2 * place : 2 * place + 2]]


def test_a_stop_ends_a_text(client: openai.OpenAI) -> None:
    options = {"model": "ordered", "prompt": "", "seed": 0, "max_tokens": 60}
    whole = client.completions.create(**options).choices[0].text
    stop = whole[20:22]
    cut = client.completions.create(**options, stop=stop).choices[0]
    assert cut.text == whole[: whole.index(stop)] and cut.finish_reason == "stop"


def test_a_prompt_may_be_longer_than_the_model(client: openai.OpenAI, runs: Path) -> None:
    prompt = "the quick brown fox jumps over "
    made = client.completions.create(model="together", prompt=prompt, seed=2, max_tokens=20).choices[0].text
    wanted = rdlm.load(runs / "together").generate(prompt=prompt, length=56, seed=2, steps=8)  # whole windows
    assert prompt + made == wanted.samples[0].text[: len(prompt) + 20]
    assert wanted.network_calls == 8 * 4  # windows in which all is known are not walked


def test_temperature_zero_is_greedy(client: openai.OpenAI) -> None:
    options = {"model": "together", "prompt": "a", "seed": 1, "extra_body": {"steps": 1}}
    first, other = (client.completions.create(**{**options, "seed": s}, temperature=0) for s in (1, 2))
    assert first.choices[0].text == other.choices[0].text  # one step has no noise but the draw itself
    assert client.completions.create(**options).choices[0].text != first.choices[0].text


MIXED = [
    {"prompt": "a"},
    {"prompt": "the "},
    {"prompt": "q", "steps": 5},
    {"prompt": "w", "temperature": 0.5},
    {"prompt": "zz", "top_p": 0.7},
    {"prompt": "no", "max_tokens": 7},
    {"prompt": "x", "solver": "heun"},
    {"prompt": "y", "max_tokens": 40},
]


CLASSES = [{"label": "cat"}, {"label": "dog"}, {"label": 1, "guidance": 3}, {"guidance": 0, "label": "cat"}]
OWN = {"together": MIXED, "ordered": MIXED, "classed": [*MIXED[:4], *CLASSES]}


@pytest.mark.parametrize("model", list(OWN))
def test_concurrent_requests_do_not_change_a_sample(served: Served, model: str) -> None:
    """Eight requests of different lengths, steps and settings at once: each returns what it returns alone."""
    requests = [{"model": model, "seed": seed, "steps": 12, **one} for seed, one in enumerate(OWN[model])]
    alone = [served.text(**one) for one in requests]
    with ThreadPoolExecutor(8) as crowd:
        together = list(crowd.map(lambda one: served.text(**one), requests))
    assert together == alone
    assert len(set(alone)) == 8


@pytest.mark.parametrize(
    "own",
    [
        {"window": 0.5},
        {"window": 1},
        {"order": "random"},
        {"window": 0.3, "order": "left_to_right"},
    ],
    ids=str,
)
def test_windows_are_those_of_generate(client: openai.OpenAI, runs: Path, own: dict[str, object]) -> None:
    """What is not said of them is the model's own."""
    made = client.completions.create(model="ordered", prompt="ab", seed=5, extra_body=own).choices[0].text
    wanted = {"window": 0.1, "order": "left_to_right", **own}
    (sample,) = rdlm.load(runs / "ordered").generate(prompt="ab", seed=5, steps=8, **wanted).samples
    assert "ab" + made == sample.text


@pytest.mark.parametrize("own", [{"label": "dog"}, {"label": "cat", "guidance": 4.0}, {"label": "1"}], ids=str)
@pytest.mark.parametrize("solver", ["mixture", "corrector"])
def test_classes_are_those_of_generate(client: openai.OpenAI, runs: Path, own: dict[str, str], solver: str) -> None:
    options = {"model": "classed", "prompt": "a", "seed": 7}
    made = client.completions.create(**options, extra_body={"solver": solver, **own}).choices[0].text
    (sample,) = rdlm.load(runs / "classed").generate(prompt="a", seed=7, steps=8, solver=solver, **own).samples
    assert "a" + made == sample.text
    assert made != client.completions.create(**options, extra_body={"solver": solver}).choices[0].text


@pytest.mark.parametrize(
    ("model", "own", "message"),
    [
        ("together", {"label": "cat"}, "trained without classes"),
        ("classed", {"label": "cot"}, "did you mean 'cat'"),
        ("classed", {"label": 2}, "unknown label '2'"),
        ("classed", {"guidance": 2}, "needs a label"),
        ("classed", {"guidance": -1, "label": "cat"}, "guidance: "),
        ("baseline", {"label": "cat"}, "leave out label"),
        ("baseline", {"window": 0.5}, "leave out window"),
        ("together", {"window": 0}, "window: "),
        ("together", {"order": "up"}, "order: "),
        ("together", {"label": ["cat"]}, "label: "),
    ],
)
def test_settings_that_a_model_does_not_have_are_refused(
    client: openai.OpenAI, model: str, own: dict[str, object], message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.completions.create(model=model, prompt="", extra_body=own)


def test_a_baseline_samples_without_a_prompt(client: openai.OpenAI, runs: Path) -> None:
    made = client.completions.create(model="baseline", prompt="", seed=6, n=2)
    wanted = rdlm.load(runs / "baseline").generate(num=2, seed=6, steps=8)
    assert [choice.text for choice in made.choices] == [sample.text for sample in wanted.samples]
    with pytest.raises(openai.BadRequestError, match="leave out prompt"):
        client.completions.create(model="baseline", prompt="a")


def test_mistakes_are_the_clients_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="outside the model's alphabet"):
        client.completions.create(model="together", prompt="ABC")
    with pytest.raises(openai.BadRequestError, match="outside the model's alphabet"):
        client.completions.create(model="together", prompt="ABC", stream=True)


def test_a_completion_has_no_more_tokens_than_may_be_requested() -> None:
    claimed = SimpleNamespace(model=SimpleNamespace(tokenizer=Characters(TEXT8_ALPHABET), length=1 << 20))
    request = openai_requests._request(claimed, CompletionBody(), SamplingOptions(), "abc")  # type: ignore[arg-type]
    assert request.options.length == MOST_TOKENS


@pytest.mark.parametrize("model", ["together", "ordered", "blockwise"])
def test_max_tokens_cuts_the_text_of_a_seed(client: openai.OpenAI, model: str) -> None:
    """Fewer tokens are the beginning of the same text, within the model's length and past it."""
    texts = {
        count: client.completions.create(model=model, prompt="ab", seed=3, max_tokens=count).choices[0].text
        for count in (1, 5, 14, 15, 30)
    }
    assert {count: len(text) for count, text in texts.items()} == {count: count for count in texts}
    assert texts[14].startswith(texts[5]) and texts[5].startswith(texts[1])
    assert texts[30].startswith(texts[15]) and texts[15].startswith(texts[14])


def test_an_empty_body_is_not_sampled_from(served: Served) -> None:
    for body in ({}, {"model": "together", "n": 2, "max_tokens": 3}):
        answer = served.post("/v1/completions", body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"
    assert served.post("/v1/completions", {"prompt": "", "max_tokens": 2}).status_code == 200


# -- log-probabilities --------------------------------------------------------------------------------


def shares(runs: Path, model: str, text: str) -> list[float]:
    """The log-probabilities that `rdlm score --order left-to-right` gives the tokens of a text."""
    loaded = rdlm.load(runs / model)
    (found,) = score(loaded, [text], Effort(LENGTH, order=order_for(loaded, "left-to-right", LENGTH)))
    return [-bits * math.log(2) for bits in found.positions]


@pytest.mark.parametrize("text", ["the quick", "the quick brown fox jumps over"])
@pytest.mark.parametrize(
    ("model", "own"), [("taught", {}), ("blockwise", {"order": "left-to-right", "steps": LENGTH})], ids=["own", "asked"]
)
def test_echoed_log_probabilities_equal_the_score(
    client: openai.OpenAI, runs: Path, text: str, model: str, own: dict[str, Any]
) -> None:
    made = client.completions.create(model=model, prompt=text, echo=True, logprobs=3, max_tokens=0, extra_body=own)
    (choice,), usage = made.choices, made.usage
    assert choice.text == text and choice.logprobs is not None and usage is not None and usage.completion_tokens == 0
    assert choice.logprobs.tokens == list(text) and choice.logprobs.text_offset == list(range(len(text)))
    assert choice.logprobs.token_logprobs == pytest.approx(shares(runs, model, text), abs=1e-4)
    for top, value in zip(choice.logprobs.top_logprobs or (), choice.logprobs.token_logprobs or (), strict=True):
        assert len(top) == 3 and max(top.values()) >= value - 1e-6


def test_echoed_log_probabilities_equal_the_command(
    client: openai.OpenAI, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`rdlm score` as a user runs it, on the text that the client sends."""
    text = "the quick brown fox jumps over"
    (tmp_path / "text.txt").write_text(text)
    options = ["--order", "left-to-right", "--steps", str(LENGTH), "--positions", "--json"]
    assert cli.main(["score", str(runs / "taught"), str(tmp_path / "text.txt"), *options]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    made = client.completions.create(model="taught", prompt=text, echo=True, logprobs=0, max_tokens=0).choices[0]
    assert made.logprobs is not None and made.logprobs.token_logprobs is not None
    found = [-value / math.log(2) for value in made.logprobs.token_logprobs]
    assert found == pytest.approx(row["positions"], abs=1e-4) and sum(found) > 30


def test_autoregression_has_log_probabilities(client: openai.OpenAI, runs: Path) -> None:
    text = "the quick brown"
    made = client.completions.create(model="causal", prompt=text, echo=True, logprobs=0, max_tokens=0).choices[0]
    (found,) = rdlm.load(runs / "causal").score([text])
    assert made.logprobs is not None and made.logprobs.top_logprobs is None
    assert -sum(made.logprobs.token_logprobs or ()) == pytest.approx(found.nats.value, abs=1e-4)
    drawn = client.completions.create(model="causal", prompt="", max_tokens=5, logprobs=1, seed=2).choices[0]
    assert drawn.logprobs is not None and drawn.logprobs.tokens == list(drawn.text) and len(drawn.text) == 5


def test_sampled_tokens_have_those_of_the_whole_text(client: openai.OpenAI, runs: Path) -> None:
    made = client.completions.create(model="taught", prompt="the ", max_tokens=6, logprobs=0, seed=4, n=2, echo=False)
    for choice in made.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == pytest.approx(
            shares(runs, "taught", "the " + choice.text)[4:], abs=1e-4
        )
        assert choice.logprobs.text_offset == list(range(4, 10))
    text = made.choices[0].text
    cut = client.completions.create(model="taught", prompt="the ", max_tokens=6, logprobs=0, seed=4, stop=text[3])
    assert cut.choices[0].text == text[: text.index(text[3])]
    assert cut.choices[0].logprobs is not None and "".join(cut.choices[0].logprobs.tokens or ()) == cut.choices[0].text


def test_prompts_may_be_token_ids(client: openai.OpenAI) -> None:
    ids = [TEXT8_ALPHABET.index(letter) for letter in "the "]
    by_text = client.completions.create(model="together", prompt="the ", seed=1).choices[0].text
    assert client.completions.create(model="together", prompt=ids, seed=1).choices[0].text == by_text
    both = client.completions.create(model="together", prompt=[ids, ids[:2]], seed=1, echo=True).choices
    assert [choice.text[:2] for choice in both] == ["th", "th"] and both[0].text == "the " + by_text
    with pytest.raises(openai.BadRequestError, match="token 27 at 1 is none of the 27 tokens"):
        client.completions.create(model="together", prompt=[3, 27])


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("together", {}, "order synchronous moves all tokens together"),
        ("together", {"extra_body": {"order": "strided"}}, "decodes tokens in random order"),
        ("blockwise", {"extra_body": {"order": "left-to-right", "steps": 8}}, "decode several tokens in one call"),
        ("baseline", {}, "'mdlm' does not decode tokens from left to right"),
        ("taught", {"suffix": "x"}, "leave out suffix"),
        ("taught", {"stream": True}, "leave out stream"),
        ("taught", {"max_tokens": 30}, "windows that overlap"),
        ("taught", {"logprobs": 21}, "logprobs: "),
    ],
)
def test_other_log_probabilities_are_refused_with_the_reason(
    client: openai.OpenAI, model: str, more: dict[str, Any], message: str
) -> None:
    options: dict[str, Any] = {"prompt": "" if model == "baseline" else "a", "logprobs": 1, **more}
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        client.completions.create(model=model, **options)
    assert caught.value.param == "logprobs"


def test_a_score_takes_a_prompt(served: Served, runs: Path) -> None:
    body = {"input": ["quick", "q"], "prompt": "the "}
    exact = served.post("/v1/score", {"model": "taught", "order": "left-to-right", "steps": LENGTH, **body}).json()
    wanted = shares(runs, "taught", "the quick")[4:]
    assert exact["data"][0]["exact"] is True and exact["data"][0]["nats"] == pytest.approx(-sum(wanted), abs=1e-4)
    assert exact["data"][1]["nats"] == pytest.approx(-wanted[0], abs=1e-4) and exact["data"][0]["chars"] == 5
    bound = served.post("/v1/score", {"model": "together", **body}).json()["data"][0]
    assert bound["exact"] is False and bound["claims_bound"] is True and bound["low"] < bound["nats"] < bound["high"]
    refused = served.post("/v1/score", {"model": "together", "input": "ab", "prompt": "A"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt"


def test_texts_are_normalised_if_asked(client: openai.OpenAI) -> None:
    def post(path: str, **body: Any) -> Any:
        return client.post(path, cast_to=object, body={"model": "together", "steps": 4, "seed": 3} | body)

    def scored(**body: Any) -> Any:
        return client.post("/score", cast_to=object, body={"model": "together", "steps": 4} | body)

    found, plain = scored(input=["The Cat 1", "a b"], normalise=True), scored(input=["the cat one ", "a b"])
    assert found["normalised"] == "2 case changed, 1 digits spelled" and plain["normalised"] is None
    assert [row["nats"] for row in found["data"]] == [row["nats"] for row in plain["data"]]
    made = post("/completions", prompt=["The ", "An "], suffix=" Of", max_tokens=8, normalise=True)
    same = post("/completions", prompt=["the ", "an "], suffix=" of", max_tokens=8)
    assert [one["text"] for one in made["choices"]] == [one["text"] for one in same["choices"]]
    assert made["rdlm"]["normalised"] == "3 case changed"
    filled = post("/completions", infill="The ____ Cat", normalise=True)["choices"][0]["text"]
    assert re.fullmatch("the [a-z ]{4} cat", filled)
    with pytest.raises(openai.BadRequestError, match=r"position 0 is outside .*; with normalise, "):
        scored(input="The")


def test_a_score_of_the_packaged_model_is_that_of_the_command() -> None:
    """Without a number of steps both take the order with exact likelihoods, which is as good as any."""
    with serving() as packaged:
        found = packaged.post("/v1/score", {"input": "the history of the"}).json()
    (own,) = rdlm.load().score(["the history of the"])
    assert (found["order"], found["steps"]) == ("left-to-right", 128)
    assert found["data"][0]["nats"] == pytest.approx(own.nats.value, abs=1e-4)
