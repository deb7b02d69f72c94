"""The plan of a federation, its authority and its kits: what they hold, what they refuse, who can read them."""

import contextlib
import datetime as dt
import json
import stat
import threading
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import pisco
from pisco import InputError
from pisco.cli.main import app
from pisco.federation import authority as ca
from pisco.federation import keyfiles, kits, signers
from pisco.federation.plan import Federation
from pisco.federation.roster import check_address
from pisco.federation.runtime.peers import Stopped
from pisco.federation.runtime.rolled_server import SERVERS
from pisco.federation.runtime.wire_pb2 import Report
from pisco.problems.gradient import agent_loss

RULE = {"name": "pisco", "local_lr": 0.1, "local_steps": 1}
LOGISTIC = {"name": "logistic", "classes": [-1, 1], "rho": 0.02}


def make(agents=4, **given):
    network = given.pop("network", {"graph": "ring", "server_prob": 0.3})
    settings = {"rounds": 20, "problem": LOGISTIC, "algorithm": RULE} | given
    return Federation.create("clinic", agents=agents, network=network, **settings)


# ------------------------------------------------------------------------------------------------ the plan


@pytest.mark.parametrize("weights", ["fdla", "metropolis"])
def test_weights_survive_the_file_bit_for_bit(tmp_path, weights):
    network = {"graph": "erdos-renyi", "prob": 0.5, "seed": 3, "weights": weights, "server_prob": 0.3}
    plan = make(9, network=network)
    plan.save(tmp_path / "federation.toml")
    read = Federation.load(tmp_path / "federation.toml")
    assert read == plan and read.hash == plan.hash
    built = pisco.networks.graphs.erdos_renyi(9, 0.5, 3)
    expected = pisco.Network(built, weights=weights).weights.toarray()
    np.testing.assert_array_equal(read.network_of(read.epochs[0]).weights.toarray(), expected)
    assert repr(read.network_of(read.epochs[0]).server) == "bernoulli(0.3)"


def test_the_hash_is_of_the_content_alone(tmp_path):
    plan = make()
    tables = tomllib.loads(plan.to_toml())
    shuffled = dict(reversed(tables.items()))
    from pisco.settings import toml

    (tmp_path / "other.toml").write_text("# a comment\n" + toml.write(shuffled))
    assert Federation.load(tmp_path / "other.toml").hash == plan.hash
    for change in ({"seed": 1}, {"rounds": 21}, {"algorithm": RULE | {"local_lr": 0.2}}):
        assert make(**change).hash != plan.hash
    moved = make({f"agent-{i}": f"10.0.0.1:{8000 + i}" for i in range(4)})
    assert moved.hash != plan.hash


def test_changes_give_epochs_with_weights_of_their_own():
    plan = make()
    later = plan.change(5, "add", "west", "10.0.0.9:7401").change(5, "remove", "agent-1")
    later = later.change(9, "move", "agent-0", "10.0.0.7:7401")
    assert [epoch.start for epoch in later.epochs] == [0, 5, 9]
    assert later.epoch_at(4) == plan.epochs[0] and later.hash_at(4) == plan.hash
    middle = later.epoch_at(8)
    assert middle.names == ("agent-0", "agent-2", "agent-3", "west")
    assert [member.index for member in middle.members] == [0, 2, 3, 4]
    expected = pisco.Network.ring(4).weights.toarray()
    np.testing.assert_array_equal(later.network_of(middle).weights.toarray(), expected)
    assert middle.neighbours("agent-0") == ("agent-2", "west")
    assert middle.incoming("agent-0") == pytest.approx(dict.fromkeys(("agent-0", "agent-2", "west"), 1 / 3))
    assert later.epoch_at(9).member("agent-0").address == "10.0.0.7:7401"
    assert later.epoch_at(9).weights == middle.weights
    assert len({later.hash_at(k) for k in range(20)}) == 3
    assert later.names == ("agent-0", "agent-1", "agent-2", "agent-3", "west")
    # A name that comes after a removal never takes the index, and so the batches, of the one that left.
    gone = plan.change(5, "remove", "agent-3").change(6, "add", "east", "10.0.0.8:7401")
    assert gone.epochs[-1].member("east").index == 4


