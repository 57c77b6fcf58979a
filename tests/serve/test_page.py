"""What all views of the page share, in a real browser with small untrained models served by `rdlm serve`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from browser import CHROMIUM, LARGEST, LINKS, STATIC, VIEWS, finished, picture, saved, tokens
from PIL import ImageSequence

playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install '.[dev]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="the page's tests need axe-playwright-python")
expect = playwright.expect
Page = Any

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}")


def test_tabs_move_by_arrows(show: Callable[[str], Page]) -> None:
    page = show("generate?steps=3")
    page.locator("#tab-generate").focus()
    for name in (*VIEWS[1:], VIEWS[0]):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#tab-{name}")).to_be_focused()
        expect(page.locator(f"#view-{name}")).to_be_visible()
        assert page.locator("[role=tabpanel]:visible").count() == 1


def test_errors_are_shown_next_to_their_field(show: Callable[[str], Page]) -> None:
    page = show("generate?text=ab__")
    page.locator("#generate-form summary").click()
    steps = page.locator("#generate-form [name=steps]")
    steps.fill("5000")
    page.locator("#generate-go").click()
    alert = page.get_by_role("alert").filter(has_text="steps")
    expect(alert).to_contain_text("1024")
    expect(steps).to_have_attribute("aria-invalid", "true")
    assert alert.get_attribute("id") == steps.get_attribute("aria-errormessage")
    steps.fill("3")
    page.locator("#generate-go").click()
    finished(page)
    expect(page.locator("#generate-status")).to_contain_text("Complete: ab")
    assert steps.get_attribute("aria-invalid") is None


def test_a_lost_connection_is_reported_and_restored(show: Callable[[str], Page]) -> None:
    page = show("generate?text=ab__&steps=3")
    page.route("**/v1/trajectory", lambda route: route.abort())
    page.route("**/healthz", lambda route: route.abort())
    page.locator("#generate-go").click()
    expect(page.locator("#banner")).to_contain_text("Connection to the server lost")
    expect(page.locator("#generate-form").get_by_role("alert")).to_contain_text("does not respond")
    page.unroute("**/healthz")
    expect(page.locator("#banner")).to_be_hidden()
    cut = 'event: start\ndata: {"steps": 3, "frames": 3, "length": 2, "mask": true, "path": []}\n\n'
    page.unroute("**/v1/trajectory")
    page.route("**/v1/trajectory", lambda route: route.fulfill(content_type="text/event-stream", body=cut))
    page.locator("#generate-go").click()
    expect(page.locator("#generate-form").get_by_role("alert")).to_contain_text("lost before the response was complete")


def test_a_script_is_shown_as_text(show: Callable[[str], Page]) -> None:
    page = show("generate?steps=3")
    hostile = "<script>alert(1)</script>"
    page.on("dialog", lambda dialog: pytest.fail("the page ran a script of its prompt"))
    page.get_by_label("Prompt; each").fill(f"{hostile}__")
    page.locator("#generate-go").click()
    expect(page.locator("#generate-status")).to_contain_text(f"Complete: {hostile}")
    assert tokens(page).startswith(hostile)
    assert page.locator("body script").count() == 0
    page.get_by_label("Prompt; each").fill("<img src=x onerror=alert(1)>__\u2603")
    page.locator("#generate-go").click()
    finished(page)
    assert page.locator("main img").count() == 0


HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize("view", ["generate", "restore", "sphere", "score", "compare"])
def test_a_link_with_a_script_shows_it_as_text(new: Callable[..., Page], view: str) -> None:
    """In every view that shows text, also in error messages that quote it."""
    told: list[str] = []
    watch = lambda page: page.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))  # noqa: E731
    for text in (f"{HOSTILE}__", "<script>alert(1)</script>\u2603__"):
        more = "&ran=1" if view != "sphere" else "&position=2"
        page = new(f"{view}?text={quote(text)}&steps=3{more}", watch)
        finished(page)
        assert page.locator("body script, main img, main [onerror]").count() == 0
    assert told == []


def test_a_token_is_asked_for_once(new: Callable[..., Page]) -> None:
    error = {"error": {"message": "This service needs a token.", "type": "authentication_error"}}

    def check_token(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, json=error)

    page = new("generate?steps=3", lambda page: (page.route("**/v1/**", check_token), page.add_init_script(TYPED)))
    assert page.evaluate("sessionStorage.getItem('rdlm-token')") == "secret"
    assert page.evaluate("asked") == 1
    page.locator("#generate-go").click()
    expect(page.locator("#generate-status")).to_contain_text("Complete")
    assert page.evaluate("asked") == 1


# Enters the token as soon as the dialog opens.
TYPED = """
window.asked = 0;
addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
  const dialog = document.getElementById("token-dialog");
  if (!dialog.open) return;
  asked += 1;
  document.getElementById("token").value = "secret";
  dialog.querySelector("button.main").click();
}).observe(document.getElementById("token-dialog"), { attributeFilter: ["open"] }));
"""


def test_a_link_reproduces_the_page(show: Callable[[str], Page], new: Callable[..., Page]) -> None:
    page = show("generate?text=ab____&steps=5&seed=7")
    page.locator("#generate-go").click()
    finished(page)
    page.get_by_role("slider", name="Time").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**at=1")
    other = new(page.url.split("#")[1])
    finished(other)
    expect(other.get_by_role("slider", name="Time")).to_have_value("1")
    assert tokens(other) == tokens(page)
    assert other.locator("#generate-form [name=seed]").input_value() == "7"


def test_the_page_loads_only_its_own_small_files(new: Callable[..., Page], page_service: str) -> None:
    asked: list[str] = []
    page = new(LINKS["generate"], lambda page: page.on("request", lambda request: asked.append(request.url)))
    finished(page)
    assert asked and all(url.startswith(f"{page_service}/") for url in asked)
    files = {url for url in asked if "/static/" in url}
    assert {url.rpartition("/")[2] for url in files} | {"index.html"} == {path.name for path in STATIC.iterdir()}
    assert sum(path.stat().st_size for path in STATIC.iterdir()) < LARGEST


@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_needs_no_sideways_scrolling(show: Callable[[str], Page], view: str) -> None:
    page = show(LINKS[view])
    finished(page)
    page.set_viewport_size({"width": 360, "height": 740})
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.set_viewport_size({"width": 1100, "height": 900})
    assert wide <= 360


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(show: Callable[[str], Page], view: str) -> None:
    page = show(LINKS[view])
    finished(page)
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe.Axe().axe_script)
    for theme in ("dark", "light"):
        page.get_by_role("button", name="Dark").click()
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        found = page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
        grave = [rule for rule in found if rule["impact"] in ("serious", "critical")]
        assert [(rule["id"], rule["nodes"][0]["html"]) for rule in grave] == []


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_exported(show: Callable[[str], Page], view: str) -> None:
    page = show(LINKS[view])
    finished(page)
    drawn = saved(page, view, "PNG", picture)
    assert drawn.format == "PNG" and drawn.width >= 1500 and len(drawn.convert("RGB").getcolors(1 << 24)) > 20
    assert saved(page, view, "JSON", json.loads)
    if view in ("generate", "sphere", "compare"):
        moving = saved(page, view, "GIF", picture)
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(moving)]
        assert len(frames) == (48 if view == "compare" else 7)
        assert np.any(np.asarray(frames[0]) != np.asarray(frames[-1]))


ENCODE = """async ([frames, width]) => {
  const { encodeGif } = await import("/static/gif_encoder.js");
  const bytesOf = (pixels) => Uint8ClampedArray.from(atob(pixels), (c) => c.charCodeAt(0));
  const images = frames.map((pixels) => new ImageData(bytesOf(pixels), width));
  const bytes = new Uint8Array(await (await encodeGif(images, images.map(() => 50))).arrayBuffer());
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}"""


# One colour, few colours, a full palette of noise (fills the dictionary many times), and too many colours.
@pytest.mark.parametrize(("colours", "side"), [(1, 5), (2, 9), (3, 64), (256, 150), (4000, 64)])
def test_gifs_are_valid(shared: Page, colours: int, side: int) -> None:
    random = np.random.default_rng(0)
    table = random.integers(0, 256, (colours, 3), dtype=np.uint8)
    frames = table[random.integers(0, colours, (2, side, side))]
    opaque = np.concatenate([frames, np.full((2, side, side, 1), 255, np.uint8)], -1)
    sent = [base64.b64encode(frame.tobytes()).decode() for frame in opaque]
    moving = picture(base64.b64decode(shared.evaluate(ENCODE, [sent, side])))
    seen = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(moving)]
    assert len(seen) == 2 and moving.info["duration"] == 50 and moving.info["loop"] == 0
    error = np.abs(np.stack(seen).astype(int) - frames)
    assert error.max() == 0 if colours <= 256 else error.mean() < 40
