"""The server learns sums: exact ones, of at least three, under masks that nobody else knows and that are used once."""

import itertools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from pisco.engines.job import seed_key, streams
from pisco.errors import InputError
from pisco.federation import kits
from pisco.federation.audit import read as read_audit
from pisco.federation.authority import Authority, read_certificate
from pisco.federation.kits import Kit
from pisco.federation.rolls import BadRoll, Chain, Roll, counted, plan_mark, read

from federations import Running, free_ports, make_kits, plan_for, quadratic_of
from worlds import Quadratics, coins

grpc = pytest.importorskip("grpc")
import pisco  # noqa: E402
from pisco.federation.runtime import fixed, keyring, masks, sums  # noqa: E402
from pisco.federation.runtime.agent import Agent  # noqa: E402
from pisco.federation.runtime.codec import BadMessage, MessageLayout, Update, Where, decode, encode  # noqa: E402
from pisco.federation.runtime.peers import Dropped, Stopped  # noqa: E402
from pisco.federation.runtime.replay import replay, scan, together, weighed, why_not_scan  # noqa: E402
from pisco.federation.runtime.roll_call import RollCall, Word  # noqa: E402
from pisco.federation.runtime.rolled_agent import Held, RolledAgent  # noqa: E402
from pisco.federation.runtime.routes import Routes, ServerHop, average  # noqa: E402
from pisco.federation.runtime.store import kept_layout  # noqa: E402
from pisco.federation.runtime.traffic import costs  # noqa: E402
from pisco.federation.runtime.used import PLACE, UsedMasks  # noqa: E402
from pisco.federation.runtime.wire_pb2 import Piece  # noqa: E402
from pisco.networks.rounds import draw_round  # noqa: E402

WORLD = Quadratics(agents=5)
NAMES = ["a", "b", "c", "d"]
ALL = ServerHop(None, (0, 1, 2, 3), (0, 1, 2, 3))
WHERE = Where(b"x" * 32, 3, 1)


def vectors(size=20_000, seed=0, dtype="float32", count=4):
    rng = np.random.default_rng(seed)
    return {place: [rng.normal(size=shape).astype(dtype) for shape in ((1, size), 3)] for place in range(count)}


class Members:
    """Keys of every pair, as real members have them, and what each would send."""

    def __init__(self, names=NAMES):
        own = {name: X25519PrivateKey.generate() for name in names}
        public = {name: key.public_key().public_bytes_raw() for name, key in own.items()}
        self.names = names
        self.pairs = {name: {} for name in names}
        for one, other in itertools.permutations(names, 2):
            self.pairs[one][other] = masks.pair_key(own[one], public[other], b"f" * 32, (one, other))

    def words(self, arrays, where=WHERE, reporters=None):
        """Every member's masked words."""
        reporters = reporters or self.names
        sent = {}
        for place, name in enumerate(self.names):
            if name in reporters:
                pairs = {other: self.pairs[name][other] for other in reporters if other != name}
                layout = MessageLayout.of(arrays[place])
                own = masks.PairMasks(name, pairs, masks.exchange_context(where, reporters, layout))
                sent[name] = fixed.encode(arrays[place], len(reporters), own.add_to)
        return sent


def whole(words):
    """Words as integers: of 8 bytes, or of 6."""
    wide, high, low = words
    assert not (wide.size and low.size)
    return wide if wide.size else high.astype(np.uint64) << np.uint64(16) | low


def modulo(integers, words):
    """Integers as words have them."""
    return integers if words[0].size else integers & np.uint64(2**48 - 1)


def signed(integers, bits):
    return (integers.astype(np.uint64) << np.uint64(64 - bits)).view(np.int64) >> (64 - bits)


BITS = {"float64": (64, 40), "float32": (48, 28), "float16": (48, 28), "bfloat16": (48, 28)}
"""Of a word, and of the fraction in it."""


# ------------------------------------------------------------------------------------------- numbers


def test_numbers_of_32_bits_and_fewer_are_the_nearest_integers():
    rng = np.random.default_rng(1)
    for dtype in (np.float64, np.float32, np.float16, jnp.bfloat16):
        given = (rng.normal(size=70_000) * 10.0 ** rng.integers(-14, 4, 70_000)).astype(dtype)
        bits, fraction = BITS[str(np.dtype(dtype))]
        given[:9] = np.arange(-4, 5) * 2.0 ** -(fraction + 1)  # halves are rounded to what is even
        expected = np.rint(given.astype(np.float64) * 2.0**fraction).astype(np.int64)
        words = fixed.encode([given.reshape(7, -1)], 10)
        assert sum(plane.nbytes for plane in words) == bits // 8 * given.size
        np.testing.assert_array_equal(signed(whole(words), bits), expected)