def test_incoming_weights_are_columns_of_the_matrix(tmp_path):
    plan = make(3)
    triples = [(0, 0, 0.5), (0, 1, 0.5), (1, 1, 0.5), (1, 2, 0.5), (2, 2, 0.5), (2, 0, 0.5)]
    tables = tomllib.loads(plan.to_toml()) | {"weights": triples}
    one_way = Federation.model_validate(tables).epochs[0]
    assert one_way.incoming("agent-1") == {"agent-0": 0.5, "agent-1": 0.5}
    assert one_way.neighbours("agent-1") == ("agent-0", "agent-2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((0, "remove", "agent-1"), "round 0 cannot be planned"),
        ((20, "remove", "agent-1"), "to 19"),
        ((3, "remove", "nobody"), "there is no agent 'nobody'"),
        ((3, "add", "agent-2", "h:1"), "name not used before"),
        ((3, "add", "west"), "needs the address"),
        ((3, "remove", "agent-1", "h:1"), "takes no address"),
        ((3, "add", "West!", "h:1"), "lower-case"),
        ((3, "add", "west", "nowhere"), "host:port"),
        ((3, "add", "west", "agent-1.clinic.pisco:7602"), "as members' names in certificates do"),
        ((3, "add", "authority", "h:1"), "the name of who signs certificates"),
        ((3, "add", "west", "127.0.0.1:7401"), "two agents have the address"),
        ((3, "rename", "agent-1"), "unknown action"),
        ((3, "move", "agent-1", "outbound"), "the plan has no relay, and a federation that has begun takes none"),
    ],
)
def test_changes_that_cannot_be_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        make().change(*change)


@pytest.mark.parametrize("how", [{}, {"now": True}])
def test_who_is_removed_by_the_plan_already_is_said_to_be(how):
    plan = make().change(9, "remove", "agent-1")
    words = "removes 'agent-1' at round 9 already; .* `pisco federation change cancel agent-1` takes it back"
    with pytest.raises(InputError, match=words):
        plan.change(12, "remove", "agent-1", **how)


def test_a_change_that_cuts_the_graph_is_refused_without_a_server():
    edges = {"graph": "erdos-renyi", "prob": 0.25, "seed": 0}
    with pytest.raises(InputError, match="components and the server is never reached"):
        make(6, network=edges)
    assert make(6, network=edges | {"server_prob": 0.1}).epochs
    with pytest.raises(InputError, match="divisor of agents = 8"):
        make(9, network={"graph": "torus", "rows": 3, "server_prob": 0.1}).change(3, "remove", "agent-1")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("rounds = 20", "rounds = 0"), "rounds is 0"),
        (("seed = 0", "sed = 0"), "sed is not a setting; did you mean 'seed'"),
        (('name = "pisco"', 'name = "psico"'), "did you mean 'pisco'"),
        (("index = 1,", "index = 0,"), "two agents have the index 0"),
        (('"agent-2"', '"server"'), "server's own name"),
        (('"agent-2"', '"authority"'), "the name of who signs certificates"),
        (("127.0.0.1:7402", "agent-3.clinic.Pisco:7402"), "as members' names in certificates do"),
        (("agents = 4", "agents = 5"), "roster has 4 agents"),
        (("[0, 0, 0.33333333333333337]", "[0, 0, 0.5]"), "row 0 of `weights` sums to"),
        (("[0, 0, 0.33333333333333337]", "[0, 7, 0.33333333333333337]"), "names index 7"),
        (("patience = 600.0", "patience = -1"), "greater than 0"),
        (('server_address = "127.0.0.1:7400"', ""), "lacks server_address"),
        (("127.0.0.1:7402", "127.0.0.1:7402x"), "host:port"),
    ],
)
def test_a_file_that_cannot_be_is_refused_in_one_sentence(tmp_path, edit, words):
    text = make().to_toml()
    assert edit[0] in text
    (tmp_path / "f.toml").write_text(text.replace(*edit, 1))
    with pytest.raises(InputError, match=words) as caught:
        Federation.load(tmp_path / "f.toml")
    assert "\n" not in str(caught.value)


def test_a_problem_of_ones_own_is_left_to_the_agents(tmp_path):
    (tmp_path / "own.py").write_text("def forest(dataset, agents):\n    assert dataset.features.shape[1:] == (54,)\n")
    own = {"name": f"{tmp_path}/own.py:forest", "classes": [0, 1]}
    assert make(problem=own).problem.classes == [0, 1]  # its shape is not in the plan, and there are no samples yet
    with pytest.raises(InputError, match="forest\\(\\) fails \\(AssertionError"):
        make(problem=own).build_problem(pisco.data.Dataset("mine", np.zeros((2, 5), np.float32), np.arange(2)))


