"""What members keep on disk: it survives a loss of power, a full disk and a crowd, and is for its owner alone."""

import contextlib
import errno
import logging
import os
import re
import resource
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pisco.cli.agent import speaking
from pisco.errors import InputError
from pisco.federation import keyfiles, kits, signed
from pisco.federation.plan import Federation
from pisco.federation.rolls import check_signature, plan_mark
from pisco.files import atomic_write

from federations import make_kits, plan_for
from waiting import wait_until

pytest.importorskip("grpc")
from pisco.federation.runtime import keyring, ledger, member
from pisco.federation.runtime.codec import MessageLayout
from pisco.federation.runtime.ledger import Ledger
from pisco.federation.runtime.outbox import Outbox
from pisco.federation.runtime.peers import Received
from pisco.federation.runtime.roll_call import Word
from pisco.federation.runtime.rolled_server import RolledServer
from pisco.federation.runtime.server import Server
from pisco.federation.runtime.store import Store
from pisco.federation.runtime.wire_pb2 import Report


@contextlib.contextmanager
def store(folder, **options):
    made = Store(folder, member="agent-0", federation="tests", **options)
    yield made
    made.close()


def keep(kept, round_):
    kept.save(round_, (np.ones(3),), outbox=Outbox({}), history={}, notes={})


def test_a_new_name_is_on_disk_before_anybody_goes_on(tmp_path, monkeypatch):
    """The file is synced, then renamed, then its folder is synced; a store does so unless told not to."""
    done, sync, replace = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda f: (done.append("folder" if is_folder(f) else "file"), sync(f)))
    monkeypatch.setattr(Path, "replace", lambda *names: (done.append("rename"), replace(*names)))

    def is_folder(handle):
        return stat.S_ISDIR(os.fstat(handle).st_mode)

    with store(tmp_path / "a") as kept:
        keep(kept, 1)
    assert done == ["file", "rename", "folder"]
    done.clear()
    with store(tmp_path / "b", durable=False) as kept:
        keep(kept, 1)
    assert done == ["rename"]


def test_links_are_not_followed(tmp_path):
    """Neither one at the file's own place nor one at that of the file it is written to first."""
    other, path = tmp_path / "other", tmp_path / "file"
    other.write_bytes(b"theirs")
    path.symlink_to(other)
    for name in (f".file.{os.getpid()}.tmp", f".file.{os.getpid()}-{threading.get_ident()}.tmp"):
        (tmp_path / name).symlink_to(other)
    atomic_write(path, b"ours")
    assert other.read_bytes() == b"theirs" and path.read_bytes() == b"ours" and not path.is_symlink()


@pytest.mark.filterwarnings("ignore:passing over a damaged checkpoint")
def test_a_member_with_damaged_checkpoints_alone_does_not_start_over(tmp_path):
    with store(tmp_path) as kept:
        assert kept.load() is None
        for round_ in (1, 2):
            keep(kept, round_)
        files = sorted(tmp_path.glob("round-*.ckpt"))
        files[-1].write_bytes(b"")
        assert kept.load().round == 1
        files[0].write_bytes(b"")
        with pytest.raises(InputError, match="every checkpoint in .* is damaged"):
            kept.load()


