"""A member's audit log: what is in it, and that nobody can change it unseen."""

import json
import os
import tracemalloc
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from pisco.cli.main import app
from pisco.errors import InputError
from pisco.federation.audit import FILE, AuditLog, read, unsigned
from pisco.federation.authority import Authority, read_certificate
from pisco.federation.kits import refresh
from pisco.federation.rolls import Chain, Roll, plan_mark

from federations import make_kits, plan_for

pytest.importorskip("grpc")
from pisco.federation.runtime.rolled import note_roll
from pisco.federation.runtime.server import Server


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    home = tmp_path_factory.mktemp("audit")
    return make_kits(home, plan_for(3)), home


@pytest.fixture
def log(kits, tmp_path):
    """Two runs of the server: five lines, and four more after a kill in the middle of a line."""
    first = AuditLog(tmp_path, kits[0]["server"], durable=False)
    first.add("refusal", line="refused agent-1: \x1b[31m[red]it is late")
    first.add("roll", sure=False, round=0, present=[0, 1])
    first.add("plan", plan="ab" * 32, version=2)
    first.close()
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"at": "2026')
    again = AuditLog(tmp_path, kits[0]["server"], durable=False)
    again.add("roll", sure=False, round=1, present=[0, 1])
    again.add("roll", sure=False, round=2, present=[0, 1])
    again.add("roll", sure=False, round=3, present=[0])  # not signed yet
    return tmp_path / FILE


