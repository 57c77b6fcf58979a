"""What a notebook shows of models, samples and scores: HTML without scripts that fits light and dark pages alike.

Colours are translucent and letters have the page's own colour. All text is escaped. Where a page strips styles, the
words remain.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rdlm.storage import measurements as record

if TYPE_CHECKING:
    from rdlm.api.generate import Generation, Sample
    from rdlm.api.language_model import LanguageModel
    from rdlm.api.score import Score
    from rdlm.api.trace import Frame


BLUE, ORANGE = "58,134,214", "224,104,24"
DARKEST = 0.5
"""Opacity of the strongest colour: black letters and white ones can be read on it."""

SHADES = 10
SHOWN_SAMPLES = 20
SHOWN_TOKENS = 4000
SHOWN_FRAMES = 17

TEXT = "font-family:ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.6;margin:.2em 0"
FAINT = "opacity:.7;font-size:90%"
GIVEN = "border-bottom:2px solid currentColor;opacity:.75"

_numbers = itertools.count()


class Scores(list["Score"]):
    """Scores of texts, in their order; a list that a notebook shows as pictures."""

    def _repr_html_(self) -> str:
        return "".join(score(one) for one in self[:SHOWN_SAMPLES]) + _rest(len(self), "scores")


def language_model(model: LanguageModel) -> str:
    """Return a small card: what the model is, and what was measured of it."""
    from rdlm.api.publish import evaluations

    about = model.about
    facts = {
        "method": model.config.method,
        "parameters": f"{model.parameters:,}",
        "corpus": about.get("protocol", "unknown"),
        "sequences": f"{model.length} tokens of {model.kind}, vocabulary of {model.tokenizer.size}",
    }
    if about.get("classes"):
        facts["classes"] = ", ".join(about["classes"])
    for found in evaluations(model):
        if (main := record.main_metric(found)) is not None:
            same = found.get("weights") == record.fingerprint(model.method.network)
            kind = record.standing(found, main[1]) + ("" if same else ", before the weights were rounded")
            facts[f"{found['split']} split"] = f"{record.interval(main[1])} {main[1]['unit']} ({kind})"
    if not any(key.endswith(" split") for key in facts):
        facts["measured"] = "nothing yet: rdlm evaluate"
    return f'<div style="max-width:48em"><b>{_safe(model.name)}</b>{_table(facts)}</div>'


def sample(found: Sample) -> str:
    """Return one sample: its text and its seed."""
    return f'<div style="{FAINT}">seed {found.seed}</div><div style="{TEXT}">{_safe(found.text)}</div>'


def generation(made: Generation) -> str:
    """Return the samples, what was given in them marked, and how the first took shape where that was recorded."""
    bound = "the likelihood bound of this sampler holds for them" if made.claims_bound else "not covered by a bound"
    count = len(made.samples)
    head = f"{count} sample{'s' * (count > 1)}, {made.network_calls} network calls each, {bound}"
    body = _picture(made) if made.model is not None and made.model.kind == "image" else "".join(_texts(made))
    return f'<div style="max-width:60em"><div style="{FAINT}">{head}</div>{body}</div>'


def score(found: Score) -> str:
    """Return a text with each token's share of its bits, stronger in colour where it costs more."""
    bits, word = 1 / math.log(2), "upper bound" if found.nats.claims_bound else "not a bound"
    low, high = (end * bits / found.chars for end in (found.nats.low, found.nats.high))
    head = (
        f"{found.nats.value * bits:.4g} bits, {found.bits_per_char:.4g} [{low:.4g}, {high:.4g}] per character, {word}"
    )
    tokens = found.tokens[:SHOWN_TOKENS]
    top = max(found.positions, default=0.0)
    if top > 0:
        head += f"; the strongest colour: {top:.3g} bits"
        shares = found.positions[: len(tokens)]
        titled = (f"{token!r}: {share:.3g} bits" for token, share in zip(tokens, shares, strict=True))
        text = _spans(tokens, [share / top for share in shares], ORANGE, titled)
    else:
        text = _safe("".join(tokens))
    rest = _rest(len(found.tokens), "tokens", SHOWN_TOKENS)
    body = f'<div style="{FAINT}">{head}</div><div style="{TEXT}">{text}</div>{rest}'
    return f'<div style="max-width:60em;margin-bottom:.6em">{body}</div>'


# -- samples -----------------------------------------------------------------------------------------


def _texts(made: Generation) -> Iterator[str]:
    frames = made.trace.frames if made.trace is not None else []
    if any(made.known) or frames:
        legend = ["underlined: given"] * any(made.known)
        legend += ["blue: how sure the model was of a token, on average over the walk"] * bool(frames)
        yield f'<div style="{FAINT}">{"; ".join(legend)}</div>'
    for index, found in enumerate(made.samples[:SHOWN_SAMPLES]):
        text = _traced(frames, made.known) if frames and index == 0 else _marked(made, found)
        yield f'<div style="{TEXT}" title="seed {found.seed}">{text}</div>'
    yield _rest(len(made.samples), "samples")
    if frames:
        yield _film(frames)


