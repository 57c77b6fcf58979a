"""HTML for notebooks: models, samples and scores, without scripts, for light and dark pages.

Background colours are translucent, and text has the colour of the page. All text is escaped. The text is readable
without styles.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rdlm.storage import measurements

if TYPE_CHECKING:
    from rdlm.api.generate import Generation, Sample
    from rdlm.api.language_model import LanguageModel
    from rdlm.api.output import Frame
    from rdlm.api.score import Score


BLUE, ORANGE = "58,134,214", "224,104,24"
DARKEST = 0.5
"""Opacity of the strongest colour; both black and white text are readable on it."""

SHADES = 10
SHOWN_SAMPLES = 20
SHOWN_TOKENS = 4000
SHOWN_FRAMES = 17

TEXT = "font-family:ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.6;margin:.2em 0"
FAINT = "opacity:.7;font-size:90%"
PROMPT = "border-bottom:2px solid currentColor;opacity:.75"

_numbers = itertools.count()


class ScoreList(list["Score"]):
    """A list of scores that a notebook displays as coloured texts."""

    def _repr_html_(self) -> str:
        return "".join(score(one) for one in self[:SHOWN_SAMPLES]) + _rest(len(self), "scores")


def language_model(model: LanguageModel) -> str:
    """Return a table of the properties and evaluations of a model."""
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
        if (main := measurements.main_metric(found)) is not None:
            same = found.get("weights") == measurements.fingerprint(model.method.network)
            kind = measurements.bound_label(found, main[1]) + (
                "" if same else ", measured before the weights were rounded"
            )
            facts[f"{found['split']} split"] = f"{measurements.interval(main[1])} {main[1]['unit']} ({kind})"
    if not any(key.endswith(" split") for key in facts):
        facts["evaluation"] = "none yet: run rdlm evaluate"
    return f'<div style="max-width:48em"><b>{_safe(model.name)}</b>{_table(facts)}</div>'


def sample(found: Sample) -> str:
    """Return the text and the seed of a sample."""
    return f'<div style="{FAINT}">seed {found.seed}</div><div style="{TEXT}">{_safe(found.text)}</div>'


def generation(result: Generation) -> str:
    """Return the samples with prompt tokens marked, and the steps of the first one if they were recorded."""
    bound = "covered by the likelihood bound of this sampler" if result.claims_bound else "not covered by a bound"
    count = len(result.samples)
    head = f"{count} sample{'s' * (count > 1)}, {result.network_calls} NFE each, {bound}"
    body = _picture(result) if result.model is not None and result.model.kind == "image" else "".join(_texts(result))
    return f'<div style="max-width:60em"><div style="{FAINT}">{head}</div>{body}</div>'


def score(found: Score) -> str:
    """Return a text with each token coloured by its share of the bits."""
    bits, label = 1 / math.log(2), "upper bound" if found.nats.claims_bound else "not a bound"
    low, high = (end * bits / found.chars for end in (found.nats.low, found.nats.high))
    head = (
        f"{found.nats.value * bits:.4g} bits, {found.bits_per_char:.4g} [{low:.4g}, {high:.4g}] per character, {label}"
    )
    tokens = found.tokens[:SHOWN_TOKENS]
    top = max(found.positions, default=0.0)
    if top > 0:
        head += f"; strongest colour: {top:.3g} bits"
        shares = found.positions[: len(tokens)]
        titled = (f"{token!r}: {share:.3g} bits" for token, share in zip(tokens, shares, strict=True))
        text = _spans(tokens, [share / top for share in shares], ORANGE, titled)
    else:
        text = _safe("".join(tokens))
    rest = _rest(len(found.tokens), "tokens", SHOWN_TOKENS)
    body = f'<div style="{FAINT}">{head}</div><div style="{TEXT}">{text}</div>{rest}'
    return f'<div style="max-width:60em;margin-bottom:.6em">{body}</div>'


# -- samples -----------------------------------------------------------------------------------------


def _texts(result: Generation) -> Iterator[str]:
    frames = result.trace.frames if result.trace is not None else []
    if any(result.known) or frames:
        legend = ["underlined: prompt"] * any(result.known)
        legend += ["blue: mean probability of the token over the steps in which it was the most likely"] * bool(frames)
        yield f'<div style="{FAINT}">{"; ".join(legend)}</div>'
    for index, found in enumerate(result.samples[:SHOWN_SAMPLES]):
        text = _traced(frames, result.known) if frames and index == 0 else _marked(result, found)
        yield f'<div style="{TEXT}" title="seed {found.seed}">{text}</div>'
    yield _rest(len(result.samples), "samples")
    if frames:
        yield _steps(frames)


def _marked(result: Generation, found: Sample) -> str:
    """Return the text of a sample with the prompt tokens marked."""
    if result.model is None or not any(result.known):
        return _safe(found.text)
    parts = []
    for known, run in itertools.groupby(zip(result.known, found.tokens, strict=True), key=lambda pair: pair[0]):
        text = _safe(result.model.tokenizer.decode([token for _, token in run]))
        parts.append(f'<span style="{PROMPT}">{text}</span>' if known else text)
    return "".join(parts)


def mean_certainty(frames: Sequence[Frame]) -> list[float]:
    """Return the mean over steps of each final token's probability, counted as 0 if it was not the most likely."""
    *steps, end = frames
    mean = [0.0] * len(end.tokens)
    for frame in steps:
        for position, (token, certainty) in enumerate(zip(frame.tokens, frame.certainty, strict=True)):
            mean[position] += certainty * (token == end.tokens[position]) / len(steps)
    return mean


