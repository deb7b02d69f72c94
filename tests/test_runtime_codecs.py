"""What a method compresses travels compressed: how many bytes, the same bits, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.algorithms.compressors import Cast, Quantize, RandomK, TopK
from pisco.federation.rolls import counted, read
from pisco.federation.runtime.codec import BadMessage, MessageLayout, Update, Where, decode, encode
from pisco.federation.runtime.peers import Stopped
from pisco.federation.runtime.replay import replay, scan
from pisco.federation.runtime.updates import Compressing, Incoming, Outgoing, compress
from pisco.federation.runtime.wire_pb2 import Piece

from federations import Processes, Running, plan_for

D, AGENTS = 2000, 3
TARGETS = np.random.default_rng(0).normal(size=(5, 1, D)).astype(np.float32)


def loss(params, batch, key):
    """Two leaves, so that messages have parts."""
    flat = jnp.concatenate([params["b"], params["w"].ravel()])
    return 0.5 * jnp.mean(jnp.sum((flat - batch) ** 2, axis=-1))


def problem_of(agents):
    start = {"w": np.zeros((D - 10) // 2 * 2, np.float32).reshape(2, -1), "b": np.zeros(10, np.float32)}
    return pisco.Problem(loss, start, TARGETS[[agents] if isinstance(agents, int) else agents])


def compressed_plan(name="pisco-compressed", compressor="top-k", rounds=10, server=0.3, **settings):
    algorithm = {"name": name, "local_lr": 0.1, "compressor": compressor}
    algorithm |= {"local_steps": 1} if name.startswith("pisco") else {}
    return plan_for(
        AGENTS, rounds=rounds, algorithm=algorithm, network={"graph": "path", "server_prob": server}, **settings
    )


def vectors(tree):
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree)], axis=1)


def measured(ran):
    """Bytes of all messages that were answered."""
    return sum(member.bytes_sent for member in ran.members.values())


slowly = functools.partial(pytest.param, marks=pytest.mark.slow)
METHODS = [
    ("pisco-compressed", "random-k", 0.3),
    slowly("beer", {"name": "quantize", "bits": 4}, 0.0),
    slowly("pisco-compressed", "top-k", 0.3),
    slowly("pisco-compressed", {"name": "quantize", "bits": 4}, 0.3),
    slowly("choco", {"name": "cast", "dtype": "float16"}, 0.0),
]


@pytest.mark.parametrize(("name", "compressor", "server"), METHODS)
def test_messages_are_as_large_as_they_are_counted(tmp_path, name, compressor, server):
    plan = compressed_plan(name, compressor, server=server)
    ran = Running(tmp_path, plan, problem_of).join()
    alone = pisco.run(plan.build_algorithm(), problem_of([0, 1, 2]), plan.network_of(plan.epochs[0]), rounds=10)
    np.testing.assert_allclose(vectors(ran.params()), vectors(alone.params), atol=1e-5)
    history = ran.results["server"].history
    for column in ("bytes_gossip", "bytes_server"):
        assert history[column][-1] == alone.history[column][-1]
    counted = history["bytes_gossip"][-1] + history["bytes_server"][-1]
    assert 0.8 * counted < measured(ran) <= 1.001 * counted


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_on_the_wire(tmp_path, dtype):
    """Any method with half the bytes; what is cut off follows later, so that it ends where it would have ended."""
    network, rule = {"graph": "path", "server_prob": 0.1}, {"name": "pisco", "local_lr": 0.1, "local_steps": 1}
    plan = plan_for(AGENTS, rounds=40, algorithm=rule, network=network, wire=dtype, eval_every=20)
    ran = Running(tmp_path, plan, problem_of).join()
    found, history = vectors(ran.params()), ran.results["server"].history
    np.testing.assert_allclose(found, np.tile(TARGETS[:3, 0].mean(axis=0), (3, 1)), atol=2e-3)
    np.testing.assert_array_equal(history["bytes_gossip"], 2 * D * history["messages_gossip"])
    assert measured(ran) <= 1.001 * (history["bytes_gossip"][-1] + history["bytes_server"][-1])
    alone = pisco.run(plan.build_algorithm(), problem_of([0, 1, 2]), plan.network_of(plan.epochs[0]), rounds=40)
    np.testing.assert_allclose(found, vectors(alone.params), atol=2e-3)  # a digit in 16 bits may fall otherwise


def test_the_wire_of_a_plan():
    plain = plan_for(3)
    assert "wire" not in plain._tables()  # plans from before keep their hash
    with pytest.raises(pisco.InputError, match="which compresses its messages itself"):
        compressed_plan(wire="float16")
    assert plan_for(3, wire="bfloat16").change(2, "remove", "agent-1").build_algorithm().rebase is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pisco-compressed", "beer"])
def test_kills_change_no_bit(tmp_path, name):
    """Who begins again holds no copies, and others hold none of it that it knows of: they are sent whole, once."""
    plan = compressed_plan(name, {"name": "quantize", "bits": 4}, rounds=60, server=0.2 if name != "beer" else 0.0)
    calm = Running(tmp_path / "calm", plan, problem_of).join()
    storm = Processes(tmp_path / "storm", plan, problem_of)
    try:
        storm.start()
        for victim, at in (("agent-1", 10), *([("server", 8)] if name != "beer" else []), ("agent-0", 35)):
            storm.wait_for_round(victim, at)
            storm.kill(victim)
            storm.start(victim)
        storm.join()
    finally:
        storm.stop()
    np.testing.assert_array_equal(vectors(storm.params()), vectors(calm.params()))


@pytest.mark.slow
def test_who_was_away_hears_the_whole_once_and_the_log_tells_the_same_run(tmp_path):
    plan = compressed_plan(rounds=40, server=0.2, presence="deadline", deadline=1.0, quorum=2, eval_every=10)
    ran = Running(tmp_path, plan, problem_of)
    ran.wait(lambda: ran.members["agent-0"].done >= 8)
    ran.stop("agent-1")
    ran.wait(lambda: "agent-1" in ran.errors and ran.members["agent-0"].done >= 12)
    assert isinstance(ran.errors.pop("agent-1"), Stopped)
    ran.start("agent-1")
    ran.join()
    assert ran.members["agent-2"].bytes_sent < 0.4 * 2 * 40 * 4 * D
    log = read(tmp_path / "state/server/rolls.jsonl", plan, (tmp_path / "authority/cert.pem").read_bytes())
    assert {len(roll.present) for roll in counted(log)} == {2, 3}
    states = replay(plan, {name: problem_of(i) for i, name in enumerate(plan.names)}, log)
    for i, name in enumerate(plan.names):
        np.testing.assert_array_equal(vectors(states[name].params)[0], vectors(ran.params())[i])
    again = scan(plan, {name: problem_of(i) for i, name in enumerate(plan.names)}, log)
    np.testing.assert_allclose(vectors(again.params), vectors(ran.params()), atol=1e-4)


# The messages themselves

CODEC = TopK(count=3)
WHERE = Where(b"f" * 32, 7, 1)
OLD = [np.arange(8, dtype=np.float32).reshape(1, 2, 4), np.ones((1, 5), np.float32)]
LAYOUT = MessageLayout.of(OLD)


def an_update(codec=CODEC):
    """A sender's copy, a change of it, and what a receiver is told who holds the copy."""
    outgoing, tree = Outgoing(), [np.full((1, 2, 4), 0.25, np.float32), np.arange(1, 6, dtype=np.float32)[None]]
    assert outgoing.updates("x", OLD) == {}  # nobody knows how it came about
    key = np.array([1, 2], np.uint32)
    difference, (*change, _) = compress(Compressing(0, codec, jax.tree.structure([0, 0])), [*tree, key])
    outgoing.add(difference)
    new = [old + each for old, each in zip(OLD, change, strict=True)]
    incoming = Incoming([codec])
    incoming.keep("agent-1", "x", OLD)
    held = incoming.held("agent-1", "x", LAYOUT)
    return outgoing.updates("x", new)[held.mark], held, new


