"""Time by the clock: the same as a simulation that passes every message by hand."""

import json
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco import InputError
from pisco.algorithms import build
from pisco.clock.stopwatch import Stopwatch
from pisco.costs import message_sizes
from pisco.engines.history import History
from pisco.engines.job import Run, attendance, seed_key, streams
from pisco.engines.scan import ScanEngine
from pisco.networks.rounds import draw

from worlds import Quadratics, thinned

DIM, FLOAT = 5, 4
VECTOR = DIM * FLOAT


def stopwatch(rule, network, given, seed=0):
    sizes = message_sizes(rule, jnp.zeros((network.num_agents, DIM)), network.num_agents)
    return Stopwatch(pisco.Clock.of(given), network, [Run(rule, network.server, seed)], sizes)


def drawn(network, rounds, seed=0):
    """Who is at the server and who reports in every round, and its gossip as a matrix [sender, receiver]."""
    n, keys, gossip = network.num_agents, streams(seed_key(seed)), network.gossip

    @jax.jit
    def one(k):
        who = jnp.broadcast_to(network.server.participants(keys.coins, k), n)
        reporters = jnp.ones(n, bool)
        if network.sampling is not None:
            reporters = draw(gossip, jnp.asarray(True), keys.links, k).weights > 0
        links = None
        if not network.splits_rounds:  # by applying it
            operator, _ = gossip.rule.draw(keys.links, k)
            links = operator(jnp.eye(n)).T
        return who, reporters, links

    return [jax.tree.map(np.asarray, one(k)) for k in range(rounds)]


def by_hand(network, steps, given, rounds, draws, seed=0, start=(), asked=False):
    """One agent and one message after the other; `steps` are gradients (True), or the bytes of an exchange."""
    n = network.num_agents
    compute, lat, bw = (np.broadcast_to(given[x], s) for x, s in (("compute", n), ("lat", (n, n)), ("bw", (n, n))))
    server_lat, server_bw = np.broadcast_to(given["server_lat"], n), np.broadcast_to(given["server_bw"], n)
    times, latest = [0.0] * n, []
    present = np.ones((rounds, n), bool)
    if network.presence is not None:
        present = attendance(network, rounds=rounds, seed=seed)

    def pass_on(times, W, size):
        new = list(times)
        for i in range(n):
            for j in range(n):
                if i != j and W[j, i]:
                    leaves = max(times[j], times[i] + lat[j, i]) if asked else times[j]
                    new[i] = max(new[i], leaves + size / bw[j, i] + lat[j, i])
        return new

    def average(times, at_server, reporters, size):
        first = min((times[i] + server_lat[i] for i in range(n) if at_server[i]), default=0)  # it asks when asked
        leaves = [max(times[i], first + server_lat[i]) if asked else times[i] for i in range(n)]
        there = [leaves[i] + size / server_bw[i] + server_lat[i] for i in range(n) if reporters[i]]
        # Who did not report asks for the average as well, perhaps late.
        ready = [max(max(there, default=0), times[i] + server_lat[i] if asked else 0) for i in range(n)]
        back = [ready[i] + size / server_bw[i] + server_lat[i] if there else 0 for i in range(n)]
        return [max(times[i], back[i]) if at_server[i] else times[i] for i in range(n)]

    for what in start:
        if what is True:
            times = [times[i] + compute[i] for i in range(n)]
        elif what == "server":
            times = average(times, [True] * n, [True] * n, VECTOR)
        else:
            times = pass_on(times, draws[0][2], VECTOR)
    latest.append(max(times))
    for k in range(rounds):
        who, reporters, links = draws[k]
        here = present[k]
        who, reporters = who & here, reporters & here
        if network.splits_rounds:
            links = network.graph.adjacency().toarray() * np.outer(~who, ~who)
        links = links * np.outer(here, here)
        for what in steps:
            if what is True:
                times = [times[i] + compute[i] * here[i] for i in range(n)]
                continue
            gossiped = times
            for _ in range(network.gossip_steps):
                gossiped = pass_on(gossiped, links, what)
            if not who.any() or network.splits_rounds or network.gossip_before_server:
                times = gossiped  # in a split round those at the server have no links
            hears = who & reporters if network.to_sampled else who
            times = average(times, hears, reporters & who, what)
        latest.append(max(times))
    return np.asarray(latest)


