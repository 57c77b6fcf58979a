"""The views "Sphere", "Score", "Compare" and "Process" in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from browser import CHROMIUM, LINKS, finished, picture, saved, tokens

playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install '.[dev]'")
expect = playwright.expect
Page = Any

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}")


def test_the_sphere_follows_a_position(show: Callable[[str], Page]) -> None:
    page = show(LINKS["sphere"])
    finished(page)
    globe = page.locator("#sphere-canvas")
    expect(globe).to_have_attribute("aria-label", re.compile("position 5 between the vertices"))
    expect(page.locator("#sphere-description")).to_contain_text("Position 5 at time")
    before, text = globe.evaluate("canvas => canvas.toDataURL()"), tokens(page, "sphere-tokens")
    globe.focus()
    page.keyboard.press("ArrowLeft")
    assert globe.evaluate("canvas => canvas.toDataURL()") != before
    page.locator("#sphere-tokens > span").nth(6).click()
    expect(page.locator("#sphere-description")).to_contain_text("Position 7 at time")
    finished(page)
    assert tokens(page, "sphere-tokens") == text
    page.get_by_label("Position", exact=True).fill("99")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("alert").filter(has_text="There is no position 99")).to_be_visible()


def test_all_positions_can_be_denoised_together(show: Callable[[str], Page]) -> None:
    page = show("sphere?model=dna&steps=20&position=3")
    finished(page)

    def places() -> int:
        frames = saved(page, "sphere", "JSON", json.loads)["frames"]
        return len({tuple(frame["sphere"]["state"]) for frame in frames})

    words, together = (
        page.locator("#sphere-description"),
        page.get_by_role("button", name="Denoise all positions together"),
    )
    expect(words).to_contain_text("an active window of 1 of the 20 steps")
    assert places() == 2
    together.click()
    finished(page)
    expect(together).to_have_attribute("aria-pressed", "true")
    expect(words).to_contain_text("Position 3 at time")
    expect(words).not_to_contain_text("active window")
    expect(page).to_have_url(re.compile("window=1"))
    assert places() == 21
    together.click()
    finished(page)
    expect(words).to_contain_text("an active window of 1 of the 20 steps")
    expect(together).to_have_attribute("aria-pressed", "false")
    page = show(LINKS["sphere"])
    finished(page)
    expect(together).to_be_hidden()


def test_a_text_is_scored(show: Callable[[str], Page]) -> None:
    page = show("score?steps=4")
    page.get_by_label("Text to score").fill("the history of")
    page.keyboard.press("Control+Enter")
    words = page.locator("#score-result-text")
    interval = r"95% interval [\d.]+ to [\d.]+"
    expect(words).to_have_text(re.compile(rf"^At most [\d.]+ bits per character, {interval}; an upper bound"))
    bits, low, high = map(float, re.findall(r"\d+\.\d+", words.inner_text())[:3])
    assert low <= bits <= high
    assert tokens(page, "score-tokens") == "the history of"
    page.locator("#score-tokens").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#score-inspector")).to_contain_text(re.compile(r"Position 2.*[\d.]+ bits"))
    expect(page.locator("#score-legend")).to_have_attribute("aria-label", re.compile("from 0 bits to"))


def test_unknown_characters_are_normalised_if_asked(show: Callable[[str], Page]) -> None:
    page = show("score?steps=4")
    page.get_by_label("Text to score").fill("The History of")
    page.locator("#score-form").get_by_label("Unknown characters").select_option("are normalised")
    page.locator("#score-form").get_by_role("button", name="Score").click()
    result = page.locator("#score-result-text")
    expect(result).to_contain_text("Normalised: 2 case changed")


def test_a_baseline_scores_a_text_as_a_whole(show: Callable[[str], Page]) -> None:
    page = show("score?model=baseline&text=the+history+of&steps=4&ran=1")
    finished(page)
    expect(page.locator("#score-result-text")).to_contain_text("does not give values per position")
    expect(page.locator("#score-tokens")).to_be_hidden()
    assert saved(page, "score", "PNG", picture).format == "PNG"


def test_two_samplers_share_a_time_axis(show: Callable[[str], Page]) -> None:
    page = show(LINKS["compare"])
    finished(page)
    for side in ("left", "right"):
        assert re.fullmatch("the .... of", tokens(page, f"compare-{side}-tokens"))
    expect(page.locator("#compare-left-name")).to_contain_text("6 steps")
    expect(page.locator("#compare-right-name")).to_contain_text("3 steps")
    expect(page.locator("#compare-player .time")).to_have_text("time 0.40")
    told = re.compile("Left, NFE 6: the .* Right, NFE 3")
    expect(page.locator("#compare-status")).to_contain_text(told)


def test_process_curves_follow_the_sliders(show: Callable[[str], Page]) -> None:
    page = show("process?noise=-1.425")
    radial = page.locator("#process-radial")
    expect(radial).to_have_attribute("aria-label", re.compile("goes from 1.57 to 0"))
    page.locator("#process-form [name=start]").select_option("uniform")
    expect(radial).not_to_have_attribute("aria-label", re.compile("goes from 1.57"))
    rho = page.locator("#process-rho")
    before = rho.evaluate("canvas => canvas.toDataURL()")
    page.locator("#process-form [name=noise]").focus()
    page.keyboard.press("End")
    page.wait_for_function("before => document.getElementById('process-rho').toDataURL() !== before", arg=before)
    expect(page).to_have_url(re.compile("noise=1"))


def test_a_new_request_cancels_the_previous_one(show: Callable[[str], Page]) -> None:
    page = show("process?dimension=3")
    page.locator("#process-form [name=dimension]").focus()
    with page.expect_request(lambda request: "dimension=50258" in request.url) as asked:
        for key in ("ArrowRight", "ArrowRight", "End"):
            page.keyboard.press(key)
    asked.value.response()
    expect(page.locator("#process-dimension")).to_have_text("50258")
    expect(page.locator("#process-information")).to_have_attribute("aria-label", re.compile("not available"))
    assert saved(page, "process", "JSON", json.loads)["request"]["dimension"] == 50258


def test_compare_begins_with_the_chosen_model(show: Callable[[str], Page]) -> None:
    page = show("generate?steps=3")
    page.locator("#model").select_option("dna")
    page.locator("#tab-compare").click()
    for side in ("left", "right"):
        expect(page.locator(f"[name={side}_model]")).to_have_value("dna")
    page.locator("[name=right_model]").select_option("text")
    expect(page).to_have_url(re.compile("#compare.model=dna&.*right_model=text"))
    page = show("compare?model=dna&right_model=text")
    expect(page.locator("[name=left_model]")).to_have_value("dna")
    expect(page.locator("[name=right_model]")).to_have_value("text")


@pytest.mark.parametrize(("text", "message"), [("The+End", "'T' at position 0"), ("a", "at least 2 tokens")])
def test_a_text_that_cannot_be_scored_is_explained_beside_it(
    show: Callable[[str], Page], text: str, message: str
) -> None:
    page = show(f"score?text={text}&steps=3&ran=1")
    finished(page)
    expect(page.get_by_label("Text to score")).to_have_attribute("aria-invalid", "true")
    alert = page.locator("#score-form .field .error")
    expect(alert).to_contain_text(message)
    assert "unknown=" not in alert.inner_text() and "--" not in alert.inner_text()
