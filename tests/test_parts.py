"""Parts of a model: frozen, local and renewed leaves, for every method and in every engine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pisco
import pisco.interop.host
from pisco.algorithms import ALGORITHMS, build
from pisco.costs import message_sizes
from pisco.engines.job import Job, Run, carry_shapes
from pisco.federation.runtime.member import BOUNDARY, CLOSING
from pisco.federation.runtime.replay import everybody, furthest, replay, why_not_scan
from pisco.federation.runtime.sums import PlainSum
from pisco.parts import Parted, whole

from federations import Poisoned, Running, free_ports, plan_for
from worlds import Quadratics, network_for, trajectory

N, RING = 5, pisco.Network.ring(5, server=pisco.bernoulli(0.3))
RULE = pisco.algorithms.pisco(local_lr=0.05, local_steps=1)
RNG = np.random.default_rng(0)
DATA = {"a": RNG.normal(size=(N, 8, 3)), "y": RNG.normal(size=(N, 8)) + np.arange(N)[:, None]}
TEST = {"a": RNG.normal(size=(7, 3)), "y": RNG.normal(size=7)}
START = {"w": np.full(3, 0.1), "scale": np.full((), 2.0), "head": {"b": np.zeros(())}, "stats": {"m": np.zeros(())}}
PARTS = {"frozen": "scale", "local": ["head/*"], "buffers": lambda path: path.startswith("stats")}


def loss(model, batch, key):
    """A linear model with a norm that trains by the batch's mean and is measured by the running one."""
    h = batch["a"] @ model["w"] * model["scale"]
    mean = model["stats"]["m"] if key is None else h.mean()
    new = {"stats": {"m": 0.5 * model["stats"]["m"] + 0.5 * h.mean()}}
    return (h - mean + model["head"]["b"] - batch["y"]) ** 2, new


def error(model, batch):
    return (batch["a"] @ model["w"] * model["scale"] - model["stats"]["m"] + model["head"]["b"] - batch["y"]) ** 2


def parted(data=DATA, parts=PARTS, **options):
    return pisco.Problem(loss, START, data, test=TEST, metrics={"error": error}, parts=parts, **options)


def same(one, two, atol=1e-12):
    assert jax.tree.structure(one.params) == jax.tree.structure(two.params)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        np.testing.assert_allclose(a, b, atol=atol)
    for name in one.history:
        np.testing.assert_allclose(one.history[name], two.history[name], atol=atol, rtol=1e-10, err_msg=name)


class TwoWorlds:
    """Quadratics of two leaves that know nothing of each other: one shared, one of every agent's own."""

    def __init__(self):
        self.shared, self.own = Quadratics(), Quadratics(seed=1)
        data = {
            "A": self.shared.hessians,
            "b": self.shared.minimizers,
            "C": self.own.hessians,
            "d": self.own.minimizers,
        }
        start = {"x": self.shared.x0, "own": self.own.x0}
        self.problem = pisco.Problem(
            lambda p, s, key: half(p["x"], s["A"], s["b"]) + half(p["own"], s["C"], s["d"]),
            start,
            {name: array[:, None] for name, array in data.items()},
            parts={"local": "own"},
        )


def half(x, matrix, at):
    return 0.5 * jnp.einsum("bi,bij,bj->b", x - at, matrix, x - at)


ONE_OF_A_KIND = ["pisco", "pisco-compressed", "kgt", "scaffold", "ha-fed", "dsgd"]