def speeds(n, seed=0):
    """Everything unlike everything else, agent 1 ten times slower."""
    rng = np.random.default_rng(seed)
    compute = rng.uniform(0.5, 1.5, n)
    compute[1] *= 10
    given = {"compute": compute, "lat": rng.uniform(0, 2, (n, n)), "bw": rng.uniform(5, 50, (n, n))}
    given |= {"server_lat": rng.uniform(0, 3, n), "server_bw": rng.uniform(5, 50, n)}
    names = {"compute": "compute", "lat": "latency_gossip", "bw": "bandwidth_gossip"}
    names |= {"server_lat": "latency_server", "server_bw": "bandwidth_server"}
    return given, {names[name]: values.tolist() for name, values in given.items()}


PISCO = [True, True, VECTOR, True, VECTOR]
ONE_EXCHANGE, DSGD = [True, True, 2 * VECTOR, True], [True, VECTOR]
random = {"prob": 0.4, "seed": 3}
CASES = {
    "pisco": ("pisco", PISCO, pisco.Network.erdos_renyi(9, **random, server=pisco.bernoulli(0.2)), [True]),
    "one exchange": (
        "pisco-one-exchange",
        ONE_EXCHANGE,
        pisco.Network.erdos_renyi(9, **random, server=pisco.every(4)),
        [True],
    ),
    "dsgd": ("dsgd", DSGD, pisco.Network.erdos_renyi(9, **random, server=pisco.bernoulli(0.2)), []),
    "sampled reports": (
        "dsgd",
        DSGD,
        pisco.Network.ring(8, server=pisco.bernoulli(0.5), sampling=pisco.sample(3, agents=8)),
        [],
    ),
    "sampled alone": (
        "dsgd",
        DSGD,
        pisco.Network.ring(8, server=pisco.bernoulli(0.5), sampling=pisco.sample(3, agents=8), receivers="sampled"),
        [],
    ),
    "split rounds": ("dsgd", DSGD, pisco.Network.ring(7, server=pisco.per_agent([0.3] * 7)), []),
    "links that fail": (
        "dsgd",
        DSGD,
        pisco.Network.ring(7, varying=pisco.edge_dropout(0.4), server=pisco.every(5)),
        [],
    ),
    "one peer": ("dsgd", DSGD, pisco.Network.complete(8, varying=pisco.one_peer_exponential()), []),
    "gossip before the server": (
        "dsgd",
        DSGD,
        pisco.Network.ring(6, server=pisco.every(3), gossip_steps=2, gossip_before_server=True),
        [],
    ),
    "agents that come and go": (
        "pisco",
        PISCO,
        pisco.Network.erdos_renyi(9, **random, server=pisco.every(4), presence=pisco.churn(0.3, 0.4)),
        [True],
    ),
    "a star": ("dsgd", DSGD, pisco.Network.star(70, server=pisco.every(9)), []),
    "a start at the server": ("kgt", [True, 2 * VECTOR], pisco.Network.ring(5), [True, "server"]),
    "a start by gossip": ("kgt", [True, 2 * VECTOR], pisco.Network.ring(5), [True, "gossip"]),
}


@pytest.mark.parametrize("name", thinned(CASES, 5))
def test_it_agrees_with_messages_passed_by_hand(name):
    """Both where agents send by themselves and where they are asked."""
    method, steps, network, start = CASES[name]
    options = {"local_lr": 0.1} | ({"local_steps": 2} if method.startswith("pisco") else {})
    if method == "kgt":
        options |= {"local_steps": 1, "start": {"server": "central"}.get(start[1], "gossip")}
    given, fields = speeds(network.num_agents)
    draws = drawn(network, 30)
    for asked in (False, True):
        expected = by_hand(network, steps, given, 30, draws, start=start, asked=asked)
        found = stopwatch(build(method, **options), network, fields | {"asked": asked}).at(range(31))
        np.testing.assert_allclose(found[0], expected, rtol=1e-9)
        assert (np.diff(expected) >= 0).all() and expected[-1] > expected[1]