def test_a_folder_that_others_could_read_is_closed(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with store(folder):
        pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.fixture
def server(tmp_path):
    plan = plan_for(2, rounds=4, network={"graph": "ring", "server_prob": 1.0})
    made = Server(make_kits(tmp_path, plan, ["server"])["server"], tmp_path / "state")
    yield made
    made.mailroom.close()
    made.store.close()


def test_an_average_that_a_full_disk_refused_is_made_again(server, monkeypatch):
    layout, data = MessageLayout((("float32", (1, 2)),)), [np.ones((1, 2), np.float32)]
    monkeypatch.setattr(server.mailroom, "pull", lambda peers, *_, **__: dict.fromkeys(peers, Received(layout, data)))
    save = server.store.save
    monkeypatch.setattr(server.store, "save", full)
    server.asked("agent-0", 1, 0)
    wait_until(lambda: not server._averaging)
    assert server.outbox.take("agent-0", 1, 0, seconds=0) is None
    monkeypatch.setattr(server.store, "save", save)
    server.asked("agent-0", 1, 0)
    assert server.outbox.take("agent-0", 1, 0, seconds=20) is not None


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_roll_that_a_full_disk_refused_is_called_again(tmp_path, monkeypatch):
    """Nobody hears of it meanwhile: what members are told is what is on disk, with its own signature."""
    plan = plan_for(2, rounds=4, presence="deadline", deadline=60.0, quorum=2)
    server = RolledServer(make_kits(tmp_path, plan, ["server"])["server"], tmp_path / "state")
    try:
        for index in range(2):
            server.call.hear(index, Word(ready=True, plan=plan_mark(plan, 0)), time.monotonic())
        server.pause()
        (first,) = server.file.rolls
        for index in range(2):
            server.call.hear(index, Word(1, 1, ready=True, plan=plan_mark(plan, 1)), time.monotonic())
        add = server.file.add
        monkeypatch.setattr(server.file, "add", full)
        server.pause()
        told = server._answer_with(0)
        assert server.file.rolls == [first] and len(told.rolls) == 1
        check_signature(server.kit.certificate, server.chain.hash, told.signature)
        monkeypatch.setattr(server.file, "add", add)
        server.pause()
        assert [roll.round for roll in server.file.rolls] == [0, 1]
    finally:
        server.close()


def test_a_server_on_a_full_disk_ends_all_the_same(server, monkeypatch):
    """What still answers would keep its process from ending, and whoever starts it again would never come to it."""
    monkeypatch.setattr(server.ledger, "save", full)
    server.mailroom.stop()
    with pytest.raises(OSError, match="No space"):
        server.run()
    assert server.outbox.closed and server._listening.stop(grace=0).is_set()


def test_reports_that_a_full_disk_refused_are_kept_in_memory(server, monkeypatch, caplog):
    monkeypatch.setattr(server.ledger, "save", full)
    monkeypatch.setattr(ledger, "SAVE_EVERY", -1.0)
    assert server.ledger.note("agent-0", Report(round=2)) == 0
    assert server.ledger.overview().agents[0].round == 1 and "cannot keep what members report" in caplog.text


def test_counts_and_keys_that_a_full_disk_refused_are_told_again(server, tmp_path, monkeypatch):
    """Nobody hears of what is not on disk: a server that is killed then would not know it any more."""
    book = Ledger(plan_for(2, weigh_by="samples"), tmp_path)
    book.count("agent-0", 10)
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "atomic_write", full)
        with pytest.raises(OSError, match="No space"):
            book.count("agent-1", 30)
    assert book.count("agent-0", 10) == (0.0, ["agent-1"])
    assert book.count("agent-1", 30) == (20.0, []) == Ledger(book.plan, tmp_path).count("agent-0", 10)
    board, own = keyring.KeyBoard(server, tmp_path), make_kits(tmp_path, server.plan, ["agent-0"])["agent-0"]
    told = keyring.sign_key(own, bytes(31) + b"9")
    with monkeypatch.context() as patched:
        patched.setattr(keyring, "atomic_write", full)
        with pytest.raises(OSError, match="No space"):
            board.answer("agent-0", told, None)
    assert list(board.answer("agent-0", told, None).keys) == [told]
    assert keyring.KeyBoard(server, tmp_path)._keys == {"agent-0": told}