def told(update, held, **changes):
    """What a receiver makes of an update, with changes of its header."""
    chunks = list(encode(WHERE, "agent-1", LAYOUT, update))
    for name, value in changes.items():
        if name == "data":
            chunks[0].data = value
        elif name == "pieces":
            del chunks[0].header.pieces[:]
            chunks[0].header.pieces.extend(value)
        else:
            setattr(chunks[0].header, name, value)
    return decode(chunks, WHERE, "agent-1", layout=LAYOUT, limit=LAYOUT.size, held=held)


@pytest.mark.parametrize("codec", [CODEC, RandomK(count=3), Quantize(4), Cast()], ids=repr)
def test_an_update_makes_the_new_copy_to_the_bit(codec):
    update, held, new = an_update(codec)
    assert len(update.data) == codec.message_bytes(LAYOUT.shapes) < LAYOUT.size
    found = told(update, held)
    assert found is not None and [a.tobytes() for a in found[1]] == [a.tobytes() for a in new]


def test_a_copy_that_nobody_knows_goes_whole():
    _, held, new = an_update()
    assert Outgoing().updates("x", new) == {}  # the sender has begun again
    assert Incoming([CODEC]).held("agent-1", "x", LAYOUT).mark != held.mark  # the receiver has
    assert Incoming([CODEC]).held("agent-1", "x", None).mark == b"0"
    zeros = [np.zeros_like(each) for each in new]
    unchanged = Outgoing().updates("x", zeros)[b"0"]
    assert not unchanged.data and unchanged.layout == str(LAYOUT)


