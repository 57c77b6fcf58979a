"""Certificates and their reports: text, JSON, one HTML page, and the table of the gallery."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rdlm import __version__
from rdlm.certify.checks import Finding, Outcome, Plan, check_floor, default_sources
from rdlm.certify.gallery import GALLERY, Estimator
from rdlm.display.text_table import table
from rdlm.likelihood.certificate import CERTAINTY

VERDICTS: dict[Outcome, str] = {"held": "bound held", "violated": "not a bound", "cannot tell": "cannot tell"}

COLUMNS = ("check", "source", "limit", "value", "stderr", "slack", "verdict")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; width: 100%; } th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; }
th { text-align: left; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.held { color: #1b7837; } .violated { color: #b2182b; font-weight: 600; } .cannot { color: #8a6d00; }
svg { width: 100%; height: auto; } @media print { body { margin: 0; } }
"""


@dataclass(frozen=True)
class Certificate:
    """The findings about one estimator."""

    estimator: str
    findings: tuple[Finding, ...]
    samples: int
    seed: int
    resolution: float

    @property
    def outcome(self) -> Outcome:
        """`violated` if any law is, else `cannot tell` if any check cannot, else `held`."""
        found = {finding.outcome for finding in self.findings}
        return "violated" if "violated" in found else "cannot tell" if "cannot tell" in found else "held"

    @property
    def verdict(self) -> str:
        """The verdict in words: `bound held`, `not a bound` or `cannot tell`; of the laws beyond it if they fail."""
        floor = {finding.outcome for finding in self.findings if finding.check in ("floor", "normalisation", "sampler")}
        if self.outcome == "violated" and "violated" not in floor:
            names = sorted({finding.check for finding in self.findings if finding.outcome == "violated"})
            return f"no value below the entropy, but violated: {', '.join(names)}"
        return VERDICTS[self.outcome]

    def row(self) -> dict[str, object]:
        """Return the certificate as a JSON object, in nats per sequence."""
        return {
            "estimator": self.estimator,
            "verdict": self.verdict,
            "outcome": self.outcome,
            "findings": [finding.row() for finding in self.findings],
            "samples": self.samples,
            "seed": self.seed,
            "resolution": self.resolution,
            "certainty": CERTAINTY,
            "unit": "nats",
            "version": __version__,
        }

    def __str__(self) -> str:
        rows = [finding.row() | {"slack": f"{100 * finding.slack:+.2f}%"} for finding in self.findings]
        needed = max((finding.needed or 0 for finding in self.findings), default=0)
        advice = f"; repeat with {needed:,} samples" if self.outcome == "cannot tell" and needed else ""
        return f"{table(rows, COLUMNS)}\n\n{self.estimator}: {self.verdict}{advice}"

    def html(self) -> str:
        """Return the report: one page without external files."""
        name = html.escape(self.estimator)
        floor = [finding for finding in self.findings if finding.check == "floor"]
        body = [
            f"<h1>Certificate of {name}</h1>",
            f'<p>Verdict: <span class="{_css(self.outcome)}">{html.escape(self.verdict)}</span>.</p>',
            f"<p>Nats per sequence. {self.samples} samples per source, seed {self.seed}, rdlm {__version__}. A law is "
            f"violated beyond {CERTAINTY:g} standard errors, and held if a violation by {100 * self.resolution:g}% of "
            "the entropy is excluded as surely. Sources have a known distribution; unless a network was named, "
            "posteriors are exact.</p>",
            *(["<h2>Slack over the entropy</h2>", _picture(floor)] if floor else []),
            "<h2>Findings</h2>",
            _html_table(self.findings),
        ]
        head = f'<meta charset="utf-8"><title>Certificate of {name}</title><style>{STYLE}</style>'
        return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _css(outcome: Outcome) -> str:
    return outcome.split()[0]


