"""A site that hides its data by noise: its own secret, its own count, its own end."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.cli.agent import _privacy
from pisco.federation.rolls import Chain, Roll, plan_mark
from pisco.federation.runtime.agent import Agent
from pisco.federation.runtime.peers import Stopped
from pisco.federation.runtime.rolled_agent import Held, RolledAgent
from pisco.federation.runtime.routes import Routes
from pisco.federation.runtime.spending import FILE, Spending
from pisco.privacy.accounting import spent
from pisco.seeds import seed_key, streams

from federations import Running, make_kits, plan_for


def own(index, privacy=None):
    rng = np.random.default_rng(index)
    data = [{"a": rng.normal(size=(8, 2)).astype(np.float32), "y": rng.normal(size=8).astype(np.float32)}]

    def loss(x, batch, key):
        return (batch["a"] @ x - batch["y"]) ** 2

    return pisco.Problem(loss, np.zeros(2, np.float32), data, privacy=privacy)


NOISY = pisco.Privacy(clip=1.0, noise=5.0, delta=1e-3)


def plan_of(rounds, **settings):
    return plan_for(2, rounds=rounds, batch_size=2, network={"graph": "path", "server_prob": 0.3}, **settings)


def private_site(index):
    return own(index, NOISY if index == 0 else None)


def test_a_private_site_tells_what_it_spent_and_nothing_it_measured(tmp_path):
    ran = Running(tmp_path, plan_of(3), private_site).join()
    agent, server = ran.results["agent-0"], ran.results["server"]
    expected = [spent(5.0, 8, 2, count, 1e-3) for count in (1, 3, 5, 7)]  # PISCO: one at the start, two a round
    np.testing.assert_allclose(agent.history["epsilon"], expected, rtol=2e-3)
    assert "loss" in agent.history
    np.testing.assert_allclose(server.history["epsilon"], expected, rtol=2e-3)
    np.testing.assert_array_equal(server.history["loss"], ran.results["agent-1"].history["loss"])
    (overview,) = [each for each in ran.members["server"].ledger.overview().agents if each.name == "agent-0"]
    assert np.isnan(overview.loss) and overview.times["epsilon"] == server.history["epsilon"][-1]
    path = tmp_path / "state" / "agent-0" / FILE
    kept = json.loads(path.read_text())
    assert kept["gradients"] == 7 and kept["last"] == 2
    assert {name.split()[0] for name in kept["heard"]} == {"1", "2"}  # the rounds that a restart may do again
    assert oct(path.stat().st_mode)[-3:] == "600"  # with its secret the noise could be subtracted


def test_a_budget_ends_the_part_of_a_site_and_its_state_is_kept(tmp_path):
    plan = plan_of(6, patience=60.0)
    two = spent(5.0, 8, 2, 5, 1e-3)  # after two rounds

    def site(index, epsilon=1.001 * two):
        return own(index, pisco.Privacy(clip=1.0, noise=5.0, epsilon=epsilon, delta=1e-3) if index == 0 else None)

    ran = Running(tmp_path, plan, site)
    ran.threads["agent-0"].join(60)
    stopped = ran.errors["agent-0"]
    assert isinstance(stopped, Stopped) and "is spent (" in str(stopped) and "state kept" in str(stopped)
    assert ran.members["agent-0"].done == 2
    for name in ("agent-1", "server"):
        ran.members[name].mailroom.stop()
    # The owner may grant more, and nothing else may change.
    folder, kit = tmp_path / "state" / "agent-0", ran.kits["agent-0"]
    for privacy, words in (
        (pisco.Privacy(clip=2.0, noise=5.0, delta=1e-3), "begun with clip = 1.0, not 2.0; only epsilon may change"),
        (pisco.Privacy(clip=1.0, noise=4.0, delta=1e-3), "begun with noise = 5.0, not 4.0"),
        (None, "was begun with privacy; give --privacy again"),
    ):
        with pytest.raises(pisco.InputError, match=words):
            Agent(kit, own(0, privacy), folder)
    more = Agent(kit, site(0, 2 * two), folder)
    assert more.done == 2 and more.spending.kept["gradients"] == 5
    more.spend(2)
    more.close()


def test_no_noise_hides_two_gradients(tmp_path):
    rule, given = pisco.algorithms.pisco(local_lr=0.1, local_steps=1), {"batch_size": 2, "rounds": 3}
    one, other = [np.ones((1, 2), np.float32)], [np.full((1, 2), 2.0, np.float32)]
    spending = Spending(tmp_path, own(0, NOISY), rule, begun=False, **given)
    for place, answer in ((0, one), (1, other)):
        spending.count(place)
        spending.heard(0, answer)
        spending.heard(1, other)
    count = spending.kept["gradients"]
    again = Spending(tmp_path, own(0, NOISY), rule, begun=True, **given)  # after a kill
    for place, answer, lie in ((0, one, other), (1, other, one)):
        again.count(place)
        again.heard(0, answer)
        with pytest.raises(Stopped, match="cannot hide a second gradient"):
            again.heard(0, lie)
    assert again.kept["gradients"] == count


def test_rolls_told_otherwise_after_a_restart_bring_no_second_gradient(tmp_path):
    plan = plan_of(9, presence="deadline", deadline=1.0, quorum=1)
    rule, mark = pisco.algorithms.pisco(local_lr=0.1, local_steps=1), plan_mark(plan, 0)

    def begin(rolls, *, begun):
        site = RolledAgent.__new__(RolledAgent)
        site.plan, site.epoch, site.chain, site.index, site.place = plan, plan.epoch_at(0), Chain(plan), 0, 0
        for roll in rolls:
            site.chain.add(roll, plan)
        site.attendance = SimpleNamespace(wait=lambda place: None, look=lambda: (len(rolls), rolls[-1], None))
        site.routes, site._settle = Routes(plan.network_of(site.epoch), streams(seed_key(0))), lambda: None
        site.outbox = SimpleNamespace(forget=lambda round_: None)
        site.spending = Spending(tmp_path, own(0, NOISY), rule, batch_size=2, rounds=9, begun=begun)
        site._called, site._expelled, site._begun_by = False, (), mark
        site.k, site._place, site._round_on_wire, site._waited = 2, 3, 4, 0.0
        site.spending.count(3)
        site._roll()

    first = Roll(0, 0, mark, (0, 1))
    told = [first, Roll(1, 0, mark, (1,)), Roll(1, 1, mark, (1,)), Roll(2, 0, mark, (0, 1))]  # round 0 counts
    begin(told, begun=False)
    begin(told, begun=True)  # a kill, and an honest server
    other = [
        first,
        Roll(0, 1, mark, (1,)),
        Roll(1, 0, mark, (1,)),
        Roll(2, 0, mark, (0, 1)),
    ]  # from the state before it
    with pytest.raises(Stopped, match="cannot hide a second gradient"):
        begin(other, begun=True)
    with pytest.raises(Stopped, match="cannot hide a second gradient"):
        begin([*told[:3], Roll(2, 0, mark, (0,))], begun=True)  # with other members


def test_noise_of_attempts_before_the_newest_is_not_used_again():
    site, done = RolledAgent.__new__(RolledAgent), []
    site.index, site.trial, site.base = 0, Held(None, 3, 4), Held(None, 2, 3)
    site._attempt = lambda held, k, place: done.append(place)
    site.attendance = SimpleNamespace(wait=lambda known: done.append(f"more than {known}"))
    site.spending = SimpleNamespace(last=7)  # before a kill, while its state knows five rolls
    site._turn(5, Roll(3, 0, "", (0, 1)))
    site._turn(6, Roll(4, 0, "", (0, 1)))
    site._turn(8, Roll(4, 2, "", (0, 1)))
    assert done == ["more than 5", "more than 6", 7]


def test_a_state_without_privacy_cannot_become_private(tmp_path):
    rule = pisco.algorithms.dsgd(local_lr=0.1)
    with pytest.raises(pisco.InputError, match="was begun without privacy"):
        Spending(tmp_path, own(0, NOISY), rule, batch_size=2, rounds=3, begun=True)
    again = pisco.algorithms.build("gt-hsgd", local_lr=0.1, momentum=0.1)
    with pytest.raises(pisco.InputError, match="this site cannot be private in this plan"):
        Spending(tmp_path, own(0, NOISY), again, batch_size=2, rounds=3, begun=False)
    (tmp_path / FILE).write_text('{"settings')
    with pytest.raises(pisco.InputError, match=f"{FILE} is damaged; bring it back"):
        Spending(tmp_path, own(0, NOISY), rule, batch_size=2, rounds=3, begun=True)


@pytest.mark.slow
def test_with_deadlines_every_attempt_counts(tmp_path):
    ran = Running(tmp_path, plan_of(3, presence="deadline", deadline=60.0), private_site).join()
    kept = json.loads((tmp_path / "state" / "agent-0" / FILE).read_text())
    assert kept["gradients"] >= 7 and kept["gradients"] % 2 == 1
    assert ran.results["server"].history["epsilon"][-1] >= 0.999 * spent(5.0, 8, 2, 7, 1e-3)


def test_noise_is_the_sites_own_and_another_when_a_round_is_tried_again(tmp_path):
    kit, params, found = make_kits(tmp_path, plan_of(2))["agent-0"], jnp.zeros((1, 2), np.float32), []
    for folder, attempts in (("state", (3, 4)), ("state", (3,)), ("elsewhere", (3,))):
        agent = Agent(kit, own(0, NOISY), tmp_path / folder)
        found += [np.asarray(agent.programs.join(params, 1, attempt).grads) for attempt in attempts]
        agent.close()
    first, retried, restarted, elsewhere = found
    np.testing.assert_array_equal(first, restarted)
    for other in (retried, elsewhere):  # everybody knows the seed, and nobody the noise
        assert np.abs(first - other).max() > 1e-3


def test_settings_on_the_command_line():
    assert _privacy("clip=1, epsilon=8.0, delta=1e-6") == pisco.Privacy(clip=1, epsilon=8.0, delta=1e-6)
    for given, words in (
        ("clip=1 noise", "expected settings such as"),
        ("clip=1, nois=2", "no setting 'nois'; did you mean 'noise'"),
        ("noise=1", "privacy needs clip"),
        ("clip=1, noise=1, smooth='a'", "smooth is 'a', expected true or false"),
    ):
        with pytest.raises(pisco.InputError, match=words):
            _privacy(given)