SPOILT = {
    "ends after 9 of 14 bytes": lambda u: {"data": u.data[:9]},
    "announces 400 bytes": lambda u: {"size": 400, "data": bytes(400)},
    "does not end after the 14 bytes": lambda u: {"data": u.data + b"more"},
    "changes do not fit its arrays": lambda u: {"pieces": [Piece(codec=1, leaves=3, key=bytes(8))]},
    "of 1 arrays, expected 2": lambda u: {"pieces": [Piece(codec=1, leaves=1, key=bytes(8))]},
    "do not fit its arrays": lambda u: {"pieces": [Piece(codec=9, leaves=2, key=bytes(8))]},
    "its key has 3 bytes": lambda u: {"pieces": [Piece(codec=1, leaves=2, key=b"abc")]},
    "its places are not 3 different ones": lambda u: {"data": b"\xff\xff" + u.data[2:]},
    "NaN or infinity": lambda u: {"data": u.data[:2] + np.full(3, np.inf, np.float32).tobytes()},
    "layout is empty": lambda u: {"pieces": []},
}


@pytest.mark.parametrize("sentence", SPOILT)
def test_updates_that_cannot_be_are_refused(sentence):
    update, held, _ = an_update()
    with pytest.raises(BadMessage, match=sentence):
        told(update, held, **SPOILT[sentence](update))


def test_an_update_that_was_not_asked_for_is_refused():
    update, _, _ = an_update()
    with pytest.raises(BadMessage, match="holds only changes, but was asked for the whole"):
        told(update, None)
    small = MessageLayout((("float32", (1, 2)),))
    update = Update([Piece(codec=1, leaves=1, key=bytes(8))], b"", str(small))
    nothing = Incoming([CODEC]).held("agent-1", "x", None)
    with pytest.raises(BadMessage, match="cannot be read: count is 3, but the vector has only 2 entries"):
        decode(encode(WHERE, "agent-1", small, update), WHERE, "agent-1", limit=100, held=nothing)