@pytest.mark.parametrize(
    "name", [*ONE_OF_A_KIND, *(pytest.param(n, marks=pytest.mark.slow) for n in ALGORITHMS if n not in ONE_OF_A_KIND)]
)
def test_every_method_sends_what_is_shared_and_nothing_else(x64, name):
    method, world = ALGORITHMS[name], TwoWorlds()
    usual = {"local_lr": 0.02, "local_steps": 2}
    rule = build(name, **{k: v for k, v in usual.items() if k in method.hyperparameters})
    network = network_for(method)
    ours = trajectory(rule, world.problem, network, 3)
    alone = trajectory(rule, world.shared.problem(), network, 3)
    for state, plain in zip(ours, alone, strict=True):  # as if there were no leaves of one's own
        np.testing.assert_allclose(state.params.shared["x"], plain.params, atol=1e-13)
    shapes = [
        carry_shapes(Job(p, network, (Run(rule, network.server, 0),))) for p in (world.problem, world.shared.problem())
    ]
    sent, plain = (message_sizes(rule, each.state.params, 6) for each in shapes)
    assert sent == plain
    if not rule.needs.server_every_round:  # its own leaves see nobody
        alone = pisco.Network(weights=np.eye(6), server=pisco.never())
        own = trajectory(rule, world.own.problem(), alone, 1)
        np.testing.assert_allclose(ours[1].params.local["own"], own[1].params, atol=1e-13)


def test_leaves_of_ones_own_reach_ones_own_minimiser(x64):
    world = TwoWorlds()
    network = pisco.Network.ring(6, server=pisco.bernoulli(0.3))
    rule, once = pisco.algorithms.pisco(local_lr=0.1, local_steps=2), {"eval_every": 800, "chunk_rounds": 800}
    result = pisco.run(rule, world.problem, network, rounds=800, **once)
    np.testing.assert_allclose(result.params["own"], world.own.minimizers, atol=1e-10)
    np.testing.assert_allclose(result.params["x"], np.tile(world.shared.optimum, (6, 1)), atol=1e-10)
    assert result.history["grad_norm_sq"][-1] < 1e-18
    assert result.history["consensus_error"][-1] < 1e-18  # of what is sent


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["buffers", "local_buffers"])
def test_engines_agree(x64, kind, tmp_path):
    problem = parted(parts={"frozen": "scale", "local": "head/*", kind: "stats/*"})
    options = {"rounds": 2, "eval_every": 2, "batch_size": 3, "chunk_rounds": 1}
    scan = pisco.run(RULE, problem, RING, **options)
    for engine in ("debug", "sharded") if kind == "buffers" else ("sharded",):
        same(scan, pisco.run(RULE, problem, RING, engine=engine, **options))
    pisco.run(RULE, problem, RING, checkpoint=tmp_path, **(options | {"rounds": 1}))
    same(scan, pisco.run(RULE, problem, RING, checkpoint=tmp_path, resume=True, **options))
    floats = {"buffers": 4, "local_buffers": 3}[kind]
    assert scan.history["bytes_gossip"][-1] == 8 * floats * scan.history["messages_gossip"][-1]
    assert scan.params["scale"] is None


def test_what_is_measured_are_the_agents_own_models(x64):
    problem = parted(weights=[0.1, 0.3, 0.2, 0.2, 0.2], eval_batch=4)
    result = pisco.run(RULE, problem, RING, rounds=3, batch_size=3)
    mean, heads = problem.model(result.params), result.params["head"]["b"]

    def own(model, head, batch):
        return loss(model | {"head": {"b": head}}, batch, None)[0].mean()

    q = np.asarray([0.1, 0.3, 0.2, 0.2, 0.2])
    mean = jax.tree.map(np.asarray, mean)
    losses, slopes = jax.jit(jax.vmap(jax.value_and_grad(own), (None, 0, 0)))(mean, heads, DATA)
    at = [DATA["a"][i] @ mean["w"] * mean["scale"] - mean["stats"]["m"] + heads[i] - DATA["y"][i] for i in range(N)]
    np.testing.assert_allclose(result.history["loss"][-1], q @ np.asarray(losses), rtol=1e-12)
    shared = q @ np.asarray(slopes["w"])
    apart = np.mean([(N * q[i] * 2 * at[i].mean()) ** 2 for i in range(N)])
    np.testing.assert_allclose(result.history["grad_norm_sq"][-1], (shared**2).sum() + apart, rtol=1e-12)
    tests = [error(mean | {"head": {"b": heads[i]}}, TEST).mean() for i in range(N)]
    np.testing.assert_allclose(result.history["test_error"][-1], np.mean(tests), rtol=1e-12)


