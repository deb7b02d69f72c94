"""The playground in a real browser: its numbers are the library's, and mouse, fingers and keys all draw networks."""

import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import pisco
from pisco.costs import Prices
from pisco.report.playground import AGENTS, playground_page, write_playground

from browsers import background, until

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_playground(tmp_path_factory.mktemp("playground") / "playground.html")


@pytest.fixture
def page(opened, written):
    return opened(written)


def agents(page):
    return [int(each.get_attribute("data-slot")) for each in page.query_selector_all("#net .agent")]


def neighbours(page, slot):
    return page.get_attribute(f'#net [data-slot="{slot}"]', "aria-label")


def links(page):
    return page.locator("#net .link").count()


def tap(page, slot, how="click"):
    box = page.locator(f'#net [data-slot="{slot}"] .body').bounding_box()
    at = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.touchscreen.tap(*at) if how == "tap" else page.mouse.click(*at)
    return at


def rows(page):
    return page.evaluate("playground.rows()")


def by_the_library(page):
    """What the program that the page shows gives."""
    held, told = jax.config.read("jax_enable_x64"), {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            exec(page.input_value("#python"), told)
    finally:
        jax.config.update("jax_enable_x64", held)
    return told["result"].history, told["network"]


@pytest.mark.parametrize("one_exchange", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_its_numbers_are_the_librarys(page, one_exchange):
    """A hand-drawn network with an agent gone, so that places and data differ; prices and coins too."""
    page.select_option("#shape", "grid")
    page.fill("#agents", "7")
    tap(page, 2)
    page.click("#remove")
    tap(page, 0), tap(page, 6)
    told = {"p": 0.3, "local-steps": 2, "local-lr": 0.07, "comm-lr": 0.9, "seed": 123456789 + one_exchange}
    for name, value in told.items():
        page.fill(f"#{name}", str(value))
    page.set_checked("#one-exchange", one_exchange)
    page.evaluate("playground.advance(60)")
    history, network = by_the_library(page)
    assert agents(page) == [0, 1, 3, 4, 5, 6] and network.num_agents == 6
    found = rows(page)
    assert [int(row["server"]) for row in found] == history["server"].tolist() and 5 < history["server"].sum() < 40
    for name in ("grad_norm_sq", "consensus_error", "loss"):
        np.testing.assert_allclose([row[name] for row in found], history[name], rtol=1e-12, atol=1e-14)
    for name, column in {"server": "messages_server", "gossip": "messages_gossip", "gradients": "gradients"}.items():
        assert [row["counts"][name] for row in found] == history[column].tolist()
    assert page.evaluate("playground.rate()") == pytest.approx(network.mixing_rate, rel=1e-6)
    price = Prices().paid(history.__getitem__, history)[-1]
    assert f"price {price:,.0f}" in page.text_content("#words")


def test_coins_of_large_seeds_are_those_of_jax(page):
    from worlds import coins

    page.fill("#p", "0.5")
    for seed in (0, 1, 2**31 - 1):
        page.fill("#seed", str(seed))
        page.evaluate("playground.advance(40)")
        expected = [bool(coin) for coin in coins(pisco.bernoulli(0.5), 40, seed)]
        assert [row["server"] for row in rows(page)[1:]] == expected


def test_mouse(page):
    before = agents(page)
    box = page.locator("#net").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert agents(page) == [*before, len(before)] and page.input_value("#shape") == "own"
    tap(page, len(before)), tap(page, 3)
    assert neighbours(page, len(before)) == f"Agent {len(before)}, linked with 3"
    at = tap(page, 3)
    tap(page, len(before))
    assert neighbours(page, len(before)).endswith("without links")
    page.mouse.move(*at)
    page.mouse.down()
    page.mouse.move(at[0] - 60, at[1] + 20, steps=4)
    page.mouse.up()
    moved = page.locator('#net [data-slot="3"] .body').bounding_box()
    assert abs(moved["x"] + moved["width"] / 2 - at[0] + 60) < 3
    for _ in range(AGENTS):
        page.click("#add")
    assert len(agents(page)) == AGENTS and "remove one first" in page.text_content("#said")


def test_keys_are_enough(page):
    page.focus("#net [tabindex='0']")
    count, held = links(page), len(agents(page))
    for key in ("Enter", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert links(page) == count + 1 and neighbours(page, 2) == "Agent 2, linked with 0, 1, 3"
    place = page.locator('#net [data-slot="2"] .body').bounding_box()
    page.keyboard.press("Shift+ArrowLeft")
    assert page.locator('#net [data-slot="2"] .body').bounding_box()["x"] < place["x"]
    page.keyboard.press("Delete")
    assert len(agents(page)) == held - 1 and 2 not in agents(page)
    page.keyboard.press("+")
    assert 2 in agents(page) and neighbours(page, 2).endswith("without links")
    assert page.evaluate("document.activeElement.dataset.slot") == "2"
    page.focus("#play")
    page.keyboard.press("Enter")
    until(page, lambda: len(rows(page)) > 3)
    page.keyboard.press("Enter")
    stopped = len(rows(page))
    page.wait_for_timeout(300)
    assert len(rows(page)) == stopped and page.text_content("#play") == "Play"


def test_phone(opened, written):
    page = opened(written, viewport={"width": 360, "height": 700}, has_touch=True, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    count = links(page)
    tap(page, 0, "tap"), tap(page, 5, "tap")
    assert links(page) == count + 1
    dark = background(page)
    page.select_option("#theme", "light")
    assert background(page) != dark


def test_what_cannot_be_used_is_marked_and_not_taken(page):
    page.evaluate("playground.advance(3)")
    for name, value in {"p": "2", "local-steps": "1.5", "local-lr": "", "agents": "99", "seed": "-1"}.items():
        page.fill(f"#{name}", value)
        assert page.get_attribute(f"#{name}", "aria-invalid") == "true"
    assert len(rows(page)) == 4 and len(agents(page)) == 12
    page.fill("#local-lr", "60")
    page.evaluate("playground.advance(60)")
    assert "diverged" in page.text_content("#words")


def test_the_page_of_the_docs_is_this_one():
    assert (DOCS / "playground.html").read_text(encoding="utf-8") == playground_page()


def test_a_playground_is_an_html_page(tmp_path):
    with pytest.raises(pisco.InputError, match="ends in .html"):
        write_playground(tmp_path / "playground.png")
