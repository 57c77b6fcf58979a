"""The view "Restore" in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from browser import CHROMIUM, LINKS, finished, saved, tokens

playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install '.[dev]'")
expect = playwright.expect
Page = Any

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}")


def test_an_uncertain_text_is_restored(show: Callable[[str], Page]) -> None:
    page = show("restore?channel=&samples=2&steps=4")
    page.get_by_label("Uncertain text").fill("the hi?tor[yi] of")
    page.keyboard.press("Enter")
    words = page.locator("#restore-sentence")
    expect(words).to_have_text(re.compile(r"^2 of 14 characters differ from the reading; .* expected to be wrong\.$"))
    assert re.fullmatch("the hi.tor[yi] of", tokens(page, "restore-tokens"))
    assert page.locator("#restore-tokens .known").count() == 2  # the changed ones are underlined
    samples = page.locator("#restore-sample-list li")
    assert [bool(re.fullmatch("the hi.tor[yi] of", text)) for text in samples.all_text_contents()] == [True] * 2
    page.locator("#restore-tokens > span").nth(6).click()
    panel = page.get_by_label("Alternatives of a position")
    expect(panel.get_by_role("heading")).to_have_text("Position 7")
    expect(panel).to_contain_text("unreadable")
    shares = [float(share.strip("<%")) for share in panel.locator(".value").all_text_contents()]
    assert shares and shares == sorted(shares, reverse=True) and sum(shares) <= 101
    answer = saved(page, "restore", "JSON", json.loads)
    assert shares[0] == pytest.approx(100 * answer["positions"][6]["probability"], abs=0.6)


def test_unknown_characters_are_kept_or_normalised(show: Callable[[str], Page]) -> None:
    page = show("restore?channel=&samples=0&steps=4")
    page.get_by_label("Uncertain text").fill("The Hi?tory")
    page.keyboard.press("Enter")
    words = page.locator("#restore-sentence")
    expect(words).to_contain_text("1 of 11 characters differs")
    assert tokens(page, "restore-tokens").startswith("The Hi")
    page.locator("#restore-form summary").click()
    page.locator("#restore-form").get_by_label("Unknown characters").select_option("are normalised")
    page.locator("#restore-form").get_by_role("button", name="Restore").click()
    expect(words).to_contain_text("Normalised: 2 case changed.")
    assert tokens(page, "restore-tokens").startswith("the hi")
    page.locator("#restore-form summary").click()  # the tests share a page: the options are closed again


FOCUSED = "(({ name, id, type, tagName }) => name || id || type || tagName)(document.activeElement)"


def test_restore_works_with_the_keyboard_alone(show: Callable[[str], Page]) -> None:
    page = show("restore?steps=3")
    page.locator("#tab-restore").focus()
    seen = []
    for _ in range(7):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUSED))
    assert seen == ["text", "channel", "error", "samples", "submit", "restore-example", "SUMMARY"]
    for _ in range(6):
        page.keyboard.press("Shift+Tab")
    page.keyboard.type("a?c")
    page.keyboard.press("Enter")
    finished(page)
    expect(page.locator("#restore-sentence")).not_to_be_empty()
    expect(page.locator("#restore-tokens > span")).to_have_count(3)
    finished(page)
    for _ in range(7):
        page.keyboard.press("Tab")
    expect(page.locator("#restore-tokens")).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator("#restore-inspector h3")).to_have_text("Position 3")
    expect(page.locator("#restore-tokens > span").nth(2)).to_have_attribute(
        "aria-label", re.compile("position 3: ., probability ")
    )


def test_the_channel_and_its_error_rate_are_sent(show: Callable[[str], Page]) -> None:
    page = show("restore?text=the+kimg&steps=3")
    rate = page.get_by_label("Error rate, or auto")
    page.get_by_label("What else may be wrong").select_option("keyboard")
    rate.fill("0.2")
    with page.expect_request("**/v1/restore") as asked:
        page.get_by_role("button", name="Restore", exact=True).click()
    assert asked.value.post_data_json["channel"] == "keyboard" and asked.value.post_data_json["error"] == 0.2
    expect(page.locator("#restore-sentence")).to_contain_text("Error rate of the reading: 20%")
    page.get_by_label("What else may be wrong").select_option("")
    expect(rate).to_be_disabled()
    with page.expect_request("**/v1/restore") as asked:
        page.get_by_role("button", name="Restore", exact=True).click()
    assert "channel" not in asked.value.post_data_json and "error" not in asked.value.post_data_json
    finished(page)
    page.get_by_label("What else may be wrong").select_option("symmetric")
    rate.fill("often")
    page.get_by_role("button", name="Restore", exact=True).click()
    expect(rate).to_have_attribute("aria-invalid", "true")


def test_a_mistake_in_the_text_is_shown_beside_it(show: Callable[[str], Page]) -> None:
    page = show("restore?text=the+k[&ran=1")
    finished(page)
    text = page.get_by_label("Uncertain text")
    expect(text).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("alert").filter(has_text="at position 5 is not closed")).to_be_visible()


@pytest.mark.parametrize(("model", "reason"), [("baseline", "the method 'mdlm'"), ("image", "a model of images")])
def test_a_model_that_cannot_restore_names_one_that_can(show: Callable[[str], Page], model: str, reason: str) -> None:
    page = show(f"restore?model={model}")
    note = page.locator("#restore-unavailable")
    expect(note).to_contain_text(f"{model} cannot restore")
    expect(note).to_contain_text(reason)
    expect(note).to_contain_text("Choose “text”, “dna” above")
    expect(page.locator("#restore-form")).to_be_hidden()
    page.locator("#model").select_option("text")
    expect(page.locator("#restore-form")).to_be_visible()
    expect(note).to_be_hidden()


def test_a_link_reproduces_the_restoration(show: Callable[[str], Page], new: Callable[..., Page]) -> None:
    page = show(LINKS["restore"])
    finished(page)
    expect(page).to_have_url(re.compile("ran=1"))
    other = new(page.url.split("#")[1])
    finished(other)
    assert tokens(other, "restore-tokens") == tokens(page, "restore-tokens")
    assert other.locator("#restore-sample-list").inner_text() == page.locator("#restore-sample-list").inner_text()