def test_gossip_waits_for_neighbours_only():
    """What a slow agent costs travels one link a round; a server round makes everybody wait."""
    n, rule = 8, build("dsgd", local_lr=0.1)
    slow = {"compute": [10.0] + [1.0] * (n - 1)}
    for server, reached in ((pisco.never(), 3), (pisco.every(3), n - 1)):
        watch = stopwatch(rule, pisco.Network.path(n, server=server), slow)
        watch.chunk = 1
        watch.at([3])
        late = np.flatnonzero(np.asarray(watch.times)[0] > 3.5)
        assert late.tolist() == list(range(reached + 1))


def test_a_run_has_seconds_of_its_own_stream(tmp_path):
    """The same for the same seed, however it is chunked, measured, resumed or batched; and nothing else changes."""
    problem = pisco.problems.quadratic(np.stack([np.eye(2)] * 4), np.arange(8.0).reshape(4, 2))
    rule, network = build("dsgd", local_lr=0.1), pisco.Network.ring(4, server=pisco.bernoulli(0.3))

    def run(**options):
        usual = {"rounds": 300, "chunk_rounds": 100, "clock": "phones", "seed": [0, 1]}
        return pisco.run(rule, problem, network, **(usual | options))

    whole, without = run(), run(clock=None)
    seconds = whole.history["seconds"]
    assert seconds.shape == (2, 301) and (np.diff(seconds) > 0).all() and seconds.dtype == np.float64
    assert "seconds" not in without.history and seconds[0, -1] != seconds[1, -1]
    np.testing.assert_array_equal(without.params, whole.params)
    run(rounds=200, checkpoint=tmp_path)
    resumed = run(checkpoint=tmp_path, resume=True, eval_every=1)
    np.testing.assert_array_equal(resumed.history["seconds"], seconds)
    sparse = run(seed=1, eval_every=2, chunk_rounds=3, rounds=4)
    np.testing.assert_allclose(sparse.history["seconds"], seconds[1, [0, 2, 4]], rtol=1e-12)
    assert whole.settings["clock"]["compute"] == {"median": 0.1, "sigma": 0.6, "jitter": 0.2}
    (swept,) = pisco.sweep([(rule, network.server)], problem, network, rounds=100, seeds=[1], clock="phones")
    np.testing.assert_allclose(swept.history["seconds"], seconds[1:, :101], rtol=1e-12)


def test_units_are_seconds_and_bytes_a_second():
    """100 MB over 12.5 MB/s and back, 0.25 s either way, and 2 s of work: 18.5 s a round."""
    rule, network = build("dsgd", local_lr=0.1), pisco.Network.complete(2, server=pisco.always())
    sizes = message_sizes(rule, jax.ShapeDtypeStruct((2, 25_000_000), jnp.float32), 2)
    table = {"compute": 2, "latency_server": 0.25, "bandwidth_server": 12.5e6}
    watch = Stopwatch(pisco.Clock(**table), network, [Run(rule, network.server, 0)], sizes)
    np.testing.assert_allclose(watch.at([1, 2]), [[18.5, 37]])


def test_masked_vectors_take_as_long_as_their_words():
    """6 bytes a number up and 4 down, in rounds at the server alone; gossip is as it was."""
    rule, clock = build("pisco", local_lr=0.1, local_steps=1), pisco.Clock.of({"bandwidth_server": 100.0})
    shapes = {"a": jax.ShapeDtypeStruct((3, 50), jnp.float32), "b": jax.ShapeDtypeStruct((3, 10), jnp.bfloat16)}
    for masked, up in ((False, 220), (True, 360)):
        network = pisco.Network.ring(3, server=pisco.every(2), server_sum="masked" if masked else None)
        sizes = message_sizes(rule, shapes, 3, masked=masked)
        found = Stopwatch(clock, network, [Run(rule, network.server, 0)], sizes).at([0, 1, 2, 3, 4])
        reached = np.array([0, *np.cumsum([k % 2 == 1 for k in range(4)])])
        np.testing.assert_allclose(found[0], reached * 2 * (up + 220) / 100.0)


