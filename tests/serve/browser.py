"""Helpers of the page's tests: the views, their links, and what is read from a page in a browser."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

Page = Any

CHROMIUM = Path("/usr/bin/chromium")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
QUIET += ("--disable-sync", "--no-first-run")
VIEWS = ("generate", "restore", "sphere", "score", "compare", "process")
STATIC = Path(__file__).parents[2] / "src" / "rdlm" / "serve" / "static"
LARGEST = 300_000
TIMEOUT = 90_000
"""Timeout in milliseconds; generous, because the machine may be busy."""
LINKS = {
    "generate": "generate?text=the+____+of&steps=6&ran=1&at=3",
    "restore": "restore?text=the+hi%3Fto%5Bry%5D+of&error=0.1&steps=4&ran=1",
    "sphere": "sphere?text=the+____+of&steps=6&position=5&at=3",
    "score": "score?text=the+history+of&steps=4&ran=1",
    "compare": "compare?text=the+____+of&left_steps=6&right_steps=3&ran=1&at=40",
    "process": "process?noise=-1",
}
FOLLOW = "link => new Promise(done => { addEventListener('hashchange', done, {once: true}); location.hash = link; })"


def open_page(context: Any, page_errors: list[str]) -> Page:
    page = context.new_page()
    page.on("pageerror", lambda error: page_errors.append(str(error)))
    page.on("console", lambda told: page_errors.append(told.text) if "Security Policy" in told.text else None)
    return page


def finished(page: Page) -> None:
    from playwright.sync_api import expect

    expect(page.locator("main")).to_have_attribute("aria-busy", "false")


def tokens(page: Page, name: str = "generate-tokens") -> str:
    return "".join(page.locator(f"#{name} > span").all_text_contents()).replace("\u00a0", " ")


def saved(page: Page, view: str, kind: str, read: Callable[[bytes], Any]) -> Any:
    with page.expect_download() as download:
        page.locator(f"#{view}-exports").get_by_role("button", name=kind).click()
    return read(Path(download.value.path()).read_bytes())


def picture(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))