def _marked(made: Generation, found: Sample) -> str:
    """Return a sample's text in which the given parts are marked."""
    if made.model is None or not any(made.known):
        return _safe(found.text)
    parts = []
    for known, run in itertools.groupby(zip(made.known, found.tokens, strict=True), key=lambda pair: pair[0]):
        text = _safe(made.model.tokenizer.decode([token for _, token in run]))
        parts.append(f'<span style="{GIVEN}">{text}</span>' if known else text)
    return "".join(parts)


def sureness(frames: Sequence[Frame]) -> list[float]:
    """Return, for each token of the end, its mean probability over the calls in which it was the likeliest, else 0."""
    *nfe, end = frames
    sure = [0.0] * len(end.tokens)
    for frame in nfe:
        for place, (token, certainty) in enumerate(zip(frame.tokens, frame.certainty, strict=True)):
            sure[place] += certainty * (token == end.tokens[place]) / len(nfe)
    return sure


def _traced(frames: Sequence[Frame], known: Sequence[bool]) -> str:
    end, sure = frames[-1].tokens, sureness(frames)
    given = known or [False] * len(end)
    parts = []
    for is_given, run in itertools.groupby(range(len(end)), key=lambda place: given[place]):
        places = list(run)
        tokens = [end[place] for place in places]
        if is_given:
            parts.append(f'<span style="{GIVEN}">{_safe("".join(tokens))}</span>')
        else:
            titles = (f"{end[place]!r}: {sure[place]:.0%}" for place in places)
            parts.append(_spans(tokens, [sure[place] for place in places], BLUE, titles))
    return "".join(parts)


def _film(frames: Sequence[Frame]) -> str:
    """Return a row of buttons, one for each of some moments, and the moment of the chosen one; arrow keys move on."""
    last = len(frames) - 1
    moments = sorted({round(i * last / (SHOWN_FRAMES - 1)) for i in range(SHOWN_FRAMES)})
    panels = [
        f'<div><span style="{FAINT}">{f"call {m + 1} of {last}" if m < last else "the sample"}</span>'
        f'<div style="{TEXT}">{_spans(frames[m].tokens, frames[m].certainty, BLUE)}</div></div>'
        for m in moments
    ]
    digest = hashlib.sha256("".join(panels).encode()).hexdigest()[:8]
    name = f"rdlm-{digest}-{next(_numbers)}"  # what is shown twice on a page must not share its buttons
    chosen = len(moments) // 2
    buttons = [
        f'<input type="radio" name="{name}" aria-label="moment {i + 1}"{" checked" * (i == chosen)}>'
        for i in range(len(moments))
    ]
    rules = [f"#{name}>input:nth-of-type({i}):checked~div:nth-of-type({i})" for i in range(1, len(moments) + 1)]
    style = f"<style>#{name}>div{{display:none}}#{name}>input{{margin:0 1px}}{','.join(rules)}{{display:block}}</style>"
    return (
        "<details open><summary>how the first one took shape: the likeliest tokens, bluer where more certain</summary>"
        f'<div id="{name}">{style}{"".join(buttons)}{"".join(panels)}</div></details>'
    )


def _picture(made: Generation) -> str:
    from rdlm.api.output import picture, png

    assert made.model is not None
    content = base64.b64encode(png(picture(made.model, made.samples))).decode()
    return f'<img alt="samples" style="image-rendering:pixelated" src="data:image/png;base64,{content}">'


# -- pieces ------------------------------------------------------------------------------------------


def _spans(tokens: Sequence[str], heat: Sequence[float], colour: str, titles: Iterable[str] | None = None) -> str:
    """Return tokens on shades of a colour, heat 1 the strongest; without titles equal neighbours share one."""
    shades = [round(SHADES * min(max(value, 0.0), 1.0)) for value in heat]
    if titles is not None:
        cells = zip(tokens, shades, titles, strict=True)
        return "".join(_span(token, shade, colour, f' title="{_safe(title)}"') for token, shade, title in cells)
    grouped = itertools.groupby(zip(tokens, shades, strict=True), key=lambda pair: pair[1])
    return "".join(_span("".join(token for token, _ in run), shade, colour) for shade, run in grouped)


def _span(text: str, shade: int, colour: str, title: str = "") -> str:
    return f'<span style="background:rgba({colour},{DARKEST * shade / SHADES:.2g})"{title}>{_safe(text)}</span>'


def _table(facts: Mapping[str, str]) -> str:
    cell = "text-align:left;padding:0 1em 0 0;border:0;background:none"
    rows = (
        f'<tr style="background:none"><td style="{cell};opacity:.7">{_safe(key)}</td>'
        f'<td style="{cell}">{_safe(value)}</td></tr>'
        for key, value in facts.items()
    )
    return f'<table style="border:0">{"".join(rows)}</table>'


def _rest(count: int, what: str, shown: int = SHOWN_SAMPLES) -> str:
    return f'<div style="{FAINT}">and {count - shown:,} more {what}</div>' if count > shown else ""


def _safe(text: object) -> str:
    return html.escape(str(text))
