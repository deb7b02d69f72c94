"""The report in a real browser: it loads quietly, its switches work, it plays back, and keys are enough.

Needs a Chromium: PISCO_CHROMIUM, or one on the path.
"""

import functools
import re

import numpy as np
import pytest

import pisco
from pisco.experiments.bench import scores, store
from pisco.experiments.bench.page import write_page as bench_page
from pisco.report.html import write_page
from pisco.report.live import LivePage
from pisco.report.numbers import number
from pisco.statistics import Sample

from browsers import background, until
from worlds import Quadratics

world = functools.cache(lambda: Quadratics(6).problem())  # one problem compiles once


def train(p, rounds=60, seed=(0, 1), **settings):
    rule = pisco.algorithms.pisco(local_lr=0.05, local_steps=1)
    network = pisco.Network.ring(6, server=pisco.bernoulli(p))
    result = pisco.run(rule, world(), network, rounds=rounds, seed=seed, **settings)
    result.label = f"p = {p:g} & <others>"
    result.agents |= {"labels": np.arange(2), "label_counts": np.arange(12).reshape(6, 2)}
    return result


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two results, the second one as an older version would have kept it."""
    old = train(0.0)
    old.agents = {}
    targets = {"grad_norm_sq_mean": 1.0}
    return write_page([train(0.3), old], tmp_path_factory.mktemp("page") / "report.html", targets=targets)


def axis(page, chart, which):
    return page.evaluate(f"document.getElementById('{chart}')._fullLayout.{which}.type")


def frame(page):
    return int(page.input_value("#frame"))


def test_switches(opened, report):
    page = opened(report)
    assert axis(page, "by-round", "yaxis") == "log"
    page.uncheck("#log-y")
    page.check("#log-x")
    for chart in ("by-round", "by-bytes", "by-price"):
        assert (axis(page, chart, "yaxis"), axis(page, chart, "xaxis")) == ("linear", "log")
    drawn = "document.getElementById('by-round').data.length"
    assert page.evaluate(drawn) == 4  # a band and a line each
    page.uncheck("#band")
    assert page.evaluate(drawn) == 2
    page.get_by_role("checkbox", name="p = 0 & <others>", exact=True).uncheck()
    assert page.evaluate("document.getElementById('by-round').data.map(d => d.name)") == ["p = 0.3 &amp; &lt;others>"]
    page.select_option("#measure", "loss")
    assert axis(page, "by-round", "yaxis") == "linear"
    assert page.text_content("#cap-price").startswith("Loss f(x̄) against")
    page.click("#curve-details summary")
    page.wait_for_selector("#curve-table tbody tr")
    assert page.locator("#curve-table tbody tr").count() == 11

    price = page.locator("#targets-table td[data-server]").first
    before, far = price.text_content(), "document.getElementById('by-price').data[0].x.at(-1)"
    dear = page.evaluate(far)
    page.fill("#price-server", "0")
    assert price.text_content() != before and page.evaluate(far) < dear
    gossip = [float(count) for count in price.get_attribute("data-gossip").split(",")]
    assert price.text_content() == number(np.median(gossip))


def test_a_result_that_blew_up_hides_no_other(opened, tmp_path):
    calm, wild = train(0.3), train(0.0)
    wild.diverged_at = [1, 1]
    for name in ("loss", "grad_norm_sq_mean"):
        wild.history[name] = np.repeat([np.geomspace(1, 1e30, 61)], 2, axis=0)
    page = opened(write_page([calm, wild], tmp_path / "wild.html"))
    whole = "document.getElementById('by-round').layout.yaxis.range"
    values = calm.history["grad_norm_sq_mean"]
    low, high = page.evaluate(whole)
    assert low < np.log10(values.min()) and np.log10(values.max()) < high < np.log10(values.max()) + 1
    page.get_by_role("checkbox", name="p = 0.3 & <others>", exact=True).uncheck()
    low, high = page.evaluate(whole)
    assert low < 0 and high > 30  # alone it is shown from its start


def test_prices_are_medians_that_know_who_missed(opened, report):
    """What the script works out for new prices is what Python would have written."""
    page, rng = opened(report), np.random.default_rng(0)
    cells = page.locator("#targets-table td[data-missed]")
    change = "(cell, given) => Object.assign(cell.dataset, given)"
    for prices in ((2, 4, 0), (2, 6, 8), (14, 2, 4)):  # even, so that no half is rounded
        wanted = []
        for at in range(cells.count()):
            seeds = rng.integers(1, 21)
            counts, missed = rng.integers(0, 30, (3, seeds)), rng.random(seeds) < rng.random()
            listed = dict(zip(("server", "gossip", "gradient"), counts.tolist(), strict=True))
            given = listed | {"missed": missed.astype(int).tolist()}
            cells.nth(at).evaluate(change, {name: ",".join(map(str, values)) for name, values in given.items()})
            wanted.append(Sample(np.array(prices) @ counts, missed).median.alone().words(number))
        for kind, price in zip(("server", "gossip", "gradient"), prices, strict=True):
            page.fill(f"#price-{kind}", str(price))
        assert cells.all_text_contents() == wanted


def test_themes(opened, report):
    page = opened(report, color_scheme="dark")
    dark = background(page)
    page.select_option("#theme", "light")
    assert background(page) == "rgb(255, 255, 255)" != dark
    page.select_option("#theme", "auto")
    page.emulate_media(color_scheme="light")
    assert background(page) == "rgb(255, 255, 255)"
    page.select_option("#theme", "dark")
    assert background(page) == dark
    ink = page.evaluate("document.getElementById('by-round')._fullLayout.font.color")
    assert ink == page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--text').trim()")


def test_playback(opened, report):
    page = opened(report)
    assert frame(page) == 0 and "the start" in page.text_content("#frame-text")
    colours = "document.getElementById('graph').data[3].marker.color.join()"
    first = page.evaluate(colours)
    page.select_option("#speed", "20")
    page.click("#play")
    assert page.get_attribute("#frame-text", "aria-live") == "off"
    until(page, lambda: frame(page) > 1)
    page.click("#play")
    stopped = frame(page)
    assert page.evaluate(colours) != first and page.text_content("#play") == "Play"
    page.wait_for_timeout(200)
    assert frame(page) == stopped
    words = {}
    for step in range(1, 13):
        page.fill("#frame", str(step))
        rays = page.evaluate("document.getElementById('graph').data[1].line.color").replace(" ", "")
        words.setdefault(rays, set()).add(page.text_content("#frame-text").split(":")[1].split(".")[0].strip())
    # The rays to the server show in server rounds and in no other.
    assert words.pop("rgba(0,0,0,0)") == {"a gossip round"} and list(words.values()) == [{"a server round"}]
    page.fill("#frame", "59")
    page.click("#play")
    until(page, lambda: frame(page) == 60 and page.text_content("#play") == "Play")  # it stops at the end
    page.select_option("#which", "1")
    assert "older" in page.text_content("#network-absent") and page.is_hidden("#graph")
    assert page.is_visible("#labels-absent")


def test_one_way_links_have_arrows(opened, tmp_path):
    graph = pisco.networks.graphs.random_digraph(5, 0.3)
    rule = pisco.algorithms.pisco(local_lr=0.01, local_steps=1)
    result = pisco.run(rule, Quadratics(agents=5).problem(), pisco.Network(graph), rounds=5)
    page = opened(write_page([result], tmp_path / "one-way.html"))
    heads = "document.getElementById('graph').data.filter(t => t.fill === 'toself').map(t => t.x.length)"
    assert page.evaluate(heads) == [5 * len(graph.arcs)]  # four points and a gap for each
    assert "Links go one way" in page.text_content("#frame-text")
    page.click("#agents-details summary")
    page.wait_for_selector("#agents-table th")
    assert "Sends to" in page.text_content("#agents-table") and "Hears" in page.text_content("#agents-table")


def test_keys_are_enough(opened, report):
    page = opened(report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    order = []
    for _ in range(25):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id"))
        if order[-1] == "frame":
            break
    wanted = ["measure", "log-y", "log-x", "band", "which", "back", "play", "forward", "frame"]
    assert [each for each in order if each in wanted] == wanted
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert frame(page) == 2 and "Round 2" in page.get_attribute("#frame", "aria-valuetext")
    page.keyboard.press("Space")
    assert page.text_content("#play") == "Pause"
    page.focus("#play")
    page.keyboard.press("Enter")
    assert page.text_content("#play") == "Play"
    now = frame(page)
    page.keyboard.press("ArrowLeft")
    assert frame(page) == now - 1
    unnamed = """[...document.querySelectorAll('button, select, input, [role=img], [role=region]')].filter(
        (each) => !(each.labels?.length || each.getAttribute('aria-label') || each.textContent.trim())).length"""
    assert page.evaluate(unnamed) == 0


def test_phone_paper_and_calm(opened, report):
    page = opened(report, viewport={"width": 360, "height": 740}, reduced_motion="reduce")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.input_value("#speed") == "2"
    assert len(page.pdf()) > 20_000
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    widths = page.evaluate("[...document.querySelectorAll('.chart')].map((each) => each._fullLayout?.width ?? 0)")
    assert max(widths) <= 680


@pytest.mark.slow
def test_the_live_page_follows(opened, tmp_path):
    live = LivePage("mine", 60)
    page = opened(live.address)
    assert "compiled" in page.text_content("#status") and page.is_hidden("#curves")
    seen = []

    def progress(news):
        live(news)
        if news.done == 20:
            until(page, lambda: page.text_content("#progress") == "Round 20 of 60.")
        seen.append(page.text_content("#progress"))

    result = train(0.3, chunk_rounds=20, progress=progress)
    assert seen[0] == "Round 20 of 60." and page.is_visible("#by-round")
    live.version += 1
    live.data = live.data | {"live": {"state": "finished", "done": 60, "rounds": 60}, "version": live.version}
    until(page, lambda: "finished" in page.text_content("#status"))
    live.close()
    assert result.rounds == 60


@pytest.mark.slow
def test_twenty_long_runs_stay_small_and_open_at_once(opened, tmp_path):
    results = [train(p, 10_000, 0, chunk_rounds=2500) for p in np.linspace(0, 1, 20)]
    path = write_page(results, tmp_path / "long.html")
    assert path.stat().st_size < 5_000_000
    page = opened(path)
    # The seconds of work of the page's own process, so that what else the machine does is not counted.
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    spent = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    assert 0.1 < spent["ProcessTime"] < 3.0
    assert page.evaluate("document.getElementById('by-round').data.length") == 20
    assert re.search("drawn at a few hundred", page.text_content("#curves-note"))


def test_the_benchmark_page_ranks_as_the_tables_do(opened, tmp_path):
    cells = store.bundled()
    page = opened(bench_page(cells, tmp_path / "bench.html"))
    by_place = scores.by_setting(cells)
    for (task, network), currency, slide in (
        (("a9a", "ring-10"), "bytes", 1),
        (("least-squares", "split-10"), "messages", 2),
        (("least-squares", "path-10"), "bytes", -1),
    ):
        page.select_option("#task", task)
        page.select_option("#network", network)
        page.select_option("#currency", currency)
        slider = "const r = document.getElementById('ratio'); r.value = to; r.dispatchEvent(new Event('input'))"
        page.evaluate(f"(to) => {{ {slider} }}", slide)
        rows = "[...document.querySelectorAll('#ranking tbody tr')].map(r => [r.dataset.method, r.dataset.cost])"
        shown = [(name, float(cost)) for name, cost in page.evaluate(rows)]  # Infinity as well
        ranked = scores.ranking(by_place[task, network], 10.0**slide, currency)
        assert [name for name, _ in shown] == [each.score.method for each in ranked]
        assert [cost for _, cost in shown] == pytest.approx([each.price for each in ranked])
        assert ranked[0].score.method in page.text_content("#said")
        column = scores.RATIOS.index(10.0**slide)
        first = page.locator("#map tbody tr", has_text=f"{network},").locator("td").nth(column).text_content()
        assert first.replace("\u00a0", " ").startswith(ranked[0].score.label)
    page.select_option("#currency", "seconds")
    assert page.is_hidden("#price") and page.locator("#ranking tbody tr").count() == len(ranked)


def test_the_benchmark_page_of_few_cells(opened, tmp_path):
    """A network that refused every method is left out, and what was not counted is not called missed."""
    known = ("task", "network", "setting", "target", "seeds", "devices", "method", "refused", "entries")
    found = {(cell["task"], cell["network"], cell["method"]): cell for cell in store.bundled()}
    timed, other = (found["a9a", "ring-10", method] for method in ("gossip-pga", "dsgt"))
    refused = {name: value for name, value in found["a9a", "split-10", "dsgt"].items() if name in known}
    without = other | {"entries": [entry | {"seconds": None} for entry in other["entries"]]}
    page = opened(bench_page([timed, without, refused], tmp_path / "bench.html"))
    assert page.locator("#network option").all_text_contents() == ["ring-10"]
    page.select_option("#currency", "seconds")
    rows = {row.get_attribute("data-method"): row.inner_text() for row in page.query_selector_all("#ranking tbody tr")}
    assert "not counted" in rows["dsgt"] and "not" not in rows["gossip-pga"]
    with pytest.raises(pisco.InputError, match="every cell there was refused"):
        bench_page([refused], tmp_path / "none.html")