def _html_table(found: Sequence[Finding]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("check", "source", "limit", "value", "error", "verdict"))
    lines = []
    for one in found:
        numbers = "".join(f'<td class="number">{x:.4f}</td>' for x in (one.limit, one.value, one.stderr))
        verdict = f'<td class="{_css(one.outcome)}">{html.escape(one.verdict)}</td>'
        lines.append(f"<tr><td>{one.check}</td><td>{html.escape(one.source)}</td>{numbers}{verdict}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _picture(found: Sequence[Finding]) -> str:
    """Return an SVG of the slack on each source, in percent of the entropy, with its interval."""
    spans = [(one, 100 * one.slack, 100 * CERTAINTY * one.stderr / one.limit) for one in found]
    low = min(-5.0, *(value - margin for _, value, margin in spans))
    high = max(5.0, *(value + margin for _, value, margin in spans))
    colours: dict[Outcome, str] = {"held": "#1b7837", "violated": "#b2182b", "cannot tell": "#8a6d00"}

    def x(percent: float) -> float:
        return 170 + 600 * (percent - low) / (high - low)

    height = 24 * len(found) + 50
    lines = [f'<line x1="{x(0):.1f}" x2="{x(0):.1f}" y1="20" y2="{height - 26}" stroke="#222" stroke-dasharray="4 3"/>']
    for number, (one, value, margin) in enumerate(spans):
        y, colour = 36 + 24 * number, colours[one.outcome]
        lines.append(f'<text x="160" y="{y + 4}" text-anchor="end" font-size="12">{html.escape(one.source)}</text>')
        lines.append(
            f'<line x1="{x(value - margin):.1f}" x2="{x(value + margin):.1f}" y1="{y}" y2="{y}" stroke="{colour}"/>'
        )
        lines.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="4" fill="{colour}"/>')
    for percent, label, y, anchor in (
        (low, f"{low:+.0f}%", height - 8, "start"),
        (0.0, "entropy", 14, "middle"),
        (high, f"{high:+.0f}%", height - 8, "end"),
    ):
        lines.append(f'<text x="{x(percent):.1f}" y="{y}" text-anchor="{anchor}" font-size="12">{label}</text>')
    title = "slack over the entropy on every source"
    return f'<svg viewBox="0 0 800 {height}" role="img" aria-label="{title}">{"".join(lines)}</svg>'


# -- the gallery -------------------------------------------------------------------------------------------------------


def certify_gallery(plan: Plan, names: Sequence[str] | None = None) -> Iterator[Certificate]:
    """Yield the certificate of every estimator of the gallery, or of the named ones, by the floor alone."""
    for estimator in GALLERY:
        if names is None or estimator.__name__ in names:
            found = tuple(check_floor(estimator, source, plan) for source in default_sources())
            yield Certificate(estimator.__name__, found, plan.samples, plan.seed, plan.resolution)


def described(estimator: Estimator) -> tuple[str, str]:
    """Return what an estimator is and the source of its formula, from its docstring."""
    text = (inspect.getdoc(estimator) or "").replace("|", "\\|")
    source = " ".join(text.partition("Source:")[2].split()).rstrip(".")
    return text.splitlines()[0].rstrip("."), re.sub(
        r"arXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", source
    )


def expected(name: str) -> bool:
    """Return whether the estimator with this name is a bound in theory."""
    return next(bound for estimator, bound in GALLERY.items() if estimator.__name__ == name)


def gallery_page(runs: Mapping[int, Sequence[Certificate]]) -> str:
    """Return docs/estimators.md from the certificates of the gallery, by seed."""
    first = next(iter(runs.values()))
    by_name = {estimator.__name__: described(estimator) for estimator in GALLERY}
    head = "| estimator | formula | source | theory | verdict | below the entropy on |\n|---|---|---|---|---|---|\n"
    lines, slack = [], []
    for number, certificate in enumerate(first):
        name = certificate.estimator
        what, source = by_name[name]
        same = [run[number] for run in runs.values()]
        below = [sorted(f.source for f in one.findings if f.outcome == "violated") for one in same]
        verdict = "; ".join(sorted({one.verdict for one in same}))
        both = [name for name in below[0] if all(name in other for other in below)]
        theory = "bound" if expected(name) else "not a bound"
        lines.append(f"| `{name}` | {what} | {source} | {theory} | {verdict} | {'; '.join(both) or '-'} |\n")
        cells = [f"{100 * f.slack:+.1f} ± {100 * f.stderr / f.limit:.1f}" for f in certificate.findings]
        slack.append(f"| `{name}` | {' | '.join(cells)} |\n")
    sources = [f"{f.source} ({f.limit:.3f})" for f in first[0].findings]
    second = f"| estimator | {' | '.join(sources)} |\n|---|{'---|' * len(sources)}\n"
    about = ABOUT.format(
        samples=first[0].samples,
        seeds=" and ".join(map(str, runs)),
        certainty=CERTAINTY,
        percent=100 * first[0].resolution,
    )
    return f"{about}\n{head}{''.join(lines)}\n{SLACK}\n{second}{''.join(slack)}"


ABOUT = """# Likelihood estimators and their verdicts

Each estimator of `src/rdlm/certify/gallery.py` is written from its published formula and certified with the exact
posteriors of eight sources of known entropy. This page is the output of

    rdlm certify --gallery

with {samples} samples per source and the seeds {seeds}. *Bound held*: on no source is the estimate below the entropy by
more than {certainty:g} standard errors, and a violation by {percent:g}% of the entropy is excluded as surely. *Not a
bound*: below the entropy by more than {certainty:g} standard errors on some source; the last column names the sources
where it was so with every seed. An estimator that is not a bound may still be a useful score; it must not be compared
with bounds or exact likelihoods. Formulas are judged here, as they are written in that file; whether published figures
were computed by one of them is not.

`tests/certify/test_gallery.py` repeats the verdicts, changes one term of every estimator and requires the opposite
verdict, and repeats each valid one fifty times without a false alarm.
"""

SLACK = """## Slack in percent of the entropy

With one standard error; the entropy of each source, in nats, is in its heading. An estimator whose slack is 0 is exact.
The slack of valid estimators on dependent sources (markov, copies, parity) is what their few steps cost.
"""