@pytest.mark.slow
def test_spread_is_lognormal():
    """sigma stays with an agent, jitter does not; a link is as far in both directions."""
    rule, n, k = build("dsgd", local_lr=0.1), 2000, 200
    alone = pisco.Network.path(n, gossip_steps=0)
    watch = stopwatch(rule, alone, {"compute": {"median": 3.0, "sigma": 0.5}})
    watch.chunk = k
    watch.at([k])
    logs = np.log(np.asarray(watch.times)[0] / (3 * k))
    assert abs(logs.mean()) < 0.05 and abs(logs.std() - 0.5) < 0.03
    watch = stopwatch(rule, alone, {"compute": {"median": 3.0, "jitter": 0.5}})
    watch.chunk = k
    watch.at([k])
    means = np.asarray(watch.times)[0] / (3 * k)
    assert abs(means.mean() - np.exp(0.125)) < 0.01 and means.std() < 0.1
    pair = stopwatch(rule, pisco.Network.path(2), {"latency_gossip": {"median": 1.0, "sigma": 1.0}})
    pair.at([1])
    times = np.asarray(pair.times)[0]
    assert times[0] == times[1] > 0


def test_files_and_tables(tmp_path):
    fields = {"compute": [1, 2, 3], "latency_gossip": {"median": 0.5, "sigma": 0.25}, "bandwidth_gossip": 1e6}
    (tmp_path / "measured.json").write_text(json.dumps(fields))
    read = pisco.Clock.of(tmp_path / "measured.json")
    assert read.facts()["latency_gossip"] == fields["latency_gossip"] | {"jitter": 0}
    assert read.facts()["compute"] == [1, 2, 3]
    (tmp_path / "measured.toml").write_text("compute = [1, 2, 3]\nlatency_server = { median = 0.1, jitter = 0.2 }\n")
    experiment = tmp_path / "mine.toml"
    experiment.write_text('base = "quick"\n[clock]\nfile = "measured.toml"\nlatency_gossip = 0.5\n')
    from pisco.experiments import load
    from pisco.settings import options

    config = load(experiment)
    assert config.clock.build().compute.median.tolist() == [1, 2, 3]
    assert config.clock.build().latency_server.jitter == 0.2
    assert tmp_path / "measured.toml" in options.files(config.to_dict())  # what is kept of a comparison depends on it
    assert pisco.experiments.Config.from_dict(config.to_dict()).clock == config.clock
    assert load("quick", ["clock.preset=campus", "clock.compute=7"]).clock.build().compute.median == 7
    assert load("quick").clock is None
    result = load("quick", ["clock.preset=campus", "run.rounds=4", "run.eval_every=2"]).execute()
    assert (np.diff(result.history["seconds"]) > 0).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("campsu", "unknown clock 'campsu'; did you mean 'campus'?"),
        ({"compute": -1}, "compute has a -1, expected numbers of at least 0"),
        ({"bandwidth_gossip": 0}, "bandwidth_gossip has a 0, expected numbers above 0"),
        ({"compute": [1, 2]}, "compute has 2 numbers, expected one, or one for each of the 3 agents"),
        ({"latency_server": np.ones((3, 3))}, "latency_server has 3 by 3 numbers, expected one, or one"),
        ({"compute": {"sigma": 1}}, "expected a number, several, or a table of median, sigma and jitter"),
        ({"compute": {"median": 1, "sigma": -1}}, "the sigma of compute is -1, expected a number at least 0"),
        ({"compute": "fast"}, "compute is 'fast', expected a number, several, or a table"),
        ({"latency": 1}, "clock.latency is not a setting"),
        ({"preset": "campus", "file": "none.json"}, "cannot read the clock none.json"),
        ({"asked": "yes"}, "asked is 'yes', expected true or false"),
        (7, "clock is 7, expected a pisco.Clock, a preset's name, a file or a table"),
    ],
)
def test_refusals(given, words):
    with pytest.raises(InputError) as error:
        stopwatch(build("dsgd", local_lr=0.1), pisco.Network.path(3), given)
    assert words in str(error.value) and str(error.value).count(". ") == 0


