"""The report of results: what it says is what the numbers say, whatever the results are like."""

import functools
import json
import re
import threading
import urllib.error
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import pisco
from pisco import InputError, Result
from pisco.cli.main import app
from pisco.costs import Prices
from pisco.report.curves import POINTS, drawn_rows, page_numbers
from pisco.report.html import build_page, page_data, write_page
from pisco.report.live import LivePage
from pisco.report.summary import about_all, paragraphs
from pisco.targets import reached

from worlds import TINY_EXPERIMENT, Quadratics

world = functools.cache(lambda: Quadratics(6).problem())  # one problem compiles once
TARGETS = {"grad_norm_sq_mean": 1.0}


def trained(rounds=60, *, p=0.3, lr=0.05, seed=0, label="", **settings):
    rule = pisco.algorithms.pisco(local_lr=lr, local_steps=1)
    network = pisco.Network.ring(6, server=pisco.bernoulli(p))
    result = pisco.run(rule, world(), network, rounds=rounds, seed=seed, **settings)
    result.label = label
    return result


@pytest.fixture(scope="module")
def single():
    return trained(seed=[0, 1], label="one")


def test_agents_are_watched_on_their_own(single, tmp_path):
    known = single.agents
    rows = np.searchsorted(single.column("round")[0], known["frame_rounds"])
    mean = known["frame_errors"].mean(axis=1)
    np.testing.assert_allclose(mean, single.column("consensus_error")[0, rows], rtol=1e-4, atol=1e-12)
    assert known["edges"].shape == (6, 2)
    again = Result.load(single.save(tmp_path / "kept"))
    for name, values in known.items():
        np.testing.assert_array_equal(again.agents[name], values)
    assert "frame_errors" not in single.only([1]).agents and "frame_errors" in single.only([0]).agents


def test_some_seeds_of_a_result_keep_what_is_theirs(single):
    guarded = replace(single, named=[[], [{"agent": 3}]])
    assert guarded.only([1]).named == [[{"agent": 3}]] and single.only([1]).named == []


def test_what_is_kept_of_agents_is_bounded():
    data = {"labels": np.zeros((501, 1), int), "x": np.zeros((501, 1))}
    problem = pisco.Problem(lambda w, batch, key: (batch["x"] - w) ** 2, np.zeros(()), data)
    rule = pisco.algorithms.dsgd(local_lr=0.1)
    assert pisco.run(rule, problem, pisco.Network.ring(501), rounds=2).agents == {}
    long = trained(3000, eval_every=2)
    assert len(long.agents["frame_rounds"]) <= 402
    assert long.agents["frame_rounds"][[0, 1, -1]].tolist() == [0, 2, 3000]


def test_agents_survive_a_resumed_run(tmp_path):
    trained(30, checkpoint=tmp_path)
    went_on = trained(60, checkpoint=tmp_path, resume=True)
    straight = trained(60)
    for name in ("frame_rounds", "frame_errors"):
        np.testing.assert_array_equal(went_on.agents[name], straight.agents[name])


def test_labels_are_counted():
    parts = [np.array([3, 3, 7]), np.array([7]), np.array([3, 5])]
    data = [{"labels": labels, "x": np.ones(len(labels))} for labels in parts]
    problem = pisco.Problem(lambda w, batch, key: (batch["x"] - w) ** 2, np.zeros(()), data)
    result = pisco.run(pisco.algorithms.dsgd(local_lr=0.1), problem, pisco.Network.ring(3), rounds=1)
    assert result.agents["labels"].tolist() == [3, 5, 7]
    assert result.agents["label_counts"].tolist() == [[2, 0, 1], [0, 0, 1], [1, 1, 0]]


