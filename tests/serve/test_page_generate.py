"""The view "Generate" in a real browser, with small untrained models served by `rdlm serve`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from browser import CHROMIUM, FOLLOW, LINKS, finished, tokens

playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install '.[dev]'")
expect = playwright.expect
Page = Any

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}")


def test_gaps_are_filled_step_by_step(show: Callable[[str], Page]) -> None:
    page = show("generate?steps=6")
    page.get_by_label("Prompt; each").fill("the ____ of")
    page.keyboard.press("Enter")
    expect(page.locator("#generate-status")).to_contain_text("Complete: the ")
    assert re.fullmatch("the .... of", tokens(page))
    assert page.locator("#generate-tokens .known").count() == 7
    curve = page.locator("#generate-entropy")
    expect(curve).to_have_attribute("aria-label", re.compile("Entropy.* goes from .* to 0$"))
    assert page.get_by_role("slider", name="Time").evaluate("slider => slider.value === slider.max")


def test_the_player_moves_through_time(show: Callable[[str], Page]) -> None:
    page = show(LINKS["generate"])
    finished(page)
    slider, clock = page.get_by_role("slider", name="Time"), page.locator("#generate-player .time")
    expect(slider).to_have_value("3")
    last = tokens(page)
    slider.focus()
    page.keyboard.press("Home")
    expect(clock).to_have_text("step 0 of 6, time 0.00")
    certainty = page.locator("#generate-tokens > span").nth(5).evaluate("cell => cell.style.backgroundColor")
    page.keyboard.press("End")
    expect(clock).to_have_text("step 6 of 6, time 1.00")
    assert page.locator("#generate-tokens > span").nth(5).evaluate("cell => cell.style.backgroundColor") != certainty
    page.evaluate(LABELS)
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => labels.length === 2")
    assert page.evaluate("labels") == ["Pause", "Play"]
    expect(clock).to_have_text("step 6 of 6, time 1.00")
    assert len(last) == len(tokens(page))


# Records the labels of the player's button.
LABELS = """() => {
  window.labels = [];
  const button = document.querySelector("#generate-player button");
  new MutationObserver(() => labels.push(button.textContent)).observe(button, { childList: true });
}"""


# Passes the start of a trajectory and holds back its frames until `release` is called: the second pull of the stream
# shows that its first part has been read.
HOLD = """() => {
  const fetched = window.fetch;
  window.fetch = async (path, options) => {
    const response = await fetched(path, options);
    if (!path.endsWith("v1/trajectory")) return response;
    const text = await response.text();
    const parts = [text.slice(0, text.indexOf("event: frame")), text.slice(text.indexOf("event: frame"))];
    const body = new ReadableStream({
      async pull(stream) {
        if (parts.length === 1) await new Promise((go) => { window.release = go; });
        if (parts.length) stream.enqueue(new TextEncoder().encode(parts.shift()));
        else stream.close();
      },
    }, { highWaterMark: 0 });
    return new Response(body, response);
  };
}"""


@pytest.mark.parametrize("view", ["generate", "sphere", "compare"])
def test_the_previous_frame_can_be_inspected_until_the_next_arrives(new: Callable[..., Page], view: str) -> None:
    """A new trajectory has started, but its first frame has not arrived: the previous one is still shown."""
    page = new(LINKS[view])
    finished(page)
    name = "compare-left-tokens" if view == "compare" else f"{view}-tokens"
    text, cells = tokens(page, name), page.locator(f"#{name} > span")
    cells.nth(5).hover()
    page.evaluate(HOLD)
    page.locator(f"#view-{view} button.main").click()
    page.wait_for_function("() => 'release' in window")
    for i in (2, 5):
        cells.nth(i).hover()
        expect(cells.nth(i)).to_have_attribute("aria-label", re.compile(f"position {i + 1}: "))
    page.locator(f"#{name}").focus()
    page.keyboard.press("ArrowRight")
    expect(cells.nth(6)).to_have_attribute("aria-label", re.compile("position 7: "))
    assert tokens(page, name) == text
    if view != "compare":  # its other side is held back as well
        page.evaluate("release()")
        finished(page)


# The player advances only when `tick` is called.
TICK = """
window.setInterval = (tick) => { window.tick = tick; return 1; };
window.clearInterval = () => { window.tick = () => null; };
"""


@pytest.mark.parametrize("view", ["generate", "sphere", "compare"])
def test_playing_stops_when_another_link_is_opened(new: Callable[..., Page], view: str) -> None:
    def prepare(page: Page) -> None:
        page.emulate_media(reduced_motion="no-preference")
        page.add_init_script(TICK)

    page = new(LINKS[view].partition("&at=")[0], prepare)
    finished(page)
    page.evaluate("tick()")
    player = page.locator(f"#{view}-player")
    expect(player.get_by_role("slider")).to_have_value("1")
    expect(player.get_by_role("button")).to_have_text("Pause")
    page.evaluate(FOLLOW, f"{view}?text=b")
    page.evaluate("tick()")  # must not raise an error


def test_alternatives_of_a_position_are_shown(show: Callable[[str], Page]) -> None:
    page = show(LINKS["generate"])
    finished(page)
    page.locator("#generate-tokens > span").nth(5).hover()
    panel = page.get_by_label("Most probable tokens of a position")
    expect(panel.get_by_role("heading")).to_have_text("Position 6")
    shares = panel.locator(".value").all_text_contents()
    assert len(shares) == 3
    assert sum(float(share.strip("<%")) for share in shares) <= 101
    page.locator("#generate-tokens").focus()
    page.keyboard.press("ArrowRight")
    expect(panel.get_by_role("heading")).to_have_text("Position 7")
    active = page.locator("#generate-tokens").get_attribute("aria-activedescendant")
    expect(page.locator(f"#{active}")).to_have_attribute(
        "aria-label", re.compile("position 7: .*probability .*; most probable: ")
    )


def test_generate_works_with_the_keyboard_alone(show: Callable[[str], Page]) -> None:
    page = show("generate?steps=4")
    page.locator("#tab-generate").focus()
    seen = []
    for _ in range(7):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("(({ name, id, tagName }) => name || id || tagName)(document.activeElement)"))
    assert seen == ["text", "length", "seed", "normalise", "generate-go", "generate-again", "SUMMARY"]
    for _ in range(6):
        page.keyboard.press("Shift+Tab")
    page.keyboard.type("a __")
    page.keyboard.press("Control+Enter")
    finished(page)
    for _ in range(7):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "generate-tokens"
    page.keyboard.press("End")
    expect(page.locator("#generate-inspector h3")).to_have_text("Position 4")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Play")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    expect(page.locator("#generate-player .time")).to_contain_text("step 0")


def test_options_are_sent_and_classes_only_where_there_are_some(show: Callable[[str], Page]) -> None:
    page = show("generate?model=dna&steps=3&window=0.5")
    page.locator("#generate-form details").evaluate("details => { details.open = true; }")
    page.locator("#generate-form [name=label]").select_option("helix")
    page.get_by_label("Guidance").fill("2.5")
    with page.expect_request("**/v1/trajectory") as asked:
        page.locator("#generate-go").click()
    body = asked.value.post_data_json
    assert (body["window"], body["label"], body["guidance"]) == (0.5, "helix", 2.5)
    finished(page)
    expect(page).to_have_url(re.compile("label=helix"))
    page = show("generate?steps=3&ran=1")
    finished(page)
    expect(page.locator("#generate-form [name=window]")).to_have_attribute("placeholder", "default 1")
    expect(page.locator("#generate-form [name=label]")).to_be_hidden()
    expect(page.get_by_label("Guidance")).to_be_hidden()
    page.locator("#generate-form details").evaluate("details => { details.open = false; }")


def test_dna_has_four_colours(show: Callable[[str], Page]) -> None:
    page = show("generate?model=dna&steps=3&ran=1&at=99")
    finished(page)
    cells = page.locator("#generate-tokens > span")
    shown = cells.evaluate_all("cells => cells.map((cell) => [cell.textContent, cell.style.backgroundColor])")
    assert 2 <= len({colour for _, colour in shown}) == len({base for base, _ in shown}) <= 4
    assert {base for base, _ in shown} <= set("ACGT")


def test_images_are_shown_step_by_step(show: Callable[[str], Page]) -> None:
    page = show("generate?model=image&steps=3&ran=1&at=0")
    finished(page)
    canvas = page.locator("#generate-image")
    colours = """canvas => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return [...new Set(data.filter((_, i) => i % 4 === 0))];
    }"""
    early = set(canvas.evaluate(colours))
    page.get_by_role("slider", name="Time").focus()
    page.keyboard.press("End")
    levels = {0, 85, 170, 255}
    assert set(canvas.evaluate(colours)) <= levels and early - levels
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#generate-inspector h3")).to_have_text("Position 2")