def test_a_plan_that_a_full_disk_refused_is_taken_later(server, tmp_path, monkeypatch):
    later = server.plan.change(2, "remove", "agent-1")
    monkeypatch.setattr(member, "LATER", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(kits, "atomic_write", full)
        signed.save(tmp_path, later, server.kit.folder / kits.PLAN)
        server.look_for_plan()
    assert server.plan.hash != later.hash and server.kit.version == 1  # what it tells others is what it goes by
    server.look_for_plan()
    assert server.plan.hash == later.hash and server.kit.version == 2


@contextlib.contextmanager
def no_room():
    """A disk that takes new names and not one byte."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_half_a_key_is_not_in_the_way_of_a_whole_one(tmp_path):
    with no_room():
        keyring.own_key(tmp_path / "mask.key")
    made = keyring.own_key(tmp_path / "mask.key")
    assert keyring.own_key(tmp_path / "mask.key").private_bytes_raw() == made.private_bytes_raw()
    assert (tmp_path / "mask.key").stat().st_mode & 0o777 == 0o600
    with no_room():
        keyfiles.new_key(tmp_path / "key.pem")
    keyfiles.new_key(tmp_path / "key.pem")
    keyfiles.read_key(tmp_path / "key.pem")


@pytest.mark.parametrize(
    "kept", ["[]", "{}", '{"rows": []}', '{"rows": {"agent-0": [1]}}', '{"rows": {}, "standing": 3}']
)
def test_reports_of_another_shape_are_named(tmp_path, kept):
    (tmp_path / "reports.json").write_text(kept)
    with pytest.raises(InputError, match=r"reports\.json is damaged; bring it back"):
        Ledger(plan_for(2), tmp_path)


@pytest.mark.parametrize("damage", [b"", b'{"rows": {"agen', b"\xff\xfe"])
def test_files_that_are_damaged_are_named(tmp_path, damage):
    """One sentence with what to do: a start that fails otherwise is tried again for ever by a service manager."""
    plan = plan_for(3, rounds=4, server_sum="masked")
    kit = make_kits(tmp_path, plan, ["server"])["server"]
    for name, open_it in {
        "reports.json": lambda path: Ledger(plan, path.parent),
        "mask-board.json": lambda path: keyring.KeyBoard(None, path.parent),
        "mask-keys.json": lambda path: keyring.Seen(path),
        "plan.version": lambda path: kit.remember(path.parent),
    }.items():
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state" / name).write_bytes(damage)
        with pytest.raises(InputError, match=f"{name} is damaged; "):
            open_it(tmp_path / "state" / name)


def test_a_server_without_its_log_of_rolls_does_not_start(tmp_path):
    """With an empty one it would refuse everybody, and they would stop for good."""
    plan = plan_for(2, rounds=4, presence="deadline", deadline=60.0, quorum=2)
    kit = make_kits(tmp_path, plan, ["server"])["server"]
    server = RolledServer(kit, tmp_path / "state")
    server._save()
    server.close()
    (tmp_path / "state" / "rolls.jsonl").unlink()
    with pytest.raises(InputError, match=r"no rolls\.jsonl"):
        RolledServer(kit, tmp_path / "state")


def test_farewells_by_the_hundred_are_kept_once(server):
    for _ in range(100):
        server.farewell("agent-0", 5)
    server.farewell("agent-1", 5)
    assert server.saved == 2 and server.outbox.floors() == {"agent-0": 5, "agent-1": 5}


def test_log_lines_carry_the_date(server, capsys):
    with speaking(server.kit):
        logging.getLogger("pisco.federation").info("hello")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d server: hello\n", capsys.readouterr().err)


def test_the_state_of_a_server_belongs_to_its_plan(server, tmp_path):
    """A seed changed and signed anew between two starts would rewrite the result."""
    server.farewell("agent-0", 5)
    server.store.close()
    later = server.plan.change(2, "remove", "agent-1")  # rounds to come may change
    other = Federation(**server.plan.model_dump(exclude_none=True) | {"seed": 1})
    for plan, fine in ((later, True), (other, False), (server.plan, True)):
        kits.refresh(tmp_path, plan, server.kit.folder)
        words = contextlib.nullcontext() if fine else pytest.raises(InputError, match="comes from a plan that differs")
        with words:
            made = Server(kits.Kit.load(server.kit.folder), tmp_path / "state")
            made.mailroom.close()
            made.store.close()
