"""A real browser for the tests of pages. Needs a Chromium: PISCO_CHROMIUM, or one on the path."""

import time

import pytest

import needs

QUIET = ("gpu", "background-networking", "component-update", "dev-shm-usage", "sync")
ARGUMENTS = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{each}" for each in QUIET)]


@pytest.fixture(scope="module")
def browser():
    """A browser for all tests of a module."""
    from playwright import sync_api as playwright

    path = needs.chromium()
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """Open a page; whatever it complains about or asks the network for fails the test."""
    trouble, contexts = [], []

    def visit(path, **options):
        contexts.append(browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options)))
        page = contexts[-1].new_page()
        page.on("console", lambda said: trouble.append(said.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: allowed(request.url) or trouble.append(request.url))
        page.set_default_timeout(60_000)
        page.goto(path if isinstance(path, str) else path.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        return page

    def allowed(url):
        return url.startswith(("file://", "blob:", "data:", "http://127.0.0.1:"))

    yield visit
    for context in contexts:
        context.close()
    assert not trouble


def background(page):
    """The colour of a page's paper."""
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def until(page, holds):
    """Wait for something that happens by and by, on a busy machine too."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        page.wait_for_timeout(50)
