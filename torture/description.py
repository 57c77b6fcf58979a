"""Requests that schemathesis generates from the OpenAPI description: valid ones and invalid ones."""

from __future__ import annotations

from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.schemas import APIOperation
from wire import PATIENCE, Answer, Tally, Target

CHEAP = {"steps": (1024, 6), "max_tokens": (4096, 24), "length": (4096, 24), "n": (16, 2)}
"""Field -> the most that may be asked for, and the most that is: the work is done elsewhere, here it is the words."""


def operations(target: Target) -> list[APIOperation]:
    """Return the endpoints of the OpenAPI description."""
    found = requests.get(f"http://{target.host}:{target.port}/openapi.json", timeout=PATIENCE).json()
    schema = schemathesis.openapi.from_dict(found)
    return [one.ok() for one in schema.get_all_operations()]


def misuse(target: Target, count: int, number: int, secrets: tuple[str, ...]) -> Tally:
    """Send `count` requests to all endpoints, half of them invalid, and return the results."""
    tally, found = Tally(), operations(target)
    weights = [8 if one.method == "post" else 3 if one.query else 1 for one in found]
    with requests.Session() as session:
        for operation, weight in zip(found, weights, strict=True):
            share = -(-count * weight // sum(weights))
            for mode, part in ((GenerationMode.POSITIVE, share - share // 2), (GenerationMode.NEGATIVE, share // 2)):
                if part and (mode is GenerationMode.POSITIVE or operation.body or operation.query):
                    _draw(operation, mode, part, number, target, session, secrets, tally)
    return tally


def _draw(
    operation: APIOperation,
    mode: GenerationMode,
    count: int,
    number: int,
    target: Target,
    session: requests.Session,
    secrets: tuple[str, ...],
    tally: Tally,
) -> None:
    label = f"{mode.value} {operation.method.upper()} {operation.path}"

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Case) -> None:
        case.body = cheaper(case.body)
        tally.tried[f"described, {mode.value}"] += 1
        try:
            answer = _asked(case, target, session)
        except requests.RequestException as failure:
            tally.defects.append(f"{label}: {failure!r}: {case.as_curl_command()}"[:1500])
            return
        tally.judge(f"{label}: {case.as_curl_command()[:300]}", answer, secrets, answer.body == b"")

    ask()


def cheaper(body: Any) -> Any:
    """Return the body with less work, if it is valid."""
    if not isinstance(body, dict):
        return body
    return {
        key: min(value, CHEAP[key][1]) if key in CHEAP and type(value) is int and 0 < value <= CHEAP[key][0] else value
        for key, value in body.items()
    }


def _asked(case: Case, target: Target, session: requests.Session) -> Answer:
    found = case.call(
        base_url=f"http://{target.host}:{target.port}",
        session=session,
        timeout=PATIENCE,
        headers={"Authorization": f"Bearer {target.token}"},
    )
    headers = {key.lower(): ", ".join(value) for key, value in found.headers.items()}
    return Answer(found.status_code, headers, found.content)
