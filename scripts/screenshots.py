"""Take screenshots of the page for the documentation: `python scripts/screenshots.py [RUN]`.

Serves a run, opens each view, and writes page-VIEW.png, page-VIEW-dark.png and page-VIEW-phone.png. Needs the extras
`serve` and `dev`, and Chromium.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))

from running import serving

TEXT = "the history of ____________ is the ______ of the "
UNCERTAIN = "the presidebt of the ?n?ted st[ao]tes wqs ??????? to"
SCORED = "the history of the sphere is the history of a qzxv path"
DEVICES: dict[str, dict[str, Any]] = {
    "": {"viewport": {"width": 1120, "height": 800}},
    "-dark": {"viewport": {"width": 1120, "height": 800}, "color_scheme": "dark"},
    "-phone": {"viewport": {"width": 390, "height": 800}, "device_scale_factor": 2},
}
"""Options of the browser context by suffix of the file name."""


def links(model: dict[str, Any]) -> dict[str, str]:
    """Return the link of each view; the prompt has gaps if the model can encode it."""
    length = min(64, model["length"])
    fits = model["kind"] == "text" and len(TEXT) <= length and set(TEXT) - {"_"} <= set(model["vocabulary"] or TEXT)
    sample = f"text={quote_plus(TEXT) if fits else ''}&length={length}&seed=3"
    # With a narrow active window the trajectory has few points: denoise all positions together.
    return {
        "generate": f"generate?{sample}&ran=1&at=24",
        "restore": f"restore?text={quote_plus(UNCERTAIN)}&ran=1",
        "sphere": f"sphere?{sample}&window=1&at=80",
        "score": f"score?text={quote_plus(SCORED)}&ran=1",
        "compare": f"compare?{sample}&left_steps=64&right_steps=8&ran=1&at=55",
        "process": "process?noise=-1.425",
    }


def main() -> None:
    """Serve the run and write the screenshots of all views."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="folder of a run or published model; default: the packaged text model")
    parser.add_argument("--out", type=Path, default=Path("build/screenshots"), help="folder of the screenshots")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium not found on the PATH")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with serving(*([arguments.run] if arguments.run else [])) as served, sync_playwright() as playwright:
        with urlopen(f"{served.url}/v1/models") as answer:
            model = json.load(answer)["data"][0]["rdlm"]
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for view, link in links(model).items():
            for suffix, options in DEVICES.items():
                content = screenshot(browser, f"{served.url}/#{link}", options)
                path = arguments.out / f"page-{view}{suffix}.png"
                path.write_bytes(content)
                print(f"{path}: {len(content) // 1000} kB", flush=True)
        browser.close()


def screenshot(browser: Browser, link: str, options: dict[str, Any]) -> bytes:
    """Return the page at a link as PNG, once all requests have completed."""
    context = browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(link, wait_until="networkidle")
    page.wait_for_selector("body[data-ready=true]")
    page.wait_for_selector("main[aria-busy=false]")
    _hover(page)
    taken = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    context.close()
    content = io.BytesIO()
    taken.convert("RGB").save(content, "PNG", optimize=True)  # smaller than the PNG of the browser
    return content.getvalue()


def _hover(page: Page) -> None:
    """Point at one position, so that its details are shown."""
    for cells, at in (("#generate-tokens > span:not(.known)", 12), ("#score-tokens > span", 48)):
        positions = page.locator(f"{cells}:visible")
        if positions.count():
            positions.nth(min(at, positions.count() - 1)).hover()
            return


if __name__ == "__main__":
    main()