def _traced(frames: Sequence[Frame], known: Sequence[bool]) -> str:
    """Return the final text of a recorded sample, prompt tokens marked and others coloured by certainty."""
    end, certainty = frames[-1].tokens, mean_certainty(frames)
    is_prompt = known or [False] * len(end)
    parts = []
    for marked, run in itertools.groupby(range(len(end)), key=lambda position: is_prompt[position]):
        positions = list(run)
        tokens = [end[position] for position in positions]
        if marked:
            parts.append(f'<span style="{PROMPT}">{_safe("".join(tokens))}</span>')
        else:
            titles = (f"{end[position]!r}: {certainty[position]:.0%}" for position in positions)
            parts.append(_spans(tokens, [certainty[position] for position in positions], BLUE, titles))
    return "".join(parts)


def _steps(frames: Sequence[Frame]) -> str:
    """Return radio buttons for up to SHOWN_FRAMES steps, and the tokens of the selected step; arrow keys work."""
    last = len(frames) - 1
    shown = sorted({round(i * last / (SHOWN_FRAMES - 1)) for i in range(SHOWN_FRAMES)})
    panels = [
        f'<div><span style="{FAINT}">{f"step {m + 1} of {last}" if m < last else "the sample"}</span>'
        f'<div style="{TEXT}">{_spans(frames[m].tokens, frames[m].certainty, BLUE)}</div></div>'
        for m in shown
    ]
    digest = hashlib.sha256("".join(panels).encode()).hexdigest()[:8]
    name = f"rdlm-{digest}-{next(_numbers)}"  # the number distinguishes the buttons of a sample that is shown twice
    chosen = len(shown) // 2
    buttons = [
        f'<input type="radio" name="{name}" aria-label="step {i + 1}"{" checked" * (i == chosen)}>'
        for i in range(len(shown))
    ]
    rules = [f"#{name}>input:nth-of-type({i}):checked~div:nth-of-type({i})" for i in range(1, len(shown) + 1)]
    style = f"<style>#{name}>div{{display:none}}#{name}>input{{margin:0 1px}}{','.join(rules)}{{display:block}}</style>"
    return (
        "<details open><summary>the steps of the first sample: the most likely tokens, bluer if more certain</summary>"
        f'<div id="{name}">{style}{"".join(buttons)}{"".join(panels)}</div></details>'
    )


def _picture(result: Generation) -> str:
    from rdlm.api.output import picture
    from rdlm.data.image import encode_png

    assert result.model is not None
    content = base64.b64encode(encode_png(picture(result.model, result.samples))).decode()
    return f'<img alt="samples" style="image-rendering:pixelated" src="data:image/png;base64,{content}">'


# -- elements ------------------------------------------------------------------------------------------


def _spans(tokens: Sequence[str], heat: Sequence[float], colour: str, titles: Iterable[str] | None = None) -> str:
    """Return tokens on shades of a colour, the strongest at heat 1; without titles, equal neighbours share a span."""
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
