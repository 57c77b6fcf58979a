"""Pictures of the page for the documentation: `python scripts/screenshots.py RUN` serves a run and looks at each view.

Needs the extras `serve` and `dev`, and a Chromium.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

TEXT = "the+history+of+____________+is+the+______+of+the+"
SIZE = {"width": 1120, "height": 800}
LINKS = {
    "generate": f"generate?text={TEXT}&length=64&seed=3&ran=1&at=24",
    "sphere": f"sphere?text={TEXT}&length=64&seed=3&at=60",
    "score": "score?text=the+history+of+the+sphere+is+the+history+of+a+qzxv+path&ran=1",
    "compare": f"compare?text={TEXT}&length=64&seed=3&left_steps=64&right_steps=8&ran=1&at=55",
    "process": "process?noise=-1.425",
}


def main() -> None:
    """Serve the run and write one picture of each view."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder of the pictures")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    parser.add_argument("--width", type=int, default=SIZE["width"], help="width of the window; 360 is a phone")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium found on the path")
    with served(arguments.run) as address, sync_playwright() as machine:
        browser = machine.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for view, link in LINKS.items():
            content = picture(browser, f"{address}/#{link}", arguments.theme, arguments.width)
            path = arguments.out / f"page-{view}.png"
            path.write_bytes(content)
            print(f"{path}: {len(content) // 1000} kB")
        browser.close()


@contextmanager
def served(run: Path) -> Iterator[str]:
    """Give the address of a service of the run, which ends with the block."""
    command = [sys.executable, "-m", "rdlm", "serve", str(run), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        # One object over several lines, of which the last is its closing brace.
        announced = "".join(itertools.takewhile(lambda line: line != "}\n", process.stdout or ()))
        if process.poll() is not None:
            sys.exit("rdlm serve did not start")
        yield json.loads(announced + "}")["url"]
    finally:
        process.terminate()
        process.wait(timeout=30)


def picture(browser: Browser, link: str, theme: str, width: int) -> bytes:
    """Return the page at a link as PNG, once nothing moves in it any more."""
    context = browser.new_context(
        viewport={"width": width, "height": SIZE["height"]}, reduced_motion="reduce",
        color_scheme="dark" if theme == "dark" else "light",
    )  # fmt: skip
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(link, wait_until="networkidle")
    page.wait_for_selector("body[data-ready=true]")
    page.wait_for_selector("main:not([aria-busy=true])")
    if "#generate" in link:
        page.locator("#generate-strip > span:not(.known)").nth(12).hover()
    if "#score" in link:
        page.locator("#score-strip > span").nth(50).hover()
    page.wait_for_timeout(500)
    taken = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    context.close()
    content = io.BytesIO()
    taken.convert("RGB").save(content, "PNG", optimize=True)  # the browser compresses in haste
    return content.getvalue()


if __name__ == "__main__":
    main()
