"""Guards: what they do with poison, that they leave the honest alone, and the same between machines."""

import functools
import logging
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.attacks.poison import drift
from pisco.federation import audit
from pisco.federation.rolls import BadRoll, Chain, Roll, counted, plan_mark, read
from pisco.federation.runtime import reports
from pisco.federation.runtime.guarding import Watcher, guarded_gossip, guarded_mean, moves
from pisco.federation.runtime.replay import replay, scan
from pisco.federation.runtime.roll_call import RollCall, Word
from pisco.federation.runtime.rolled_server import RolledServer
from pisco.federation.runtime.routes import GossipHop, ServerHop
from pisco.guarding.apart import sketch
from pisco.guarding.watch import Evidence, Names
from pisco.networks.rounds import draw_round
from pisco.privacy.summing import refuse_masks
from pisco.settings.tables import NetworkTable, checked

from federations import Poisoned, Running, plan_for, quadratic_of
from worlds import Quadratics

GUARD = pisco.clip()
RULE = pisco.algorithms.pisco(local_lr=0.05, local_steps=1)
BEER = pisco.algorithms.beer(local_lr=0.1)
WORLD = Quadratics(agents=8)
HONEST = [0, 1, 2, 3, 4, 6, 7]


def network(**options):
    return pisco.Network.complete(8, server=pisco.bernoulli(0.2), **options)


def honest_loss(x):
    away = x - WORLD.minimizers[HONEST]
    return 0.5 * np.einsum("ni,nij,nj->n", away, WORLD.hessians[HONEST], away).mean()


def loss_of(result):
    """Of the honest at their mean, with the first seed."""
    return honest_loss(np.asarray(result.params).reshape(-1, 8, 4)[0, HONEST].mean(axis=0))


def run(net, **options):
    return pisco.run(RULE, WORLD.problem(), net, rounds=120, eval_every=1000, chunk_rounds=120, **options)


@pytest.fixture(scope="module")
def without():
    """The least that the others could reach if the attacker were not there at all."""
    hessians, minimizers = WORLD.hessians[HONEST], WORLD.minimizers[HONEST]
    return honest_loss(np.linalg.solve(hessians.sum(axis=0), np.einsum("nij,nj->i", hessians, minimizers)))


# ------------------------------------------------------------------------------------------- the rule


def test_a_message_is_taken_clipped_or_left_out():
    guard = pisco.clip(clip_at=2, leave_out_at=4)
    keep = np.asarray(guard.keep(jnp.array([0.0, 2.0, 4.0, 4.1, np.inf, np.nan])))
    np.testing.assert_allclose(keep, [1, 1, 0.5, 0, 0, 0])


@functools.cache
def exchanger(guard, graph):
    """One program for rounds with the server and without."""
    gossip = getattr(pisco.Network, graph)(8, guard=guard).gossip

    @jax.jit
    def together(trees, server, start):
        mix, _ = draw_round(gossip, server, jax.random.key(0), 0, 8, present=jnp.ones(8, bool), start=start)
        return [mix(tree) for tree in trees], mix.watch.record

    return together


def exchange(guard, *trees, server, start=None, graph="complete"):
    """The exchanges of a round of stacked agents, and what the guard saw."""
    start = np.zeros_like(trees[0]) if start is None else start
    return jax.device_get(exchanger(guard, graph)(trees, server, start))