def test_the_page_needs_nothing_from_elsewhere_and_cannot_be_broken_out_of(single, tmp_path):
    evil = replace(single, label="</script><img src=x onerror=alert(1)>\u2028", settings={"a": "<b>"})
    text = write_page([evil, single], tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    own = text.split('<script type="text/plain"')[0]
    assert "<img" not in own and "<b>" not in own
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", own)
    assert "connect-src 'none'" in text
    with pytest.raises(InputError, match="no result"):
        write_page([], tmp_path / "page.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_page([single], tmp_path / "file" / "page.html")


def test_numbers_fit_any_browser(single):
    wild = trained(40, lr=50.0, p=0.0, label="wild")
    assert wild.diverged
    numbers = page_numbers([single, wild])
    text = json.dumps(numbers, allow_nan=False)
    assert len(text) < 300_000
    assert all(measure["log"] for measure in numbers["measures"])


def test_words_say_what_the_numbers_say(single):
    (words,) = paragraphs([single], TARGETS, Prices(3, 2))
    ((found,),) = reached([single], TARGETS)
    np.testing.assert_array_equal(found.rounds, single.at_target("grad_norm_sq_mean", at_most=1.0))
    paid = 3 * single.at_target("grad_norm_sq_mean", "messages_server", at_most=1.0)
    paid += 2 * single.at_target("grad_norm_sq_mean", "messages_gossip", at_most=1.0)
    np.testing.assert_array_equal(found.price(Prices(3, 2)), paid)
    assert f"after {found.rounds.mean():.3g}" in words
    assert "with 2 seeds" in words and "fell from" in words
    near = replace(single, history=single.history | {"loss": np.linspace(1.094, 1.0865, 41)[None].repeat(2, 0)})
    assert "stayed near 1.09" in paragraphs([near], TARGETS, Prices())[0]  # and did not fall from 1.09 to 1.09
    assert "for 1 round, with" in paragraphs([replace(single, rounds=1)], TARGETS, Prices())[0]
    assert "at 3 a server message and 2 a gossip message" in words


def test_words_admit_failure():
    wild = trained(40, lr=50.0, p=0.0, label="wild")
    (words,) = paragraphs([wild], TARGETS, Prices())
    assert "diverged" in words and "No round reached the server" in words
    cut = replace(trained(20), interrupted=True)
    (words,) = paragraphs([cut], {"grad_norm_sq_mean": 1e-9}, Prices())
    assert "stopped early" in words and "never reached" in words


def test_a_comparison_claims_no_more_than_its_seeds_allow():
    fast, slow = trained(seed=[0, 1], lr=0.1), trained(seed=[0, 1], lr=0.01, rounds=300)
    names = ["fast", "slow"]
    words = about_all([fast, slow], names, TARGETS, Prices())
    assert "fast took the fewest rounds" in words and "not certain" not in words
    assert "algorithm.local_lr" in words and "any of these" in words  # rounds differ as well
    near = about_all([fast, trained(seed=[2, 3, 4], lr=0.1)], ["a", "b"], TARGETS, Prices())
    assert "intervals overlap, so the order is not certain" in near
    assert "a and b needed the same rounds" in about_all([fast, fast], ["a", "b"], TARGETS, Prices())
    assert "All began at a loss" in about_all([fast, fast], ["a", "b"], {"loss": 1e9}, Prices())
    there = replace(fast, history=fast.history | {"grad_norm_sq_mean": 0 * fast.history["grad_norm_sq_mean"]})
    words = about_all([fast, slow, there], ["fast", "slow", "c"], TARGETS, Prices())
    assert "fast took the fewest rounds" in words and "1 of the 3 began there and is left out" in words
    assert "All that reached" in about_all([fast, there], ["fast", "c"], TARGETS, Prices())
    alone = about_all([trained(lr=0.1), trained(lr=0.02, rounds=300)], names, TARGETS, Prices())
    assert "on one seed, which may be chance" in alone
    assert "Only slow reached" in about_all([trained(5), slow], names, TARGETS, Prices())


def test_long_curves_are_thinned_but_peaks_stay():
    rounds = np.arange(10_001)
    loss = 1.0 / (1 + rounds)
    loss[7_777] = 5.0
    long = Result(None, {"round": rounds, "loss": loss}, (0,), {}, rounds=10_000)
    rows = drawn_rows(long)
    assert len(rows) <= POINTS and {0, 7_777, 10_000} <= set(rows.tolist())
    assert {1, 2, 3} <= set(rows.tolist())  # for logarithmic axes


def test_a_round_that_only_some_agents_take_to_the_server_is_told_apart():
    def parts(**network):
        result = pisco.run(rule, world(), pisco.Network(pisco.networks.graphs.ring(6), **network), rounds=8)
        return page_numbers([result])["results"][0]["network"]["frames"]["part"]

    rule = pisco.algorithms.dsgd(local_lr=0.05)
    assert not any(parts(server=pisco.bernoulli(0.5)))
    assert not any(parts(server=pisco.every(2), gossip_before_server=True))
    assert any(parts(server=pisco.per_agent([0.5] * 6)))
    assert parts(server=pisco.every(2), sampling=pisco.sample(2, agents=6)) == [False, False, True] + 3 * [False, True]


def test_older_results_are_reported_without_their_agents(single):
    old = replace(single, agents={}, label="old")
    data = page_data([old])
    assert "older" in data["results"][0]["network"]["absent"] and data["results"][0]["labels"] is None
    assert "old" in build_page(data, title="t")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("points.npz", features=rng.normal(size=(16, 3)), labels=np.arange(16) % 2)
    (tmp_path / "tiny.toml").write_text(TINY_EXPERIMENT)
    return CliRunner()


def test_the_command(tiny, tmp_path):
    done = tiny.invoke(app, ["run", "tiny.toml", "--live", "--out", "a"])
    assert done.exit_code == 0, done.output
    assert "live page: http://127.0.0.1:" in done.output and (tmp_path / "a" / "report.html").exists()
    assert tiny.invoke(app, ["run", "tiny.toml", "--out", "b"]).exit_code == 0
    done = tiny.invoke(app, ["report", "a", "b", "-o", "ab.html", "--targets", "loss=0.5", "--price-server", "7"])
    assert done.exit_code == 0 and "report: ab.html" in done.output
    text = (tmp_path / "ab.html").read_text(encoding="utf-8")
    assert "2 results compared" in text and "a loss f(x̄) of at most 0.5" in text and 'value="7"' in text
    for wrong in (["a", "-o", "x.png"], ["nothing"], ["a", "--targets", "lss=1"], ["a", "--price-server", "-1"]):
        done = tiny.invoke(app, ["report", *wrong])
        assert done.exit_code == 2, wrong


def ask(page, path="/", **headers):
    request = urllib.request.Request(page.address.rstrip("/") + path, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status, answer.read()


def test_a_live_page_follows_the_run(tmp_path):
    page = LivePage("mine", 40)
    assert b'"state":"waiting"' in ask(page)[1]
    seen = []

    def progress(news):
        page.next_time = 0.0  # a test does not wait between two looks
        page(news)
        status, body = ask(page, f"/data.json?seen={seen[-1]['version'] if seen else 0}")
        assert status == 200
        seen.append(json.loads(body))

    result = trained(40, chunk_rounds=10, progress=progress)
    assert [each["live"]["done"] for each in seen] == [10, 20, 30, 40]
    assert [each["results"][0]["x"]["round"][-1] for each in seen] == [10, 20, 30, 40]
    assert seen[0]["results"][0]["network"]["frames"]["round"][-1] == 10
    assert ask(page, f"/data.json?seen={seen[-1]['version']}")[0] == 204
    reader = threading.Timer(0.5, lambda: seen.append(json.loads(ask(page, "/data.json")[1])))
    reader.start()
    page.finish(result, tmp_path / "report.html")  # waits for a page that is open
    reader.join()
    assert seen[-1]["live"]["state"] == "finished" and "report.html" in seen[-1]["live"]["saved"]
    with pytest.raises(urllib.error.URLError, match="refused"):
        ask(page)


def test_a_live_page_does_nothing_that_nobody_asked_for():
    page = LivePage("mine", 40)
    versions = []

    def progress(news):
        page.next_time = 0.0
        page(news)
        versions.append(page.version)

    trained(40, chunk_rounds=10, progress=progress)
    page.close()
    assert versions == [1, 1, 1, 1]  # the first rounds, for whoever comes later


def test_a_live_page_is_for_this_machine_only():
    page = LivePage("mine", 40)
    try:
        assert page.server.server_address[0] == "127.0.0.1"
        for path, headers, status in (("/", {"Host": "evil.example"}, 403), ("/etc/passwd", {}, 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(page, path, **headers)
            refused.value.close()
            assert refused.value.code == status
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(page.address, data=b"x", timeout=10)
        refused.value.close()
        assert refused.value.code == 501
        with pytest.raises(InputError, match="another --port"):
            LivePage("other", 1, port=page.port)
    finally:
        page.close()