def test_vectors_of_two_precisions_travel_in_words_of_both_sizes():
    """More members than carries fit into a byte, and a length that no step divides."""
    rng, count = np.random.default_rng(2), 300
    shapes = [((1, 33), "float32"), ((2, 5), "float64"), ((), "bfloat16"), ((40_001,), "float32"), ((1,), "float64")]
    arrays = {
        p: [rng.normal(size=s).astype(jnp.bfloat16 if t == "bfloat16" else t) for s, t in shapes] for p in range(3)
    }
    layout = MessageLayout.of(arrays[0])
    assert MessageLayout.parse(str(layout.masked)) == layout.masked and layout.masked.plain == layout
    assert layout.masked.size == 8 * 11 + 6 * (33 + 1 + 40_001)
    words = [fixed.encode(arrays[place % 3], count) for place in range(count)]
    found = fixed.total(words, layout, count)
    for at, mean in enumerate(found):
        fraction = BITS[str(mean.dtype)][1]
        integers = [np.rint(np.asarray(arrays[p][at], np.float64) * 2.0**fraction) for p in range(3)]
        expected = sum(integers) * (count // 3) / (count * 2.0**fraction)
        assert mean.shape == shapes[at][0] and mean.dtype == arrays[0][at].dtype
        np.testing.assert_array_equal(mean, expected.astype(mean.dtype))
    unknown = ["masked_float32[3]", "masked48_float32[3]"]  # of earlier versions
    unknown += ["masked48_2_float64[3]", "masked48_2_float32[3] float32[3]", "masked64_2_float32[1]"]
    for text in unknown:
        with pytest.raises(BadMessage, match="is unknown here; give everybody one version of pisco"):
            MessageLayout.parse(text)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_under_masks_are_exact(dtype):
    arrays, members = vectors(dtype=dtype), Members()
    layout, sent = MessageLayout.of(arrays[0]), list(members.words(arrays).values())
    found = fixed.total(sent, layout, 4)
    for one, other, plain in zip(found, fixed.mean(arrays, ALL), average(arrays, ALL), strict=True):
        assert one.dtype == dtype and one.shape == plain.shape
        np.testing.assert_array_equal(one, other)  # masks change nothing, to the bit
        exact = np.mean([a.astype(np.float64) for a in [arrays[p][len(plain.shape) == 1] for p in range(4)]], axis=0)
        off = 2.0 ** -(BITS[dtype][1] + 1)
        np.testing.assert_allclose(one, exact, rtol=np.finfo(dtype).eps, atol=off)
        np.testing.assert_allclose(one, plain, rtol=0, atol=2.0**-20)
    turned = fixed.total(sent[::-1], layout, 4)
    np.testing.assert_array_equal(turned[0], found[0])  # in any order


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_a_simulation_adds_up_as_the_federation_does_to_the_bit(dtype):
    """With everybody, with those present, with a sample: in both precisions, and refused where it is refused there."""
    rng = np.random.default_rng(0)
    largest = {"float32": 3, "float64": 4}[dtype]
    sent = {"w": rng.normal(size=(5, 300)) * 10.0 ** rng.integers(-9, largest, 300), "b": rng.normal(size=5)}
    sent["w"] = sent["w"].astype(dtype)
    sent["b"] = sent["b"].astype(dtype)
    there = np.array([True, True, False, True, True])
    cases = [({}, None), ({"presence": there}, there), ({"sampling": pisco.sample(3, agents=5)}, None)]
    for options, present in cases:
        with jax.enable_x64(dtype == "float64"):
            network = pisco.Network.ring(5, server=pisco.always(), server_sum="masked", **options)
            keys, gossip = streams(seed_key(0)), network.gossip

            @jax.jit
            def mix(tree, gossip=gossip, present=present, links=keys.links):
                return draw_round(gossip, True, links, 3, 5, present=present)[0](tree)

            found = jax.device_get(mix(sent))
            if not options:  # one number too large for the sum breaks its own array alone
                large = {"w": sent["w"], "b": np.where(np.arange(5), sent["b"], fixed.largest(5, dtype) * 1.001)}
                broken = jax.device_get(mix(large | {"b": large["b"].astype(dtype)}))
                assert np.isnan(broken["b"]).all() and np.isfinite(broken["w"]).all()
            (hop,) = Routes(network, keys).hops(3, None, present)
        expected = fixed.mean({p: [sent["b"][p : p + 1], sent["w"][p : p + 1]] for p in range(5)}, hop)
        assert hop.reporters != (0, 1, 2, 3, 4) or not options
        for name, mean in zip(("b", "w"), expected, strict=True):
            assert found[name].dtype == dtype
            np.testing.assert_array_equal(found[name][list(hop.receivers)], np.repeat(mean, len(hop.receivers), axis=0))


def test_networks_whose_sums_would_tell_a_vector_are_refused():
    for options, why in [
        ({"server": pisco.per_agent([0.5] * 5)}, "for all agents or for none"),
        ({"sampling": pisco.sample(2, agents=5)}, "2 agents report"),
        ({"guard": pisco.clip()}, "guard_server = false"),
        ({"server_sum": "hidden"}, "server_sum"),
    ]:
        with pytest.raises(InputError, match=why):
            pisco.Network.ring(5, **{"server_sum": "masked"} | options)
    assert "masked" in repr(pisco.Network.ring(5, server_sum="masked", guard=pisco.clip(guard_server=False)))
    with pytest.raises(InputError, match="at the top of the plan"):
        plan_for(5, network={"graph": "ring", "server_sum": "masked"})


def test_reports_with_weights_add_up_to_their_mean():
    arrays = vectors(50, dtype="float64")
    hop = ServerHop({0: 0.25, 2: 0.25, 3: 0.5}, (0, 2, 3), (0, 1, 2, 3))
    for found, expected in zip(fixed.mean(arrays, hop), average(arrays, hop), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=3 * 2.0**-41)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 2.0**14), ("float64", 2.0**18)])
def test_numbers_that_are_too_large_are_refused(dtype, most):
    assert fixed.largest(4, dtype) == most
    for sign in (1, -1):
        fine = [np.full(3, sign * most, dtype)]
        np.testing.assert_array_equal(fixed.total([fixed.encode(fine, 4)] * 4, MessageLayout.of(fine), 4), fine)
    why = rf"a number of size {most + 1:g} is too large: with 4 members .* {most:g} in {dtype}"
    with pytest.raises(fixed.OutOfRange, match=why):
        fixed.encode([np.array([0.0, -most - 1], dtype)], 4)
    for broken in (np.nan, np.inf):
        with pytest.raises(fixed.OutOfRange):
            fixed.encode([np.array([broken], dtype)], 4)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_masks_that_do_not_cancel_are_noticed(dtype):
    arrays, members = vectors(dtype=dtype), Members()
    words = members.words(arrays)
    words["b"] = members.words(arrays, WHERE._replace(round=4))["b"]  # of another round
    with pytest.raises(fixed.OutOfRange, match="did not cancel"):
        fixed.total(list(words.values()), MessageLayout.of(arrays[0]), 4)
    # One number alone goes unnoticed one time in eight.
    short, unseen = {place: [np.ones(1, dtype)] for place in range(4)}, 0
    layout = MessageLayout.of(short[0])
    for round_ in range(400):
        words = members.words(short, WHERE._replace(round=round_))
        words["b"] = members.words(short, WHERE._replace(round=round_ + 1000))["b"]
        try:
            fixed.total(list(words.values()), layout, 4)
            unseen += 1
        except fixed.OutOfRange:
            pass
    assert abs(unseen - 50) < 6 * np.sqrt(400 * 7 / 64)


