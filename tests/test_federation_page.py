"""The live page of a federation, in a real browser: who is where, who is waited for; what members say stays text."""

import math
import time
import urllib.error
import urllib.request

import pytest

from pisco.errors import InputError
from pisco.federation.rolls import Roll, plan_mark
from pisco.federation.runtime.rolled_server import SERVERS
from pisco.federation.runtime.wire_pb2 import Report, Row
from pisco.report.federation import FederationPage, serve_page
from pisco.report.serving import PageServer

from browsers import background, until
from federations import make_kits, plan_for

NASTY = "<img src=x onerror=\"document.title='ran'\"> expects 30 features, has 31"


def served(folder, **settings):
    """A server that nobody runs: what agents would have told it is told here."""
    plan = plan_for(4, rounds=200, name="clinic", network={"graph": "ring", "server_prob": 0.3}, **settings)
    kits = make_kits(folder, plan, ["server"])
    return SERVERS[plan.presence](kits["server"], folder / "state")


def tell(server, name, round_, **told):
    rows = [Row(round=round_, values={"loss": 0.25})]
    server.ledger.note(name, Report(round=round_, bytes_sent=1500, rows=rows, times={"compute": 0.002}, **told))


def cells(page):
    script = "[...document.querySelectorAll('#members tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    return {row[0]: row[1:] for row in page.evaluate(script)}


@pytest.fixture
def server(tmp_path):
    made = served(tmp_path)
    yield made
    made.close()


def test_who_is_where_and_who_is_waited_for(opened, server):
    for name, waits in (("agent-0", "agent-1"), ("agent-1", "agent-2"), ("agent-2", "")):
        tell(server, name, 7 if waits else 6, waiting_for=waits)
    server.ledger.trouble("agent-3", NASTY)
    shown = FederationPage(server)
    answering = PageServer(shown)
    try:
        page = opened(answering.address, color_scheme="dark")
        assert page.text_content("h1") == "clinic" and page.title() == "clinic: a federation"
        # Text of members stays text, and is marked as theirs.
        assert page.text_content("#status") == "agent-3 holds the others up." and NASTY in page.text_content("#why")
        assert page.locator("img").count() == 0 and cells(page)["agent-3"][-1] == NASTY
        heads = page.evaluate("[...document.querySelectorAll('#members thead th')].map(h => h.textContent)")
        assert heads[:3] == ["member", "state", "heard"] and all(head.endswith("†") for head in heads[3:])
        row = dict(zip(heads[1:], cells(page)["agent-0"], strict=True))
        assert (row["state"], row["round†"], row["loss†"], row["sent†"]) == (
            "waits for agent-1†",
            "7",
            "0.25",
            "1.5 kB",
        )
        assert row["a gradient†"] == "2 ms" and cells(page)["agent-2"][0] == "at work"
        # Four links of the ring; two wait; the last rounds by the coin of the plan.
        assert page.locator("#net .link").count() == 4 and page.locator("#net .wait").count() == 2
        assert page.locator("#recent span").count() == 7
        reached = [place for place, coin in enumerate(server.coins(0, 7)) if coin]
        tall = "[...document.querySelectorAll('#recent span')].map((s, i) => s.className ? i : -1).filter(i => i >= 0)"
        assert page.evaluate(tall) == reached
        assert "Round 7 of 200" in page.text_content("#progress")

        # It follows.
        def follows(words, silent=()):
            for name in server.plan.names:
                tell(server, name, 20)
            server.ledger._contact |= {name: time.monotonic() - 60.2 for name in silent}
            return page.text_content("#status") == words and "Round 20 of 200" in page.text_content("#progress")

        until(page, lambda: follows("Nobody is waited for."))
        assert page.locator("#net .wait").count() == 0
        until(page, lambda: follows("agent-1 holds the others up.", ["agent-1"]))
        assert cells(page)["agent-1"][0] == "silent" and cells(page)["agent-1"][1] in ("60 s ago", "61 s ago")

        dark = background(page)
        page.select_option("#theme", "light")
        assert background(page) == "rgb(255, 255, 255)" != dark
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360

        for name in server.plan.names:
            tell(server, name, 200)
        shown.ended = True
        until(page, lambda: page.text_content("#status") == "The federation has finished.")
        assert shown.fetched
    finally:
        answering.close()


def test_rolls_are_shown(tmp_path):
    server = served(tmp_path, presence="deadline", deadline=5.0, quorum=2)
    try:
        mark = plan_mark(server.plan, 0)
        for k, attempt, present in ((0, 0, (0, 1, 2, 3)), (0, 1, (0, 1, 2)), (1, 0, (0, 1, 2)), (2, 0, (0, 1, 2, 3))):
            roll = Roll(k, attempt, mark, present)
            server.file.add(roll, b"")
            server.call.add(roll, time.monotonic())
        data = FederationPage(server).data()
        assert [(each["absent"], each["attempt"]) for each in data["recent"]] == [(["agent-3"], 1), (["agent-3"], 0)]
        assert data["front"] == 2 and [each["called"] for each in data["members"]] == [True] * 4
        assert {each["state"] for each in data["members"]} == {"unheard"}
        server.ledger.trouble("agent-3", "has 31 features")
        assert server.ledger.holdup().name == "agent-3"
        server.call.add(Roll(2, 1, mark, (0, 1, 2)), time.monotonic())
        assert server.ledger.holdup().name != "agent-3"  # nobody waits for who is not on the roll
    finally:
        server.close()


def test_the_page_is_for_this_machine(server):
    for elsewhere in ("0.0.0.0:9401", "10.0.0.5:9401", "example.org:9401", "[::]:9401"):
        with pytest.raises(InputError, match="loopback"), serve_page(server, elsewhere):
            pass
    with pytest.raises(InputError, match="host:port"), serve_page(server, "9401"):
        pass
    other = PageServer(FederationPage(server))
    try:
        with pytest.raises(InputError, match="free port"), serve_page(server, f"127.0.0.1:{other.port}"):
            pass
        request = urllib.request.Request(f"{other.address}data.json", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        refused.value.close()
        assert refused.value.code == 403
    finally:
        other.close()
    with serve_page(server, None):
        pass


def test_numbers_that_are_none_do_not_break_the_page(server):
    server.ledger.note("agent-0", Report(round=3, rows=[Row(round=3, values={"loss": math.inf})]))
    told = FederationPage(server).data()["members"][0]["told"]
    assert told["loss"] is None and told["compute"] is None