@pytest.mark.slow
def test_a_schedule_that_watches_the_loss_is_timed_by_what_it_did(tmp_path, monkeypatch):
    """Gossip-AGA's seconds are those of a schedule that knows beforehand when the server is reached."""
    world, rule = Quadratics(agents=4), build("gossip-aga", local_lr=0.02)
    network = pisco.Network.ring(4, server=pisco.adaptive(2, power=0.7))
    how = {"clock": {"compute": [0.1, 0.2, 0.3, 0.9], "latency_server": 1.5, "latency_gossip": 0.2}}
    runs = {"problem": world.problem(), "rounds": 300, "chunk_rounds": 30}
    seen = pisco.run(rule, network=network, **runs, **how)
    reached = jnp.asarray(np.append(np.diff(seen.history["server_rounds"]) > 0, False))
    gaps = np.diff(np.flatnonzero(reached))
    assert gaps[0] == 2 and gaps[-1] > 3  # the period grows, so the seconds are those of no fixed one
    known = network.with_server(pisco.networks.schedules.custom(lambda key, k: reached[k]))
    assert pisco.run(rule, network=known, **runs, **how).history["seconds"].tolist() == seen.history["seconds"].tolist()
    # Measured less often, and cut in two: nothing of it is lost between rows, or in a checkpoint.
    first = pisco.run(rule, network=network, **runs | {"rounds": 120}, eval_every=10, checkpoint=tmp_path)
    rest = pisco.run(rule, network=network, **runs, **how, eval_every=10, checkpoint=tmp_path, resume=True)
    assert "seconds" not in first.history
    assert rest.history["seconds"].tolist() == seen.history["seconds"][::10].tolist()
    old = History.save  # of a checkpoint that was made before rounds were noted
    monkeypatch.setattr(History, "save", lambda self: {k: v for k, v in old(self).items() if k != "reached"})
    pisco.run(rule, network=network, **runs | {"rounds": 120}, eval_every=10, checkpoint=tmp_path / "old")
    with pytest.raises(InputError, match="do not say which rounds reached the server; resume without a clock"):
        pisco.run(rule, network=network, **runs, **how, eval_every=10, checkpoint=tmp_path / "old", resume=True)
    for engine in (ScanEngine(batched=True), "sharded"):
        short = pisco.run(rule, network=network, **runs | {"rounds": 20}, **how, eval_every=5, engine=engine, seed=[0])
        assert short.history["seconds"][0].tolist() == seen.history["seconds"][:21:5].tolist()


def test_what_watches_the_loss_agent_by_agent_is_refused_with_a_clock():
    class Lucky(pisco.Schedule):
        def decide(self, memory, key, round_index, observe):
            return jnp.arange(3) < observe(), memory

    network = pisco.Network.path(3, server=Lucky())
    with pytest.raises(InputError, match="decides for each agent from the loss"):
        stopwatch(build("dsgd", local_lr=0.1), network, "campus")
    with pytest.raises(InputError, match="give `reached`, the rounds that reached the server"):
        stopwatch(build("dsgd", local_lr=0.1), pisco.Network.path(3, server=pisco.adaptive(4)), "campus").at([3])


def test_a_schedule_that_keeps_a_memory_is_followed():
    """Every second, then every third round, … by counting: in another chunk than it began."""

    class Rarer(pisco.Schedule):
        def start(self):
            return jnp.array([0, 2])

        def decide(self, memory, key, round_index, observe):
            count, period = memory
            reached = count + 1 >= period
            return reached, jnp.where(reached, jnp.array([0, period + 1]), jnp.array([count + 1, period]))

    watch = stopwatch(build("dsgd", local_lr=0.1), pisco.Network.path(3, server=Rarer()), {"latency_server": 1.0})
    watch.chunk = 4
    at = np.flatnonzero(np.diff(watch.at(range(21))[0]))
    assert at.tolist() == [1, 4, 8, 13, 19]