# ------------------------------------------------------------------------------------------- what the server sees


def chi_square(words):
    """How far the bytes are from all alike, in standard deviations."""
    counts = np.bincount(np.concatenate([plane.view(np.uint8) for plane in words]), minlength=256)
    expected = counts.sum() / 256
    return (((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(2 * 255)


def correlation(one, other):
    """In standard deviations."""
    return np.corrcoef(one.astype(np.float64), other.astype(np.float64))[0, 1] * np.sqrt(one.size)


def split(integers, like):
    """Integers as words of 8 bytes, or of 6."""
    if like[0].size:
        return [integers, *like[1:]]
    return [like[0], (integers >> np.uint64(16)).astype(np.uint32), integers.astype(np.uint16)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_one_member_sends_looks_like_chance(dtype):
    arrays, members = vectors(100_000, dtype=dtype), Members()
    sent = members.words(arrays)
    plain = {name: fixed.encode(arrays[i], 4) for i, name in enumerate(NAMES)}
    assert chi_square(plain["a"]) > 1000  # the test can tell
    later = members.words(arrays, WHERE._replace(round=4))
    size = BITS[dtype][0]
    for name, words in sent.items():
        assert sum(plane.nbytes for plane in words) == size // 8 * 100_003
        assert abs(chi_square(words)) < 6
        integers, own, after = whole(words), signed(whole(plain[name]), size), whole(later[name])
        for bit in (0, 15, 16, 31, size - 1):
            ones = (integers >> np.uint64(bit)) & np.uint64(1)
            assert abs(ones.mean() - 0.5) * 2 * np.sqrt(integers.size) < 6
        for plane in (*(plane for plane in words if plane.size), integers):
            assert abs(correlation(plane, own)) < 6
            assert abs(correlation(plane[1:], plane[:-1])) < 6
        assert abs(correlation(integers, after)) < 6
        if not words[0].size:
            assert abs(correlation(words[1], words[2])) < 6  # nor do the parts of a word tell of each other
        # The same vector twice: the difference tells nothing either.
        assert abs(chi_square(split(modulo(integers - after, words), words))) < 6
    for one, other in itertools.combinations(NAMES, 2):
        mine, others = whole(sent[one]), whole(sent[other])
        assert abs(correlation(mine, others)) < 6
        assert abs(chi_square(split(modulo(mine + others, sent[one]), sent[one]))) < 6  # nor do two of four together


@pytest.mark.parametrize(
    "change",
    [
        {"where": WHERE._replace(federation=b"y" * 32)},  # another plan, or another attempt: its roll has another hash
        {"where": WHERE._replace(round=4)},
        {"where": WHERE._replace(phase=0)},
        {"reporters": ["a", "b", "c"]},
    ],
    ids=["roll", "round", "phase", "reporters"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_sum_has_masks_of_its_own(change, dtype):
    zeros, members = {place: [np.zeros(4000, dtype)] for place in range(4)}, Members()
    words = members.words(zeros)["a"]
    mask, other = whole(words), whole(members.words(zeros, **change)["a"])
    assert abs(chi_square(split(modulo(mask - other, words), words))) < 6 and not (mask == other).any()


def test_words_of_two_sizes_have_masks_of_their_own():
    """A vector that is sent as one and then as the other, by another version, say, is not under one mask twice."""
    layouts = MessageLayout((("float32", (9,)),)), MessageLayout((("float64", (9,)),))
    one, other = (masks.exchange_context(WHERE, NAMES, layout) for layout in layouts)
    assert one != other and one != masks.exchange_context(WHERE, NAMES, MessageLayout((("float32", (8,)),)))


def test_both_ways_to_the_stream_are_one():
    """Members take the way that is quicker on their machine, and masks cancel all the same."""
    streams = [Cipher(algorithms.AES(bytes(range(16))), mode).encryptor() for mode in masks.MODES]
    one, other = (stream.update(bytes(1 << 20)) + stream.update(bytes(77)) for stream in streams)
    assert one == other and masks._mode() in masks.MODES


class Pad:
    """A mask drawn by hand, in place of the cipher's stream."""

    def __init__(self, words):
        self.data, self.at = words.tobytes(), 0

    def update_into(self, zeros, room):
        room[: len(zeros)] = self.data[self.at : self.at + len(zeros)]
        self.at += len(zeros)


def sent_under(monkeypatch, names, arrays, pads):
    """What everybody sends under masks drawn by hand, as integers."""
    pairs = {one: {other: frozenset((one, other)) for other in names if other != one} for one in names}
    monkeypatch.setattr(masks, "_stream", lambda key, context: Pad(pads[key]))
    sent = Members.words(SimpleNamespace(names=names, pairs=pairs), arrays)
    return {name: whole(words) for name, words in sent.items()}


def view(monkeypatch, arrays, pads):
    """All that the server and member d hold: what everybody sent, and d's own masks and vector."""
    return [
        *sent_under(monkeypatch, NAMES, arrays, pads).values(),
        *[pads[pair] for pair in pads if "d" in pair],
        whole(fixed.encode(arrays[3], 4)),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_server_and_one_member_learn_the_sum_of_the_others_and_nothing_else(monkeypatch, dtype):
    """For any two sets of honest vectors with one sum, as many masks lead to the very same view: it cannot tell them.

    Masks drawn evenly at random hide perfectly. That the cipher's stream cannot be told from them is AES's promise.
    """
    rng, (bits, fraction) = np.random.default_rng(5), BITS[dtype]

    def drawn():  # multiples of 2^-12, so that nothing is rounded
        return (np.rint(rng.normal(size=300) * 2**12) / 2**12).astype(dtype)

    first = {place: [drawn()] for place in range(4)}
    other, moved = dict(first), [drawn() for _ in range(2)]
    for place, by in zip((0, 1, 2), (moved[0], moved[1], -moved[0] - moved[1]), strict=True):
        other[place] = [first[place][0] + by]
        assert (signed(whole(fixed.encode(other[place], 4)), bits) * 2.0**-fraction == other[place][0]).all()
    pairs = [frozenset(pair) for pair in itertools.combinations(NAMES, 2)]
    pads = {pair: rng.integers(0, 2**64, 300, dtype=np.uint64) for pair in pairs}
    # The masks of the honest, moved by what their vectors differ; where those are drawn evenly, so are these.
    shift = {p: whole(fixed.encode(first[p], 4)) - whole(fixed.encode(other[p], 4)) for p in range(3)}
    again = dict(pads)
    again[frozenset("ac")] = pads[frozenset("ac")] + shift[0]
    again[frozenset("bc")] = pads[frozenset("bc")] + shift[1]
    assert (shift[0] != 0).mean() > 0.99 and (shift[1] != 0).mean() > 0.99
    for one, same in zip(view(monkeypatch, first, pads), view(monkeypatch, other, again), strict=True):
        np.testing.assert_array_equal(one, same)
    # What is left once d's part is taken away is the sum of the three, and depends on nothing else.
    words = fixed.encode(first[3], 4)
    honest = np.sum(view(monkeypatch, first, pads)[:4], axis=0, dtype=np.uint64) - whole(words)
    expected = sum(whole(fixed.encode(first[p], 4)) for p in range(3))
    np.testing.assert_array_equal(modulo(honest, words), modulo(expected, words))
    # Of a roll of two, that would be a vector.
    assert sums.FEWEST == 3


EIGHT = list("abcdefgh")


def tree(names, near):
    """The names that hang together with the first by masks, each after the one that it hangs on."""
    found = {names[0]: None}
    for name in (queue := [names[0]]):
        for other in sorted(near[name] & set(names) - set(found)):
            found[other] = name
            queue.append(other)
    return found


@pytest.mark.parametrize("helpers", ["adh", "bcdefg"])  # up to all but two
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_server_and_several_of_eight_learn_the_sum_of_the_others_and_nothing_else(monkeypatch, helpers, dtype):
    """As above: whatever the honest moved among them, other masks between them lead to the very same messages."""
    rng, honest = np.random.default_rng(6), [name for name in EIGHT if name not in helpers]
    first = {place: [(np.rint(rng.normal(size=300) * 2**12) / 2**12).astype(dtype)] for place in range(8)}
    other, rest = dict(first), 0
    for name in honest[1:]:
        by = (np.rint(rng.normal(size=300) * 2**12) / 2**12).astype(dtype)
        other[EIGHT.index(name)], rest = [first[EIGHT.index(name)][0] + by], rest + by
    other[EIGHT.index(honest[0])] = [first[EIGHT.index(honest[0])][0] - rest]
    near = {name: set(EIGHT) - {name} for name in EIGHT}
    pads = {frozenset((one, two)): rng.integers(0, 2**64, 300, dtype=np.uint64) for one in EIGHT for two in near[one]}
    integers = [{name: whole(fixed.encode(arrays[p], 8)) for p, name in enumerate(EIGHT)} for arrays in (first, other)]
    shift, again = {name: integers[0][name] - integers[1][name] for name in honest}, dict(pads)
    for name, parent in reversed(tree(honest, near).items()):
        if parent is not None:  # what its masks must make up for goes by the mask with the one that it hangs on
            pair = frozenset((name, parent))
            again[pair] = pads[pair] + shift[name] if name < parent else pads[pair] - shift[name]
            shift[parent] = shift[parent] + shift[name]
    changed = [pair for pair in pads if (pads[pair] != again[pair]).any()]
    assert len(changed) == len(honest) - 1 and not any(set(helpers) & pair for pair in changed)
    one, two = (sent_under(monkeypatch, EIGHT, *each) for each in ((first, pads), (other, again)))
    for name in EIGHT:
        np.testing.assert_array_equal(one[name], two[name])
    assert all((integers[0][name] != integers[1][name]).mean() > 0.99 for name in honest)


# ------------------------------------------------------------------------------------------- keys


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    home = tmp_path_factory.mktemp("keys")
    plan = plan_for(4, server_sum="masked")
    return SimpleNamespace(home=home, plan=plan, kits=make_kits(home, plan))


def ring(world, folder, name="agent-0", board=None):
    """An agent's keyring that hears from the server what `board` holds."""
    folder.mkdir(exist_ok=True)
    peer = SimpleNamespace(keys=lambda own, timeout: keyring.MaskKeys(keys=board or []))
    agent = SimpleNamespace(
        name=name,
        kit=world.kits[name],
        plan=world.plan,
        done=0,
        store=SimpleNamespace(folder=folder, durable=False),
        peer=lambda *_: peer,
        mailroom=SimpleNamespace(asking="", stopping=SimpleNamespace(wait=lambda seconds: False)),
    )
    return keyring.Keyring(agent)


def told(world, name, key=None, **other):
    key = key or X25519PrivateKey.generate()
    made = keyring.sign_key(world.kits[name], key.public_key().public_bytes_raw())
    made.MergeFrom(keyring.MaskKey(**other))
    return made


def test_members_agree_on_keys_that_the_server_only_passes_on(world, tmp_path):
    both = [ring(world, tmp_path / name, name) for name in ("agent-0", "agent-1")]
    board = [keyring.sign_key(each.kit, each.public) for each in both]
    one, other = (ring(world, tmp_path / name, name, board) for name in ("agent-0", "agent-1"))
    assert one.public == both[0].public  # the key in the folder, the same at every start
    assert one.pairs(["agent-1"], lambda: True)["agent-1"] == other.pairs(["agent-0"], lambda: True)["agent-0"]
    assert oct((tmp_path / "agent-0" / "mask.key").stat().st_mode)[-3:] == "600"


def test_keys_that_the_server_puts_in_the_place_of_others_are_refused(world, tmp_path):
    genuine, evil = told(world, "agent-1"), X25519PrivateKey.generate().public_key().public_bytes_raw()
    elsewhere = plan_for(4, server_sum="masked", seed=9)
    foreign = Kit.load(world.home / "kits" / "agent-1")
    foreign.federation = elsewhere  # the same authority and name, in another federation
    attacks = {
        "has not signed it for this federation": told(world, "agent-1", public=evil),
        "signed by the server, which has no key": told(world, "server"),
        "'agent-1' has not signed it": keyring.sign_key(foreign, evil),
        "5 bytes, expected 32": told(world, "agent-1", public=b"short"),
    }
    for number, (why, key) in enumerate(attacks.items()):
        with pytest.raises(Stopped, match=f"a key for masks that is refused: .*{why}"):
            ring(world, tmp_path / str(number), board=[key]).pairs(["agent-1"], lambda: True)
    # A key that agent-2 signed is agent-2's, and agent-1's is still awaited.
    mine = ring(world, tmp_path / "mine", board=[told(world, "agent-2")])
    with pytest.raises(Dropped):
        mine.pairs(["agent-1"], stop_after(2))
    assert "not told its key" in mine._why_not("agent-1")
    # The first key that was seen stays, past a restart too, even if agent-1's key signs another one.
    ring(world, tmp_path / "first", board=[genuine]).pairs(["agent-1"], lambda: True)
    with pytest.raises(Stopped, match=r"'agent-1' had the key \w{16} before and now has \w{16}; bring back its state"):
        ring(world, tmp_path / "first", board=[told(world, "agent-1")]).pairs(["agent-1"], lambda: True)
    with pytest.raises(Stopped, match="agent-1 cannot be used"):  # of small order: everybody would know the secret
        ring(world, tmp_path / "small", board=[told_small(world)]).pairs(["agent-1"], lambda: True)


def stop_after(count):
    left = iter(range(count))
    return lambda: next(left, None) is not None


def told_small(world):
    return keyring.sign_key(world.kits["agent-1"], bytes(32))


def test_a_revoked_member_gets_no_masks(tmp_path):
    plan = plan_for(4, server_sum="masked")
    mine = SimpleNamespace(home=tmp_path, plan=plan, kits=make_kits(tmp_path, plan))
    board = [told(mine, "agent-1")]
    own = ring(mine, tmp_path / "own", board=board)
    own.pairs(["agent-1"], lambda: True)
    authority = Authority.open(tmp_path / "authority", plan.name)
    authority.revoke([read_certificate(tmp_path / "kits" / "agent-1" / "cert.pem").serial_number])
    kits.refresh(tmp_path, plan, tmp_path / "kits" / "agent-0")
    assert "has been revoked" in own._why_not("agent-1")
    with pytest.raises(Dropped):
        own.pairs(["agent-1"], stop_after(2))


# ------------------------------------------------------------------------------------------- one mask, one vector


def test_no_mask_hides_two_vectors_and_no_vector_is_in_two_sums(tmp_path):
    used, one, other = UsedMasks(tmp_path, durable=False), [np.arange(5.0)], [np.ones(3), np.ones((1, 2))]
    used.take(3, 0, b"sum", one)()
    used.take(3, 1, b"next", other)()
    again = UsedMasks(tmp_path, durable=False)  # after a restart
    again.take(3, 0, b"sum", one)()
    for k, context, arrays in ((3, b"sum", other), (3, b"another roll", one), (2, b"sum", one)):
        with pytest.raises(Stopped, match=rf"another vector was masked in round {k} before"):
            again.take(k, 0, context, arrays)
    again.take(4, 0, b"later", other)()
    # A write that is cut short leaves what was before; two of them are no blank page.
    at, path = (again._writes % 2) * PLACE, tmp_path / "masks-used.json"
    data = bytearray(path.read_bytes())
    data[at + 70 : at + 80] = b"\0" * 10
    path.write_bytes(data)
    assert UsedMasks(tmp_path, durable=False).round == 3
    path.write_bytes(bytes(len(data)))
    with pytest.raises(InputError, match="is damaged"):
        UsedMasks(tmp_path, durable=True)


def test_a_message_of_an_earlier_attempt_is_refused():
    arrays = vectors(10)
    words = Members().words(arrays)["a"]
    layout = MessageLayout.of(arrays[0]).masked
    assert str(layout) == "masked48_2_float32[1,10] masked48_2_float32[3]" and layout.size == 6 * 13
    message = list(encode(WHERE, "a", layout, b"".join(plane.tobytes() for plane in words)))
    _, found = decode(message, WHERE, "a", layout=layout, limit=layout.size)
    assert all((one == other).all() for one, other in zip(found, words, strict=True))
    for where in (WHERE._replace(federation=b"z" * 32), WHERE._replace(round=4), WHERE._replace(phase=0)):
        with pytest.raises(BadMessage):
            decode(message, where, "a", layout=layout, limit=layout.size)
    # What is under masks comes whole: nobody can have a copy of it.
    change = encode(WHERE, "a", layout, Update([Piece(leaves=2)], b"", str(layout)))
    with pytest.raises(BadMessage, match="changes of masked vectors"):
        decode(change, WHERE, "a", limit=layout.size, held=SimpleNamespace(mark=b"", layout=None))


@pytest.mark.parametrize("name", ["masked_float32[2]", "masked48_float32[2]"])
def test_a_state_of_words_that_are_unknown_is_refused(name):
    """Of earlier versions: one masked float32 in words of 8 bytes, one with masks of another cipher."""
    assert kept_layout("masked48_2_float32[2]").size == 12
    with pytest.raises(InputError, match=rf"{re.escape(repr(name))}, which this version does not know; go on with"):
        kept_layout(name)


# ------------------------------------------------------------------------------------------- plans and rolls


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"agents": 2}, "round 0 has 2 agents"),
        ({"presence": "deadline", "deadline": 1.0, "quorum": 2}, "quorum = 2 is too small"),
        ({"network": {"graph": "ring", "reporters": 2}}, "2 agents report"),
        ({"network": {"graph": "ring", "server_probs": [0.5] * 5}}, "for all agents or for none"),
        ({"server_sum": "hidden"}, "server_sum"),
    ],
)
def test_plans_whose_sums_would_tell_a_vector_are_refused(settings, why):
    given = {"agents": 5, "server_sum": "masked"} | settings
    given["algorithm"] = {"name": "fedavg", "local_lr": 0.1, "local_steps": 1}
    with pytest.raises(InputError, match=re.escape(why)):
        plan_for(given.pop("agents"), **given)


def test_a_plan_without_masks_keeps_its_hash_and_who_joins_needs_three_who_stay():
    plan = plan_for(3)
    assert "server_sum" not in plan.to_toml()
    hidden = plan_for(4, server_sum="masked")
    swapped = hidden.change(2, "add", "agent-4", "127.0.0.1:9").change(2, "remove", "agent-0")
    with pytest.raises(InputError, match="agent-4, agent-5 would join at round 2 with the mean of 2 agents"):
        swapped.change(2, "add", "agent-5", "127.0.0.1:10").change(2, "remove", "agent-1")
    with pytest.raises(InputError, match="round 2 has 2 agents"):
        plan_for(3, server_sum="masked").change(2, "remove", "agent-0")


@pytest.mark.parametrize("settings", [{}, {"presence": "deadline", "deadline": 1.0}])
def test_a_change_after_which_nobody_gives_who_joins_a_mean_is_refused(settings):
    masked = plan_for(3, server_sum="masked", **settings).change(2, "add", "agent-3", "127.0.0.1:9")
    with pytest.raises(InputError, match="agent-3 would join at round 2 with the mean of 2 agents"):
        masked.change(2, "remove", "agent-2")
    assert len(masked.change(3, "remove", "agent-2").epochs) == 3
    whole = plan_for(2, **settings).change(2, "add", "agent-2", "127.0.0.1:9").change(2, "remove", "agent-0")
    with pytest.raises(
        InputError, match=r"agent-2 would join at round 2 .*, and nobody stays; let somebody leave in a"
    ):
        whole.change(2, "remove", "agent-1")
    assert whole.change(3, "remove", "agent-1").epochs[-1].names == ("agent-2",)


def test_who_is_gone_gives_nobody_a_mean():
    plan = plan_for(2).change(2, "add", "agent-2", "127.0.0.1:9").change(2, "remove", "agent-0")
    with pytest.raises(InputError, match="agent-2 would join at round 2 .*, and nobody stays"):
        plan.change(4, "remove", "agent-1", now=True)


def test_rolls_with_masks():
    plan = plan_for(5, server_sum="masked", presence="deadline", deadline=1.0)
    assert plan.quorum_at(0) == 3 and plan.tries_server(0) and not plan.tries_server(1)
    later = plan.change(1, "add", "agent-5", "127.0.0.1:9").change(1, "add", "agent-6", "127.0.0.1:10")
    mark = plan_mark(later, 1)
    for roll, why in (
        (Roll(1, 0, mark, (0, 1, 5, 6)), "fewer than 3 members who do not join"),
        (Roll(1, 0, mark, (0, 1)), "below the quorum"),
    ):
        chain = Chain(later)
        chain.add(Roll(0, 0, plan_mark(later, 0), (0, 1, 2, 3, 4)), later)
        with pytest.raises(BadRoll, match=why):
            chain.add(roll, later)
    chain.add(Roll(1, 0, mark, (0, 1, 2, 5)), later)
    with pytest.raises(BadRoll, match="somebody joins at attempt 1"):
        chain.add(Roll(1, 1, mark, (0, 1, 2, 5)), later)
    # The server calls such rolls: a second attempt without who joins.
    before = [Roll(0, 0, plan_mark(later, 0), (0, 1, 2, 3, 4)), Roll(1, 0, mark, (0, 1, 2, 3, 5))]
    call = RollCall(later, before, now=0.0)
    for index in (0, 1, 2, 5):
        call.hear(index, Word(known=2, done=1, ready=True, plan=plan_mark(later, 2), waits_for=3), now=0.9)
    assert call.decide(1.5) == Roll(1, 1, mark, (0, 1, 2))


def test_no_sum_repeats_the_vectors_of_another():
    plan = plan_for(9, server_sum="masked", presence="deadline", deadline=1.0, quorum=3)
    mark = plan_mark(plan, 0)
    # 0 to 5 are in a sum that does not count, and keep what was in it while the others go on.
    before = [Roll(0, 0, mark, tuple(range(6))), Roll(0, 1, mark, (6, 7, 8))]
    chain = Chain(plan)
    for roll in before:
        chain.add(roll, plan)
    told = chain.facts()
    for present in ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 6, 7)):  # beside the first sum: 5's vector, or little more
        with pytest.raises(BadRoll, match="too few on the roll of round 1 bring a vector that is in no other sum"):
            Chain(plan, told).add(Roll(1, 0, mark, present), plan)
    chain.add(Roll(1, 0, mark, (0, 1, 6, 7, 8)), plan)
    assert chain._summed_by(2, plan) == {2, 3, 4, 5}
    # A server that has only such members goes on without a sum.
    call = RollCall(plan, before, now=0.0)
    for index in (0, 1, 2, 3, 4):
        call.hear(index, Word(known=2, done=0, ready=True, plan=mark), now=0.5)
    for index in (6, 7, 8):
        call.hear(index, Word(known=2, done=2, ready=True, plan=mark), now=-9.0)
    roll = call.decide(0.6)
    assert roll == Roll(1, 1, mark, (0, 1, 2, 3, 4))
    call.add(roll, 0.6)
    for index in (0, 1, 2, 3, 4):
        call.hear(index, Word(known=3, done=3, ready=True, plan=mark), now=0.7)
    assert call.decide(0.8)[:2] == (2, 0)  # with new vectors they may


def test_rolls_told_otherwise_after_a_restart_bring_no_vector_into_a_second_sum(monkeypatch):
    agent, given = RolledAgent.__new__(RolledAgent), []
    monkeypatch.setattr(Agent, "report", lambda self, part, *more: given.append(part.k))
    agent.attendance = SimpleNamespace(newest=lambda place: True)
    # Our state is from round 0, and a sum of round 1 was called off, as the rolls say that we knew.
    agent.index, agent.base, agent.sums = 3, Held(None, 0, 0), SimpleNamespace(newest=1)
    part = sums.Reporting(WHERE, 1, ALL, NAMES)
    for k, summed in ((1, ()), (2, (3, 4))):  # that round again, as `UsedMasks` lets us, and a later one
        agent.chain = SimpleNamespace(summed=frozenset(summed))
        agent.report(part._replace(k=k), [])
    agent.chain = SimpleNamespace(summed=frozenset([4]))
    with pytest.raises(Stopped, match="a second sum could reveal its vector of round 1"):
        agent.report(part._replace(k=2), [])
    agent.base = Held(None, 1, 1)  # it counted
    agent.report(part._replace(k=3), [])
    assert given == [1, 2, 3]


# ------------------------------------------------------------------------------------------- whole federations


def problem_of(agent):
    return quadratic_of(agent, WORLD, "float64")


class Watched(Running):
    """A federation that notes what its agents reported, and what its server pulled, in every sum."""

    def build(self, name):
        made = super().build(name)
        if name == "server":
            self.pulled, combine = [], made.sums.combine

            def noting(arrays, layout, hop):
                self.pulled.append((layout, arrays))
                return combine(arrays, layout, hop)

            made.sums.combine = noting
        else:
            message, mine = made.sums.message, self.__dict__.setdefault("reported", {}).setdefault(name, [])
            made.sums.message = lambda part, arrays: mine.append(np.array(arrays[0])) or message(part, arrays)
        return made


def test_a_federation_whose_server_sees_no_vector(tmp_path, x64):
    # Three agents who count by weights, and the closing average.
    plan = plan_for(
        3, rounds=4, dtype="float64", seed=1, network={"graph": "ring", "server_prob": 0.7}, closing=True,
        agent_weights={"agent-0": 3.0, "agent-1": 1.0, "agent-2": 1.0}, server_sum="masked",
    )  # fmt: skip
    ran = Watched(tmp_path, plan, problem_of).join()
    own = together(list(weighed(plan, {name: problem_of(i) for i, name in enumerate(plan.names)}).values()))
    network = plan.network_of(plan.epochs[0])
    alone = pisco.run(plan.build_algorithm(), own, network, rounds=4, seed=1)
    np.testing.assert_allclose(ran.params(), alone.params, rtol=0, atol=1e-15)
    (closing,) = ran.results["server"].params.values()
    np.testing.assert_allclose(closing[0], alone.params.mean(axis=0), rtol=0, atol=1e-11)
    reached = sum(coins(pisco.bernoulli(0.7), 4, 1))
    assert len(ran.pulled) == 2 * reached + 1 >= 3
    for at, (layout, arrays) in enumerate(ran.pulled):
        assert layout == layout.masked
        for place, sent in arrays.items():
            gaps = sent[0].view(np.int64) * 2.0**-40 - ran.reported[plan.names[place]][at]
            assert np.abs(gaps).min() > 1e-3  # chance would have it otherwise once in a billion times
    # Two exchanges of 4 numbers for 3 agents, 8 bytes each, up and down.
    bytes_server = ran.results["server"].history["bytes_server"][-1]
    assert bytes_server == alone.history["bytes_server"][-1] == reached * 2 * 3 * 2 * 8 * 4


def test_bytes_up_to_the_server_are_words():
    plan = plan_for(3, rounds=4, seed=1, network={"graph": "ring", "server_prob": 0.7}, server_sum="masked")
    found = costs(plan, [0, 4], {"sent": [16, 16], "start_server": [16], "start_gossip": []})["bytes_server"]
    reached = sum(coins(pisco.bernoulli(0.7), 4, 1))
    np.testing.assert_array_equal(found, [3 * (24 + 16), 3 * (24 + 16) + reached * 2 * 3 * (24 + 16)])
    # What is compressed elsewhere, to 8 bytes here, is a whole vector under masks.
    found = costs(plan, [0, 4], {"sent": [8, 8], "whole": [16, 16], "start_server": [], "start_gossip": []})
    np.testing.assert_array_equal(found["bytes_server"], [0, reached * 2 * 3 * (24 + 16)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"wire": "bfloat16"},
        {"algorithm": {"name": "pisco-compressed", "local_lr": 0.05, "local_steps": 1, "compressor": "random-k"}},
    ],
)
def test_vectors_that_gossip_sends_compressed_are_masked_whole(tmp_path, how):
    given = {"rounds": 6, "network": {"graph": "ring", "server_prob": 0.5}} | how
    hidden = plan_for(3, server_sum="masked", **given)
    one = Running(tmp_path / "open", plan_for(3, **given), quadratic_of).join()
    other = Watched(tmp_path / "hidden", hidden, quadratic_of).join()
    assert other.pulled and all(layout == layout.masked for layout, _ in other.pulled)
    np.testing.assert_allclose(other.params(), one.params(), rtol=0, atol=1e-5)