def test_buffers_are_renewed_once_a_round_and_averaged(x64):
    problem = parted({name: array[:, :1] for name, array in DATA.items()})  # one sample: every batch is that one
    server = pisco.Network.complete(N, server=pisco.always())
    rule = pisco.algorithms.dsgd(local_lr=0.1, direction=[{"name": "weight-decay", "weight": 0.5}])
    m = 0.0
    for done in (1, 2, 3):
        result = pisco.run(rule, problem, server, rounds=done, batch_size=1, chunk_rounds=1)
        seen = np.einsum("nd,nd->n", DATA["a"][:, 0], result.params["w"]) * 2.0
        expected = 0.5 * np.mean(m) + 0.5 * seen  # weight decay leaves them alone
        np.testing.assert_allclose(result.params["stats"]["m"], expected, atol=1e-12)
        m = expected


def test_frozen_leaves_are_held_once(x64):
    problem = parted()
    job = Job(problem, RING, (Run(RULE, RING.server, 0),), 2)
    held = jax.tree.leaves(carry_shapes(job).state)
    assert not [leaf for leaf in held if leaf.shape in ((), (N, 1))] and len(held) == 9  # X, Y, G of w, b, m
    plain = pisco.Problem(lambda p, b, key: loss(p, b, None)[0], START, DATA, parts={"frozen": ["scale", "stats/*"]})
    assert not isinstance(plain.init(jax.random.key(0)), Parted)  # sent whole: the user's own tree
    drawn = pisco.Problem(
        lambda p, b, key: (b["a"] @ p["w"] * p["c"]) ** 2,
        lambda key: {"w": jax.random.normal(key, (3,)), "c": jax.random.normal(key, ())},
        DATA,
        parts={"frozen": "c"},
    )
    runs = pisco.run(RULE, drawn, RING, rounds=1, batch_size=2, seed=[0, 1])
    assert runs.params["c"] is None and not np.allclose(*runs.params["w"])
    assert drawn.model(runs.only([1]).params | {"w": runs.params["w"][1]}, 0)["c"] == drawn.frozen["c"]


@pytest.mark.slow
def test_a_federation_agrees_with_scan(tmp_path):
    agents = 3
    data = {name: array[:agents].astype(np.float32) for name, array in DATA.items()}
    plan = plan_for(agents, rounds=4, batch_size=3, seed=7)

    def problem_of(index):
        return parted({name: array[index : index + 1] for name, array in data.items()})

    running = Running(tmp_path, plan, problem_of).join()
    network = plan.network_of(plan.epochs[0])
    alone = pisco.run(plan.build_algorithm(), parted(data), network, rounds=4, batch_size=3, seed=7)
    for index, name in enumerate(plan.names):
        found = running.results[name].params
        for own, all_ in zip(jax.tree.leaves(found), jax.tree.leaves(alone.params), strict=True):
            np.testing.assert_allclose(own[0], all_[index], atol=1e-5)
    problems = {name: problem_of(index) for index, name in enumerate(plan.names)}
    again = replay(plan, problems, everybody(plan))
    for name in plan.names:
        running.results[name].save(tmp_path / name)
        assert furthest(pisco.Result.load(tmp_path / name).params, [again[name].params]) == 0
    local = pisco.interop.host.Local(
        lambda seed: np.zeros(2, np.float32), lambda x, rows, seed: (0.0, x), lambda *_: 0.0, 3
    )
    augmented = pisco.Problem(lambda x, b, key: x * b, 0.0, np.ones((1, 3)), transform=lambda b, key: b)
    for problem in (problems["agent-0"], pisco.interop.host.problem(local), augmented):  # `together` takes plain arrays
        assert "in parts" in why_not_scan(plan, [], dict.fromkeys(plan.names, problem))
    sent = running.members[plan.names[0]].programs._round.messages
    assert [sum(leaf.size for leaf in leaves) for _, leaves in sent] == [4, 4]  # w and m, for X and Y


