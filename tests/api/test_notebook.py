"""What a notebook shows: every text escaped, given parts marked, one moment at a time, and nothing that runs."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
import torch

from rdlm.api import notebook
from rdlm.api.generate import Generation, generate
from rdlm.api.language_model import LanguageModel
from rdlm.api.output import Frame
from rdlm.api.score import Effort, Score
from rdlm.config import ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.tokenizer import Characters, Levels, Tokenizer
from rdlm.likelihood.estimate import Estimate
from rdlm.methods.rdlm import Rdlm

NASTY = "<b>&\"'x"


def tiny(tokenizer: Tokenizer, kind: str = "text", image: list[int] | None = None) -> LanguageModel:
    config = RunConfig(process=ProcessConfig(levels=8, pairs=64), model=TransformerConfig(width=16, layers=1, heads=2))
    torch.manual_seed(0)
    method = Rdlm(config, tokenizer.size)
    about = {"kind": kind, "length": 12, "protocol": NASTY, "classes": [NASTY], "signal": False, "image": image}
    return LanguageModel(NASTY, method, tokenizer, config, about)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny(Characters(NASTY))


@pytest.fixture(scope="module")
def traced(model: LanguageModel) -> Generation:
    return generate(model, num=2, steps=40, prompt="<b>", trace=True)


class Page(HTMLParser):
    """The tags of a fragment, which must be closed in order, and its text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") for name, _ in attrs)
        self.tags.append(tag)
        if tag not in ("input", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def test_everything_is_escaped_and_nothing_runs(model: LanguageModel, traced: Generation) -> None:
    scores = model.score([NASTY, NASTY[::-1]], effort=Effort(nfe=3, draws=3))
    for shown in (model, traced, traced.samples[0], scores, scores[0]):
        page = Page(shown._repr_html_())
        assert not {"script", "b", "iframe"} & set(page.tags) - ({"b"} if shown is model else set())
        assert "://" not in shown._repr_html_()
    assert Page(scores._repr_html_()).text.count(NASTY) == 1
    assert Page(model._repr_html_()).text.count(NASTY) == 3  # name, corpus, class


def test_prompt_tokens_are_marked(model: LanguageModel) -> None:
    made = generate(model, num=2, steps=2, infill="<b_x__&")
    assert made.known == (True, True, False, True, False, False, True)
    marked = re.findall(f'<span style="{re.escape(notebook.PROMPT)}">(.*?)</span>', made._repr_html_())
    assert [html.unescape(part) for part in marked] == ["<b", "x", "&"] * 2
    assert all(sample.text in Page(made._repr_html_()).text for sample in made.samples)
    assert "underlined" not in generate(model, steps=2)._repr_html_()


def test_steps_have_buttons_and_one_is_selected(traced: Generation) -> None:
    first, second = traced._repr_html_(), traced._repr_html_()
    assert first.count('type="radio"') == notebook.SHOWN_FRAMES == first.count(":checked~div")
    assert first.count(" checked>") == 1
    assert "step 1 of 40" in first and "the sample" in first
    names = {re.search('name="(rdlm-[0-9a-f]{8}-[0-9]+)"', page)[1] for page in (first, second)}  # type: ignore[index]
    assert len(names) == 2  # shown twice, each has buttons of its own
    assert traced.samples[0].text in Page(first).text


def test_certainty_is_the_mean_over_the_steps() -> None:
    frames = [
        Frame(("a", "x"), (0.2, 0.9), ()),
        Frame(("a", "b"), (0.6, 0.5), ()),
        Frame(("a", "b"), (1.0, 1.0), ()),
    ]
    assert notebook.mean_certainty(frames) == pytest.approx([0.4, 0.25])


def test_images_are_pictures() -> None:
    made = generate(tiny(Levels(4), "image", [3, 4, 1]), num=2, steps=2)
    page = Page(made._repr_html_())
    assert page.tags.count("img") == 1 and "data:image/png;base64" in made._repr_html_()


def test_heat_follows_the_shares() -> None:
    score = Score(Estimate(7.0, 0.1, True), 3, ("a", "<", "c"), (5.0, -0.5, 10.0))
    shades = re.findall(r"rgba\([\d,]+,([\d.]+)\)", score._repr_html_())
    assert [float(shade) for shade in shades] == [0.25, 0.0, 0.5]
    assert "upper bound" in score._repr_html_() and "10 bits" in score._repr_html_()
    baseline = Score(Estimate(7.0, 0.1, False), 3, ("a", "<", "c"), ())
    assert "not a bound" in baseline._repr_html_() and "rgba" not in baseline._repr_html_()
    assert Page(baseline._repr_html_()).text.endswith("a<c")


def test_long_results_are_cut(model: LanguageModel) -> None:
    many = generate(model, num=25, steps=1, rows=25)
    assert "and 5 more samples" in many._repr_html_()
    tokens = notebook.SHOWN_TOKENS + 6
    long = Score(Estimate(7.0, 0.1, True), tokens, ("a",) * tokens, (1.0,) * tokens)
    assert "and 6 more tokens" in long._repr_html_()


def test_lines_for_the_terminal_are_short(model: LanguageModel, traced: Generation) -> None:
    long = generate(model, length=100, steps=1)
    for shown in (model, traced, long, long.samples[0]):
        assert len(repr(shown)) < 160 and "\n" not in repr(shown)
    assert repr(long.samples[0]).endswith("...', seed=0)") or repr(long.samples[0]).endswith('...", seed=0)')
    score = Score(Estimate(7.0, 0.1, True), 10, ("a",) * 10, ())
    assert repr(score) == "<Score of 10 characters: 1.01 ± 0.028 bits each, upper bound>"