def test_between_machines_it_is_the_same_rule():
    """Every receiver of a guarded exchange, by the functions of the federation's runtime."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(8, 3)).astype(np.float32) for _ in range(2))
    sent = 10 + 0.1 * x
    sent[3] += 0.6 * y[3]  # clipped
    sent[6] *= -1  # left out
    start = np.full_like(sent, 10.0)
    W = pisco.Network.ring(8).weights.toarray()
    arrays, struck = {i: [sent[i : i + 1]] for i in range(8)}, {i: set() for i in range(9)}
    (mixed,), seen = exchange(GUARD, sent, server=False, start=start, graph="ring")
    for i in range(8):
        hop = GossipHop({j: float(W[i, j]) for j in range(8) if W[i, j]}, ())
        (own,), _ = guarded_gossip(GUARD, arrays, hop, i, [start[i : i + 1]], struck[i])
        np.testing.assert_allclose(mixed[i], own[0], rtol=1e-5)
        assert struck[i] == set(np.flatnonzero(seen.struck[i]))
    assert struck[5] == struck[7] == {6} and not struck[3]
    (averaged,), seen = exchange(GUARD, sent, server=True, start=start)
    told = {i: moves([sent[i : i + 1]], [start[i : i + 1]]) for i in range(8)}
    (own,), _ = guarded_mean(GUARD, arrays, range(8), told, struck[8])
    np.testing.assert_allclose(averaged[0], own[0], rtol=1e-5)
    assert struck[8] == {6} and set(np.flatnonzero(seen.struck[8])) == {6}
    assert np.abs(averaged - averaged[0]).max() == 0


def test_who_is_left_out_of_one_exchange_is_left_out_of_the_round():
    sent = np.ones((8, 3), np.float32) + 0.01 * np.arange(8, dtype=np.float32)[:, None]
    first, second = sent.copy(), sent.copy()
    first[2] *= 1000
    second[2] += 0.001  # nothing strange about it
    (_, fine), seen = exchange(GUARD, first, second, server=False)
    assert seen.struck[:, 2].sum() == 7 and not np.delete(seen.struck, 2, axis=1).any()
    np.testing.assert_allclose(fine[0], sent[[0, 0, 1, 3, 4, 5, 6, 7]].mean(axis=0), rtol=1e-6)


def test_numbers_that_are_none_are_left_out():
    sent = np.ones((8, 3), np.float32)
    sent[2, 1], sent[4, 0] = np.nan, np.inf
    for server in (False, True):
        (mixed,), _ = exchange(GUARD, sent, server=server)
        np.testing.assert_allclose(mixed[[0, 1, 3, 5, 6, 7]], 1.0)


def test_a_guard_that_takes_everything_changes_no_bit():
    x = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    gossip = network(presence=np.ones(8, bool)).gossip

    @jax.jit
    def plain(x, server):
        mix, _ = draw_round(gossip, server, jax.random.key(0), 0, 8, present=jnp.ones(8, bool))
        return mix(x)

    for server in (False, True):
        (mixed,), seen = exchange(GUARD, x, server=server)
        assert not seen.struck.any()
        np.testing.assert_array_equal(mixed, plain(x, server))


def test_a_sketch_is_linear_and_keeps_norms():
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(200, 40, 30)).astype(np.float32), rng.normal(size=(200, 7)).astype(np.float32)]
    short = sketch(rows, np)
    np.testing.assert_allclose(short, np.asarray(sketch([jnp.asarray(row) for row in rows])), atol=1e-3)
    np.testing.assert_allclose(sketch([-2 * row for row in rows], np), -2 * short, rtol=1e-4, atol=1e-4)
    norms = np.sqrt(sum(np.square(row).reshape(200, -1).sum(axis=1) for row in rows))
    assert np.abs(np.linalg.norm(short, axis=1) / norms - 1).mean() < 0.15


def test_names_need_strikes_on_end_and_reports_of_different_members():
    guard, names = pisco.clip(strikes=2, reports=2), Names.nobody(5)
    none, next_names = np.zeros((6, 5), bool), jax.jit(lambda names, seen, k: names.after(guard, seen, k))

    def after(names, k, *strikes):
        struck = none.copy()
        for by, whom in strikes:
            struck[by, whom] = True
        empty = Names.nobody(5)
        return next_names(names, Evidence(struck, ~none, np.ones(5, np.float32), empty.sums, empty.first), k)

    names = after(names, 0, (0, 4), (1, 4))
    names = after(names, 1, (0, 4))  # the strikes of 1 are not on end
    names = after(names, 2, (1, 4))
    assert np.asarray(names.left).tolist() == [-1] * 5 and [each["by"] for each in names.told(guard)] == [[0]]
    names = after(names, 3, (1, 4))
    assert np.asarray(names.left).tolist() == [-1, -1, -1, -1, 4]
    for k in (4, 5):
        names = after(names, k, (5, 0), (5, 1))  # the server's word is enough, but not for a majority
    assert np.asarray(names.left).tolist() == [-1, -1, -1, -1, 4]


# ------------------------------------------------------------------------------------------- in simulation


def check_attacked(result, named, without):
    assert [each["agent"] for each in named] == [5], named
    assert named[0]["left_off"] is not None and named[0]["factor"] > GUARD.clip_at
    assert loss_of(result) <= 1.2 * without


def attacked(attack, without):
    result = run(pisco.testing.poisoned(network(guard=GUARD), [5], attack))
    check_attacked(result, result.named, without)
    return result


def test_an_attacker_is_bounded_named_and_left_off(tmp_path, without):
    poisoned = run(pisco.testing.poisoned(network(), [5], "times-1000"))
    assert not loss_of(poisoned) <= 1e6  # or NaN
    result = run(pisco.testing.poisoned(network(guard=GUARD), [5], "times-1000"), seed=[0, 1])
    check_attacked(result, result.named[0], without)
    assert result.named[0][0]["left_off"] <= 6
    # Names are kept with a result, for every seed.
    assert [[each["agent"] for each in one] for one in result.named] == [[5], [5]]
    result.save(tmp_path / "r")
    assert pisco.Result.load(tmp_path / "r").named == result.named


@pytest.mark.slow
def test_it_is_the_same_in_plain_python():
    net = pisco.testing.poisoned(network(guard=GUARD), [5], "times-1000")
    scan, debug = (pisco.run(RULE, WORLD.problem(), net, rounds=5, engine=engine) for engine in ("scan", "debug"))
    factors = [[each.pop("factor") for each in result.named] for result in (scan, debug)]
    assert scan.named and scan.named == debug.named
    np.testing.assert_allclose(*factors, rtol=1e-5)  # numbers, as the parameters are; the rest is what was decided
    np.testing.assert_allclose(scan.params, debug.params, rtol=1e-5)


@pytest.mark.slow
def test_a_slow_drift_is_seen_in_what_adds_up(without):
    result = attacked(drift(0.003), without)
    assert result.named[0]["left_off"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["sign-flip", "noise", "drift", "constant"])
def test_every_attack_is_bounded_and_named(attack, without):
    attacked(attack, without)


@pytest.mark.slow
def test_the_honest_are_left_alone():
    plain = run(network(presence=np.ones(8, bool)))
    guarded = run(network(guard=GUARD))
    assert guarded.named == []
    np.testing.assert_allclose(guarded.params, plain.params, rtol=0.01, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["pisco", "fedavg"])
def test_no_false_name_in_20_seeds_of_unlike_data(rule):
    problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=8, partition="sorted", rho=0.01)
    made = RULE if rule == "pisco" else pisco.algorithms.build("fedavg", local_lr=0.1, local_steps=5)
    server = pisco.bernoulli(0.1) if rule == "pisco" else pisco.always()
    how = {"rounds": 100, "batch_size": 64, "eval_every": 1000, "seed": list(range(20))}
    plain, guarded = (
        pisco.run(made, problem, pisco.Network.complete(8, server=server, guard=guard), **how)
        for guard in (None, GUARD)
    )
    assert not any(guarded.named)
    assert (guarded.history["loss"][:, -1] <= 1.02 * plain.history["loss"][:, -1]).all()


def test_what_guards_refuse():
    for wrong, word in (
        (lambda: pisco.clip(clip_at=0.5), "clip_at"),
        (lambda: pisco.clip(clip_at=9, leave_out_at=3), "leave_out_at"),
        (lambda: pisco.Network.ring(5, guard="clip"), "no guard"),
        (lambda: pisco.Network.ring(300, guard=GUARD), "every pair"),
        (lambda: pisco.Network.ring(9, guard=GUARD, sampling=pisco.sample(3, agents=9)), "sampling"),
        (lambda: pisco.Network.ring(9, guard=GUARD, varying=pisco.one_peer_exponential()), "both ways"),
        (lambda: pisco.testing.poisoned(network(), [8], "noise"), "attackers"),
        (lambda: pisco.testing.poisoned(network(), [1], "nose"), "noise"),
        (lambda: run(network(guard=GUARD), engine="nose"), "engine"),
        (lambda: pisco.run(BEER, WORLD.problem(), network(guard=GUARD), rounds=1), "drop guard"),
    ):
        with pytest.raises(pisco.InputError, match=word):
            wrong()


# ------------------------------------------------------------------------------------------- between machines


def problem_of(agent):
    return quadratic_of(agent, WORLD, "float64")


def guarded_plan(**given):
    network = {"graph": "complete", "server_prob": 0.3, "guard": "clip"}
    return plan_for(5, dtype="float64", network=network, eval_every=10, **given)


@pytest.fixture
def quick_reports(monkeypatch):
    monkeypatch.setattr(reports.Reporter, "EVERY", 0.05)


def bounded(ran):
    """The honest stay where the minimizers are."""
    x = np.stack([ran.results[f"agent-{i}"].params.ravel() for i in range(4)])
    return np.abs(x).max() < 5


@pytest.mark.slow
def test_a_member_that_sends_poison_is_named_reported_and_left_off_the_roll(tmp_path, x64, caplog, quick_reports):
    caplog.set_level(logging.WARNING, "pisco.federation")
    plan = guarded_plan(presence="deadline", deadline=5.0, quorum=2, rounds=60)
    ran = Poisoned(tmp_path, plan, problem_of).join()
    rolls = read(tmp_path / "state" / "server" / "rolls.jsonl", plan)
    expelled = [roll for roll in counted(rolls) if roll.expelled]
    assert expelled and all(roll.expelled == (4,) and 4 not in roll.present for roll in expelled)
    assert "agent-4 sends vectors up to" in caplog.text and "agent-4 is left off" in caplog.text
    assert not any(f"agent-{i} sends" in caplog.text for i in range(4))
    assert bounded(ran)
    assert "we are left off from round" in caplog.text and "we were left off: our result is that of" in caplog.text
    (off,) = [each for each in ran.members["server"].ledger.overview().agents if each.trouble]
    assert off.name == "agent-4" and off.trouble.startswith("left off")
    own = [ran.results[f"agent-{i}"].history["loss"][-1] for i in range(4)]
    assert ran.results["server"].history["loss"][-1] == pytest.approx(np.mean(own))
    for name in ("server", "agent-0"):
        noted = [line.facts for line in audit.read(tmp_path / "state" / name / audit.FILE) if line.kind == "expulsion"]
        assert [each["members"] for each in noted] == [[4]]


@pytest.mark.slow
def test_an_expulsion_is_repeated_from_the_log(tmp_path, x64, quick_reports):
    plan = guarded_plan(presence="deadline", deadline=5.0, quorum=2, rounds=60)
    ran = Running(tmp_path, plan, problem_of)
    ran.wait(lambda: ran.members["agent-0"].done > 5)
    for liar in ("agent-0", "agent-1"):  # two members are enough, whether they are right or not
        ran.members[liar].watcher.named["agent-4"] = 50.0
    ran.join()
    problems = {name: problem_of(i) for i, name in enumerate(plan.names)}
    rolls = read(tmp_path / "state" / "server" / "rolls.jsonl", plan)
    assert rolls[-1].expelled == (4,) and not rolls[0].expelled
    gaps = []

    def watch(k, states):
        rest = [states[name] for name in plan.names[:4]] if 4 in counted(rolls)[k].expelled else states.values()
        gaps.append(np.abs(np.mean([s.tracker for s in rest], axis=0) - np.mean([s.grads for s in rest], axis=0)).max())

    states = replay(plan, problems, rolls, watch)
    for name in plan.names:
        np.testing.assert_array_equal(ran.results[name].params, states[name].params)
    assert max(gaps) <= 1e-12  # those who stay track their own mean gradient
    with pytest.raises(pisco.InputError, match="expelled"):
        scan(plan, problems, rolls)


@pytest.mark.slow
def test_where_all_are_waited_for_it_is_bounded_and_named(tmp_path, x64, caplog, quick_reports):
    caplog.set_level(logging.WARNING, "pisco.federation")
    ran = Poisoned(tmp_path, guarded_plan(rounds=40), problem_of).join()
    assert "agent-4 sends vectors up to" in caplog.text and bounded(ran)
    assert re.search(r"agent-\d names agent-4", caplog.text)


def test_rolls_expel_a_minority_for_good_and_only_where_the_plan_has_a_guard():
    plan = guarded_plan(presence="deadline", deadline=5.0, quorum=2)
    mark, chain = plan_mark(plan, 0), Chain(plan)
    chain.add(Roll(0, 0, mark, (0, 1, 2, 3), (4,)), plan)
    for present, expelled in (((0, 1, 2, 3, 4), ()), ((0, 1, 2, 4), (4,)), ((0, 1), (2, 3, 4)), ((0, 1, 2), (3, 9))):
        with pytest.raises(BadRoll, match="expel"):
            chain.add(Roll(1, 0, mark, present, expelled), plan)
    unguarded = plan_for(5, presence="deadline", deadline=5.0, quorum=2)
    with pytest.raises(BadRoll, match="expels"):
        Chain(unguarded).add(Roll(0, 0, plan_mark(unguarded, 0), (0, 1, 2, 3), (4,)), unguarded)
    call = RollCall(plan, [], now=0.0)
    assert [call.expel(index) for index in (4, 4, 3, 2)] == [True, False, True, False]


def ready(call):
    for index in set(call.plan.indices.values()) - set(call.chain.head.expelled):
        call.hear(index, Word(call.chain.count, call.chain.count, True, plan_mark(call.plan, 0), 0.1), 1.0)


def test_who_is_left_off_does_not_count_for_the_quorum():
    plan = guarded_plan(presence="deadline", deadline=5.0, quorum=5)
    call = RollCall(plan, [], now=0.0)
    for rounds in range(3):
        ready(call)
        call.add(call.decide(1.0), 1.0)
        assert call.chain.head.round == rounds
        call.expel(4)
    assert call.chain.head.present == (0, 1, 2, 3) and call.chain.head.expelled == (4,)
    chain = Chain(plan, call.chain.facts())  # as members check it
    with pytest.raises(BadRoll, match="below the quorum"):
        chain.add(Roll(3, 0, plan_mark(plan, 0), (0, 1, 2), (4,)), plan)


def test_a_roster_that_shrinks_keeps_who_is_left_off_and_nobody_new_where_it_would_be_no_minority():
    plan = guarded_plan(presence="deadline", deadline=5.0, quorum=2).change(2, "remove", "agent-0")
    call = RollCall(plan, [], now=0.0)
    ready(call)
    call.add(call.decide(1.0), 1.0)
    call.expel(4)
    ready(call)
    call.add(call.decide(1.0), 1.0)
    assert call.expel(3)  # of five members, and from round 2 on there are four
    call.hear(0, Word(2, 2, True, plan_mark(plan, 2)), 1.0)
    for index in (1, 2, 3):
        call.hear(index, Word(2, 2, True, plan_mark(plan, 2)), 1.0)
    call.add(call.decide(1.0), 1.0)
    assert call.chain.head == Roll(2, 0, plan_mark(plan, 2), (1, 2, 3), (4,))
    small = guarded_plan(presence="deadline", deadline=5.0, quorum=2)
    for k, name in ((2, "agent-0"), (3, "agent-1"), (4, "agent-2")):
        small = small.change(k, "remove", name)
    chain = Chain(small)
    for k, present in enumerate(((0, 1, 2, 3), (0, 1, 2, 3), (1, 2, 3), (2, 3), (3,))):
        chain.add(Roll(k, 0, plan_mark(small, k), present, (4,)), small)


def test_only_those_who_hear_a_member_have_it_left_off():
    links = {"graph": "ring", "guard": "clip"}
    plan = plan_for(7, presence="deadline", deadline=1.0, network=links)
    told, left = {}, []
    server = SimpleNamespace(
        plan=plan, reached=0, chain=Chain(plan), routes=lambda epoch: SimpleNamespace(network=plan.network_of(epoch)),
        ledger=SimpleNamespace(namers=lambda name: told.get(name, set())), call=SimpleNamespace(expel=left.append),
        watcher=SimpleNamespace(named={}, forget=lambda: None),
    )  # fmt: skip
    told["agent-3"] = {"agent-0", "agent-1", "agent-5", "agent-2"}  # one of them hears it
    RolledServer._expel(server)  # type: ignore[arg-type]
    assert left == []
    told["agent-3"].add("agent-4")
    RolledServer._expel(server)  # type: ignore[arg-type]
    assert left == [3]


def test_who_sends_nonsense_is_blamed_when_numbers_blow_up():
    watcher, names = Watcher(GUARD), [f"agent-{i}" for i in range(4)]
    assert watcher.blame() == ""
    arrays = {i: [np.ones((1, 3)) * (1 + 0.01 * i)] for i in range(3)} | {3: [np.full((1, 3), 1e6)]}
    hop = GossipHop(dict.fromkeys(range(4), 0.25), ())
    (mixed,) = watcher.gossip(1, names, arrays, hop, 0, [np.zeros((1, 3))])
    assert np.abs(mixed).max() < 1.1 and watcher.blame().startswith("agent-3 sent vectors 1e+06 times")
    assert Watcher(None).gossip(1, names, arrays, hop, 0, [])[0].max() > 1e5


def test_a_server_that_cannot_see_does_not_judge():
    guard = pisco.clip(guard_server=False)
    sent = np.ones((8, 3), np.float32)
    sent[2] *= 1000
    (averaged,), seen = exchange(guard, sent, server=True)
    np.testing.assert_allclose(averaged, 1007 / 8, rtol=1e-6)
    assert not seen.struck.any() and exchange(guard, sent, server=False)[1].struck[:, 2].sum() == 7
    refuse_masks(guard)
    with pytest.raises(pisco.InputError, match="guard_server = false"):
        refuse_masks(GUARD)


def test_who_joins_does_not_start_from_poison():
    arrays = {i: [np.full((1, 3), 1.0 + 0.1 * i)] for i in range(3)} | {3: [np.full((1, 3), 1000.0)]}
    averaged = Watcher(GUARD).mean(5, list("abcd"), arrays, ServerHop(None, (0, 1, 2, 3), ()), told=False)[0]
    assert np.abs(averaged - 1.1).max() < 0.2
    both = Watcher(GUARD).mean(5, list("ab"), arrays, ServerHop(None, (0, 1), ()), told=False)[0]
    np.testing.assert_allclose(both, 1.05)


def test_plans_without_a_guard_keep_their_hash():
    plan = plan_for(3)
    assert "guard" not in plan.to_toml() and 'guard = "clip"' in guarded_plan().to_toml()
    with pytest.raises(pisco.InputError, match="clip_at"):
        plan_for(3, network={"graph": "ring", "clip_at": 3.0})
    with pytest.raises(pisco.InputError, match="leave_out_at is 1"):
        checked(NetworkTable, {"agents": 3, "guard": "clip", "leave_out_at": 1.0}, "the network")


@pytest.mark.slow
def test_the_only_member_with_a_label_is_not_named():
    """Its tracker differs from all others' in every round, but what adds up stays bounded."""
    whole = pisco.data.load("a9a")
    labels = np.asarray(whole.labels)
    rows = np.concatenate([np.flatnonzero(labels <= 0)[: 7 * 400], np.flatnonzero(labels > 0)[:400]])
    data = pisco.data.Dataset("one apart", whole.features[rows], labels[rows], None, None)
    problem = pisco.problems.logistic(data, agents=8, partition="sorted", rho=0.01)
    network = pisco.Network.complete(8, server=pisco.bernoulli(0.1), guard=pisco.clip())
    rule = pisco.algorithms.pisco(local_lr=0.1, local_steps=1)
    result = pisco.run(rule, problem, network, rounds=30, batch_size=64, eval_every=30, seed=3)
    assert result.named == []


class Lenient(pisco.Guard):
    """A guard of one's own, which is no pytree."""

    strikes, reports, guard_server = 3, 0, False

    def keep(self, factors, xp=jnp):
        return xp.where(factors <= 50.0, 1.0, 0.0)


def test_a_guard_of_ones_own_need_be_no_pytree():
    problem = pisco.problems.quadratic(np.stack([np.eye(2)] * 4), np.arange(8.0).reshape(4, 2))
    rule, net = pisco.algorithms.dsgd(local_lr=0.1), pisco.Network.ring(4, server=pisco.bernoulli(0.5))
    guarded = pisco.run(rule, problem, net.with_guard(Lenient()), rounds=3)
    plain = pisco.run(rule, problem, net, rounds=3)
    np.testing.assert_allclose(guarded.params, plain.params, rtol=1e-6)
