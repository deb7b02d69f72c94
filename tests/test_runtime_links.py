"""Bad links, large models, long runs: the same result, and bounded memory."""

import os
import subprocess
import sys

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings

import pisco
from pisco.federation.runtime.chunks import DataChunk
from pisco.federation.runtime.codec import CHUNK, BadMessage, MessageLayout, Where, decode, encode
from pisco.federation.runtime.wire_pb2 import Chunk, Header

from federations import Running, free_ports, plan_for, quadratic_of
from proxy import Proxy

# Bad links


class Linked(Running):
    """Every member listens at a port of its own and is reached through a proxy."""

    def __init__(self, home, plan, problem_of, ports, **options):
        self.ports = dict(zip(plan.names, ports, strict=True))
        super().__init__(home, plan, problem_of, **options)

    def build(self, name):
        if name == "server":
            return super().build(name)
        self.options = {"listen": f"127.0.0.1:{self.ports[name]}"}
        return super().build(name)


def through_bad_links(tmp_path, rounds, cut=0.0, **badness):
    """Final parameters of three agents, calm and with every link between agents through a bad proxy.

    The links of one agent are cut for some seconds in the middle of the run.
    """
    settings = {"rounds": rounds, "eval_every": rounds}
    calm = Running(tmp_path / "calm", plan_for(3, **settings), quadratic_of).join()
    ports = free_ports(3)
    proxies = [Proxy(f"127.0.0.1:{port}", seed=i, **badness) for i, port in enumerate(ports)]
    try:
        plan = plan_for(3, **settings)
        roster = [m.model_copy(update={"address": p.address}) for m, p in zip(plan.roster, proxies, strict=True)]
        plan = type(plan).model_validate(plan._tables() | {"roster": [m.model_dump() for m in roster]})
        ran = Linked(tmp_path / "bad", plan, quadratic_of, ports)
        if cut:
            ran.wait(lambda: ran.members["agent-1"].done >= rounds // 4)
            proxies[1].cut(cut)
            assert ran.members["agent-1"].done < rounds, "the cut came too late"
        ran.join()
    finally:
        for each in proxies:
            each.__exit__()
    np.testing.assert_array_equal(ran.params(), calm.params())
    return proxies


@pytest.mark.slow
def test_links_that_drop_delay_and_break(tmp_path):
    proxies = through_bad_links(tmp_path, 30, cut=1.0, delay=0.005, drop=0.02)
    assert sum(each.dropped for each in proxies) > 0


@pytest.mark.slow
def test_links_that_delay_by_200_ms(tmp_path):
    through_bad_links(tmp_path, 20, delay=0.2)


@pytest.mark.slow
def test_links_that_often_drop(tmp_path):
    proxies = through_bad_links(tmp_path, 200, drop=0.05)
    assert sum(each.dropped for each in proxies) > 20


@pytest.mark.slow
def test_a_link_that_is_cut_for_20_seconds(tmp_path):
    through_bad_links(tmp_path, 400, cut=20.0, delay=0.001)


# The decoder


WHERE = Where(b"f" * 32, 7, 1)
LAYOUT = MessageLayout((("float32", (1, 5)), ("float64", (1,))))
ARRAYS = [np.arange(5, dtype=np.float32)[None], np.array([2.5])]


def chunks():
    return list(encode(WHERE, "agent-1", LAYOUT, LAYOUT.join(ARRAYS)))


def read(given, layout: MessageLayout | None = LAYOUT):
    return decode(given, WHERE, "agent-1", layout=layout, limit=LAYOUT.size)


def test_a_message_comes_back_as_it_was():
    layout, arrays = read(chunks())
    assert layout == LAYOUT
    for found, sent in zip(arrays, ARRAYS, strict=True):
        np.testing.assert_array_equal(found, sent)
    assert read([]) is None


def test_who_told_what_it_expects_gets_it_without_a_header():
    (one,) = encode(WHERE, "agent-1", LAYOUT, LAYOUT.join(ARRAYS), known=True)
    sent = Chunk.FromString(one.SerializeToString())
    assert not sent.HasField("header") and sent.ByteSize() == LAYOUT.size + 2
    found = read([one])
    assert found is not None and found[0] == LAYOUT
    np.testing.assert_array_equal(found[1][0], ARRAYS[0])
    for bad in (Chunk(data=sent.data[:-1]), Chunk(data=sent.data + b"x")):
        with pytest.raises(BadMessage, match=f"{LAYOUT.size} bytes"):
            read([bad])
    with pytest.raises(BadMessage, match="another federation"):
        read([one], None)  # who does not know it is told


@pytest.mark.parametrize("size", [*range(5), *range(125, 135), *range(16380, 16390), CHUNK - 1, CHUNK])
def test_large_chunks_are_those_of_protobuf_without_its_copies(size):
    data = np.random.default_rng(size).bytes(size)
    wire = DataChunk(memoryview(data)).SerializeToString()
    assert wire == Chunk(data=data).SerializeToString()
    found = DataChunk.FromString(wire)
    assert found.data == data and not found.header.ByteSize()
    if size == CHUNK:
        assert isinstance(found.data, memoryview) and found.data.obj is wire


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=40), st.binary(max_size=140).map(lambda rest: b"\x12" + rest)), st.booleans())
def test_whatever_comes_is_read_as_protobuf_reads_it(given, lengthen):
    wire = given[:1] + bytes([len(given[1:])]) + given[1:] if lengthen and len(given) < 120 else given

    def of(kind):
        try:
            found = kind.FromString(wire)
        except DecodeError:
            return None
        return found.header, bytes(found.data)

    assert of(DataChunk) == of(Chunk)