def test_an_agent_that_lacks_a_class_has_the_same_problem():
    features = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    only_positive = pisco.data.Dataset("mine", features, np.ones(6, int))
    problem = make().build_problem(only_positive)
    assert (problem.num_agents, problem.num_samples, problem.loss.rho) == (1, 6, 0.02)
    both = pisco.problems.logistic(
        pisco.data.Dataset("all", np.tile(features, (2, 1)), np.repeat([1, -1], 6)),
        agents=2,
        partition=[np.arange(6), np.arange(6, 12)],
        rho=0.02,
    )
    x = np.full(4, 0.3, np.float32)
    np.testing.assert_array_equal(
        jax.grad(agent_loss(problem, None))(x, pisco.engines.job.seed_key(0), 0),
        jax.grad(agent_loss(both, None))(x, pisco.engines.job.seed_key(0), 0),
    )
    with pytest.raises(InputError, match="has the label 3"):
        make().build_problem(pisco.data.Dataset("mine", features, np.full(6, 3)))
    with pytest.raises(InputError, match="expects samples of shape \\[5\\], has"):
        make(problem=LOGISTIC | {"features": [5]}).build_problem(only_positive)
    with pytest.raises(InputError, match=r"samples of mine have shape \[\], expected one row of numbers each"):
        make().build_problem(pisco.data.Dataset("mine", features[:, 0], np.ones(6, int)))
    with pytest.raises(InputError, match="--module"):
        make(problem=None).build_problem(only_positive)


def test_a_plan_names_metrics_of_test_data(tmp_path):
    features, labels = np.ones((6, 3), np.float32), np.ones(6, int)
    (tmp_path / "own.py").write_text(
        "import pisco\n"
        "size = pisco.Metric('size', lambda x, batch: batch['features'] @ x, rising=True)\n"
        "lag = pisco.Metric('lag', abs, of='state')\n"
    )
    plan = make(problem=LOGISTIC | {"metrics": [f"{tmp_path}/own.py:size"]})
    assert "own.py" in plan.files
    tested = plan.build_problem(pisco.data.Dataset("mine", features, labels, features, labels))
    assert "test_size" in tested.columns
    assert "test_size" not in plan.build_problem(pisco.data.Dataset("mine", features, labels)).columns
    with pytest.raises(InputError, match="own.py:lag' is not of test data, and no member holds all agents"):
        make(problem=LOGISTIC | {"metrics": [f"{tmp_path}/own.py:lag"]})
    with pytest.raises(InputError, match="agents is 'many', expected a whole number"):
        make("many")


# ------------------------------------------------------------------------------------------------ authority and kits


@pytest.fixture
def home(tmp_path):
    """A coordinator's folder with a plan, an authority and two kits."""
    plan, folder = make(), tmp_path / "clinic"
    folder.mkdir()
    plan.save(folder / "federation.toml")
    ca.Authority.create(folder / "authority", plan.name)
    for name in ("agent-0", "agent-1"):
        kits.issue(folder, plan, name, folder / "kits" / name)
    return folder


def presented(home, name="agent-1"):
    return (home / "kits" / name / "cert.pem").read_bytes()


def test_keys_are_for_their_owner_alone_and_never_overwritten(home):
    keys = sorted(home.rglob("key.pem"))
    assert len(keys) == 3
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    secrets = {key.read_bytes() for key in keys}
    for path in (path for path in home.rglob("*") if path.is_file() and path.name != "key.pem"):
        assert b"PRIVATE" not in path.read_bytes() and path.read_bytes() not in secrets
    before = (home / "kits/agent-0/key.pem").read_bytes()
    with pytest.raises(InputError, match="kit already"):
        kits.issue(home, make(), "agent-0", home / "kits/agent-0")
    (home / "kits/agent-0/cert.pem").unlink()  # as if a kill had come in between
    with pytest.raises(InputError, match="never overwritten; give --renew"):
        kits.issue(home, make(), "agent-0", home / "kits/agent-0")
    kits.issue(home, make(), "agent-0", home / "kits/agent-0", renew=True)
    assert kits.Kit.load(home / "kits/agent-0").name == "agent-0"
    with pytest.raises(InputError, match="never overwritten"):
        ca.Authority.create(home / "authority", "clinic")
    assert (home / "kits/agent-0/key.pem").read_bytes() == before


def test_a_key_is_never_readable_by_others_even_while_it_is_made(tmp_path, monkeypatch):
    opened = []
    real = keyfiles.os.open
    monkeypatch.setattr(
        keyfiles.os, "open", lambda path, flags, mode=0o777: opened.append(mode) or real(path, flags, mode)
    )
    monkeypatch.setattr(Path, "chmod", lambda *_: pytest.fail("a mode set afterwards leaves a moment open"))
    ca.new_key(tmp_path / "key.pem")
    assert opened == [0o600]


