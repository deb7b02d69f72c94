"""Things from outside the package: a file beside the experiment, an installed package, and the federation's plan."""

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
from typer.testing import CliRunner

import pisco
from pisco import InputError
from pisco.cli import compare as command
from pisco.cli.main import app
from pisco.data.partition import deal
from pisco.experiments import load
from pisco.experiments.planned import diagnose_config
from pisco.federation.plan import Federation
from pisco.problems.registry import PROBLEMS
from pisco.registry import load_file

from federations import Running, plan_for, quadratic_of
from worlds import Quadratics

WORLD = Quadratics(agents=5)

MINE = '''
"""One of each kind."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import pisco
from pisco.algorithms.compressors import compressor as as_compressor
from pisco.tree import add, descend, subtract


class State(NamedTuple):
    params: Any


@pisco.algorithm
def descent(*, local_lr: float, pull: float = 1.0) -> pisco.Pair:
    """Descend, then go towards the neighbours."""

    def init(params, key, grad, mix):
        return State(params)

    def one_round(state, key, grad, mix):
        step = descend(state.params, local_lr, grad(state.params, key))
        return State(add(step, subtract(mix(step), step), pull))

    return pisco.Pair(init, one_round)


extra = pisco.algorithms.Method(descent, "published on a ring", {"pull": 0.5}, {"server": "never"})


def tree(*, agents: int, branching: int = 2):
    """Agent i is linked to its parent."""
    return pisco.networks.graphs.from_edges([(i, (i - 1) // branching) for i in range(1, agents)], agents)


def evenings(*, hours: int):
    """The last hours of every day of 24 rounds."""
    return lambda key, k: k % 24 >= 24 - hours


class Signs(NamedTuple):
    """Signs, scaled by the mean magnitude."""

    scale: float = 1.0

    def __call__(self, tree, key):
        import jax
        return jax.tree.map(lambda x: self.scale * jnp.sign(x) * jnp.mean(jnp.abs(x)), tree)

    def message_bytes(self, tree):
        import jax
        return sum(leaf.size // 8 + 4 for leaf in jax.tree.leaves(tree))


def half(graph):
    """Half of one's own, the rest evenly from neighbours on a regular graph."""
    n, degree = graph.num_agents, int(graph.degrees.max())
    return 0.5 * np.eye(n) + 0.5 * graph.adjacency().toarray() / degree


def points():
    """Two clouds."""
    features = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    return pisco.data.Dataset("points", features, (features[:, 0] > 0).astype(int))


def alternate(labels, agents):
    """Sample by sample in turn."""
    return [np.arange(len(labels))[i::agents] for i in range(agents)]


def ridge(dataset, *, agents: int, partition="sorted", partition_options=None, rho: float = 0.1):
    """Least squares on the labels."""
    parts = pisco.problems.supervised.split(dataset, agents, partition, partition_options)
    data = [{"a": dataset.features[part], "y": dataset.labels[part].astype(np.float32)} for part in parts]

    def loss(x, batch, key):
        return (batch["a"] @ x - batch["y"]) ** 2 + rho * jnp.sum(x**2)

    return pisco.Problem(loss, jnp.zeros(dataset.features.shape[1]), data)


def alone(*, agents: int):
    """A problem with data of its own."""
    return pisco.problems.quadratic(np.ones((agents, 1, 1)), np.arange(float(agents))[:, None])


def failing(*, agents: int):
    return 1 / 0


def squared_length(state, here):
    return here.mean(jnp.sum(state.params**2, axis=-1))


length = pisco.Metric("length", squared_length, rising=True, of="state", title="‖x‖²")


def lengthy():
    """The same, made by a function."""
    return pisco.Metric("lengthy", squared_length, of="state")
'''

