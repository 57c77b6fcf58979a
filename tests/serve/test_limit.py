"""Limits of the service: token, queue, deadline, disconnected clients, and shutdown."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from running import Served, save, serving

import rdlm
from rdlm import pretrained
from rdlm.cli import main as cli
from rdlm.cli.serve import Serve
from rdlm.serve.service import Limits, Service

TOKEN = "a secret of enough characters"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
LONG = {"prompt": "a", "steps": 1024, "max_tokens": 400}
"""Takes many seconds."""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    run = save(tmp_path_factory.mktemp("runs") / "slow", width=32)
    limits = ("--steps", "4", "--queue", "1", "--batch", "1", "--deadline", "4", "--threads", "1")
    with serving(str(run), *limits, RDLM_TOKEN=TOKEN) as found:
        yield found


@pytest.fixture
def busy(strict: Served) -> Iterator[httpx2.Response]:
    """A stream that occupies the only place in the batch."""
    wait_until(strict, "rdlm_live_samples", 0)
    with httpx2.stream(
        "POST", f"{strict.url}/v1/completions", json={**LONG, "stream": True}, headers=HEADERS, timeout=60
    ) as stream:
        assert stream.status_code == 200
        yield stream


def wait_until(strict: Served, name: str, value: float) -> None:
    for _ in range(200):
        if strict.counted(name) == value:
            return
        time.sleep(0.05)
    raise AssertionError(f"{name} is {strict.counted(name)}, not {value}")


def test_the_token_gives_access(strict: Served) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
    ):
        for path in ("/v1/models", "/metrics", "/v1/nothing"):
            answer = strict.get(path, headers=headers)
            assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
    assert strict.get("/v1/models", headers=HEADERS).status_code == 200
    assert strict.get("/metrics", headers=HEADERS).status_code == strict.get("/healthz").status_code == 200
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{strict.url}/v1", api_key="wrong", max_retries=0).models.list()
    found = openai.OpenAI(base_url=f"{strict.url}/v1", api_key=TOKEN).completions.create(model="slow", prompt="a")
    assert len(found.choices[0].text) == 15


def test_a_full_queue_gets_429(strict: Served, busy: httpx2.Response) -> None:
    with ThreadPoolExecutor(1) as waiter:
        waiting = waiter.submit(strict.post, "/v1/completions", {"prompt": "b"}, headers=HEADERS)
        wait_until(strict, "rdlm_waiting_samples", 1)
        answer = strict.post("/v1/completions", {"prompt": "c"}, headers=HEADERS)
        assert answer.status_code == 429 and answer.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        busy.close()
        assert waiting.result().status_code == 200  # it ran once the place was free


def test_more_samples_than_the_queue_holds_are_rejected(strict: Served) -> None:
    answer = strict.post("/v1/completions", {"prompt": "a", "n": 2}, headers=HEADERS)
    assert answer.status_code == 400 and "at most 1 samples" in answer.json()["error"]["message"]


def test_requests_past_the_deadline_fail(strict: Served, busy: httpx2.Response) -> None:
    """A running request gets 504 as an event of its stream, a waiting one gets 503."""
    waiting = strict.post("/v1/completions", {"prompt": "b"}, headers=HEADERS)
    assert waiting.status_code in (200, 503)  # it may start just before its own deadline
    lines = [line for line in busy.iter_lines() if line.startswith("data: ")]
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert error["type"] == "timeout_error" and "fewer steps" in error["message"]
    answer = strict.post("/v1/completions", LONG, headers=HEADERS)
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "deadline_exceeded"


def test_a_stream_stops_when_its_client_disconnects(strict: Served, busy: httpx2.Response) -> None:
    wait_until(strict, "rdlm_live_samples", 1)
    next(busy.iter_lines())
    busy.close()
    wait_until(strict, "rdlm_live_samples", 0)
    steps = strict.counted("rdlm_steps_total")
    time.sleep(0.3)
    assert strict.counted("rdlm_steps_total") == steps


def test_a_request_stops_when_its_client_disconnects(strict: Served) -> None:
    before = strict.counted("rdlm_cancelled_total")
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{strict.url}/v1/completions", json=LONG, headers=HEADERS, timeout=0.5)
    wait_until(strict, "rdlm_live_samples", 0)
    assert strict.counted("rdlm_cancelled_total") == before + 1
    work = {"input": "abcdef" * 500, "steps": 1024}
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{strict.url}/v1/score", json=work, headers=HEADERS, timeout=0.5)
    wait_until(strict, "rdlm_cancelled_total", before + 2)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_shuts_down_gracefully(runs: Path, ending: signal.Signals) -> None:
    """Requests in progress get their result or 503; then the process ends within seconds."""
    with serving(str(runs / "together")) as served, ThreadPoolExecutor(2) as crowd:
        short = crowd.submit(served.post, "/v1/completions", {"prompt": "a", "steps": 200})
        long = crowd.submit(served.post, "/v1/completions", {"prompt": "a", "steps": 1024, "max_tokens": 4000})
        wait_until(served, "rdlm_live_samples", 2)
        begin = time.monotonic()
        served.process.send_signal(ending)
        assert served.process.wait(timeout=60) == (0 if ending == signal.SIGTERM else 130)
        assert time.monotonic() - begin < 45  # 4 seconds of grace, on a machine that may be busy
        assert short.result().status_code in (200, 503)
        answer = long.result()
        assert answer.status_code == 503 and "shutting down" in answer.json()["error"]["message"]


SLOW = """
import sys, time
from rdlm.cli.main import main
from rdlm.sampling.denoisers import Batcher
from rdlm.serve import openai
evaluate, prepare = Batcher.__call__, openai.prepare
Batcher.__call__ = lambda self, queries: (time.sleep(100), evaluate(self, queries))[1]
openai.prepare = lambda model, options: (time.sleep(100 * (options.steps == 7)), prepare(model, options))[1]
sys.exit(main(sys.argv[1:]))
"""
"""A service whose network calls take 100 seconds, and the preparation of requests for 7 steps, too."""

RUNNING: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/completions?": {"prompt": "a", "stream": True},
    "/v1/completions??": {"prompt": "a", "steps": 7},
    "/v1/score": {"input": "abcdef"},
    "/v1/restore": {"text": "a?c", "samples": 1},
    "/v1/trajectory": {"prompt": "a"},
}


def test_a_signal_ends_a_service_whose_threads_hang(runs: Path, tmp_path: Path) -> None:
    """Each request gets 503, and the process ends: Python would wait for the threads."""
    with (tmp_path / "log").open("w+") as log, ThreadPoolExecutor(len(RUNNING)) as crowd:
        with serving(str(runs / "together"), program=("-c", SLOW), messages=log) as served:
            answers = [crowd.submit(served.post, path, body) for path, body in RUNNING.items()]
            while served.counted("rdlm_live_samples") + served.counted("rdlm_waiting_samples") < 3:
                time.sleep(0.05)
            time.sleep(0.5)
            begin = time.monotonic()
            served.process.terminate()
            assert served.process.wait(timeout=60) == 0
            assert time.monotonic() - begin < 45  # 9 seconds, on a machine that may be busy
        for answer in answers:
            assert answer.result().status_code == 503 and answer.result().json()["error"]["code"] == "closing"
        log.seek(0)
        messages = log.read()
        assert "Traceback" not in messages and "a thread did not end within 9 s" in messages


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--host", "0.0.0.0"], {}, "set RDLM_TOKEN"),
        (["--host", "0.0.0.0"], {"RDLM_TOKEN": "short"}, "too short"),
        (["--port", "70000"], {}, "--port must lie in"),
        (["--steps", "0"], {}, "steps must be at least 1"),
        (["--deadline", "0"], {}, "deadline must be a positive"),
        (["--host", "no.such.host.invalid"], {"RDLM_TOKEN": TOKEN}, "not an address of this machine"),
    ],
)
def test_invalid_options_are_rejected(
    runs: Path,
    arguments: list[str],
    environment: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("RDLM_TOKEN", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["serve", str(runs / "together"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_named(strict: Served, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = strict.url.rpartition(":")[2]
    assert cli.main(["serve", str(runs / "together"), "--port", port]) == 2
    assert f"port {port}" in capsys.readouterr().err


def test_without_a_run_the_packaged_model_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    """It is an error if there is no packaged model."""
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "box")
    assert cli.main(["serve", "--port", "0"]) == 2
    assert "no packaged model" in capsys.readouterr().err
    rdlm.load(save(tmp_path / "run")).save(tmp_path / "box" / pretrained.DEFAULT)
    (model,) = Serve()._models()
    assert model.name == pretrained.DEFAULT
    service = Service([model], Limits())
    card = service.model(None).card
    service.close()
    assert card["id"] == pretrained.DEFAULT and int(str(card["created"])) > 0


def test_a_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from rdlm.cli.main import main; sys.exit(main(['serve', 'run']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2 and "pip install 'rdlm[serve]'" in result.stderr