@pytest.mark.parametrize("presence", ["deadline", pytest.param("all", marks=pytest.mark.slow)])
def test_what_is_never_sent_stays_when_somebody_joins_and_at_the_end(tmp_path, monkeypatch, presence):
    """The mean that a newcomer starts with and the closing average are of what is sent; a replay agrees."""
    agents, message, sent = 3, PlainSum.message, {}
    data = {name: array[:agents].astype(np.float32) for name, array in DATA.items()}
    more = {} if presence == "all" else {"presence": presence, "deadline": 60.0, "quorum": 2}
    founders = plan_for(2, rounds=4, batch_size=3, seed=7, closing=True, **more)
    plan = founders.change(2, "add", "agent-2", f"127.0.0.1:{free_ports(1)[0]}")

    def problem_of(index):
        return parted({name: array[index : index + 1] for name, array in data.items()})

    def recorded(self, part, arrays):
        sent.setdefault(part.where.phase, set()).add(tuple(array.size for array in arrays))
        return message(self, part, arrays)

    monkeypatch.setattr(PlainSum, "message", recorded)
    running = Running(tmp_path, plan, problem_of).join()
    assert sent[BOUNDARY] == sent[CLOSING] == {(3, 1)}  # w and stats/m, and not head/b
    model = running.results["server"].params
    assert {name: array.shape for name, array in model.items()} == {"w": (1, 3), "stats/m": (1,)}
    own = [running.results[name].params for name in plan.names]
    np.testing.assert_allclose(model["w"], np.mean([each["w"] for each in own], axis=0), atol=1e-6)
    assert len({float(each["head"]["b"][0]) for each in own}) == agents
    rolls = everybody(plan) if presence == "all" else running.members["server"].file.rolls
    again = replay(plan, {name: problem_of(index) for index, name in enumerate(plan.names)}, rolls)
    for name, each in zip(plan.names, own, strict=True):
        for one, other in zip(jax.tree.leaves(each), jax.tree.leaves(whole(again[name].params)), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_guards_and_masks_see_what_is_sent_and_nothing_else(x64):
    """Poison is bounded and named where a part of the model is never sent; masked sums count and average the rest."""
    links = {"server": pisco.bernoulli(0.5)}
    how = {"rounds": 6, "batch_size": 3, "eval_every": 6, "seed": 3}

    def ran(attacked=False, **options):
        network = pisco.Network.complete(N, **links, **options)
        network = pisco.testing.poisoned(network, [4], "times-1000") if attacked else network
        return pisco.run(RULE, parted(), network, **how)

    plain, guarded = ran(), ran(attacked=True, guard=pisco.clip())
    assert [each["agent"] for each in guarded.named] == [4] and np.abs(guarded.params["w"]).max() < 5
    # The gradient of an own leaf depends here on nothing that is sent, so poison does not reach it.
    np.testing.assert_allclose(guarded.params["head"]["b"][:4], plain.params["head"]["b"][:4], rtol=0, atol=1e-12)
    assert np.abs(guarded.params["stats"]["m"][:4]).max() < 5
    masked = ran(server_sum="masked", guard=pisco.clip(guard_server=False))
    for one, other in zip(jax.tree.leaves(masked.params), jax.tree.leaves(plain.params), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(masked.history["bytes_server"], plain.history["bytes_server"])  # 8 bytes either way


@pytest.mark.parametrize("how", ["guard", pytest.param("masked", marks=pytest.mark.slow)])
def test_a_federation_guards_and_masks_parts_as_its_replay_does(tmp_path, how):
    """With leaves of their own: to the bit in a replay, and as `scan` counts it and gets it but for rounding."""
    agents, rounds = 3, 4
    data = {name: array[:agents].astype(np.float32) for name, array in DATA.items()}
    network = {"graph": "complete", "server_prob": 0.5, "guard": "clip", "guard_server": how == "guard"}
    options = {"server_sum": "masked"} if how == "masked" else {}
    plan = plan_for(agents, rounds=rounds, batch_size=3, seed=7, closing=True, network=network, **options)

    def problem_of(index):
        return parted({name: array[index : index + 1] for name, array in data.items()})

    running = Running(tmp_path, plan, problem_of).join()
    own = [running.results[name].params for name in plan.names]
    again = replay(plan, {name: problem_of(index) for index, name in enumerate(plan.names)}, everybody(plan))
    for name, each in zip(plan.names, own, strict=True):
        for one, other in zip(jax.tree.leaves(each), jax.tree.leaves(whole(again[name].params)), strict=True):
            np.testing.assert_array_equal(one, other)
    alone = pisco.run(
        plan.build_algorithm(), parted(data), plan.network_of(plan.epochs[0]), rounds=rounds, batch_size=3, seed=7
    )
    for index, each in enumerate(own):
        for one, all_ in zip(jax.tree.leaves(each), jax.tree.leaves(alone.params), strict=True):
            np.testing.assert_allclose(one[0], all_[index], atol=1e-5)
    counted = running.results["server"].history["bytes_server"][-1]
    reached = alone.history["server_rounds"][-1]
    up = {"guard": 16, "masked": 24}[how]  # w and stats/m: four numbers
    assert counted == alone.history["bytes_server"][-1] == reached * 2 * agents * (up + 16) > 0
    model = running.results["server"].params
    np.testing.assert_allclose(model["w"], np.mean([each["w"] for each in own], axis=0), atol=1e-6)
    assert not any(member.watcher.named for member in running.members.values())


@pytest.mark.slow
def test_a_federation_names_who_sends_poison_in_parts(tmp_path):
    data = {name: array.astype(np.float32) for name, array in DATA.items()}
    network = {"graph": "complete", "server_prob": 0.3, "guard": "clip"}
    plan = plan_for(N, rounds=20, batch_size=3, seed=7, network=network)
    ran = Poisoned(tmp_path, plan, lambda i: parted({name: array[i : i + 1] for name, array in data.items()})).join()
    for name in plan.names[:4]:
        assert list(ran.members[name].watcher.named) == ["agent-4"]
        assert np.abs(ran.results[name].params["w"]).max() < 5


BAD = [
    ({"local": "haed/*"}, "no leaf is matched by local='haed/*'; the model has head/b, scale, stats/m, w"),
    ({"local": ["head/*", "w2"]}, "no leaf is matched by local='w2'; the model has head/b, scale, stats/m, w"),
    ({"frozen": lambda path: False}, "no leaf is matched by the function of frozen; the model has head/b"),
    ({"frozen": lambda path: 1 / 0}, "the function of frozen fails at the path 'head/b' (ZeroDivisionError"),
    ({"lokal": "w"}, "unknown kind of part 'lokal'; did you mean 'local'?"),
    ({"local": "w", "frozen": "*"}, "w is both local and frozen"),
    ({"frozen": "*"}, "parts leave nothing to train"),
    ({"local": ["w", "scale", "head/*", "stats/*"]}, "parts leave nothing to send"),
    ({"local": 3}, "local is 3, expected a pattern"),
    ("head/*", "parts is 'head/*', expected patterns by kind"),
    ({"local": "head/*"}, "loss returns several things"),
    ({"buffers": "w"}, "the loss returns the buffers stats/m, and parts names w"),
]


@pytest.mark.parametrize(("parts", "sentence"), BAD)
def test_bad_parts(parts, sentence):
    with pytest.raises(pisco.InputError) as caught:
        parted(parts=parts)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_bad_buffers():
    def other(model, batch, key):
        return loss(model, batch, key)[0], {"stats": {"m": jnp.zeros(3)}}

    def none(model, batch, key):
        return loss(model, batch, key)[0]

    for wrong, sentence in (
        (other, r"the buffer stats/m as float32\(3,\), and it starts as float32\(\)"),
        (none, r"returns no buffers \(buffers: stats/m\)"),
    ):
        with pytest.raises(pisco.InputError, match=sentence):
            pisco.Problem(wrong, START, DATA, parts={"buffers": "stats/*"})
    uneven = [{name: array[i, : 4 + i] for name, array in DATA.items()} for i in range(N)]
    with pytest.raises(pisco.InputError, match="give a batch_size"):
        pisco.run(RULE, parted(uneven), RING, rounds=1)
    with pytest.raises(pisco.InputError, match=r"the parameters lack head/b"):
        parted().model({"w": np.zeros((N, 3))})