EXPERIMENT = """
[algorithm]
name = "{0}extra"
local_lr = 0.1

[problem]
name = "{0}ridge"
rho = 0.01
dataset = "{0}points"
partition = "{0}alternate"
metrics = ["{0}length", "{0}lengthy"]

[network]
graph = "{0}tree"
branching = 3
agents = 4
server = "{0}evenings"
hours = 12

[run]
rounds = 20
batch_size = 2
chunk_rounds = 10
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a file of one's own and an experiment, which is not the current one."""
    monkeypatch.setattr(command, "use_compilation_cache", lambda: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mine.py").write_text(MINE)
    (tmp_path / "work" / "mine.toml").write_text(EXPERIMENT.format("mine.py:"))
    return tmp_path / "work"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The same things as entry points of a package that is installed."""
    site = tmp_path / "site"
    (site / "others-1.0.dist-info").mkdir(parents=True)
    (site / "others.py").write_text(MINE)
    (site / "others-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    groups = {
        "algorithms": ("extra", "descent"),
        "graphs": ("tree",),
        "schedules": ("evenings",),
        "compressors": ("Signs",),
        "weights": ("half",),
        "datasets": ("points",),
        "partitions": ("alternate",),
        "problems": ("ridge", "alone"),
        "metrics": ("length", "lengthy"),
    }
    lines = [
        f"[pisco.{group}]\n" + "".join(f"my-{name} = others:{name}\n" for name in names)
        for group, names in groups.items()
    ]
    broken = "[pisco.varying]\nmy-broken = nowhere_at_all:thing\n"
    (site / "others-1.0.dist-info" / "entry_points.txt").write_text("".join(lines) + broken)
    monkeypatch.syspath_prepend(str(site))
    return site


def pisco_(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


# ------------------------------------------------------------------------------------ files and packages


def test_a_file_of_ones_own_in_python(here):
    rule = pisco.algorithms.build("work/mine.py:extra", local_lr=0.1)
    assert repr(rule) == "descent(local_lr=0.1, pull=0.5)"
    again = pisco.algorithms.build(str(here / "mine.py:extra"), local_lr=0.2)
    assert rule.factory is again.factory  # loaded once, so compiled once
    network = pisco.Network.named("work/mine.py:tree", 7, branching=3, weights="fdla")
    assert network.num_agents == 7 and network.graph.degrees.max() == 4
    assert pisco.Network.ring(4, weights="work/mine.py:half").weights.toarray()[0].tolist() == [0.5, 0.25, 0, 0.25]
    data = pisco.data.load("work/mine.py:points")
    problem = pisco.problems.logistic(data, agents=4, partition="work/mine.py:alternate")
    result = pisco.run(rule, problem, pisco.Network.ring(4), rounds=3)
    assert result.rounds == 3
    squeezed = pisco.algorithms.build("choco", local_lr=0.1, compressor={"name": "work/mine.py:Signs", "scale": 2})
    assert repr(squeezed.hyperparameters["compressor"]) == "Signs(scale=2.0)"


def test_a_host_in_paraguay_is_no_file():
    made = Federation.create(
        "clinic", rounds=1, agents={"a": "salud.com.py:7401", "b": "b.py:1"}, algorithm={"name": "dsgd", "local_lr": 1}
    )
    assert made.files == {} and made.roster[0].address == "salud.com.py:7401"


def test_a_changed_file_is_loaded_again(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def points(): return 1")
    first = load_file(file)
    assert load_file(file) is first
    file.write_text("def points(): return 2")
    assert load_file(file).points() == 2


def squeezed(compressor):
    """A run whose messages a compressor of the file makes."""
    rule = pisco.algorithms.build("choco", local_lr=0.1, compressor=f"work/odd.py:{compressor}")
    return pisco.run(rule, WORLD.problem(), pisco.Network.ring(5), rounds=1)


ODD = """
class Wider:
    def __call__(self, tree, key): return [tree, tree]
    def message_bytes(self, tree): return 8

class Wordy:
    def __call__(self, tree, key): return tree
    def message_bytes(self, tree): return "few"
"""


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: pisco.algorithms.build("work/mine.py:exta"), "defines no algorithm 'exta'; did you mean 'extra'"),
        (lambda: pisco.algorithms.build("work/mine.py:extra", local_lr="a"), "local_lr is 'a', expected a number"),
        (lambda: pisco.algorithms.build("work/mine.py:extra"), "local_lr is missing; algorithm"),
        (lambda: pisco.algorithms.build("work/mine.py:extra", pull=1), "has no option 'pull'"),
        (lambda: pisco.algorithms.build("nowhere.py:extra"), "there is no file"),
        (lambda: pisco.algorithms.build("mine.py"), 'or your own, as in "mine.py:function"'),
        (lambda: pisco.algorithms.build("work/mine.py:points"), "is a Dataset; put @pisco.algorithm above"),
        (lambda: pisco.data.load("work/mine.py:evenings"), "hours is missing"),
        (lambda: pisco.data.load("work/bad.py:f"), "bad.py, line 2: loading it fails (NameError"),
        (lambda: pisco.Network.named("work/mine.py:tree", 4, branchng=2), "did you mean 'branching'"),
        (lambda: pisco.Network.named("work/mine.py:failing", 4), "failing() fails (ZeroDivisionError"),
        (
            lambda: pisco.Network.named("work/mine.py:np", 4),
            "graph 'mine.py:np' is of type module, expected a function",
        ),
        (lambda: pisco.algorithms.build("work/mine.py:length"), "is of type Metric, expected a function"),
        (lambda: pisco.data.load("work/mine.py:jnp"), "is of type module, expected a function"),
        (lambda: PROBLEMS["work/mine.py:points"](), "returns Dataset, expected a pisco.Problem"),
        (lambda: pisco.algorithms.build("work/mine.py:extra", local_lr=np.nan), "local_lr is nan, expected a number"),
        (
            lambda: pisco.algorithms.dsgd(local_lr=np.array([0.1, 0.2])),
            "local_lr is array([0.1, 0.2]), expected a numb",
        ),
        (lambda: deal(pisco.data.load("work/mine.py:points"), lambda labels, agents: 3, 2), "partition returns 3"),
        (lambda: squeezed("Wider"), "the compressor Wider returns other shapes or dtypes than it is given"),
        (lambda: squeezed("Wordy"), "message_bytes of the compressor Wordy returns is 'few', expected a whole number"),
    ],
)
def test_mistakes_with_files_are_one_sentence(here, call, sentence):
    (here / "bad.py").write_text("x = 1\ny = z\n")
    (here / "odd.py").write_text(ODD)
    with pytest.raises(InputError) as caught:
        call()
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_an_error_in_a_round_of_ones_own_names_the_line(here):
    text = MINE.replace("return State(add(step, subtract(mix(step), step), pull))", "return State(mix(stp))")
    (here / "mine.py").write_text(text)
    line = 1 + text[: text.index("mix(stp)")].count("\n")
    for words in (["run", "--out", "out"], ["tune", "--grid", "0.1", "--seeds", "1"]):
        failed = pisco_(*words, here / "mine.toml")
        assert failed.exit_code == 2 and f"mine.py, line {line}: NameError: name 'stp'" in failed.output, failed.output
    assert not Path("out").exists()  # nothing was computed: the same command may be typed again


def test_a_run_that_goes_on_with_another_file_says_so(here):
    short = ("--set", "run.rounds=1", "--set", "run.chunk_rounds=1")
    assert pisco_("run", here / "mine.toml", *short, "--out", "out").exit_code == 0
    same = pisco_("run", "--resume", "out", "--set", "run.rounds=2")
    assert same.exit_code == 0 and "has changed since" not in same.output
    (here / "mine.py").write_text(MINE.replace("descend(state.params, local_lr", "descend(state.params, 2 * local_lr"))
    other = pisco_("run", "--resume", "out", "--set", "run.rounds=3")
    assert other.exit_code == 0 and "mine.py has changed since out began" in other.output.replace("\n", " ")


def test_entry_points_of_other_packages(installed):
    assert repr(pisco.algorithms.build("my-extra", local_lr=0.1)) == "descent(local_lr=0.1, pull=0.5)"
    assert pisco.Network.named("my-tree", 7, weights="metropolis").num_agents == 7
    assert pisco.data.load("my-points").num_samples == 40
    listed = json.loads(pisco_("list", "--json").output)
    assert listed["algorithms"]["my-extra"] == "published on a ring; settings: local_lr"
    assert listed["graphs"]["my-tree"] == "Agent i is linked to its parent; settings: branching"
    assert "my-evenings" in listed["schedules"] and "my-Signs" in listed["compressors"]
    assert listed["metrics"]["my-length"] == "‖x‖²" and listed["metrics"]["loss"] == "loss f(x̄)"
    assert "cannot be loaded from nowhere_at_all:thing" in listed["varying"]["my-broken"]
    with pytest.raises(InputError, match="did you mean 'my-extra'"):
        pisco.algorithms.build("my-exta", local_lr=0.1)


# ------------------------------------------------------------------------------------- experiment files


@pytest.mark.parametrize("prefix", ["mine.py:", pytest.param("my-", marks=pytest.mark.slow)])
def test_an_experiment_of_ones_own_things(here, installed, prefix):
    """Run, resumed elsewhere, tuned, compared with ours, and reported."""
    file = here / "mine.toml"
    file.write_text(EXPERIMENT.format(prefix))
    done = pisco_("run", file, "--out", "result")
    assert done.exit_code == 0, done.output
    result = pisco.Result.load("result")
    assert result.history["server_rounds"][-1] == 8  # rounds 12 to 19
    np.testing.assert_array_equal(result.history["length"], result.history["lengthy"])
    (shown,) = json.loads(pisco_("show", "result", "--targets", "length=0.001", "--json").stdout)
    assert shown["seeds to length"] == 1 and result.metric("length").title == "‖x‖²"
    assert load("result/config.toml") == load(file)
    more = pisco_("run", "--resume", "result", "--set", "run.rounds=30")
    assert more.exit_code == 0 and pisco.Result.load("result").rounds == 30
    if prefix == "my-":  # the rest only differs by how names are found
        return
    tuned = pisco_("tune", file, "--grid", "0.01,0.1", "--seeds", 1, "--targets", "length=0.001", "--json")
    assert tuned.exit_code == 0 and len(json.loads(tuned.stdout)["trials"]) == 2, tuned.output
    words = ("--algorithms", "dsgd,work/mine.py:descent", "--grid", "0.1", "--seeds", 1, "--tuning-seeds", 1)
    compared = pisco_("compare", file, *words, "--out", "c")
    assert compared.exit_code == 0 and "test" not in compared.stdout, (
        compared.output
    )  # no columns of what nobody measures
    rows = Path("c/compare.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["dsgd", "mine.py:descent"]
    page = pisco_("report", "c/dsgd", "c/mine.py-descent", "result", "--out", "page.html")
    assert page.exit_code == 0 and "descent" in Path("page.html").read_text(), page.output
    (here / "mine.py").unlink()
    assert pisco_("report", "result", "--out", "later.html").exit_code == 0  # a result needs no code


@pytest.mark.slow
def test_a_comparison_forgets_what_another_file_computed(here):
    command = ("compare", here / "mine.toml", "--algorithms", "work/mine.py:descent", "--grid", "0.1", "--out", "c")
    command += ("--seeds", 1, "--targets", "grad_norm_sq_mean=1", "--rounds", 3)
    first = pisco_(*command)
    assert first.exit_code == 0, first.output
    kept = Path("c/mine.py-descent/tuning.json").read_text()
    assert pisco_(*command).exit_code == 0 and Path("c/mine.py-descent/tuning.json").read_text() == kept
    (here / "mine.py").write_text(MINE.replace("pull: float = 1.0", "pull: float = 0.9"))
    assert pisco_(*command).exit_code == 0 and Path("c/mine.py-descent/tuning.json").read_text() != kept


@pytest.mark.parametrize(
    "words", [("compare", "quick", "--algorithms"), ("plan", "quick", "--algorithms"), ("bench", "quick", "--methods")]
)
def test_methods_that_tables_cannot_tell_apart_are_refused(here, words):
    """One file by two paths, or two of one name: their results would go into one folder."""
    done = pisco_(*words, "work/mine.py:descent,./work/mine.py:descent")
    said = " ".join(done.output.split())
    assert done.exit_code == 2 and "are both shown as mine.py:descent; leave one out, or rename its file" in said


def test_what_a_file_imports_is_not_offered(tmp_path):
    (tmp_path / "few.py").write_text("import numpy as np\nfrom typing import Any, NamedTuple\ndef mine(): ...\n")
    with pytest.raises(pisco.InputError, match=r"defines no algorithm 'other'; known: mine$"):
        pisco.algorithms.build(f"{tmp_path}/few.py:other")


def test_settings_of_ones_own_have_the_same_checks(here):
    with (here / "mine.py").open("a") as file:
        file.write(
            "\n\ndef nothing(*_, agents=4):\n    ...\n\n\ndef matrix(agents):\n    return np.ones((agents, agents))\n"
        )
    for overrides, sentence in (
        (["network.branchng=2"], "network.branchng is not a setting; did you mean 'branching'?"),
        (["network.branching=x"], "network.branching is 'x', expected a whole number"),
        (["algorithm.name=work/mine.py:exta"], "did you mean 'extra'"),
        (["problem.metrics=['work/mine.py:lenght']"], "defines no metric 'lenght'; did you mean 'length'"),
        (["problem.metrics=['work/mine.py:points']"], "is a Dataset, expected a metric, as in lag = pisco.Metric"),
        (["problem.metrics=['accuracy']"], "unknown metric 'accuracy'"),
        (["problem.metrics=work/mine.py:length"], "mine.py:length', expected a list in brackets"),
        (["network.server=work/mine.py:nothing"], "server 'mine.py:nothing' returns None; end it with `return` and"),
        (["network.guard=work/mine.py:nothing"], "guard 'mine.py:nothing' returns None; end it"),
        (["network.varying=work/mine.py:nothing"], "'mine.py:nothing' returns None; end it"),
        (["network.presence=work/mine.py:nothing"], "presence 'mine.py:nothing' returns None; end it"),
        (["network.weights=work/mine.py:nothing"], "weights 'mine.py:nothing' returns None; end it"),
        (["network.graph=work/mine.py:nothing"], "graph 'mine.py:nothing' returns None; end it"),
        (
            ["network.graph=work/mine.py:matrix"],
            "the graph is an array of shape (4, 4), expected a Graph, as from_edges",
        ),
        (["problem.name=work/mine.py:ridge", "problem.rh=1"], "problem.rh is not a setting; did you mean 'rho'?"),
    ):
        with pytest.raises(InputError) as caught:
            load(here / "mine.toml", overrides).network.build()
        assert sentence in str(caught.value)
    ours = load(here / "mine.toml", ["network.graph=ring", "network.server=never", "problem.name=logistic"])
    assert not {"branching", "hours"} & set(ours.to_dict()["network"])
    free = load(here / "mine.toml", ["problem.name=work/mine.py:alone", "run.batch_size=full"])
    assert free.execute().rounds == 20
    compressed = ["algorithm.name=choco", "algorithm.compressor={name='work/mine.py:Signs', scale=1.0}"]
    assert load(here / "mine.toml", [*compressed, "network.server=never"]).execute().rounds == 20
    tables = load(here / "mine.toml").to_dict()
    del tables["problem"]["dataset"]
    with pytest.raises(InputError, match="problem.dataset is missing"):
        pisco.experiments.Config.from_dict(tables)


def test_a_file_that_is_gone_can_be_replaced(here):
    text = '[algorithm]\nname = "gone.py:extra"\nlocal_lr = 0.1\n[problem]\ndataset = "a9a"\n'
    (here / "gone.toml").write_text(text + "[network]\nagents = 4\n[run]\nrounds = 3\n")
    with pytest.raises(InputError, match="there is no file"):
        load(here / "gone.toml")
    assert load(here / "gone.toml", ["algorithm.name=dsgd"]).algorithm.name == "dsgd"


# ------------------------------------------------------------------------------ graphs and weights in files


@pytest.fixture
def roads():
    return nx.cycle_graph(5)


WRITERS = {
    "roads.graphml": nx.write_graphml,
    "roads.edgelist": nx.write_edgelist,
    "roads.txt": lambda graph, path: np.savetxt(path, list(graph.edges), fmt="%d", header="from to"),
    "roads.csv": lambda graph, path: np.savetxt(path, nx.to_numpy_array(graph), delimiter=","),
    "roads.npz": lambda graph, path: scipy.sparse.save_npz(path, nx.to_scipy_sparse_array(graph)),
    "roads.npy": lambda graph, path: np.save(path, nx.to_numpy_array(graph)),
    "roads.adjlist": nx.write_adjlist,
    "roads.tsv": lambda graph, path: np.savetxt(path, nx.to_numpy_array(graph), delimiter="\t"),
    "ROADS.GraphML": nx.write_graphml,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_graph_from_a_file(here, roads, name):
    WRITERS[name](roads, here / name)
    assert pisco.Network.named(str(here / name)).graph.edges.tolist() == pisco.Network.ring(5).graph.edges.tolist()
    text = (here / "mine.toml").read_text().replace('graph = "mine.py:tree"', f'graph = "{name}"')
    (here / "mine.toml").write_text(text.replace("branching = 3\nagents = 4\n", ""))
    config = load(here / "mine.toml")
    built = config.network.build()
    assert config.network.agents == 5 and built.graph.name == name
    assert built.graph.edges.tolist() == pisco.Network.ring(5).graph.edges.tolist()
    if name == "roads.graphml":  # the others are the same network
        assert config.execute().rounds == 20
    with pytest.raises(InputError, match="has 5 agents, not 4; make both the same"):
        load(here / "mine.toml", ["network.agents=4"]).build()


def test_a_file_of_one_way_links_stays_one_way(tmp_path):
    file = tmp_path / "roads.graphml"
    nx.write_graphml(nx.cycle_graph(4, create_using=nx.DiGraph), file)
    assert pisco.Network.named(str(file)).graph.arcs.tolist() == [[0, 1], [1, 2], [2, 3], [3, 0]]
    nx.write_graphml(nx.cycle_graph(4).to_directed(), file)
    assert pisco.Network.named(str(file)).graph.arcs is None  # every link goes both ways


@pytest.mark.parametrize("name", ["roads.edgelist", "roads.csv"])
def test_agents_that_are_numbered_from_one_are_found_out(tmp_path, name):
    """Agent 0 would be one more, without links."""
    (tmp_path / name).write_text("1 2\n2 3\n3 1\n")
    for agents in (None, 3):
        with pytest.raises(InputError, match="no link of agent 0; number agents from 0 on, or give agents = 4"):
            pisco.Network.named(str(tmp_path / name), agents)
    assert pisco.Network.named(str(tmp_path / name), 4).num_agents == 4


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "roads.edgelist",
            "0 1\n1,2\n2 0\n",
            "roads.edgelist, line 2: '1,2' is no link; write two agent numbers a line",
        ),
        ("roads.edgelist", "# from to\n0 1\n2\n", "roads.edgelist, line 3: '2' is no link"),
        ("roads.edgelist", "", "roads.edgelist holds no links; write two"),
        ("roads.edgelist", "0 99999999999", "a network of 100,000,000,000 agents and 0 edges needs about"),
        ("roads.csv", "0,1e30\n1,2\n2,0\n", "the adjacency matrix has shape (3, 2)"),
        ("roads.csv", "0,1,5\n1,2,5\n2,3,1\n", "its links 0, 2 and 2, 0 have unlike numbers (5 and 2); make them the"),
        ("roads.gexf", "", "or a file that ends in .graphml, .edgelist"),
        (
            "roads.graphml",
            "<graphml xmlns='http://graphml.graphdrawing.org/xmlns'><graph edgedefault='directed'/></graphml>",
            "roads.graphml holds no nodes; every agent is one",
        ),
    ],
)
def test_a_file_that_is_no_graph_says_where(tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        pisco.Network.named(str(tmp_path / name))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"), [("r.edgelist", "0 1 {'w': 3}\r\n\n1 2 # hi\n2\t0"), ("r.csv", "0,1\n1,2\n2,0")]
)
def test_texts_of_other_programs_are_read(tmp_path, name, text):
    """With the mark that Windows puts before a text in UTF-8."""
    (tmp_path / name).write_bytes(text.encode("utf-8-sig"))
    assert pisco.Network.named(str(tmp_path / name)).graph.edges.tolist() == [[0, 1], [0, 2], [1, 2]]


def test_weights_from_a_file(here):
    ring = pisco.Network.ring(5, weights="fdla")
    scipy.sparse.save_npz(here / "w.npz", ring.weights)
    np.savetxt(here / "w.csv", ring.weights.toarray(), delimiter=",")
    assert np.allclose(pisco.Network.ring(5, weights=str(here / "w.csv")).weights.toarray(), ring.weights.toarray())
    lines = (here / "mine.toml").read_text().split("[network]")
    (here / "mine.toml").write_text(f'{lines[0]}[network]\nweights = "w.npz"\n\n[run]\nrounds = 3\n')
    built = load(here / "mine.toml").network.build()
    assert (built.weights != ring.weights).nnz == 0 and built.graph.num_edges == 5
    np.savetxt(here / "w.txt", np.eye(3) + 1)
    (here / "broken.npz").write_bytes(b"nothing")
    np.savez(here / "two.npz", w=np.eye(5), v=np.eye(5))
    np.save(here / "words.npy", np.full((5, 5), "a"))
    np.save(here / "complex.npy", np.eye(5) + 0.1j)
    for overrides, sentence in (
        (["network.agents=4"], "network.agents is 4, but w.npz has 5; make both the same"),
        (["network.weights=work/w.txt", "network.graph=complete", "network.agents=3"], "sums to 4, expected 1"),
        (["network.weights=work/broken.npz"], "reading it as a matrix fails"),
        (["network.weights=work/two.npz"], "two.npz holds 2 arrays (w, v); save one alone"),
        (["network.weights=work/words.npy"], "words.npy holds <U1, expected numbers"),
        (["network.weights=work/complex.npy"], "complex.npy holds complex numbers; save real ones"),
        (["network.graph=nowhere.graphml"], "there is no file"),
    ):
        with pytest.raises(InputError) as caught:
            load(here / "mine.toml", overrides).network.build()
        assert sentence in str(caught.value)


def test_the_network_command_takes_files(here, roads):
    nx.write_graphml(roads, here / "roads.graphml")
    shown = pisco_("network", here / "roads.graphml", "--json", "--out", "roads.png")
    assert shown.exit_code == 0 and json.loads(shown.stdout)["agents"] == 5
    np.save(here / "apart.npy", np.eye(3))  # no links at all
    assert pisco_("network", here / "apart.npy", "--out", "apart.png").exit_code == 0
    np.save(here / "apart.npy", np.full((3, 3), np.nan))
    assert "holds NaN; write 0 where" in pisco_("network", here / "apart.npy").output
    (here / "roads.graphml").write_text("<graphml>")
    assert "roads.graphml: reading it as a graph fails" in pisco_("network", here / "roads.graphml").output


# ------------------------------------------------------------------------------------------ federations


def plan(**given):
    settings = {"rounds": 5, "agents": 4, "algorithm": {"name": "work/mine.py:descent", "local_lr": 0.1}}
    network = {"graph": "work/mine.py:tree", "server": "work/mine.py:evenings", "hours": 6}
    return Federation.create("clinic", network=network, **settings | given)


def test_a_plan_carries_the_files_it_names(here, tmp_path):
    made = plan()
    assert list(made.files) == ["mine.py"]
    home, other = tmp_path / "home", tmp_path / "kit"
    home.mkdir()
    other.mkdir()
    made.save(home / "federation.toml")
    assert str(tmp_path) not in (home / "federation.toml").read_text()
    read = Federation.load(home / "federation.toml")
    assert read.hash == made.hash
    (here / "mine.py").unlink()  # the plan's own copy serves
    changed = Federation.load(home / "federation.toml").change(2, "remove", "agent-3")
    changed.save(other / "federation.toml")
    kit = Federation.load(other / "federation.toml")
    assert kit.hash == changed.hash and kit.build_algorithm().name == "descent"
    assert repr(kit.network_of(kit.epochs[1]).server).startswith("custom")
    (other / "mine.py").write_text(MINE + "\n# edited\n")
    with pytest.raises(InputError, match="mine.py is not the file that the plan was made with; copy the coordin"):
        Federation.load(other / "federation.toml")
    (other / "mine.py").unlink()
    with pytest.raises(InputError, match="there is no file"):
        Federation.load(other / "federation.toml")


def test_two_files_of_one_name_are_refused(here, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    with pytest.raises(InputError, match="have one name; rename one"):
        plan(algorithm={"name": "mine.py:descent", "local_lr": 0.1})


def test_another_file_is_another_plan(here):
    before = plan().hash
    (here / "mine.py").write_text(MINE.replace("pull: float = 1.0", "pull: float = 0.9"))
    assert plan().hash != before


def test_init_writes_the_file_beside_the_plan(here, tmp_path):
    done = pisco_(
        "federation", "init", "clinic", "--agents", 3, "--algorithm", "work/mine.py:descent", "--server-prob", 0
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "clinic" / "mine.py").read_text() == MINE
    assert Federation.load(tmp_path / "clinic" / "federation.toml").build_algorithm().name == "descent"
    issued = pisco_("federation", "issue", "agent-0", "--dir", "clinic")
    assert issued.exit_code == 0, issued.output
    assert (tmp_path / "clinic" / "kits" / "agent-0" / "mine.py").read_text() == MINE


def test_a_federation_runs_an_algorithm_of_ones_own(here, tmp_path):
    made = plan_for(3, rounds=4, algorithm={"name": "work/mine.py:descent", "local_lr": 0.1})
    running = Running(tmp_path / "home", made, quadratic_of).join()
    simulated = pisco.run(
        made.build_algorithm(),
        pisco.problems.quadratic(*(part[:3] for part in (WORLD.hessians, WORLD.minimizers)), init=WORLD.x0),
        made.network_of(made.epochs[0]),
        rounds=4,
    )
    np.testing.assert_allclose(running.params(), simulated.params, atol=1e-5)


SHY = """
import pisco
from pisco.types import Pair


@pisco.algorithm
def rule(*, local_lr: float = 0.3, local_steps: int = 5, direction: str = "down") -> Pair:
    inner = pisco.algorithms.dsgd(local_lr=local_lr, local_steps=local_steps)
    return Pair(inner.init, inner.round)


def late(*, hours: int = 3):
    return lambda key, k: k > hours


def comb(*, agents: int):
    return pisco.networks.graphs.from_edges([(i, i + 1) for i in range(agents - 1)])


published = pisco.algorithms.Method(rule, "on a schedule of its own file", {}, {"server": "shy.py:late"})
"""


def test_what_a_rule_has_by_default_stays_so(here):
    (here / "shy.py").write_text(SHY)
    assert pisco_("check", "work/shy.py:rule", "--json").exit_code == 0
    made = pisco_("federation", "init", "c", "--agents", 3, "--algorithm", "work/shy.py:rule")
    assert made.exit_code == 0, made.output
    assert Federation.load("c/federation.toml").algorithm.model_dump() == {"name": str(here / "shy.py:rule")} or (
        "local_lr" not in Path("c/federation.toml").read_text()
    )
    config = load("quick", ["algorithm.name=work/shy.py:rule"])
    assert diagnose_config(config, samples=200)  # a keyword called direction need not be an optimizer


def test_files_that_a_method_of_ones_own_names_stand_beside_it(here):
    (here / "shy.py").write_text(SHY)
    method = pisco.algorithms.ALGORITHMS["work/shy.py:published"]
    assert method.network["server"] == str(here / "shy.py:late")
    told = pisco_("compare", "quick", "--algorithms", "work/shy.py:published", "--rounds", 4, "--seeds", 1)
    assert told.exit_code == 0, told.output


def test_results_name_graphs_and_schedules_of_ones_own(here):
    (here / "shy.py").write_text(SHY)
    network = ["network.graph=work/shy.py:comb", "network.agents=4", "network.server=work/shy.py:late"]
    built = load("quick", [*network, "run.rounds=2"]).network.build()
    assert repr(built) == "Network(shy.py:comb, 3 edges, weights=metropolis, server=custom(shy.py:late))"


def test_a_federation_has_as_many_agents_as_the_file_of_its_links(here, roads):
    nx.write_graphml(roads, here / "roads.graphml")
    assert pisco_("federation", "init", "c", "--graph", "work/roads.graphml").exit_code == 0
    assert len(Federation.load("c/federation.toml").roster) == 5