@pytest.fixture(scope="module")
def timed():
    """Two methods by a clock, and one without."""
    problem = pisco.problems.quadratic(np.stack([np.eye(2)] * 4), np.arange(8.0).reshape(4, 2))
    network, rule = pisco.Network.ring(4, server=pisco.every(4)), build("dsgd", local_lr=0.1)
    given = {"compute": [1, 1, 1, 5], "latency_server": 2}
    made = [pisco.run(rule, problem, network, rounds=20, clock=table) for table in (given, {"compute": 1}, None)]
    for result, label in zip(made, ("slow", "fast", "untimed"), strict=True):
        result.label = label
    return made


def test_seconds_are_paid_like_bytes_and_price(timed, tmp_path):
    from pisco.costs import Prices
    from pisco.report.html import write_page
    from pisco.report.plots import plot_results
    from pisco.report.summary import paragraphs

    target, prices = {"grad_norm_sq": 0.5}, Prices(0, 0, gradient=2.0)
    records = pisco.compare(timed, target, prices)
    k = int(records[0]["rounds to grad_norm_sq"])
    paid = [record["seconds to grad_norm_sq"] for record in records]
    assert paid == [timed[0].history["seconds"][k], timed[1].history["seconds"][k], None]
    assert [record["price to grad_norm_sq"] for record in records] == [2 * 4 * k] * 3
    with pytest.raises(InputError, match="no measure of training"):
        pisco.compare(timed, {"seconds": 3})
    assert "fast took the fewest seconds" in paragraphs(timed[:2], target, prices)[0]
    titles = [ax.get_xlabel() for ax in plot_results(timed).axes]
    assert "seconds by the clock" in titles and "seconds by the clock" not in [
        ax.get_xlabel() for ax in plot_results(timed[2:]).axes
    ]
    page = write_page(timed, tmp_path / "r.html", targets=target, prices=prices).read_text()
    assert 'id="price-gradient" min="0" step="any" value="2"' in page and ">Seconds by the clock</th>" in page
    assert f'data-gradient="{4 * k}"' in page
    lone = write_page(timed[2:], tmp_path / "lone.html").read_text()
    assert ">Seconds by the clock</th>" not in lone
    saved = pisco.Result.load(timed[0].save(tmp_path / "kept"))
    np.testing.assert_array_equal(saved.history["seconds"], timed[0].history["seconds"])
    del saved.history["gradients"]
    assert pisco.compare([saved], target)[0]["price to grad_norm_sq"] > 0
    with pytest.raises(InputError, match="does not count its gradients"):
        pisco.compare([saved], target, prices)


@pytest.mark.slow
def test_it_costs_at_most_a_twentieth_of_a_round():
    """With the preset that draws most: a9a's rounds are the shortest of the paper's problems."""
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10, partition="sorted", rho=0.01)
    network, rounds = pisco.Network.ring(10, server=pisco.bernoulli(0.1)), 2048
    rule = build("pisco", local_lr=0.03, local_steps=1)
    spent = []
    for _ in range(4):  # the first compiles
        result = pisco.run(rule, problem, network, rounds=rounds, batch_size=256, eval_every=rounds)
        watch = stopwatch(rule, network, "phones")
        began = time.perf_counter()
        watch.at([rounds])
        spent.append((time.perf_counter() - began) / result.seconds)
    assert min(spent[1:]) < 0.05


@pytest.mark.slow
def test_a_measured_clock_predicts_a_federation():
    """Eight processes, all data delayed, one agent ten times slower: the last round is over when the clock says."""
    bench = Path(__file__).parent.parent / "benchmarks" / "bench_clock.py"
    run = [sys.executable, str(bench), "ring", "--rounds", "15"]
    said = json.loads(subprocess.run(run, capture_output=True, text=True, check=True, timeout=900).stdout)
    assert 1 / 1.15 < said["ratio"] < 1.15, said