class Vanishing(Watched):
    """Agent 3 vanishes in round 1, between its exchanges: the server has one sum of all four."""

    gone = False

    def build(self, name):
        made = super().build(name)
        if name == "agent-3":
            report = made.report

            def vanishing(part, arrays, *more):
                if part.k == 1 and part.where.phase == 1:
                    self.gone = True
                    raise Stopped("vanished")
                return report(part, arrays, *more)

            made.report = vanishing
        return made


def test_who_vanishes_after_the_roll_leads_to_another_attempt_that_tells_no_second_sum(tmp_path, x64):
    seed = next(s for s in range(99) if list(coins(pisco.bernoulli(0.5), 4, s)[:3]) == [0, 1, 1])
    plan = plan_for(
        4, rounds=4, seed=seed, dtype="float64", presence="deadline", deadline=3.0, patience=60.0, eval_every=2,
        server_sum="masked", network={"graph": "ring", "server_prob": 0.5},
    )  # fmt: skip
    ran = Vanishing(tmp_path, plan, problem_of)
    ran.join(*plan.names, fine=False)
    assert set(ran.errors) == {"agent-3"}
    history = ran.members["server"].ledger.result().history
    ran.stop("server")  # it would wait for agent 3 to say goodbye
    rolls = read(tmp_path / "state/server/rolls.jsonl", plan, (tmp_path / "authority" / "cert.pem").read_bytes())
    again = [roll for roll in counted(rolls) if roll.attempt]
    assert ran.gone and [(roll.round, roll.present) for roll in again] == [(1, (0, 1, 2))]
    # The audit logs of the server and of an agent tell of the same rolls, and who was left out.
    ca = ran.kits["server"].authority
    logs = [read_audit(tmp_path / "state" / name / "audit.jsonl", ca) for name in ("server", "agent-0")]
    one, other = ([line.facts for line in log if line.kind == "roll"] for log in logs)
    assert one[: len(other)] == other and len(other) >= len(rolls) - 1
    assert [facts["left_out"] for facts in one if facts["attempt"]] == [[3]]
    # Everybody's vector was in one sum of each exchange, whatever was attempted again.
    for name in plan.names[:3]:
        kept = UsedMasks(tmp_path / "state" / name, durable=False)
        assert kept.round == max(k for k, c in enumerate(coins(pisco.bernoulli(0.5), 4, seed)) if c)
    problems = {name: problem_of(i) for i, name in enumerate(plan.names)}
    states = replay(plan, problems, rolls)
    for name in plan.names[:3]:
        np.testing.assert_array_equal(ran.results[name].params, states[name].params)  # to the bit
    assert why_not_scan(plan, rolls, problems) == "round 1 was attempted without the server"
    with pytest.raises(InputError, match="attempted without the server, which `scan` does not know"):
        scan(plan, {name: problem_of(i) for i, name in enumerate(plan.names)}, rolls)
    reached = sum(coins(pisco.bernoulli(0.5), 4, seed)) - 1
    assert history["server_rounds"][-1] == reached