def test_a_kit_knows_who_others_are(home):
    kit = kits.Kit.load(home / "kits/agent-0")
    assert kit.name == "agent-0" and kit.warning is None
    assert kit.identify(presented(home)) == "agent-1"
    assert kit.server_name("agent-1") == "agent-1.clinic.pisco"
    with pytest.raises(InputError, match="as members' names in certificates do"):
        check_address(f"{kit.server_name('agent-1')}:7400")
    assert "PRIVATE" not in repr(kit)


def test_a_revoked_certificate_stops_counting_without_a_restart(home):
    kit, signer = kits.Kit.load(home / "kits/agent-0"), ca.Authority.open(home / "authority", "clinic")
    older = (home / "kits/agent-0/revoked.pem").read_bytes()
    signer.revoke([each.serial_number for each in signer.issued("agent-1")])  # maybe in the second of the older list
    assert kit.identify(presented(home)) == "agent-1"  # the news has not come yet
    kits.refresh(home, make(), home / "kits/agent-0")
    with pytest.raises(kits.Refused, match="'agent-1' has been revoked"):
        kit.identify(presented(home))
    # An older list, copied again by mistake, brings nobody back.
    (home / "kits/agent-0/revoked.pem").write_bytes(older)
    with pytest.raises(kits.Refused, match="revoked"):
        kit.identify(presented(home))
    # A list that is broken or not the authority's own leaves the last good one in force.
    (home / "kits/agent-0/revoked.pem").write_text("nonsense")
    with pytest.raises(kits.Refused, match="revoked"):
        kit.identify(presented(home))
    with pytest.raises(InputError, match="not a list of revoked"):
        kits.Kit.load(home / "kits/agent-0")


def test_the_list_of_another_federation_with_the_same_plan_key_brings_nobody_back(home):
    folder, signer = home / "kits/agent-0", ca.Authority.open(home / "authority", "clinic")
    kit = kits.Kit.load(folder)
    signer.revoke([each.serial_number for each in signer.issued("agent-1")])
    kits.refresh(home, make(), folder)
    with pytest.raises(kits.Refused, match="'agent-1' has been revoked"):
        kit.identify(presented(home))
    (home / "authority" / "revoked.pem").unlink()
    other = ca.Authority(home / "authority", "office")  # signed with the same key, as one token may for both
    other._write_revoked(dict.fromkeys((1, 2, 3), keyfiles.now()), signers.signing_key(home / "authority"))
    (folder / "revoked.pem").write_bytes((home / "authority" / "revoked.pem").read_bytes())
    with pytest.raises(kits.Refused, match="revoked"):
        kit.identify(presented(home))
    with pytest.raises(InputError, match="is not signed by this federation's authority"):
        kits.Kit.load(folder).remember(folder)


def test_an_older_list_brings_nobody_back_at_a_restart(home, tmp_path):
    folder, signer = home / "kits/agent-0", ca.Authority.open(home / "authority", "clinic")
    older = (folder / "revoked.pem").read_bytes()
    signer.revoke([each.serial_number for each in signer.issued("agent-1")])  # maybe in the second of the older list
    kits.Kit.load(folder).remember(tmp_path)
    kit = kits.Kit.load(folder)
    kit.remember(tmp_path)
    assert kit.identify(presented(home)) == "agent-1"
    kits.refresh(home, make(), folder)  # while it runs
    with pytest.raises(kits.Refused, match="revoked"):
        kit.identify(presented(home))
    (folder / "revoked.pem").write_bytes(older)
    again = kits.Kit.load(folder)
    again.remember(tmp_path)
    with pytest.raises(kits.Refused, match="revoked"):
        again.identify(presented(home))


def test_a_plan_that_the_authority_did_not_sign_is_refused(home, tmp_path):
    folder = home / "kits/agent-0"
    text = (folder / "federation.toml").read_text()
    kit = kits.Kit.load(folder)
    kit.remember(tmp_path)
    unsigned = text.split("# signed")[0]
    forged = "# signed 9 " + text.split("# signed ")[1].split()[1]
    for other in (text.replace("seed = 0", "seed = 1"), unsigned, unsigned + "# signed 1 x=\n", unsigned + forged):
        assert other != text
        (folder / "federation.toml").write_text(other)
        with pytest.raises(InputError, match="is not as the authority signed it"):
            kits.Kit.load(folder)
        with pytest.raises(InputError, match="is not as the authority signed it"):
            kit.newer_plan()
    (folder / "federation.toml").write_text("# a comment changes nothing\n" + text)
    assert kits.Kit.load(folder).version == 1


