"""Request bodies: their fields and limits, and strict parsing."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from rdlm.config import OrderChoice, OrderName, SamplingOptions, attribute_docstrings
from rdlm.deprecated import ORDERS
from rdlm.serve.http_errors import HttpError

LONGEST_TEXT = 32_768
"""Characters of a prompt, suffix, infill or text to score."""
MOST_TEXTS = 16
MOST_STEPS = 1024
MOST_TOKENS = 4096
MOST_FRAMES = 256
MOST_DRAWS = 16
"""Samples, and refining passes, of a restoration."""
MOST_LOGPROBS = 20
MOST_FIELDS = 1024
"""Fields of any object in a body."""
MOST_DIGITS = 400
"""Digits of a whole number, more than the largest float has."""
MOST_GUIDANCE = 100

Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=LONGEST_TEXT)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Label = Annotated[str, Field(max_length=256)] | Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]


class Body(BaseModel):
    """A request body: unknown fields, numbers in place of text and NaN are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = Field(None, max_length=256, description="Name of a served model; the first one if not given.")


class TextBody(Body):
    """A body with texts in the model's alphabet."""

    normalise: bool = Field(
        False,
        description="Change characters outside of the model's alphabet by its rule, `rdlm.normalisation` of the model; "
        "the answer states what was changed. Without it, they are an error, or kept in a restored text.",
    )


Form = TypeVar("Form", bound=Body)

LIMITS: dict[str, dict[str, Any]] = {
    "infill": {"max_length": LONGEST_TEXT},
    "steps": {"ge": 1, "le": MOST_STEPS},
    "solver": {},
    "grid": {},
    "window": {"gt": 0, "le": 1},
    "order": {},
    "block": {"ge": 0, "le": MOST_TOKENS, "validation_alias": AliasChoices("block", "chunk")},
    "label": {},
    "guidance": {"ge": 0, "le": MOST_GUIDANCE},
    "temperature": {"ge": 0, "le": 2},
    "top_p": {"ge": 0, "le": 1},
    "seed": {},
}
"""The sampling options that a request may set, with what bounds them; type and description are the option's own."""


Order = Annotated[OrderChoice, BeforeValidator(lambda name: ORDERS.get(name, name) if isinstance(name, str) else name)]
"""An order; its former name is accepted, too."""

TYPES: dict[str, Any] = {
    "label": Label,
    "order": Order,
    "seed": Seed,
}
"""Options whose values are wider or narrower here than in `SamplingOptions`."""


def _sampling() -> type[Body]:
    """Return the body fields of the sampling options, all of them optional."""
    hints, help_of = get_type_hints(SamplingOptions), attribute_docstrings(SamplingOptions)
    found = {
        name: (TYPES.get(name, hints[name]) | None, Field(None, description=help_of[name], **limits))
        for name, limits in LIMITS.items()
    }
    made: type[Body] = create_model("Sampling", __base__=Body, **found)  # type: ignore[call-overload]
    return made


def with_sampling(form: type[Form]) -> type[Form]:
    """Return a body that takes the sampling options, too."""
    made: type[Form] = create_model(form.__name__, __base__=(form, SAMPLING), __doc__=form.__doc__)  # type: ignore[arg-type]
    return made


def sampling_of(body: Body) -> dict[str, Any]:
    """Return the sampling options that a body sets."""
    return {name: value for name in LIMITS if (value := getattr(body, name)) is not None}


SAMPLING = _sampling()


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = Field(None, description="End with a chunk that counts the tokens.")
    include_obfuscation: bool | None = Field(None, description="Accepted, without effect.")


@with_sampling
class CompletionBody(TextBody):
    """OpenAI's legacy completion, with `suffix` for text on both sides, and this service's own fields."""

    prompt: Text | Texts | Ids | Annotated[list[Ids], Field(min_length=1, max_length=MOST_TEXTS)] = Field(
        "", description="Text before the completion, or several of them; token ids are accepted, too."
    )
    suffix: Text | None = Field(None, description="Text after the completion.")
    max_tokens: int | None = Field(
        None, ge=0, le=MOST_TOKENS, description="Tokens to write; as many as fit the model. 0: none, to score a prompt."
    )
    n: int | None = Field(None, ge=1, le=16, description="Completions of each prompt; their seeds count up.")
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = Field(None, description="Where a text ends.")
    stream: bool | None = Field(None, description="Server-sent events: text as soon as it is final.")
    stream_options: StreamOptions | None = None
    echo: bool | None = Field(None, description="Begin the text with its prompt.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MOST_LOGPROBS,
        description="Log-probabilities of tokens given those before them, and of so many likeliest ones, where the "
        "order of generation has them: left to right, one call per token.",
    )
    best_of: int | None = Field(None, description="Refused unless it equals n.")
    presence_penalty: float | None = Field(None, description="Refused unless 0.")
    frequency_penalty: float | None = Field(None, description="Refused unless 0.")
    logit_bias: dict[str, float] | None = Field(None, description="Refused unless empty.")
    user: str | None = Field(None, max_length=256, description="Accepted, without effect.")


