"""What requests may say, field by field, and how their bodies are read: strictly, within limits, never by surprise."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from rdlm.process.order import Order
from rdlm.serve.http_errors import HttpError

LONGEST_TEXT = 32_768
"""Characters of a prompt, suffix, infill or text to score."""
MOST_TEXTS = 16
MOST_STEPS = 1024
MOST_TOKENS = 4096
MOST_FRAMES = 256
MOST_FIELDS = 1024
"""Fields of any object in a body."""
MOST_GUIDANCE = 100

Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Label = Annotated[str, Field(max_length=256)] | Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
SolverName = Literal["mixture", "drift", "heun", "corrector", "deterministic", "euler"]
GridName = Literal["time", "log", "information"]


class Body(BaseModel):
    """A request's body: no field that is not named here, no number for a text, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = Field(None, max_length=256, description="Name of a served model; the first one if not given.")


class Sampling(Body):
    """What the requests for samples share."""

    infill: Text | None = Field(None, description="A whole text in which each gap mark is one open token.")
    steps: Steps | None = Field(None, description="Steps of the walk; the service's default if not given.")
    solver: SolverName | None = Field(None, description="What a step does; mixture if not given.")
    grid: GridName | None = Field(None, description="Where the steps are; uniform in time if not given.")
    window: float | None = Field(
        None, gt=0, le=1, description="Part of the walk in which one position runs; 1: all together. The model's own."
    )
    order: Order | None = Field(None, description="Order in which positions begin to run; the model's own.")
    block: int | None = Field(
        None,
        ge=0,
        le=MOST_TOKENS,
        validation_alias=AliasChoices("block", "chunk"),
        description="Tokens of a block; blocks are generated left to right; 0: one block. The model's own.",
    )
    label: Label | None = Field(None, description="Class to sample, by name or number, of a model that has classes.")
    guidance: float | None = Field(
        None, ge=0, le=MOST_GUIDANCE, description="Weight of the class: 0 ignores it, 1 as trained, more exaggerates."
    )
    temperature: float | None = Field(None, ge=0, le=2, description="Below 1 likely tokens become likelier; 0: greedy.")
    top_p: float | None = Field(None, ge=0, le=1, description="Draw from the likeliest tokens with this probability.")
    seed: Seed | None = Field(None, description="The same seed gives the same sample, whatever else is being served.")


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = Field(None, description="End with a chunk that counts the tokens.")
    include_obfuscation: bool | None = Field(None, description="Accepted, without effect.")


class CompletionBody(Sampling):
    """OpenAI's legacy completion, with `suffix` for text on both sides, and this service's own fields."""

    prompt: Text | Texts = Field("", description="Text before the completion, or several of them.")
    suffix: Text | None = Field(None, description="Text after the completion.")
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS, description="Tokens to write; as many as fit the model.")
    n: int | None = Field(None, ge=1, le=16, description="Completions of each prompt; their seeds count up.")
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = Field(None, description="Where a text ends.")
    stream: bool | None = Field(None, description="Server-sent events: text as soon as it is final.")
    stream_options: StreamOptions | None = None
    echo: bool | None = Field(None, description="Begin the text with its prompt.")
    logprobs: int | None = Field(None, description="Refused: see /v1/score.")
    best_of: int | None = Field(None, description="Refused unless it equals n.")
    presence_penalty: float | None = Field(None, description="Refused unless 0.")
    frequency_penalty: float | None = Field(None, description="Refused unless 0.")
    logit_bias: dict[str, float] | None = Field(None, description="Refused unless empty.")
    user: str | None = Field(None, max_length=256, description="Accepted, without effect.")


class ScoreBody(Body):
    """Texts whose likelihood is bounded."""

    input: Text | Texts = Field(description="A text, or several of them.")
    steps: Steps | None = Field(None, description="Network calls M of the sampler that is bounded.")


class TrajectoryBody(Sampling):
    """A sample that is watched while it takes shape."""

    prompt: Text | None = Field(None, description="Text that the sample begins with.")
    length: int | None = Field(None, ge=1, le=MOST_TOKENS, description="Tokens of the sample.")
    position: int | None = Field(None, ge=0, description="Whose sphere to follow; the first open one if not given.")
    frames: int = Field(64, ge=1, le=MOST_FRAMES, description="Most frames to send.")


Form = TypeVar("Form", bound=Body)


def read(raw: bytes, form: type[Form]) -> Form:
    """Return a body's content, checked; whatever is wrong with it is a refusal that names the field."""
    try:
        content = json.loads(raw.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_few)
    except UnicodeDecodeError:
        raise HttpError(400, "the body is not UTF-8") from None
    except RecursionError:
        raise HttpError(400, "the body is nested too deeply") from None
    except ValueError as mistake:
        raise HttpError(400, f"the body is not JSON: {mistake}") from None
    if not isinstance(content, dict):
        raise HttpError(400, "the body must be a JSON object")
    try:
        return form.model_validate(content)
    except ValidationError as mistakes:
        raise _refusal(mistakes) from None


def _few(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; one mistake for each of a hundred thousand fields would take tens of megabytes to describe."""
    if len(pairs) > MOST_FIELDS:
        raise HttpError(400, f"an object in the body has {len(pairs)} fields; at most {MOST_FIELDS} are read")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _refusal(mistakes: ValidationError) -> HttpError:
    """Return a refusal that names the first mistake; of a field with alternatives, all of its mistakes."""
    found: list[dict[str, Any]] = [dict(mistake) for mistake in mistakes.errors(include_url=False, include_input=False)]
    name = str(found[0]["loc"][0]) if found[0]["loc"] else None
    words = dict.fromkeys(str(one["msg"]) for one in found if str((*one["loc"], None)[0]) == str(name))
    text = " or ".join(words).replace("Extra inputs are not permitted", "unknown field")
    return HttpError(400, f"{_plain(name or 'body')}: {text}", None if name is None else _plain(name))


def _plain(name: str) -> str:
    return name.encode("ascii", "replace").decode()[:64]
