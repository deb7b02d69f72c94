"""What users get wrong from Python, and what used to be taken silently: right, or one sentence."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
from pisco.data.files import load_libsvm
from pisco.data.tables import load_table
from pisco.data.text import by_author
from pisco.engines.job import attendance
from pisco.engines.sizes import usual_eval_every
from pisco.errors import InputError
from pisco.experiments import load, resume
from pisco.experiments.compare import compare_methods
from pisco.experiments.tune import tune
from pisco.federation.plan import Federation
from pisco.interop import host
from pisco.networks import graphs, weights
from pisco.planning.automatic import auto_step
from pisco.planning.diagnosis import diagnose
from pisco.planning.formulas import outlook
from pisco.planning.planner import plan
from pisco.planning.steps import check_step
from pisco.report.html import write_page
from pisco.report.plots import plot_results
from pisco.theory.safe_steps import largest_safe_step

POINTS = np.arange(24.0, dtype=np.float32).reshape(3, 4, 2) / 10
RULE, RING = pisco.algorithms.dsgd(local_lr=0.1), pisco.Network.ring(3)


def squares(params, batch, key):
    return (batch @ params - 1) ** 2


def small(loss=squares, init=None, data=POINTS, **options):
    return pisco.Problem(loss, jnp.ones(2) if init is None else init, data, **options)


def tried(**options):
    return pisco.run(RULE, small(), RING, **({"rounds": 2} | options))


class Items:
    """A data set that never says where it ends."""

    def __init__(self, size=4):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return np.ones(2, np.float32)


def logistic(**options):
    points = pisco.data.Dataset("points", POINTS.reshape(12, 2), np.arange(12) % 2)
    return pisco.problems.logistic(points, agents=3, **options)


def choco(compressor):
    return pisco.algorithms.build("choco", local_lr=0.1, compressor=compressor)


def along(direction):
    rule = pisco.algorithms.build("dsgd", local_lr=0.1, direction=direction)
    return pisco.run(rule, small(), RING, rounds=1)


# ---------------------------------------------------------------------------------- sums taken for means


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, b, k: squares(p, b, k).sum(),
        lambda p, b, k: -(b @ (p - 1)).sum(),  # 0 at the start
        lambda p, b, k: squares(p, b, k).sum() / 32,  # a batch size of long ago
        lambda p, b, k: squares(p, b, k).sum() + 0.5 * jnp.vdot(p, p),
        lambda p, b, k: squares(p, b, k).sum() + 100 * jnp.vdot(p - 1, p - 1),
        lambda p, b, k: squares(p.astype(jnp.bfloat16), b.astype(jnp.bfloat16), k).sum(),
    ],
)
def test_a_sum_is_refused(loss):
    with pytest.raises(InputError, match=r"loss returns a sum: .* return their mean, as in jnp\.mean"):
        small(loss)


def normalised(params, batch, key):
    values = batch @ params
    return (((values - values.mean()) / (values.std() + 1e-3) - 0.3) ** 2).mean()


def contrastive_each(params, batch, key):
    scores = jnp.outer(batch @ params, batch @ params)
    return jax.nn.logsumexp(scores, axis=1) - jnp.diag(scores)


def contrastive(params, batch, key):
    return contrastive_each(params, batch, key).mean()


def with_dropout(params, batch, key):
    kept = 1.0 if key is None else jax.random.bernoulli(key, 0.5, params.shape) * 2.0
    return squares(params * kept, batch, key).mean()


@pytest.mark.parametrize("loss", [normalised, contrastive, with_dropout, lambda p, b, k: 0 * b.sum()])
def test_other_losses_of_a_whole_batch_are_not(loss):
    assert not small(loss).per_sample


@pytest.mark.parametrize("loss", [normalised, contrastive])
def test_a_mean_that_compares_samples_is_warned_of_where_they_are_taken_alone(loss):
    unequal = [POINTS[0], POINTS[1][:3]]
    with pytest.warns(UserWarning, match=r"together is .* full batches are taken, .* one loss a sample") as said:
        small(loss, data=unequal)
    assert len(said) == 1
    with pytest.warns(UserWarning, match=r"together is .*, and here it is measured one sample at a time"):
        small(loss, eval_samples=2)
    equal = small(lambda p, b, k: loss(p["w"], b, k), {"w": jnp.ones(2), "b": jnp.ones(1)})
    for changed in (
        lambda: equal.weighted([0.2, 0.3, 0.5]),
        lambda: equal.scaled(2),
        lambda: equal.parted({"local": "b"}),
    ):
        with pytest.warns(UserWarning, match=r"together is .*, and here it is measured one sample at a time"):
            changed()
    equal.weighted(None)
    small(with_dropout, data=unequal)
    small(contrastive_each, data=unequal)


def test_a_mean_that_needs_several_samples_is_refused_where_they_are_taken_alone():
    def needs_two(params, batch, key):
        assert len(batch) > 1, "one sample is no pair"
        return ((batch[1:] - batch[:-1] - params) ** 2).mean()

    assert not small(needs_two).per_sample
    with pytest.raises(InputError, match=r"fails on one sample alone \(.*: one sample is no pair\), and here"):
        small(needs_two, data=[POINTS[0], POINTS[1][:3]])


def test_a_sum_from_another_framework_is_refused():
    def value(params, rows):
        return float(np.sum((rows - params) ** 2))

    agent = host.Local(lambda seed: np.ones((), np.float32), lambda p, rows, seed: (0.0, p), value, 5)
    with pytest.raises(InputError, match="loss returns a sum"):
        host.problem(agent)


# -------------------------------------------------------------------------------------- numbers as given


def test_whole_numbers_are_kept_or_refused():
    numbers = np.full((3, 4), 5, np.int64)
    loss = lambda p, b, k: (p - b) ** 2  # noqa: E731
    assert small(loss, jnp.zeros(()), numbers).data.tolist() == [5] * 12
    numbers[1, 2] = 2**40 + 7
    with pytest.raises(
        InputError, match=r"data\['n'\] holds 1099511627783 \(in sample 2 of agent 1\), which does not fit into int32"
    ):
        small(lambda p, b, k: (p - b["n"]) ** 2, jnp.zeros(()), {"n": numbers})
    with pytest.raises(InputError, match=r"test data holds 4294967296 \(in row 0\), which does not fit into uint32"):
        small(test=np.full((2, 1), 2**32, np.uint64))
    with pytest.raises(InputError, match=r"data holds 1e\+300 \(in sample 0 of agent 0\), which does not fit into fl"):
        small(data=np.full((3, 4, 2), 1e300))
    assert small(data=POINTS.astype(np.longdouble)).data.dtype == np.float32
    with jax.enable_x64(True):
        assert int(small(loss, jnp.zeros(()), numbers).data[6]) == 2**40 + 7


@pytest.mark.parametrize("init", [jnp.array([1.0, jnp.nan]), np.array([np.inf, 1.0]), np.array([1e300, 1.0])])
def test_a_start_that_is_no_number_is_refused(init):
    with pytest.raises(InputError, match=r"the start holds .*\(in row [01]\)"):
        small(init=init)


def test_a_drawn_start_that_is_no_number_is_refused():
    problem = small(init=lambda key: jnp.full(2, jnp.nan))
    with pytest.raises(InputError, match=r"the loss at the start is nan \(seed 3\)"):
        pisco.run(RULE, problem, RING, rounds=2, seed=3)


@jax.tree_util.register_pytree_node_class
class Module:
    """A model as frameworks have it: a tree of arrays that can be called."""

    def __init__(self, weights):
        self.weights = weights

    def __call__(self, inputs):
        return inputs @ self.weights

    def tree_flatten(self):
        return (self.weights,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


@pytest.mark.parametrize("engine", ["scan", "sharded"])
def test_a_start_may_be_a_module_that_can_be_called(engine):
    problem = small(lambda model, batch, key: (model(batch) - 1) ** 2, Module(jnp.ones(2)))
    result = pisco.run(RULE, problem, RING, rounds=2, engine=engine)
    np.testing.assert_allclose(result.params.weights, tried(engine=engine).params, rtol=1e-6)


# --------------------------------------------------------------------------------------- one sentence each


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: tried(seed=[0, 0]), "seed 0 is given 2 times; give different ones"),
        (lambda: tried(rounds=True), "rounds is True, expected a whole number"),
        (lambda: tried(eval_every=True), "eval_every is True, expected a whole number"),
        (lambda: tried(chunk_rounds=False), "chunk_rounds is False, expected a whole number"),
        (lambda: small(data=np.full((3, 4, 2), "red")), "data holds <U3 such as .*'red'.*, expected numbers"),
        (lambda: small(data=np.ma.masked_less(POINTS, 1)), "data holds masked numbers; fill them"),
        (lambda: small(data=list(np.ma.masked_less(POINTS, 1))), "data holds masked numbers; fill them"),
        (lambda: small(init={"w": jnp.ones(2), "f": jnp.tanh}), r"the start\['f'\] holds object such as "),
        (lambda: small(init={"k": jax.random.key(0)}), r"the start\['k'\] holds random keys, expected numbers; leave"),
        (
            lambda: small(data=[[1.0, 2.0], [3.0], [4.0]]),
            "agent 0's data holds single numbers, expected arrays of samp",
        ),
        (lambda: small(init={}), "the start is {}, which holds no numbers"),
        (lambda: small(init=lambda key: 1 / 0), r"init\(key\) fails \(ZeroDivisionError: division by zero\); let it"),
        (lambda: small(init=lambda key: [jnp.ones(2), jnp.tanh]), r"init\(key\) fails \(TypeError: .*arrays alone"),
        (lambda: small(lambda x, batch, key: batch[:, 0] > x[0]), "loss returns bool, which has no gradient"),
        (lambda: pisco.problems.logistic(POINTS, agents=2), "the data set is of type ndarray, expected"),
        (lambda: pisco.problems.logistic(POINTS), "agents is missing; logistic needs it, as in agents = 1"),
        (lambda: pisco.problems.mlp(POINTS, 3), "agents is missing; mlp needs it, as in agents = 1"),
        (lambda: pisco.problems.softmax(POINTS, agent=3), "softmax has no option 'agent'; did you mean 'agents'"),
        (lambda: pisco.problems.mlp([1, 2], agents=2), "the data set is of type list, expected"),
        (lambda: pisco.problems.cnn(POINTS, agents=2), "the data set is of type ndarray, expected"),
        (lambda: pisco.compare(tried(), {"loss": 1.0}), r"compare takes a list of results, as in compare\(\["),
        (lambda: pisco.compare(tried()), r"compare takes a list of results, as in compare\(\["),
        (lambda: pisco.compare(["a"], {"loss": 1.0}), "compare takes a list of results"),
        (lambda: pisco.compare([tried()], {7: 1.0}), "unknown target 7; known: consensus_error, grad_norm_sq"),
        (lambda: tried().final(None), "the result has no column None; known: "),
        (lambda: tried(seed=jax.random.key(0)), "(?s)seed is .*, expected a whole number or several"),
        (lambda: pisco.Result.load(None), "the result is None, expected the folder of one"),
        (lambda: write_page(tried(), "a.html"), r"write_page takes a list of results, as in write_page\(\["),
        (lambda: write_page([tried()], "a.html", prices=3), "prices is 3, expected Prices"),
        (lambda: plot_results(tried()), "plot_results takes a list of results"),
        (lambda: pisco.metrics.each_agent(3), "the metric 3 has no worst agent; give one of test data"),
        (
            lambda: pisco.compare([tried()], ["loss"]),
            r"targets is \['loss'\], expected bounds by column, as in {'loss': 0",
        ),
        (lambda: pisco.compare([tried()], {"loss": 1.0}, 3), "prices is 3, expected Prices"),
        (lambda: pisco.sweep(3, small(), RING, rounds=1), "the point 3 is no pair"),
        (lambda: pisco.algorithms.build(7), "the algorithm is 7, expected a name; known: beer, choco"),
        (lambda: pisco.Network.named(None, 3), "the graph is None, expected a name"),
        (lambda: pisco.per_agent("ab"), "server_probs is 'ab', expected one probability per agent"),
        (lambda: pisco.per_agent([0.5, 2]), r"server_probs\[1\] is 2\.0, expected"),
        (lambda: pisco.Network.ring(3, presence=0.5), "presence 0.5 is no mask: give one number for every agent"),
        (lambda: pisco.Metric(3), "a metric is called 3, expected a text"),
        (lambda: pisco.Metric("lag", abs, of="stat"), r"unknown kind of metric .* did you mean 'state'"),
        (
            lambda: check_step(RULE, small(), pisco.Network.ring(4), rounds=2),
            "the problem has 3 agents and the network 4",
        ),
        (lambda: pisco.Metric("lag", abs, title=3), "lag: title is 3, expected a text"),
        (lambda: pisco.Metric("lag", abs, log="yes"), "lag: log is 'yes', expected True or False"),
        (lambda: pisco.Metric("lag", abs, reduce="max"), "lag: reduce is 'max', expected a function"),
        (lambda: pisco.Metric("lag", abs, of="agents", across="min"), "lag: across is 'min', expected a function"),
        (lambda: tried().at_target("loss", at_most=np.nan), "bound of loss is nan, expected a number that is finite"),
        (lambda: plot_results([tried()], 7), "a path is expected where an int is given"),
        (lambda: pisco.Metric("lag", abs, rising="up"), "lag: rising is 'up', expected True, False or None"),
        (lambda: choco(7), 'the compressor is 7, expected a name such as "top-k", or a table with one'),
        (lambda: choco({"nme": "top-k"}), "the compressor is {'nme': 'top-k'}, expected"),
        (
            lambda: pisco.algorithms.beer(local_lr=0.1, compressor=abs),
            "compressor is <built-in function abs>, expected",
        ),
        (lambda: along([]), "the optimizer is an empty list; name some"),
        (lambda: along({"nme": "adam"}), "the optimizer is {'nme': 'adam'}, expected"),
        (lambda: along({"name": "adam", "mu_dtype": "x"}), r"cannot be made \(TypeError: data type 'x'"),
        (lambda: along({"name": "adam", "b1": [1]}), r"cannot be made \(TypeError: unhashable"),
        # Newer optax finds out when it is used.
        (lambda: along({"name": "adam", "b1": "x"}), r"b1='x'\) fails on this model \(TypeError|b1 is 'x', expected a"),
        (lambda: along({"name": "adam", "b1": np.nan}), "b1 is nan, expected a number that is finite"),
        (lambda: along({"name": "clip", "max_norm": -1}), "max_norm is -1.0, expected a number greater than 0"),
        (lambda: along({"name": "momentum", "decay": 2}), "decay is 2.0, expected a number at least 0 and at most 1"),
        (lambda: tried(checkpoint="/proc/x"), "cannot write /proc/x "),
        (lambda: tried(clock={"file": 7}), "clock.file is 7, expected a text, as in file = 'measured.toml'"),
        (lambda: tried(clock={"preset": ["a"]}), r"clock.preset is \['a'\], expected a text, as in preset = 'campus'"),
        (lambda: small(data=Items()), "data is one Items, expected a list with the samples of every agent"),
        (lambda: small(data=[{"a": Items()}]), "data holds an Items, which is no array"),
        (lambda: small(test={"a": Items()}), "test data holds an Items, which is no array"),
        (lambda: small(data=[Items("many")] * 3), r"length of a data set is not known \(TypeError"),
        (lambda: logistic(partition=3), "partition is 3, expected a name, a function, or the samples of every agent"),
        (
            lambda: logistic(partition=lambda y, n: [y]),
            r"called as f\(labels, agents=…\); give yours these arguments \(missing a",
        ),
        (lambda: logistic(dtype="x"), "dtype is 'x', expected a floating dtype"),
        (lambda: logistic(dtype="int32"), "dtype is 'int32', expected a floating dtype"),
        (lambda: pisco.sample(2, agents="x"), "agents is 'x', expected a whole number"),
        (lambda: pisco.Network.ring(3, sampling=3), r"sampling is 3, expected who reports, as in pisco\.sample"),
        (lambda: pisco.Network.ring(3, varying="matching"), "varying is 'matching', expected links that vary"),
        (lambda: pisco.clip(guard_server="yes"), "guard_server is 'yes', expected True or False"),
        (lambda: host.problem([1, 2]), r"got list, expected agents, as in problem\(Local"),
        (lambda: host.problem(), "got nothing, expected agents"),
        (
            lambda: pisco.algorithms.dsgd(local_lr=jnp.array(-1.0)),
            "local_lr is Array.*expected a number greater than 0",
        ),
        (lambda: pisco.bernoulli(np.array(np.nan)), "server_prob is array.nan.*expected a number at least 0 and at mo"),
        (lambda: pisco.bernoulli(np.ones(2)), "server_prob is array.*expected a number"),
        (lambda: pisco.bernoulli(np.bool_(True)), "server_prob is .*True.*, expected a number"),
        (
            lambda: pisco.algorithms.compressors.Cast(["float16"]),
            r"unknown dtype \['float16'\]; did you mean 'float16'",
        ),
        (
            lambda: pisco.Network(RING.graph, gossip_before_server="no"),
            "gossip_before_server is 'no', expected True or",
        ),
        (lambda: small(init={"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}}), "two leaves of the start are called 'a/b'"),
        (lambda: small(init={"a/b": jnp.ones(1), "a": jnp.ones(1)}), "'a/b', or one is inside the other; rename one"),
        (lambda: tried(seed=[0, 1]).only(0), r"only\(\) takes seeds of the result, as in result.only\(\[0\]\)"),
        (lambda: tried(seed=[0, 1]).only([]), r"only\(\) takes seeds of the result"),
        (lambda: attendance(3, rounds=2), "network is 3, expected one such as"),
        (lambda: attendance(RING, rounds=2.5), "rounds is 2.5, expected a whole number"),
        (lambda: attendance(RING, rounds=2, seed=-1), "seed is -1, expected a number at least 0"),
        (lambda: usual_eval_every(RULE, RING, small()), "problem is Network.*, expected one such as pisco.problems"),
        (lambda: plan(RING, small(), rounds=2), "problem is Network.*, expected one such as pisco.problems"),
        (lambda: plan(small(), RING, rounds=2, prices=(10, 1)), r"prices is \(10, 1\), expected Prices"),
        (lambda: plan(small(), RING, rounds=2, target={"loss": 1}), r"target is .*, as in \('loss', 0.5\)"),
        (
            lambda: plan(small(), RING, rounds=2, batch_size="full"),
            'batch_size is "full", as in files; in Python leave it out',
        ),
        (lambda: tried(batch_size="full"), 'batch_size is "full", as in files; in Python leave it out'),
        (lambda: check_step(RULE, small(), RING, rounds=2, batch_size="full"), 'batch_size is "full", as in files'),
        (lambda: outlook(RING, RING, rounds=2), "problem is Network.*, expected one such as"),
        (lambda: outlook(small(), pisco.Network.ring(5), rounds=2), "has 3 agents and the network 5; give both the"),
        (lambda: auto_step(RULE, small(), small(), rounds=2), "network is Problem.*, expected one such as"),
        (
            lambda: small(data=np.where(POINTS[2, 1, 0] == POINTS, np.nan, POINTS)),
            "NaN or .* sample 1 of agent 2.; give",
        ),
        (lambda: tried().to_csv("."), "cannot write '.' .it is a folder.; give the path of a file"),
        (lambda: small(init={"f": jnp.tanh, "x": jnp.ones(2)}), "expected numbers; give arrays alone, as eqx.filter"),
        (lambda: small(parts={"local": "head"}), "no leaf is matched by local='head'; the model has one array without"),
        (lambda: auto_step(RULE, small(), RING, rounds=2), r"rule is dsgd.*, expected a function of a step size"),
        (lambda: plan(small(), RING, rounds=2, probabilities=0.2), "probabilities is 0.2; give at least one p to try"),
        (lambda: largest_safe_step([1.0, 2.0], np.eye(3), local_steps=0), "of 2 agents and weights of 3; give one for"),
        (lambda: pisco.problems.quadratic("a", "b"), "hessians and minimizers hold something else than numbers"),
        (lambda: load(3), "the experiment is 3, expected the name of a preset or a file"),
        (lambda: resume(3), "the folder is 3, expected one that"),
        (lambda: tune("quick"), "the experiment is 'quick', expected one that is loaded"),
        (lambda: compare_methods("quick", folder=Path("x")), "the experiment is 'quick', expected one that is loaded"),
        (lambda: compare_methods(load("quick"), "dsgd", folder=Path("x")), "methods is 'dsgd'; name algorithms, as in"),
        (lambda: weights.fdla(RING), "the graph is .*Network.*, expected a Graph"),
        (lambda: Federation.create("c", rounds=1, algorithm="dsgd"), "algorithm is 'dsgd', expected a table"),
        (lambda: tried(rounds=2**31), "rounds is 2147483648, expected a number at most 2147483647"),
        (lambda: check_step(small(), small(), RING, rounds=2), "algorithm is Problem.*, expected one such as"),
        (
            lambda: check_step(RULE, small(), pisco.Network.ring(5), rounds=2),
            "3 agents and the network 5; give both the",
        ),
        (lambda: diagnose(small(), 3, rounds=2), "network is 3, expected one such as"),
        (lambda: graphs.random_digraph(4, 0.5, seed=-1), "seed is -1, expected a number at least 0"),
        (
            lambda: pisco.data.Dataset("d", POINTS, [0, 1, 1], classes=2),
            "classes of 'd' is 2, expected a list of names",
        ),
        (lambda: pisco.data.Dataset("d", POINTS[0], [0, 1] * 2, columns="ab"), "columns of 'd' is 'ab', expected a li"),
        (lambda: load_table(POINTS), "a path is expected where a ndarray is given"),
        (lambda: load_libsvm(None), "a path is expected where a NoneType is given"),
        (lambda: by_author("n", [("ab" * 9, "ab")], length=0), "length is 0, expected a number at least 1"),
    ],
)
def test_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
def test_a_run_is_no_part_of_a_program(transform):
    problem = small()
    many = transform(lambda lr: pisco.run(pisco.algorithms.dsgd(local_lr=lr), problem, RING, rounds=1).params)
    with pytest.raises(InputError, match=r"a run cannot be part of jax\.jit, vmap or grad; .* pisco\.sweep"):
        many(jnp.array([0.1, 0.2]) if transform is jax.vmap else 0.1)


def test_a_problem_is_made_of_numbers():
    with pytest.raises(InputError, match=r"the start holds a traced value; make the problem outside of jax\.jit"):
        jax.jit(lambda start: small(init=start).num_agents)(jnp.ones(2))


def test_a_problem_of_64_bits_needs_them_again():
    with jax.enable_x64(True):
        problem = pisco.problems.quadratic([[[1.0]]] * 3, [[0.0], [1.0], [2.0]])
    with pytest.raises(InputError, match="made in 64 bits, which are switched off now; run it where it was made"):
        pisco.run(RULE, problem, RING, rounds=1)


def test_places_that_cannot_be_written_are_one_sentence(tmp_path):
    result = tried()
    (tmp_path / "afile").write_text("mine")
    with pytest.raises(InputError, match=r"cannot write .*afile \(File exists\); give another path"):
        result.save(tmp_path / "afile")
    with pytest.raises(InputError, match="cannot write /proc/x "):
        result.save("/proc/x")
    with pytest.raises(InputError, match=r"cannot write .* \(Is a directory\)"):
        result.to_csv(tmp_path)
    for name, why in (("", "'' .* has an empty name"), (7, "7 .*not int"), (None, "None .*not NoneType")):
        with pytest.raises(InputError, match=rf"cannot write {why}\); give the path of a file"):
            result.to_csv(name)
    with pytest.raises(InputError, match="cannot write 7 "):
        result.save(7)
    assert (tmp_path / "afile").read_text() == "mine"
    with pytest.raises(InputError, match="afile is a file, expected the folder of a result"):
        pisco.Result.load(tmp_path / "afile")


def test_settings_are_as_strict_as_keywords():
    from pisco.experiments import load

    for setting in ("run.rounds=true", "run.eval_every=true", "network.agents=true"):
        with pytest.raises(InputError, match=f"{setting.split('=')[0]} is True, expected a whole number"):
            load("quick", [setting])
    with pytest.raises(InputError, match=r"run\.seeds is \[0, 0\], expected .* different seeds"):
        load("quick", ["run.seeds=[0, 0]"])
