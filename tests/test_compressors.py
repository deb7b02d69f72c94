"""Compressors: what they keep, what they promise on average, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pisco
from pisco.algorithms import build
from pisco.algorithms.compressors import Cast, Identity, Quantize, RandomK, TopK, compressor

vectors = st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4).map(lambda v: jnp.asarray(v, jnp.float32))
ALL = [Identity(), TopK(0.5), RandomK(0.5), Quantize(4), Quantize(8, unbiased=True), Cast(), Cast("float16")]


DRAWS = {q: jax.jit(q) for q in ALL}


@given(vectors, st.sampled_from(ALL))
def test_zero_stays_zero_and_the_input_is_left_alone(x, q):
    before = np.array(x)
    out = DRAWS[q](x, jax.random.key(0))
    np.testing.assert_array_equal(np.asarray(x), before)
    assert np.isfinite(np.asarray(out)).all()
    assert not np.asarray(DRAWS[q](jnp.zeros(4), jax.random.key(0))).any()


@jax.jit
def mean_errors(x, seed):
    """Of random-k and of quantising, over 200 draws."""
    keys = jax.random.split(jax.random.key(seed), 200)
    return [jax.vmap(lambda k, q=q: jnp.sum((q(x, k) - x) ** 2))(keys).mean() for q in (RandomK(count=2), Quantize(4))]


@given(vectors, st.integers(0, 20))
def test_contractions_contract(x, seed):
    """E‖Q(x) − x‖² ≤ (1 − δ)‖x‖²; top-k for every draw, the others on average."""
    size = float(jnp.sum(x**2))
    assert float(jnp.sum((TopK(count=2)(x, None) - x) ** 2)) <= 0.5 * size * (1 + 1e-5) + 1e-6
    for error in mean_errors(x, seed):
        assert float(error) <= size * (1 + 1e-5) + 1e-6


def test_unbiased_forms_are_unbiased():
    x = jnp.array([3.0, -1.0, 0.5, 0.0])
    keys = jax.random.split(jax.random.key(1), 20_000)
    for q in (RandomK(count=2, unbiased=True), Quantize(3, unbiased=True)):
        mean = jax.vmap(lambda k, q=q: q(x, k))(keys).mean(axis=0)
        np.testing.assert_allclose(mean, x, atol=0.06)


def test_top_k_runs_over_all_leaves_together():
    tree = {"a": jnp.array([1.0, -9.0]), "b": jnp.array([[5.0], [2.0]])}
    out = TopK(count=2)(tree, None)
    np.testing.assert_array_equal(out["a"], [0, -9])
    np.testing.assert_array_equal(out["b"], [[5], [0]])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("topk", "unknown compressor 'topk'; did you mean 'top-k'"),
        ({"name": "top-k", "frac": 0.1}, "compressor 'top-k' has no option 'frac'; did you mean 'fraction'"),
        ({"name": "top-k", "fraction": 0}, "fraction is 0.0, expected a number greater than 0"),
        ({"name": "random-k", "count": 0}, "count is 0"),
        ({"name": "quantize", "bits": 1}, "bits is 1"),
    ],
)
def test_bad_compressors_are_refused(given, sentence):
    with pytest.raises(pisco.InputError, match=sentence):
        compressor(given)


def test_keeping_more_than_there_is_is_refused():
    problem = pisco.problems.quadratic(np.ones((3, 1, 1)), np.zeros((3, 1)))
    rule = build("choco", local_lr=0.1, compressor={"name": "top-k", "count": 5})
    with pytest.raises(pisco.InputError, match="count is 5, but the vector has only 1 entries"):
        pisco.run(rule, problem, pisco.Network.ring(3), rounds=1)


def test_quantised_halves_are_right_on_average():
    """bfloat16 has no digits for a level and a fraction of one."""
    given = jnp.asarray(100 * np.random.default_rng(0).normal(size=300), jnp.bfloat16)
    q = Quantize(4, unbiased=True)
    drawn = [np.asarray(q(given, jax.random.key(seed)), float) for seed in range(50)]
    error = (np.mean(drawn, axis=0) - np.asarray(given, float)) * np.sign(np.asarray(given, float))
    assert abs(error.mean()) < 0.5  # of about 80
    sent = q.decode(q.encode(given, jax.random.key(1)), given, jax.random.key(1))
    np.testing.assert_array_equal(np.asarray(sent, float), drawn[1])


CODECS = [*ALL, TopK(count=1), RandomK(0.3, unbiased=True), Quantize(2), Quantize(16)]


@pytest.mark.parametrize(
    ("q", "dtype"),
    [(q, "float32") for q in CODECS]
    + [(q, "float64") for q in CODECS[1:4]]
    + [pytest.param(q, "float64", marks=pytest.mark.slow) for q in CODECS if q not in CODECS[1:4]],
    ids=str,
)
def test_what_is_decoded_is_the_message_to_the_bit(q, dtype):
    """Through bytes, in as many of them as are counted: also of several leaves, zeros and numbers that end in ties."""
    with jax.enable_x64(dtype == "float64"):
        rng, key = np.random.default_rng(3), jax.random.key(7)
        tree = {"w": rng.normal(size=(17, 5)), "b": np.round(rng.normal(size=12)), "c": np.array([-0.0, 0.0, 1e-30])}
        tree = jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)
        for each in (tree, jax.tree.map(jnp.zeros_like, tree)):
            expected, data = jax.jit(q)(each, key), q.encode(each, key)
            assert len(data) == q.message_bytes(each)
            like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), each)
            for one, other in zip(jax.tree.leaves(q.decode(data, like, key)), jax.tree.leaves(expected), strict=True):
                assert one.dtype == dtype and one.tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("q", [Identity(), TopK(count=5)], ids=str)
def test_a_message_in_double_precision_is_read_where_jax_is_in_single(q):
    """A thread of a server is in the precision of the process, whatever that of the federation."""
    tree, key = {"w": np.linspace(-1, 1, 24)}, jax.random.key(7)
    with jax.enable_x64(True):
        data = q.encode(tree, key)
        expected = q.decode(data, tree, key)
    found = q.decode(data, tree, key)
    assert found["w"].dtype == np.float64 and found["w"].tobytes() == np.asarray(expected["w"]).tobytes()


def test_numbers_beyond_sixteen_bits_are_sent_as_the_largest():
    out = np.asarray(Cast("float16")(jnp.array([1e6, -1e6, 1 + 2.0**-12, 3.4 * 2.0**-24]), None))
    np.testing.assert_array_equal(out, [65504, -65504, 1, 3 * 2.0**-24])
    assert np.isfinite(np.asarray(Cast()(jnp.array([3.4e38]), None))).all()


@pytest.mark.parametrize(
    ("q", "spoil", "sentence"),
    [
        (TopK(count=2), lambda data: b"\xff" + data[1:], "its places are not 2 different ones below 4"),
        (TopK(count=2), lambda data: b"\x00" + data[1:], "its places are not 2 different ones below 4"),
        (Quantize(4), lambda data: np.float32(-1).tobytes() + data[4:], "its norm is -1"),
        (RandomK(count=2), lambda data: data[:-1], "buffer is smaller"),
    ],
)
def test_bytes_that_are_no_message_are_refused(q, spoil, sentence):
    x, key = jnp.array([1.0, -4.0, 3.0, 2.0]), jax.random.key(0)
    with pytest.raises(ValueError, match=sentence):
        q.decode(spoil(q.encode(x, key)), x, key)