headers = st.builds(
    Header,
    federation=st.sampled_from([WHERE.federation, b"", b"g" * 32]),
    round=st.sampled_from([7, 0, 2**63]),
    phase=st.sampled_from([1, 0, 2**31]),
    sender=st.sampled_from(["agent-1", "", "agent-2"]),
    layout=st.one_of(st.just(str(LAYOUT)), st.text(max_size=60), st.just("float32[999999999999,999999999999]")),
    size=st.sampled_from([LAYOUT.size, 0, 2**62]),
)
pieces = st.builds(Chunk, header=st.one_of(st.none(), headers), data=st.binary(max_size=64))


@settings(max_examples=200)
@given(st.lists(pieces, max_size=4), st.booleans())
def test_nonsense_is_refused_and_never_taken(given, known):
    """Whatever comes: a refusal, or arrays of exactly the layout that was announced, all finite."""
    try:
        found = read(given, LAYOUT if known else None)
    except BadMessage:
        return
    assert (found is None) == (not given)
    if found is not None:
        layout, arrays = found
        assert layout.size <= LAYOUT.size and MessageLayout.of(arrays) == layout
        assert all(np.isfinite(array).all() for array in arrays)


@settings(max_examples=200)
@given(st.binary(max_size=80), st.integers(0, 200), st.integers(0, 255))
def test_bytes_that_were_tampered_with_are_refused_or_harmless(extra, place, value):
    wire = bytearray(chunks()[0].SerializeToString())
    wire[place % len(wire)] = value
    try:
        found = read([Chunk.FromString(bytes(wire) + extra)])
    except (BadMessage, DecodeError):
        return
    assert found is not None and MessageLayout.of(found[1]) == LAYOUT


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused(bad):
    arrays = [ARRAYS[0], np.array([bad])]
    with pytest.raises(BadMessage, match="NaN or infinity"):
        read(encode(WHERE, "agent-1", LAYOUT, LAYOUT.join(arrays)))


def test_an_endless_stream_is_cut_off():
    def endless():
        yield chunks()[0]
        while True:
            yield Chunk(data=b"x" * 1000)

    with pytest.raises(BadMessage, match="does not end"):
        read(endless())


# Large models and long runs


def big(dim):
    """A model of so many parameters whose gradient costs next to nothing."""
    data = [{"b": np.zeros((1, 1), np.float32)}]
    return pisco.Problem(lambda x, batch, key: 0.5 * jnp.vdot(x, x) + batch["b"].sum(), jnp.ones(dim), data)


@pytest.mark.slow
def test_two_hundred_megabytes_of_parameters(tmp_path):
    algorithm = {"name": "dsgd", "local_lr": 0.1}
    network = {"graph": "path", "server": "every", "period": 2}
    plan = plan_for(2, rounds=2, algorithm=algorithm, network=network, eval_every=2)
    ran = Running(tmp_path, plan, lambda i: big(50_000_000)).join()
    np.testing.assert_allclose(ran.params()[:, ::1_000_000], 0.81, rtol=1e-6)
    assert ran.results["server"].history["bytes_gossip"][-1] == 2 * 200_000_000


LONG = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import federations
from federations import *
plan, home = plan_for(2, rounds=5000, eval_every=1000, network={"graph": "path", "server_prob": 0.2}), Path(sys.argv[2])
def rss(): return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
seen = []
def note(done):
    if done in (1500, 5000): seen.append(rss())
ran = Running(home, plan, quadratic_of, progress=note).join()
print(sorted(seen))
"""


@pytest.mark.slow
def test_memory_is_flat_over_5000_rounds(tmp_path):
    command = [sys.executable, "-c", LONG, os.path.dirname(__file__), str(tmp_path)]  # noqa: PTH120
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    early, *_, late = eval(done.stdout.strip().splitlines()[-1])
    assert late - early < 16 * 2**20, f"{early} bytes grew to {late}"
    folders = [tmp_path / "state" / name for name in ("agent-0", "server")]
    assert all(sum(file.stat().st_size for file in folder.iterdir()) < 2**20 for folder in folders)


def test_a_clock_is_made_of_what_agents_tell():
    """A link is as quick as its quicker end says: the other waits for work. Links nobody used are like the others."""
    from pisco.federation.runtime.timing import clock_of

    plan = plan_for(3, network={"graph": "path", "server_prob": 0.5})
    told = {
        "agent-0": {"compute": 5.0, "latency agent-1": 0.1, "latency server": 0.3, "bandwidth agent-1": 1e6},
        "agent-1": {"compute": 0.5, "latency agent-0": 4.9, "latency agent-2": 0.2, "bandwidth agent-0": 2e6},
        "agent-2": {"compute": 0.6, "latency agent-1": 0.3},
    }
    clock = clock_of(plan, told)
    assert clock.asked and clock.compute.median.tolist() == [5.0, 0.5, 0.6]
    links = clock.latency_gossip.median
    assert links[0, 1] == links[1, 0] == 0.1 and links[1, 2] == 0.2 and 0.1 <= links[0, 2] <= 0.2
    assert clock.bandwidth_gossip.median[0, 1] == 2e6 and clock.latency_server.median.tolist() == [0.3, 0.0, 0.0]
    assert not clock_of(plan, {name: times | {"pushed": 1.0} for name, times in told.items()}).asked
    with pytest.raises(pisco.InputError, match="agent-2 reported no times yet"):
        clock_of(plan, {name: times for name, times in told.items() if name != "agent-2"})
