"""Screenshots of the web page for the documentation: `python scripts/screenshots.py RUN` serves a run.

Writes page-VIEW.png, page-VIEW-dark.png and page-VIEW-phone.png. Needs the extras `serve` and `dev`, and a Chromium.
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
MEASURED = "the history of the sphere is the history of a qzxv path"
LOOKS: dict[str, dict[str, Any]] = {
    "": {"viewport": {"width": 1120, "height": 800}},
    "-dark": {"viewport": {"width": 1120, "height": 800}, "color_scheme": "dark"},
    "-phone": {"viewport": {"width": 390, "height": 800}, "device_scale_factor": 2},
}
"""How the page is looked at, by the ending of the picture's name."""


def links(model: dict[str, Any]) -> dict[str, str]:
    """Return where to look at each view; a sample of text has gaps, and is as long as the model allows."""
    length = min(64, model["length"])
    fits = model["kind"] == "text" and len(TEXT) <= length and set(TEXT) - {"_"} <= set(model["vocabulary"] or TEXT)
    sample = f"text={quote_plus(TEXT) if fits else ''}&length={length}&seed=3"
    # Where positions run one after the other a sphere has little to show: there they run together.
    return {
        "generate": f"generate?{sample}&ran=1&at=24",
        "sphere": f"sphere?{sample}&window=1&at=60",
        "score": f"score?text={quote_plus(MEASURED)}&ran=1",
        "compare": f"compare?{sample}&left_steps=64&right_steps=8&ran=1&at=55",
        "process": "process?noise=-1.425",
    }


def main() -> None:
    """Serve the run and write the pictures of all views."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="folder of a run or of a published model; default: the pretrained model")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder of the pictures")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium found on the path")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with serving(*([arguments.run] if arguments.run else [])) as served, sync_playwright() as machine:
        with urlopen(f"{served.url}/v1/models") as answer:
            model = json.load(answer)["data"][0]["rdlm"]
        browser = machine.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for view, link in links(model).items():
            for ending, look in LOOKS.items():
                content = picture(browser, f"{served.url}/#{link}", look)
                path = arguments.out / f"page-{view}{ending}.png"
                path.write_bytes(content)
                print(f"{path}: {len(content) // 1000} kB", flush=True)
        browser.close()


def picture(browser: Browser, link: str, look: dict[str, Any]) -> bytes:
    """Return the page at a link as PNG, once nothing moves in it any more."""
    context = browser.new_context(reduced_motion="reduce", **look)
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(link, wait_until="networkidle")
    page.wait_for_selector("body[data-ready=true]")
    page.wait_for_selector("main[aria-busy=false]")
    _point(page)
    taken = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    context.close()
    content = io.BytesIO()
    taken.convert("RGB").save(content, "PNG", optimize=True)  # the browser compresses in haste
    return content.getvalue()


def _point(page: Page) -> None:
    """Look at one position, where a view has something to say of it."""
    for cells, at in (("#generate-strip > span:not(.known)", 12), ("#score-strip > span", 48)):
        places = page.locator(f"{cells}:visible")
        if places.count():
            places.nth(min(at, places.count() - 1)).hover()
            return


if __name__ == "__main__":
    main()
