"""New plans and revocations come through the server: signed, shown, and taken while everybody runs."""

import logging
import shutil

import pytest

from pisco.federation import kits as kits_
from pisco.federation import signed
from pisco.federation.authority import Authority
from pisco.federation.runtime import news
from pisco.federation.runtime.news import Notice
from pisco.federation.runtime.peers import Peer

from federations import Running, make_kits, plan_for, quadratic_of


@pytest.fixture
def clinic(tmp_path):
    plan = plan_for(3, rounds=50)
    return tmp_path, plan, make_kits(tmp_path, plan)


def offered(home, plan):
    """What the server's kit has once the coordinator has put a plan there."""
    kits_.refresh(home, plan, home / "kits" / "server")
    kit = kits_.Kit.load(home / "kits" / "server")
    return news.newer(kit, Notice())


def test_what_the_authority_signed_is_shown_and_taken(clinic, caplog):
    home, plan, kits = clinic
    agent = kits["agent-0"]
    later = plan.change(20, "remove", "agent-2")
    authority = Authority.open(home / "authority", plan.name)
    (gone,) = authority.issued("agent-2")
    authority.revoke([gone.serial_number])
    notice = offered(home, later)
    with caplog.at_level(logging.WARNING, "pisco.federation"):
        news.take(agent, notice)
    assert "version 2 of the plan" in caplog.text and "from round 20 on remove agent-2" in caplog.text
    assert f"the authority revokes {gone.serial_number:x}" in caplog.text
    assert agent.newer_plan().hash == later.hash and gone.serial_number in agent.revoked
    assert not list(agent.folder.glob("new-*"))
    assert kits_.Kit.load(agent.folder).federation.hash == later.hash
    # Nothing is newer now, and a list or plan from before does not come back.
    assert news.newer(agent, news.have(agent)) == news.have(agent)
    caplog.clear()
    old = news.newer(kits["agent-1"], Notice())
    news.take(agent, Notice(9, 9e9, 9, old.plan, old.revoked))
    assert agent.newer_plan().hash == later.hash and gone.serial_number in agent.revoked


def test_what_the_authority_did_not_sign_is_refused(clinic, tmp_path, caplog):
    home, plan, kits = clinic
    agent = kits["agent-0"]
    before = {file.name: file.read_bytes() for file in agent.folder.iterdir() if file.is_file()}
    good = offered(home, plan.change(20, "remove", "agent-2"))
    elsewhere = tmp_path / "elsewhere"
    make_kits(elsewhere, plan)
    foreign = offered(elsewhere, plan.change(9, "remove", "agent-1").change(9, "remove", "agent-2"))
    unsigned = good.plan.replace("\n# signed", "\n# said")
    for plan_text, revoked in (
        (foreign.plan, foreign.revoked),
        (unsigned, "nonsense"),
        (good.plan.replace("local_lr = 0.05", "local_lr = 0.06"), good.revoked.replace("A", "B")),
        ("name = 3", "\ud800"),
        ("[" * 5000, "-----BEGIN X509 CRL-----"),
    ):
        news.take(agent, Notice(99, 9e9, 99, plan_text, revoked))
    assert {file.name: file.read_bytes() for file in agent.folder.iterdir() if file.is_file()} == before
    assert caplog.text.count("what the server brings is not taken") == 10
    endless = b'{"version": Infinity, "listed": 0, "revocations": 0, "plan": "", "revoked": ""}'
    for bad in (b"", b"[]", b"{}", b'{"version": "x", "listed": 0, "revocations": 0}', b"[" * 10_000, endless):
        with pytest.raises(news.DecodeError):
            Notice.FromString(bad)


def test_a_renewed_certificate_is_taken_and_another_is_not(clinic, tmp_path, caplog):
    home, plan, kits = clinic
    agent, before = kits["agent-0"], kits["agent-0"].certificate
    agent.look_for_certificate()
    assert agent.certificate == before
    for text in ("nonsense", (home / "kits/agent-1/cert.pem").read_text()):
        (agent.folder / "cert.pem").write_text(text)
        agent.look_for_certificate()
        assert agent.certificate == before and "is not taken" in caplog.text
        caplog.clear()
    kits_.issue(home, plan, "agent-0", tmp_path / "other")  # a new key
    shutil.copy(tmp_path / "other/cert.pem", agent.folder / "cert.pem")
    agent.look_for_certificate()
    assert agent.certificate == before and "is for another key" in caplog.text
    kits_.issue(home, plan, "agent-0", agent.folder, renew=True, days=30)
    agent.look_for_certificate()
    assert agent.certificate == (agent.folder / "cert.pem").read_bytes() != before


def test_a_running_federation_hears_of_a_change_through_the_server_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(news, "EVERY", 0.1)
    plan = plan_for(3, rounds=4000, eval_every=4000)
    ran = Running(tmp_path, plan, quadratic_of)
    try:
        ran.wait(lambda: ran.members["agent-0"].done >= 5)
        later = plan.change(3000, "remove", "agent-2")
        signed.save(tmp_path, later, tmp_path / "federation.toml")
        authority = Authority.open(tmp_path / "authority", plan.name)
        authority.revoke([1234])
        for file in ("federation.toml", "authority/revoked.pem"):
            place = tmp_path / "kits" / "server" / file.split("/")[-1]
            shutil.copy(tmp_path / file, tmp_path / "copied")
            (tmp_path / "copied").replace(place)
        ran.wait(lambda: all(member.plan.hash == later.hash for member in ran.members.values()))
        # A renewed certificate is shown to whoever connects from now on, and to all others by who has it.
        renewed = kits_.issue(tmp_path, plan, "agent-1", tmp_path / "kits" / "agent-1", renew=True, days=30)
        agent = ran.members["agent-1"]
        ran.wait(lambda: agent.kit.not_after == renewed.not_valid_after_utc)
        done = agent.done
        for name in ("agent-0", "server"):
            looking = Peer(ran.kits[name], "agent-1", plan.roster[1].address)
            looking.check()
            assert looking.presented == agent.kit.certificate
            looking.close()
        ran.wait(lambda: agent.done > done + 20)
        assert all(peer._showing == agent.kit.certificate for peer in agent.mailroom._peers.values())
        ran.wait(lambda: all(1234 in ran.members[name].kit.revoked for name in plan.names))
    finally:
        ran.stop()
        ran.join(fine=False)