def lines_of(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_whole_log_is_read_and_goes_on_after_a_kill(kits, log):
    found = read(log, kits[0]["agent-0"].authority)
    assert [line.kind for line in found] == ["start", "refusal", "roll", "plan", "stop", "start", *["roll"] * 3]
    assert found[0].facts["plan"] == kits[0]["server"].federation.hash and found[0].facts["version"] == 1
    assert oct(log.stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize("at", range(9))
def test_a_line_that_was_changed_or_left_out_is_found(kits, log, at):
    lines = lines_of(log)
    changed = [dict(line) for line in lines]
    changed[at]["facts"] = {**changed[at]["facts"], "line": "nothing happened"}
    log.write_text("".join(json.dumps(line) + "\n" for line in changed))
    with pytest.raises(InputError, match=f"line {at + 1} of .* was changed, or lines before it are missing"):
        read(log)
    if at < 8:
        log.write_text("".join(json.dumps(line) + "\n" for i, line in enumerate(lines) if i != at))
        with pytest.raises(InputError, match=f"line {at + 1} of .* was changed"):
            read(log)
        with pytest.raises(InputError, match="was changed"):  # nor does the member go on from there
            AuditLog(log.parent, kits[0]["server"])


def test_a_chain_made_anew_lacks_the_members_signature(kits, log, tmp_path):
    """Whoever can write the file can hash it anew, but not sign it."""
    authority = kits[0]["server"].authority
    (tmp_path / "forged").mkdir()
    forger = AuditLog(tmp_path / "forged", kits[0]["agent-1"], durable=False)
    forger.add("refusal", line="refused nobody")
    with pytest.raises(InputError, match=r"line 1 .* has a certificate of 'agent-1', and the log is of 'server'"):
        read(rename(forger.path, "server"), authority)
    lines = lines_of(forger.path)
    lines[0]["facts"] |= {"member": "server", "certificate": kits[0]["server"].certificate.decode()}
    with pytest.raises(InputError, match="line 1 .* is not signed by the member"):
        read(chained(forger.path, lines), authority)
    lines = lines_of(log)[:2]
    lines[1]["facts"] = {"line": "refused nobody"}
    with pytest.raises(InputError, match="line 2 .* is not signed by the member"):
        read(chained(log, lines), authority)
    lines = lines_of(log)[:2]
    lines[1]["signature"] = ""  # at the end no line after it would show who made it
    with pytest.raises(InputError, match="line 2 .* is not signed"):
        read(chained(log, lines), authority)
    other = make_kits(tmp_path / "other", plan_for(3))["server"]
    (tmp_path / "foreign").mkdir()
    AuditLog(tmp_path / "foreign", other, durable=False)
    with pytest.raises(InputError, match="line 1 .* has a certificate that another authority signed"):
        read(tmp_path / "foreign" / FILE, authority)


@pytest.mark.parametrize("what", ["refusal", "roll"])
def test_a_start_does_not_make_a_changed_log_whole(kits, tmp_path, what):
    """Written anew while the member is down: its next start finds a chain that fits, and signs its own line."""
    authority = kits[0]["server"].authority
    mine = AuditLog(tmp_path, kits[0]["server"], durable=False)
    mine.add("refusal", line="refused agent-1: it tells another key")
    mine.add("roll", sure=False, round=0, present=[0, 1])
    mine.close()
    lines = lines_of(mine.path)
    next(line for line in lines if line["kind"] == what)["facts"] = {"line": "nothing happened"}
    chained(mine.path, lines)
    AuditLog(tmp_path, kits[0]["server"], durable=False).close()
    with pytest.raises(InputError, match=f"line {2 if what == 'refusal' else 4} of .* is not signed by the member"):
        read(mine.path, authority)


def test_lines_that_a_start_found_unsigned_are_counted(kits, tmp_path):
    mine = AuditLog(tmp_path, kits[0]["server"], durable=False)
    mine.add("roll", sure=False, round=0, present=[0, 1])  # and killed: anybody may add more
    AuditLog(tmp_path, kits[0]["server"], durable=False).add("roll", sure=False, round=1, present=[0, 1])
    assert unsigned(read(mine.path, kits[0]["server"].authority)) == (1, 1)
    shown = CliRunner().invoke(app, ["federation", "audit", str(mine.path)]).output
    assert "1 line not signed when a later start came may be anybody's" in " ".join(shown.split())


def chained(path, lines):
    """The lines with hashes that fit, as a forger would make them."""
    from pisco.federation.audit import _hash

    before = ""
    for line in lines:
        before = line["hash"] = _hash(before, line["at"], line["kind"], line["facts"])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rename(path, member):
    lines = lines_of(path)
    lines[0]["facts"]["member"] = member
    return chained(path, lines)


def test_a_server_notes_what_it_refuses_and_goes_by(tmp_path):
    plan = plan_for(3)
    server = Server(make_kits(tmp_path, plan)["server"], tmp_path / "state", durable=False)
    context = SimpleNamespace(abort=lambda code, reason: None)
    for port in (1, 2):  # lines that differ in a number only are one of a kind
        with pytest.raises(AssertionError, match="abort raises"):
            server.door.refuse(context, f"10.0.0.1:{port}", "it is nobody")
    authority = Authority.open(tmp_path / "authority", plan.name)
    serial = read_certificate(tmp_path / "kits" / "agent-1" / "cert.pem").serial_number
    authority.revoke([serial])
    newer = plan.change(3, "remove", "agent-1")
    refresh(tmp_path, newer, tmp_path / "kits" / "server")
    server.look_for_plan()
    server.close()
    server.audit.add("refusal", line="too late")  # while the last calls end
    found = read(tmp_path / "state" / FILE, server.kit.authority)
    assert [line.kind for line in found] == ["start", "refusal", "revoked", "plan", "stop"]
    assert found[1].facts == {"line": "refused 10.0.0.1:1: it is nobody"}
    assert found[2].facts == {"serials": [f"{serial:x}"]} and found[3].facts == {"plan": newer.hash, "version": 2}


def test_an_expulsion_is_a_line_of_its_own_once(kits, tmp_path):
    network = {"graph": "complete", "server_prob": 0.3, "guard": "clip"}
    plan = plan_for(5, network=network, presence="deadline", deadline=5.0, quorum=2)
    log, chain, mark = AuditLog(tmp_path, kits[0]["server"], durable=False), Chain(plan), plan_mark(plan, 0)
    for round_, (present, expelled) in enumerate([((0, 1, 2, 3, 4), ()), ((0, 1, 2, 3), (4,)), ((0, 1, 2), (4,))]):
        before = chain.head
        chain.add(Roll(round_, 0, mark, present, expelled), plan)
        note_roll(log, chain, before)
    found = read(tmp_path / FILE, kits[0]["agent-0"].authority)
    assert [line.kind for line in found] == ["start", "roll", "roll", "expulsion", "roll"]
    assert found[3].facts == {"round": 1, "members": [4]}


def test_a_full_disk_costs_a_line_and_not_the_chain(kits, tmp_path, monkeypatch):
    mine = AuditLog(tmp_path, kits[0]["server"], durable=False)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, content: write(file, content[:10]))
        mine.add("refusal", line="lost")
    mine.add("refusal", line="kept")
    assert [line.facts.get("line") for line in read(mine.path, kits[0]["server"].authority)] == [None, "kept"]


def test_a_long_log_is_not_held_in_memory_at_the_start(kits, tmp_path):
    mine = AuditLog(tmp_path, kits[0]["server"], durable=False)
    for place in range(1000):
        mine.add("roll", sure=False, place=place, present=list(range(20)), rolls="0" * 64)
    mine.close()
    tracemalloc.start()
    again = AuditLog(tmp_path, kits[0]["server"], durable=False)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    again.close()
    assert held < 0.3 * mine.path.stat().st_size
    assert [line.kind for line in read(mine.path, kits[0]["server"].authority)][-3:] == ["stop", "start", "stop"]


def test_the_command(kits, log):
    run = CliRunner().invoke
    good = run(app, ["federation", "audit", str(log), "--kit", str(kits[1] / "kits" / "agent-0")])
    assert good.exit_code == 0 and "server: 9 lines" in good.output and "signatures are whole" in good.output
    assert "3 lines at the end, not signed yet" in " ".join(good.output.split())
    head = lines_of(log)[-1]["hash"]
    assert head in good.output
    shown = run(app, ["federation", "audit", str(log), "--kind", "refusal"]).output
    assert "[red]it is late" in shown and "\x1b[31m" not in shown
    as_json = json.loads(run(app, ["federation", "audit", str(log), "--json", "--kind", "plan"]).output)
    assert as_json[0]["facts"] == {"plan": "ab" * 32, "version": 2}
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines()[:-1]))  # cut off: a whole chain
    assert run(app, ["federation", "audit", str(log)]).exit_code == 0
    for options, why in (
        (["--head", head], "lines were cut off since it was noted"),
        (["--kind", "rolls"], "did you mean 'roll'?"),
        (["--head", "ab"], "no line of"),
    ):
        bad = run(app, ["federation", "audit", str(log), *options])
        assert bad.exit_code and why in " ".join(str(bad.exception or "").split() + bad.output.split()), bad.output
    assert run(app, ["federation", "audit", str(log.parent / "none")]).exit_code
    log.write_bytes(b"\xff\xfe nonsense\n")
    with pytest.raises(InputError, match="line 1 of .* cannot be read"):
        read(log)