@pytest.mark.slow
def test_somebody_joins_and_the_log_is_simulated(tmp_path, x64):
    for presence in ({}, {"presence": "deadline", "deadline": 5.0}):
        home = tmp_path / str(len(presence))
        links = {"graph": "complete", "server_prob": 0.3}
        plan = plan_for(4, rounds=40, dtype="float64", server_sum="masked", network=links, **presence)
        at = 20
        later = plan.change(at, "add", "agent-4", f"127.0.0.1:{free_ports(1)[0]}")
        ran = Watched(home, later, problem_of).join()
        params = ran.params()
        assert all(layout == layout.masked for layout, _ in ran.pulled)
        if presence:
            rolls = read(home / "state/server/rolls.jsonl", later)
            states = replay(later, {name: problem_of(i) for i, name in enumerate(later.names)}, rolls)
            own = np.concatenate([states[name].params for name in later.names])
            np.testing.assert_array_equal(params, own)
    plan = plan_for(4, rounds=30, dtype="float64", server_sum="masked", presence="deadline", deadline=5.0)
    ran = Running(tmp_path / "scan", plan, problem_of).join()
    rolls = read(tmp_path / "scan/state/server/rolls.jsonl", plan)
    simulated = scan(plan, {name: problem_of(i) for i, name in enumerate(plan.names)}, rolls)
    np.testing.assert_allclose(simulated.params, ran.params(), rtol=0, atol=1e-13)


