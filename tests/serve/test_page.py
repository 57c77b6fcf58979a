"""The page in a real browser, with small untrained models served by `rdlm serve`."""

from __future__ import annotations

import base64
import io
import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image, ImageSequence
from running import save, serving

from rdlm.data.tokenizer import TEXT8_ALPHABET, Characters, Levels, bases

playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install '.[dev]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="the page's tests need axe-playwright-python")
expect = playwright.expect
Page = Any

CHROMIUM = Path("/usr/bin/chromium")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
QUIET += ("--disable-sync", "--no-first-run")
VIEWS = ("generate", "sphere", "score", "compare", "process")
STATIC = Path(__file__).parents[2] / "src" / "rdlm" / "serve" / "static"
LARGEST = 300_000
TIMEOUT = 90_000
"""Timeout in milliseconds; generous, because the machine may be busy."""
LINKS = {
    "generate": "generate?text=the+____+of&steps=6&ran=1&at=3",
    "sphere": "sphere?text=the+____+of&steps=6&position=5&at=3",
    "score": "score?text=the+history+of&steps=4&ran=1",
    "compare": "compare?text=the+____+of&left_steps=6&right_steps=3&ran=1&at=40",
    "process": "process?noise=-1",
}

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve small models and return the URL."""
    place = tmp_path_factory.mktemp("runs")
    letters = Characters(f"{TEXT8_ALPHABET}</>()1")
    runs = [
        save(place / "text", letters, corpus={"kind": "text", "length": 32}),
        save(place / "dna", bases(), corpus={"kind": "dna", "length": 40, "classes": ["coil", "helix"]}, window=0.05),
        save(place / "image", Levels(4), corpus={"kind": "image", "length": 16, "image": [4, 4, 1]}),
        save(place / "baseline", method="mdlm"),
    ]
    with serving(*map(str, runs)) as served:
        yield served.url


# Module scope: the event loop of the browser would interfere with those of other test files.
@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    expect.set_options(timeout=TIMEOUT)
    with playwright.sync_playwright() as machine:
        browser = machine.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        context = browser.new_context(viewport={"width": 1100, "height": 900}, reduced_motion="reduce")
        context.set_default_timeout(TIMEOUT)
        yield context
        browser.close()


@pytest.fixture(scope="module")
def page_errors() -> list[str]:
    """Script errors and violations of the content security policy in the page."""
    return []


@pytest.fixture
def new(context: Any, service: str, page_errors: list[str]) -> Iterator[Callable[..., Page]]:
    """Open a new page at a link."""
    pages = []

    def opened(link: str = "", prepare: Callable[[Page], object] = lambda page: None) -> Page:
        pages.append(open_page(context, page_errors))
        prepare(pages[-1])
        pages[-1].goto(f"{service}/#{link}")
        expect(pages[-1].locator("body")).to_have_attribute("data-ready", "true")
        return pages[-1]

    yield opened
    for page in pages:
        page.close()
    assert page_errors == []


@pytest.fixture(scope="module")
def shared(context: Any, service: str, page_errors: list[str]) -> Page:
    page = open_page(context, page_errors)
    page.goto(service)
    expect(page.locator("body")).to_have_attribute("data-ready", "true")
    return page


@pytest.fixture
def show(shared: Page, page_errors: list[str]) -> Iterator[Callable[[str], Page]]:
    """Open a link in the shared page; this resets its forms."""

    def opened(link: str) -> Page:
        shared.evaluate(FOLLOW, f"{link}&test={uuid.uuid4()}")
        return shared

    yield opened
    shared.unroute_all()
    assert page_errors == []


FOLLOW = "link => new Promise(done => { addEventListener('hashchange', done, {once: true}); location.hash = link; })"


def open_page(context: Any, page_errors: list[str]) -> Page:
    page = context.new_page()
    page.on("pageerror", lambda error: page_errors.append(str(error)))
    page.on("console", lambda told: page_errors.append(told.text) if "Security Policy" in told.text else None)
    return page


def finished(page: Page) -> None:
    expect(page.locator("main")).to_have_attribute("aria-busy", "false")


def tokens(page: Page, name: str = "generate-tokens") -> str:
    return "".join(page.locator(f"#{name} > span").all_text_contents()).replace("\u00a0", " ")


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
    for _ in range(6):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("(({ name, id, tagName }) => name || id || tagName)(document.activeElement)"))
    assert seen == ["text", "length", "seed", "generate-go", "generate-again", "SUMMARY"]
    for _ in range(5):
        page.keyboard.press("Shift+Tab")
    page.keyboard.type("a __")
    page.keyboard.press("Control+Enter")
    finished(page)
    for _ in range(6):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "generate-tokens"
    page.keyboard.press("End")
    expect(page.locator("#generate-inspector h3")).to_have_text("Position 4")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Play")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    expect(page.locator("#generate-player .time")).to_contain_text("step 0")


def test_tabs_move_by_arrows(show: Callable[[str], Page]) -> None:
    page = show("generate?steps=3")
    page.locator("#tab-generate").focus()
    for name in (*VIEWS[1:], VIEWS[0]):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#tab-{name}")).to_be_focused()
        expect(page.locator(f"#view-{name}")).to_be_visible()
        assert page.locator("[role=tabpanel]:visible").count() == 1


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


def test_a_baseline_scores_a_text_as_a_whole(show: Callable[[str], Page]) -> None:
    page = show("score?model=baseline&text=the+history+of&steps=4&ran=1")
    finished(page)
    expect(page.locator("#score-result-text")).to_contain_text("does not give values per position")
    expect(page.locator("#score-tokens")).to_be_hidden()
    assert saved(page, "score", "PNG", picture).format == "PNG"


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
    expect(page.locator("#generate-form [name=window]")).to_have_attribute("placeholder", "1")
    expect(page.locator("#generate-form [name=label]")).to_be_hidden()
    expect(page.get_by_label("Guidance")).to_be_hidden()
    page.locator("#generate-form details").evaluate("details => { details.open = false; }")


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


def test_errors_are_shown_next_to_their_field(show: Callable[[str], Page]) -> None:
    page = show("generate?text=ab__")
    page.locator("summary").click()
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


@pytest.mark.parametrize("view", ["generate", "sphere", "score", "compare"])
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


def test_the_page_loads_only_its_own_small_files(new: Callable[..., Page], service: str) -> None:
    asked: list[str] = []
    page = new(LINKS["generate"], lambda page: page.on("request", lambda request: asked.append(request.url)))
    finished(page)
    assert asked and all(url.startswith(f"{service}/") for url in asked)
    files = {url for url in asked if "/static/" in url}
    assert {url.rpartition("/")[2] for url in files} | {"index.html"} == {path.name for path in STATIC.iterdir()}
    assert sum(path.stat().st_size for path in STATIC.iterdir()) < LARGEST


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


def saved(page: Page, view: str, kind: str, read: Callable[[bytes], Any]) -> Any:
    with page.expect_download() as download:
        page.locator(f"#{view}-exports").get_by_role("button", name=kind).click()
    return read(Path(download.value.path()).read_bytes())


def picture(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


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
