"""Endpoints: scores, trajectories, process curves, health, metrics and the API description."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from running import LENGTH, Served

import rdlm
from rdlm.api.score import Effort


def events(served: Served, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    answer = served.post("/v1/trajectory", body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", answer.text)
    return [(name, json.loads(data)) for name, data in found]


@pytest.mark.parametrize(("name", "steps"), [("together", 4), ("blockwise", 16)])
def test_scores_equal_those_of_the_command(served: Served, runs: Path, name: str, steps: int) -> None:
    texts = ["the quick fox", "a text that is longer than the model's own length".replace("'", "")]
    answer = served.post("/v1/score", {"model": name, "input": texts, "steps": steps}).json()
    assert (answer["object"], answer["model"], answer["steps"]) == ("score", name, steps)
    model = rdlm.load(runs / name)
    for index, (text, row) in enumerate(zip(texts, answer["data"], strict=True)):
        (wanted,) = model.score([text], effort=Effort(steps))
        assert row["index"] == index and row["claims_bound"] is True and row["chars"] == len(text)
        assert row["nats"] == pytest.approx(wanted.nats.value, rel=1e-9)
        assert row["low"] <= row["nats"] <= row["high"] and row["stderr"] >= 0
        assert "".join(row["tokens"]) == text and len(row["positions"]) == len(text)
        assert sum(row["positions"]) * math.log(2) == pytest.approx(row["nats"], rel=1e-6)


@pytest.mark.parametrize("body", [{"input": ""}, {"input": "a"}, {"input": "É"}, {"input": []}, {"steps": 3}], ids=str)
def test_invalid_texts_to_score_are_rejected(served: Served, body: dict[str, Any]) -> None:
    assert served.post("/v1/score", body).status_code == 400


def test_a_baseline_gives_no_score_per_position(served: Served) -> None:
    (row,) = served.post("/v1/score", {"model": "baseline", "input": "the fox", "steps": 4}).json()["data"]
    assert row["nats"] > 0 and row["positions"] == []


def test_a_completion_in_blocks_equals_that_of_the_command(served: Served, runs: Path) -> None:
    model = rdlm.load(runs / "blockwise")
    for block, field in ((None, "block"), (0, "block"), (4, "block"), (4, "chunk")):
        body = {"model": "blockwise", "prompt": "the ", "seed": 5, "steps": 16, field: block}
        wanted = model.generate(prompt="the ", seed=5, steps=16, block=block)
        assert "the " + served.text(**body) == wanted.samples[0].text


@pytest.mark.parametrize("model", ["together", "ordered"])
def test_a_trajectory_ends_in_the_sample(served: Served, runs: Path, model: str) -> None:
    found = events(served, {"model": model, "prompt": "ab", "seed": 3, "steps": 12, "frames": 5})
    names = [name for name, _ in found]
    assert names == ["start", *["frame"] * 5, "done"]
    start, frames, done = found[0][1], [data for name, data in found if name == "frame"], found[-1][1]
    assert (start["length"], start["steps"], start["frames"], start["seed"]) == (LENGTH, 12, 5, 3)
    assert start["mask"] is True and start["path"][0] == [0, 1, 0] and start["path"][-1] == [1, 0, 0]
    assert len(start["times"]) == len(start["path"])
    assert [frame["step"] for frame in frames] == [0, 3, 6, 8, 11] and frames[0]["time"] == 0
    wanted = rdlm.load(runs / model).generate(prompt="ab", seed=3, steps=12)
    assert done["text"] == "".join(done["tokens"]) == wanted.samples[0].text
    trail = done["sphere"]
    assert len(trail["states"]) == 5 and trail["position"] == 2 and trail["tokens"][0] == done["tokens"][2]
    for state, frame in zip(trail["states"], frames, strict=True):
        assert sum(value**2 for value in state) == pytest.approx(1, abs=1e-3)
        there = dict(zip(frame["sphere"]["tokens"], frame["sphere"]["state"][:3], strict=True))
        same = {token: value for token, value in zip(trail["tokens"], state, strict=False) if token in there}
        assert same == {token: there[token] for token in same} and state[3] == frame["sphere"]["state"][3]
    assert done["network_calls"] == 12 and done["claims_bound"] is False and done["seed"] == 3


def test_frames_are_complete(served: Served) -> None:
    found = events(served, {"model": "ordered", "infill": "a__b", "steps": 20})
    frames = [data for name, data in found if name == "frame"]
    assert [frame["step"] for frame in frames] == [0, 1, 18, 19]  # in all other steps neither token is active
    assert found[0][1]["frames"] == found[-1][1]["network_calls"] == 4
    most = math.log2(27)
    for frame in frames:
        assert frame["known"] == [True, False, False, True]
        assert len(frame["tokens"]) == len(frame["certainty"]) == len(frame["settled"]) == 4
        assert frame["tokens"][0] == "a" and frame["tokens"][3] == "b" and frame["certainty"][0] == 1
        assert all(0 <= bits <= most + 1e-4 for bits in frame["entropy"])
        gained = sum(most - bits for bits, known in zip(frame["entropy"], frame["known"], strict=True) if not known)
        assert frame["information"] == pytest.approx(gained, abs=1e-3)
        for row, token, chance in zip(frame["alternatives"], frame["tokens"], frame["certainty"], strict=True):
            assert len(row) == 3 and row[0] == [token, chance]
        sphere = frame["sphere"]
        assert sphere["position"] == 1 and len(sphere["tokens"]) == 3 and len(sphere["state"]) == 5
        assert sum(value**2 for value in sphere["state"]) == pytest.approx(1, abs=1e-3)
        assert frame["tokens"][1] in sphere["tokens"]
    assert frames[0]["settled"] == [True, False, False, True] and frames[-1]["settled"][1] is True


def test_tokens_without_a_prediction_are_null(served: Served) -> None:
    """With blocks of one token, the model predicts one token after the other."""
    frames = [data for name, data in events(served, {"model": "blockwise", "steps": 16}) if name == "frame"]
    for at, frame in enumerate(frames):
        blank = [token is None for token in frame["tokens"]]
        assert blank == [False] * (at + 1) + [True] * (15 - at)
        assert [len(row) for row in frame["alternatives"]] == [3] * (at + 1) + [0] * (15 - at)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"length": 40}, "one window"),
        ({"position": 16}, "position 16 is outside"),
        ({"model": "baseline"}, "this needs 'rdlm'"),
        ({"infill": "no gap"}, "has no gap"),
        ({"infill": "a_", "prompt": "a"}, "leave out prompt"),
    ],
)
def test_invalid_trajectory_requests_are_rejected(served: Served, body: dict[str, Any], message: str) -> None:
    answer = served.post("/v1/trajectory", body)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


@pytest.mark.parametrize("start", ["masked", "uniform"])
@pytest.mark.parametrize("dimension", [4, 28])
def test_process_curves_start_without_information_and_end_at_the_token(
    served: Served, start: str, dimension: int
) -> None:
    found = served.get("/v1/process", params={"start": start, "dimension": dimension, "schedule": "cosine"}).json()
    most = math.log2(dimension - 1)
    assert found["time"][0] == 0 and found["time"][-1] == 1
    assert len({len(found[name]) for name in ("time", "alpha", "rho", "radial", "information")}) == 1
    assert found["radial"][-1] == found["rho"][-1] == 0
    angle = math.pi / 2 if start == "masked" else math.acos(dimension**-0.5)
    assert found["radial"][0] == pytest.approx(angle, abs=1e-5)
    assert found["information"][0] == pytest.approx(0, abs=0.01)
    assert found["information"][-1] == pytest.approx(most)
    rises = [b - a for a, b in zip(found["information"], found["information"][1:], strict=False)]
    assert min(rises) > -0.25  # 48 draws per level: the curve is noisy


def test_information_that_is_not_available_is_null(served: Served) -> None:
    found = served.get("/v1/process", params={"dimension": 30522}).json()
    assert found["information"] is None and "logarithm" in found["note"]


def test_process_curves_use_no_network(served: Served) -> None:
    """They come from small tables and do not wait for an engine."""
    before = served.counted("rdlm_network_calls"), served.counted("rdlm_steps_total")
    for noise in (0.01, 0.02, 0.03):
        assert served.get("/v1/process", params={"noise": noise, "dimension": 256}).status_code == 200
    assert (served.counted("rdlm_network_calls"), served.counted("rdlm_steps_total")) == before
    served.text(prompt="a", steps=2)
    assert served.counted("rdlm_network_calls") > before[0]


def test_a_wider_window_gives_a_position_more_steps(served: Served) -> None:
    def moves(**own: float) -> int:
        found = events(served, {"model": "ordered", "prompt": "ab", "position": 5, "steps": 20, "seed": 1, **own})
        states = [data["sphere"]["state"] for name, data in found if name == "frame"]
        return sum(one != other for one, other in itertools.pairwise(states))

    assert moves() <= 2  # a tenth of 20 steps, the last of which decodes
    assert moves(window=1) == 19


def test_a_trajectory_of_a_class(served: Served, runs: Path) -> None:
    found = events(served, {"model": "classed", "label": "dog", "guidance": 2.5, "seed": 4, "steps": 6})
    wanted = rdlm.load(runs / "classed").generate(label="dog", guidance=2.5, seed=4, steps=6)
    assert found[-1][1]["text"] == wanted.samples[0].text


@pytest.mark.parametrize(
    "query", ["noise=0", "noise=nan", "noise=x", "dimension=2", "start=up", "schedule=s", "dimension=1e9"]
)
def test_invalid_process_parameters_are_rejected(served: Served, query: str) -> None:
    answer = served.get(f"/v1/process?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_health_and_metrics(served: Served) -> None:
    assert served.get("/healthz").json() == {"status": "ok"}
    assert served.get("/readyz").json() == {"status": "ready"}
    before = served.counted("rdlm_steps_total")
    served.text(prompt="a", steps=5)
    assert served.counted("rdlm_steps_total") == before + 5
    text = served.get("/metrics").text
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [\d.]+', line), line
    assert 'rdlm_requests_total{method="POST",route="/v1/completions",status="200"}' in text
    assert 'rdlm_waiting_samples{model="together"} 0' in text


def test_the_schema_lists_every_field(served: Served) -> None:
    schema = served.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/models", "/v1/score", "/v1/trajectory", "/v1/process"} <= schema["paths"].keys()
    body = schema["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {
        "prompt",
        "suffix",
        "max_tokens",
        "temperature",
        "top_p",
        "n",
        "seed",
        "stop",
        "stream",
        "echo",
        "steps",
        "solver",
        "grid",
        "infill",
    } <= body["properties"].keys()
    assert rdlm.__version__ not in json.dumps(schema)
    page = served.get("/docs").text
    assert "/v1/completions" in page and "max_tokens" in page
    assert not re.search(r"https?://|<script|<style", page)