def test_an_older_plan_is_not_taken_again(home, tmp_path):
    folder = home / "kits/agent-0"
    older = (folder / "federation.toml").read_text()
    kit = kits.Kit.load(folder)
    kit.remember(tmp_path)
    kits.refresh(home, make().change(9, "remove", "agent-3"), folder)
    assert len(kit.newer_plan().changes) == 1 and kit.version == 2
    (folder / "federation.toml").write_text(older)
    with pytest.raises(InputError, match="it is version 1, and version 2 is in force"):
        kit.newer_plan()
    with pytest.raises(InputError, match="is version 1, and version 2 was in force here"):
        kits.Kit.load(folder).remember(tmp_path)
    kits.refresh(home, make(), folder)  # the coordinator took the change back
    assert kit.newer_plan() == make() and kit.version == 3


def test_a_member_sees_the_whole_hash_of_its_plan(home):
    kit = home / "kits/agent-0"
    shown = command("show", "--kit", kit)
    digest = make().hash
    assert shown.exit_code == 0 and digest in "".join(shown.stdout.split())
    said = json.loads(command("show", "--kit", kit, "--json").stdout)
    assert said["hash"] == digest and [each["name"] for each in said["certificates"]] == ["agent-0"]
    assert said["server_sees"] == "every reporter's vectors" and said["guard"] == "none" and said["presence"] == "all"
    (kit / "federation.toml").write_text((kit / "federation.toml").read_text().replace("seed = 0", "seed = 1"))
    assert command("show", "--kit", kit).exit_code == 2


def test_a_member_sees_which_protections_it_agrees_to(tmp_path):
    chosen = [
        "server_sum=masked",
        "network.guard=clip",
        "network.guard_server=false",
        "presence=deadline",
        "deadline=9",
    ]
    made = command("init", tmp_path / "f", "--agents", 4, *[word for each in chosen for word in ("--set", each)])
    assert made.exit_code == 0, made.output
    said = json.loads(command("show", "--dir", tmp_path / "f", "--json").stdout)
    assert said["server_sees"] == "only the sum of masked vectors"
    assert said["guard"].startswith("clip(") and said["guard"].endswith("in gossip alone")
    assert said["presence"] == "deadline of 9 s, quorum of 3"
    assert "masked vectors" in command("show", "--dir", tmp_path / "f").stdout


def test_strangers_are_refused(home, tmp_path, monkeypatch):
    kit, plan = kits.Kit.load(home / "kits/agent-0"), make()
    other = tmp_path / "other"
    other.mkdir()
    ca.Authority.create(other / "authority", "clinic")
    kits.issue(other, plan, "agent-1", other / "kits/agent-1")
    with pytest.raises(kits.Refused, match="signed by another authority"):
        kit.identify(presented(other))
    impostor = ca.Authority(home / "authority", "another")  # the same authority's key for another federation
    signed = impostor.sign("agent-1", ca.new_key(tmp_path / "k.pem").public_key(), "localhost", 5)
    with pytest.raises(kits.Refused, match="of another federation, 'another'"):
        kit.identify(ca.pem(signed))
    with pytest.raises(kits.Refused, match="not a certificate"):
        kit.identify(b"junk")
    with pytest.raises(kits.Refused):
        kit.identify((home / "authority/cert.pem").read_bytes())
    late = dt.datetime.now(dt.UTC) + dt.timedelta(days=366)
    monkeypatch.setattr(ca, "now", lambda: late)
    with pytest.raises(kits.Refused, match="expired on"):
        kit.identify(presented(home))


def test_ends_that_are_near_or_past_are_said(home, monkeypatch, caplog):
    real, kit = dt.datetime.now(dt.UTC), kits.Kit.load(home / "kits/agent-0")
    for days, lines in ((300, 0), (360, 1), (360, 1), (361.5, 2)):  # of a member that was started long before
        monkeypatch.setattr(ca, "now", lambda days=days: real + dt.timedelta(days=days))
        kit.look_for_certificate()
        assert caplog.text.count("ends in") == lines, (days, caplog.text)
    monkeypatch.setattr(ca, "now", lambda: real + dt.timedelta(days=370))
    for _ in range(2):
        kit.look_for_certificate()
        assert caplog.text.count("ended on") == caplog.text.count("nobody talks to us; get a new one") == 1
    monkeypatch.setattr(ca, "now", lambda: real + dt.timedelta(days=360))
    assert "ends in" in (kits.Kit.load(home / "kits/agent-0").warning or "")
    monkeypatch.setattr(ca, "now", lambda: real + dt.timedelta(days=400))
    with pytest.raises(InputError, match="expired .*clock.*--renew"):
        kits.Kit.load(home / "kits/agent-0")
    kits.issue(home, make(), "agent-0", home / "kits/agent-0", renew=True)
    assert kits.Kit.load(home / "kits/agent-0").warning is None
    monkeypatch.setattr(ca, "now", lambda: real - dt.timedelta(days=3))
    with pytest.raises(InputError, match="is valid only from"):
        kits.Kit.load(home / "kits/agent-1")