class ScoreBody(TextBody):
    """Texts whose likelihood is bounded."""

    input: Text | Texts = Field(description="A text, or several of them.")
    prompt: Text | None = Field(
        None,
        description="Text before each input: the values are those of the continuation given the prompt, `exact` where "
        "tokens are generated one by one from left to right, bounds elsewhere.",
    )
    steps: Steps | None = Field(None, description="Steps M of the sampler whose likelihood is bounded.")
    order: Order | None = Field(None, description="Order in which that sampler generates a text; auto if not given.")
    block: int | None = Field(None, ge=0, le=MOST_TOKENS, description="Tokens of a block of that order.")


Probabilities = dict[Annotated[str, Field(max_length=8)], float]
"""Probabilities of characters, by the character."""


class RestoreBody(TextBody):
    """An uncertain reading: a text with marks, or evidence for every position."""

    text: Text | None = Field(
        None, description="The reading: ? or _ is unreadable, [ae] is one of several, a backslash quotes a character."
    )
    literal: bool = Field(False, description="Take ? _ [ ] and backslashes in the text as ordinary characters.")
    evidence: Annotated[list[Probabilities], Field(min_length=1, max_length=MOST_TOKENS)] | None = Field(
        None,
        description="In place of text: {character: probability} of every position, which sum to 1; the key rest is for "
        "all characters that are not named.",
    )
    channel: Literal["symmetric", "keyboard"] | dict[str, Probabilities] | None = Field(
        None,
        description="How characters are misread: symmetric (any other one), keyboard (a neighbouring key), or a matrix "
        "{true: {read: probability}}; not given: what can be read is right.",
    )
    error: Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] = Field(
        0.1, description="Share of misread characters, for symmetric and keyboard; auto: estimated from the text."
    )
    whole: bool = Field(
        False,
        description="Return the likeliest whole text that is found, not the likeliest character of each position.",
    )
    passes: int = Field(
        0, ge=0, le=MOST_DRAWS, description="Posterior as the mean over so many passes; 0: one network call."
    )
    samples: int = Field(0, ge=0, le=MOST_DRAWS, description="Texts to draw from the joint posterior.")
    steps: Steps = Field(64, description="Network calls of a sample or pass.")
    order: OrderName = Field("synchronous", description="Order in which the characters of a sample are decided.")
    seed: Seed = Field(0, description="Random seed of samples, passes and the bound.")
    likelihood: Literal["bound", "pseudo"] | None = Field(
        None,
        description="Also return the likelihood of the reading itself: an upper bound on -log p, or the cheaper "
        "pseudo-likelihood, which is not a bound; for at most the model's length.",
    )


@with_sampling
class TrajectoryBody(TextBody):
    """A sample whose steps are streamed."""

    prompt: Text | None = Field(None, description="Text that the sample begins with.")
    length: int | None = Field(None, ge=1, le=MOST_TOKENS, description="Tokens of the sample.")
    position: int | None = Field(
        None, ge=0, description="Position whose sphere is shown; the first open one if not given."
    )
    frames: int = Field(64, ge=1, le=MOST_FRAMES, description="Most frames to send.")


def read(raw: bytes, form: type[Form]) -> Form:
    """Return a parsed body; a mistake raises an error that names the field."""
    try:
        content = json.loads(raw.decode("utf-8"), parse_constant=_no_constant, parse_int=_whole, object_pairs_hook=_few)
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
        raise _error(mistakes) from None


def _few(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; one mistake for each of a hundred thousand fields would take tens of megabytes to describe."""
    if len(pairs) > MOST_FIELDS:
        raise HttpError(400, f"an object in the body has {len(pairs)} fields; at most {MOST_FIELDS} are read")
    if len(found := dict(pairs)) < len(pairs):
        double = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise HttpError(400, f"an object in the body has two fields {_plain(double)}", _plain(double))
    return found


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; at most {MOST_DIGITS} are read")
    return int(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _error(mistakes: ValidationError) -> HttpError:
    """Return an error that names the first mistake; of a field with alternatives, all of its mistakes."""
    found: list[dict[str, Any]] = [dict(mistake) for mistake in mistakes.errors(include_url=False, include_input=False)]
    name = str(found[0]["loc"][0]) if found[0]["loc"] else None
    words = dict.fromkeys(str(one["msg"]) for one in found if str((*one["loc"], None)[0]) == str(name))
    text = " or ".join(words).replace("Extra inputs are not permitted", "unknown field")
    place = "".join(f"item {part}: " for part in found[0]["loc"][1:2] if isinstance(part, int))
    return HttpError(400, f"{_plain(name or 'body')}: {place}{text}", None if name is None else _plain(name))


def _plain(name: str) -> str:
    return name.encode("ascii", "replace").decode()[:64]