@pytest.mark.slow
def test_sampled_reporters_and_a_restart_in_the_middle(tmp_path, x64):
    network = {"graph": "ring", "server_prob": 1.0, "reporters": 3}
    given = {"rounds": 20, "dtype": "float64", "network": network}
    given |= {"algorithm": {"name": "fedavg", "local_lr": 0.05, "local_steps": 2}}
    plan = plan_for(5, server_sum="masked", **given)
    hidden = Running(tmp_path / "hidden", plan, problem_of)
    hidden.wait(lambda: hidden.members["agent-1"].done >= 4)
    hidden.stop("agent-1")
    hidden.threads["agent-1"].join(20)
    hidden.errors.pop("agent-1", None)
    hidden.start("agent-1")
    hidden.join()
    open_ = Running(tmp_path / "open", plan_for(5, **given), problem_of).join()
    np.testing.assert_allclose(hidden.params(), open_.params(), rtol=0, atol=1e-10)


def test_numbers_too_large_end_the_run_with_a_sentence():
    part = sums.Reporting(WHERE, 7, ALL, NAMES)
    agent = SimpleNamespace(name="a")
    report = sums.MaskedReports.__new__(sums.MaskedReports)
    report.agent = agent
    with pytest.raises(Stopped, match=r"in round 7 a number of size 1e\+09 is too large: .* scale the model"):
        report.message(part, [np.array([1e9])])
    with pytest.raises(Stopped, match="only 2 members report in round 7"):
        report.message(part._replace(hop=ServerHop(None, (0, 1), (0, 1))), [np.zeros(1)])