def test_a_key_made_by_the_agent_itself_is_signed_unseen(home, tmp_path):
    mine = tmp_path / "mine"
    request = ca.new_request(mine, "clinic", "agent-2")
    secret = (mine / "key.pem").read_bytes()
    kits.issue(home, make(), "agent-2", tmp_path / "back", request=request)
    assert not (tmp_path / "back/key.pem").exists()
    for file in (tmp_path / "back").iterdir():
        (mine / file.name).write_bytes(file.read_bytes())
    assert kits.Kit.load(mine).name == "agent-2" and (mine / "key.pem").read_bytes() == secret
    with pytest.raises(InputError, match="is for 'agent-2', not 'agent-3'"):
        kits.issue(home, make(), "agent-3", tmp_path / "again", request=request)
    forged = bytearray(request.read_bytes())
    forged[len(forged) // 2] ^= 1
    (tmp_path / "forged.pem").write_bytes(bytes(forged))
    with pytest.raises(InputError):
        kits.issue(home, make(), "agent-2", tmp_path / "again", request=tmp_path / "forged.pem")


def test_a_key_made_elsewhere_is_renewed_and_gets_no_double(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("init", "clinic", "--agents", 3).exit_code == 0
    mine = tmp_path / "mine"
    request = ca.new_request(mine, "clinic", "agent-2")
    assert "send it back" in command("issue", "agent-2", "-d", "clinic", "--request", request, "-o", "back").stdout
    done = command("issue", "--all", "--dir", "clinic")
    assert done.stdout.count("serial") == 3 and "agent-2: has a key of its own elsewhere; left out" in done.stdout
    first = ca.read_certificate(Path("back/cert.pem"))
    done = command("issue", "agent-2", "--dir", "clinic", "--renew", "--days", 30)
    assert done.exit_code == 0 and "send it back" in done.stdout and not Path("clinic/kits/agent-2/key.pem").exists()
    for file in Path("clinic/kits/agent-2").iterdir():
        (mine / file.name).write_bytes(file.read_bytes())
    assert kits.Kit.load(mine).name == "agent-2"
    assert ca.read_certificate(mine / "cert.pem").serial_number != first.serial_number
    assert command("revoke", "agent-2", "--dir", "clinic").exit_code == 0  # then its key is not signed again
    assert "no certificate to renew" in command("issue", "agent-2", "--dir", "clinic", "--renew").stderr
    again = command("issue", "agent-2", "--dir", "clinic", "--request", request, "-o", "again")
    assert again.exit_code == 2 and "were revoked" in again.stderr and not Path("again").exists()
    assert command("issue", "agent-0", "--dir", "clinic", "--renew").exit_code == 0
    assert command("revoke", "agent-0", "--dir", "clinic", "--older").exit_code == 0  # of the same key, which is kept
    assert command("issue", "agent-0", "--dir", "clinic", "--renew").exit_code == 0
    assert command("revoke", "agent-0", "--dir", "clinic").exit_code == 0
    again = command("issue", "agent-0", "--dir", "clinic", "--renew")
    assert again.exit_code == 2 and "make a new key" in again.stderr
    assert command("issue", "agent-0", "--dir", "clinic", "-o", "new").exit_code == 0


def spoil(kit, file, content):
    """Put something else into one file of a kit: text, another file's content, or nothing at all."""
    (kit / file).unlink()
    if content:
        (kit / file).write_bytes(content.encode() if isinstance(content, str) else content(kit).read_bytes())


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("cert.pem", None, "lacks cert.pem"),
        ("cert.pem", "x", "not a certificate"),
        ("cert.pem", lambda kit: kit.parent / "agent-1/cert.pem", "key in .* is not the one"),
        ("ca.pem", lambda kit: kit / "cert.pem", "which may not sign others"),
        ("revoked.pem", None, "lacks revoked.pem"),
        ("federation.toml", make(2).to_toml().replace("clinic", "other"), "is of another federation, 'clinic'"),
        ("key.pem", lambda kit: kit.parent / "agent-1/key.pem", "can be read by others; run chmod 600"),
    ],
)
def test_a_kit_that_does_not_fit_together_is_refused(home, file, content, words):
    spoil(home / "kits/agent-0", file, content)
    with pytest.raises(InputError, match=words):
        kits.Kit.load(home / "kits/agent-0")


