"""Values for request bodies: valid ones, and values of wrong types and sizes."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import Any

from wire import Target

TEXTS = (
    "",
    " ",
    "a",
    "the quick brown fox",
    "_",
    "a_b",
    "\U0001f600" * 3,
    "\ud800",
    "\udfff\ud800",
    "\x00",
    "a\x00b",
    "ß",
    "\u202eabc",
    "\ufeffa",
    "e\u0301" * 50,
    "<script>alert(1)</script>",
    "'; DROP TABLE runs; --",
    "{{7*7}}",
    "%s%n",
    "../../etc/passwd",
    "${jndi:ldap://x}",
    "\r\nSet-Cookie: a=b",
    "a" * 33_000,
    "a" * 100_000,
    "_" * 300,
    "\t\n",
)
ODD: tuple[Any, ...] = (
    *TEXTS,
    None,
    True,
    False,
    0,
    1,
    -1,
    0.5,
    1.0,
    1e308,
    -0.0,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63),
    10**30,
    [],
    {},
    [[]],
    [None],
    [""],
    ["a"] * 20,
    ["a", 1],
    {"a": {"b": []}},
    [[["a"]]],
    ["\ud800"],
    list(range(300)),
    "nan",
    "1",
    "true",
)
RAW = (
    "NaN",
    "-Infinity",
    "Infinity",
    "1e999",
    "-1e999",
    "9" * 5000,
    "0x10",
    "01",
    "1.",
    ".5",
    "+1",
    "1_000",
    "undefined",
    "'a'",
    '"a',
    '"\\x41"',
    '"\\ud83d"',
    '"\\u12"',
    "[1,]",
    "{,}",
    "/**/1",
    "",
    "None",
    '"\t"',
    "-",
    "1e",
    "[" * 100_000,
    "[" * 600 + "]" * 600,
    '{"a":' * 600 + "1" + "}" * 600,
    "[" + "0," * 100_000 + "0]",
    "1 2",
    "\\",
)
NO_FIELDS = ("promt", "__class__", "__proto__", "")
"""Names that no body knows."""


@lru_cache
def fields(target: Target, path: str) -> tuple[str, ...]:
    """Return all fields of a body by the OpenAPI description, and some unknown ones."""
    (answer,) = target.ask(target.head("GET", "/openapi.json"))
    content = json.loads(answer.body)["paths"][path]["post"]["requestBody"]["content"]
    return (*content["application/json"]["schema"]["properties"], *NO_FIELDS)


def valid(rng: random.Random, path: str) -> dict[str, Any]:
    """Return a valid body with little work."""
    is_dna = rng.random() < 0.2
    text = "".join(rng.choices("ACGT" if is_dna else "abcdefgh ", k=rng.randrange(2, 12)))
    model = {"model": "dna"} if is_dna else {}
    if path == "/v1/score":
        return {"input": text, "steps": rng.randrange(1, 5), **model}
    if path == "/v1/restore" and is_dna:
        return {"text": f"{text}?[AC]", "steps": 2, "channel": rng.choice((None, "symmetric")), **model}
    if path == "/v1/restore":
        channel = rng.choice((None, "symmetric", "keyboard", {"a": {"a": 0.5, "b": 0.5}}))
        return {"text": f"{text}?[ab]", "steps": rng.randrange(1, 5), "samples": rng.randrange(3), "channel": channel}
    body: dict[str, Any] = {"prompt": text, "steps": rng.randrange(1, 5), "seed": rng.randrange(100), **model}
    if not is_dna and rng.random() < 0.2:
        return body | {"model": "image", "prompt": ""}
    if not is_dna and rng.random() < 0.3:
        body |= {"model": "classed", "label": rng.choice(("cat", "dog", 0, 1)), "guidance": rng.choice((0, 1, 2.5))}
    return body | ({"max_tokens": rng.randrange(1, 8)} if path == "/v1/completions" else {"frames": 3})
