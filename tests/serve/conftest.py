"""The service that most tests of this folder share."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "torture"))  # tests here run a small part of the siege
sys.path.insert(0, str(Path(__file__).parent))

from browser import CHROMIUM, FOLLOW, QUIET, TIMEOUT, Page, open_page
from running import Served, save, serving

from rdlm.config import ObjectiveConfig
from rdlm.data.tokenizer import TEXT8_ALPHABET, Characters, Levels, bases


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: `together`, `ordered` (left to right), `baseline` (MDLM), `classed` (two classes), `blockwise`, `taught`
    (trained for blocks, so left to right, too), `causal` (autoregression).
    """
    place = tmp_path_factory.mktemp("runs")
    save(place / "together")
    save(place / "ordered", window=0.1, order="left_to_right")
    save(place / "baseline", method="mdlm")
    save(place / "classed", corpus={"classes": ["cat", "dog"]})
    save(place / "blockwise", window=0.1, block=1)
    save(place / "taught", objective=ObjectiveConfig(prefix=0.5, blockwise=0.5))
    save(place / "causal", method="autoregressive")
    return place


@pytest.fixture(scope="session")
def served(runs: Path) -> Iterator[Served]:
    names = ("together", "ordered", "baseline", "classed", "blockwise", "taught", "causal")
    with serving(*(str(runs / name) for name in names), "--steps", "8") as found:
        yield found


# -- the page in a browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
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
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=TIMEOUT)
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
def new(context: Any, page_service: str, page_errors: list[str]) -> Iterator[Callable[..., Page]]:
    """Open a new page at a link."""
    pages = []

    def opened(link: str = "", prepare: Callable[[Page], object] = lambda page: None) -> Page:
        pages.append(open_page(context, page_errors))
        prepare(pages[-1])
        pages[-1].goto(f"{page_service}/#{link}")
        pages[-1].wait_for_selector("body[data-ready=true]")
        return pages[-1]

    yield opened
    for page in pages:
        page.close()
    assert page_errors == []


@pytest.fixture(scope="module")
def shared(context: Any, page_service: str, page_errors: list[str]) -> Page:
    page = open_page(context, page_errors)
    page.goto(page_service)
    page.wait_for_selector("body[data-ready=true]")
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