# ------------------------------------------------------------------------------------------------ the commands


def command(*words):
    return CliRunner().invoke(app, ["federation", *map(str, words)], catch_exceptions=False)


def test_a_method_that_is_set_drops_what_only_the_usual_one_has(tmp_path):
    done = command("init", tmp_path / "f", "--agents", 3, "--set", "algorithm.name=dsgd")
    assert done.exit_code == 0, done.output
    assert Federation.load(tmp_path / "f" / "federation.toml").build_algorithm().name == "dsgd"
    both = ("--set", "algorithm.name=dsgd", "--set", "algorithm.local_steps=2")
    assert "algorithm.local_steps does not go with name" in command("init", tmp_path / "g", *both).output


def test_an_afternoon_at_the_coordinators(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command("init", "clinic", "--agents", 4, "--graph", "ring", "--server-prob", 0.1)
    assert done.exit_code == 0, done.output
    assert "next:      pisco federation issue --all --dir clinic" in done.stdout
    assert Federation.load("clinic/federation.toml").eval_every == 5  # of 500 rounds: what is measured stays small
    assert command("issue", "agent-0", "--dir", "clinic").exit_code == 0
    assert command("issue", "--all", "--dir", "clinic").stdout.count("serial") == 4
    for name in ("server", "agent-3"):
        assert kits.Kit.load(f"clinic/kits/{name}").name == name
    monkeypatch.chdir("clinic")
    Path("federation.toml").write_text("# ours\n" + Path("federation.toml").read_text().replace("7404", "7499"))
    assert command("issue", "agent-1", "--out", "again", "--days", 30).exit_code == 0
    done = command("revoke", "agent-1", "--older")
    assert done.stdout.count("revoked:") == 1 and "copy revoked.pem" in done.stderr
    assert kits.Kit.load("again").name == "agent-1"
    # What was edited by hand is signed with the next kit, and can be copied to others.
    Path("kits/agent-0/federation.toml").write_text(Path("federation.toml").read_text())
    assert Path("federation.toml").read_text().startswith("# ours\n")
    assert kits.Kit.load("kits/agent-0").federation.hash == kits.Kit.load("again").federation.hash
    with pytest.raises(InputError, match="has been revoked"):
        kits.Kit.load("kits/agent-1")
    done = command("change", "add", "west", "--address", "10.0.0.9:7401", "--round", 100)
    assert done.exit_code == 0 and "next: pisco federation issue west" in done.stdout
    assert command("issue", "west").exit_code == 0
    shown = json.loads(command("show", "--json").stdout)
    assert [epoch["round"] for epoch in shown["epochs"]] == [0, 100]
    states = [each["state"].split()[0] for each in shown["certificates"] if each["name"] == "agent-1"]
    assert states == ["revoked", "valid"]
    assert shown["hash"] == kits.Kit.load("kits/west").federation.hash
    text = command("show").stdout
    assert "from round 100" in text and "revoked" in text
    assert command("change", "cancel", "agent-1").exit_code == 2  # the last change is of another agent
    done = command("change", "cancel", "west")
    assert done.exit_code == 0 and "cancelled: to add west at round 100" in done.stdout
    assert len(json.loads(command("show", "--json").stdout)["epochs"]) == 1


@pytest.mark.parametrize(
    ("words", "saying"),
    [
        (["init", "."], "holds a federation already"),
        (["init", "x", "--graph", "rign"], "did you mean 'ring'"),
        (["init", "x", "--algorithm", "scaffold"], "needs the server in every round"),
        (["init", "x", "--server-prob", "1.5"], "server_prob is 1.5"),
        (["init", "x", "--agent", "north"], "write NAME=HOST:PORT"),
        (["init", "x", "--agent", "north=h:99999"], "write host:port"),
        (["init", "x", "--problem", "mlp"], "needs --classes"),
        (["init", "x", "--set", "algorithm.local_rl=0.1"], "local_rl is not a setting; did you mean 'local_lr'"),
        (["init", "x", "--set", "machine.colour=red"], "the tables here are"),
        (["init", "x", "--set", "patience=0"], "patience is 0"),
        (["init", "x", "--set", "weights=fdla"], "weights cannot be set; give network.weights, or --weight"),
        (["init", "x", "--set", "agents=4"], "agents cannot be set; give --agents"),
        (["init", "x", "--set", "algorithm=dsgd"], "is a table; give algorithm.name, as in algorithm.name=dsgd"),
        (["try", "--out", "x", "--set", "network=ring"], "is a table; give network.graph, as in network.graph=ring"),
        (["init", "x", "--set", "problem.rho=-1"], "rho is -1.0, expected a number at least 0"),
        (["init", "x", "--classes", "0,1,2"], "the plan has 3; take softmax instead"),
        (["init", "x", "--problem", "cnn", "--classes", "0,1", "--set", "problem.dropout=2"], "dropout is 2"),
        (["init", "x", "--problem", "cnn", "--classes", "0,1", "--set", "problem.features=[4]"], "have shape [4]"),
        (
            ["init", "x", "--algorithm", "extra", "--set", "presence=deadline", "--set", "deadline=1"],
            "; drop presence, or",
        ),
        (["init", "x", "--agents", "-1"], "agents is -1"),
        (["init", "x", "--agents", "99999999"], "agents is 99999999, but a host has 65535 ports"),
        (["init", "x", "--agents", "3", "--agent", "north=h:1"], "--agents is 3, but 1 are named (north)"),
        (["init", "x", "--agents", "3", "--outbound", "north"], "--agents is 3, but 1 are named (north)"),
        (["init", "x", "--problem", "logistics"], "unknown problem 'logistics'; did you mean 'logistic'"),
        (["init", "Bad Name"], "lower-case letters"),
        (["issue", "nobody"], "has no agent 'nobody'"),
        (["issue"], "name one member"),
        (["issue", "agent-0", "--days", "0"], "days is 0"),
        (["issue", "agent-0", "--days", "9000"], "at most 3650"),
        (["issue", "agent-0", "--request", "nowhere.pem"], "cannot read the certificate request"),
        (["issue", "agent-0", "--dir", "nowhere"], "there is no federation.toml in"),
        (["revoke", "agent-0"], "has no certificate to revoke"),
        (["change", "add", "west", "--round", "5"], "needs the address"),
        (["change", "remove", "agent-0", "--round", "5000"], "cannot be planned"),
        (["change", "remove", "agent-0"], "give --round"),
        (["change", "cancel", "agent-0"], "no change is planned"),
        (["change", "delete", "agent-0"], "known: add, cancel, move, remove"),
        (["init", "x", "--set", "presence=deadline"], "give both presence"),
        (["init", "x", "--set", "presence=sometimes"], "presence is 'sometimes'"),
        (["replay", "nowhere", "--kit", "kit"], "there is no kit"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_two(tmp_path, monkeypatch, words, saying):
    monkeypatch.chdir(tmp_path)
    make().save("federation.toml")
    ca.Authority.create(Path("authority"), "clinic")
    before = sorted(tmp_path.rglob("*"))
    done = command(*words)
    lines = done.stderr.strip().splitlines()
    assert done.exit_code == 2 and len(lines) == 1, done.output
    assert lines[0].startswith("error: ") and saying in lines[0]
    assert sorted(tmp_path.rglob("*")) == before, "a refused command leaves nothing behind"


def test_a_change_of_the_past_is_refused_while_the_federation_runs(tmp_path):
    from federations import make_kits, plan_for

    plan = plan_for(2, rounds=100_000, network={"graph": "path", "server_prob": 0.1})
    plan.save(tmp_path / "federation.toml")
    server = SERVERS[plan.presence](make_kits(tmp_path, plan, ["server"])["server"], tmp_path / "state")

    def work():
        with contextlib.suppress(Stopped):
            server.run()

    working = threading.Thread(target=work, daemon=True)
    working.start()
    try:
        for name in plan.names:
            server.ledger.note(name, Report(round=5))
        done = command("change", "move", "agent-1", "--address", "10.0.0.9:7401", "--round", 2, "--dir", tmp_path)
        assert done.exit_code == 2 and "error: round 2 is past, somebody is in round" in done.stderr
        words = ("change", "move", "agent-1", "--address", "10.0.0.9:7401", "--round", 99_000, "--dir", tmp_path)
        done = command(*words)
        assert done.exit_code == 0 and "from round 99000 on" in done.stdout, done.output
    finally:
        server.mailroom.stop()
        working.join(60)
