"""What a run sends, exactly: counted from the structure of a round and the links its coins chose."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from pisco.errors import InputError, check_number
from pisco.jaxprs import loop_inputs
from pisco.networks.rounds import Links, RoundMix, Told
from pisco.privacy.summing import masked_bytes
from pisco.tree import like_one, num_bytes
from pisco.types import Algorithm, Codec, Compressor, Key, Params, StartMix


class Prices(NamedTuple):
    """What a message costs, to or from the server and between agents, and a gradient of one agent."""

    server: float = 10.0
    gossip: float = 1.0
    gradient: float = 0.0

    def check(self) -> None:
        """Refuse prices that are negative or not finite."""
        for name, value in self._asdict().items():
            check_number(f"the price of a {name}{' message' * (name != 'gradient')}", value, low=0)

    def paid(self, column: Callable[[str], Any], held: Container[str]) -> Any:
        """The price of what a history counts: `column` gives a column by its name, `held` are those that there are."""
        if self.gradient and "gradients" not in held:
            raise InputError("a result does not count its gradients, so they cannot be priced; leave out their price")
        work = self.gradient * column("gradients") if self.gradient else 0.0
        return self.server * column("messages_server") + self.gossip * column("messages_gossip") + work


class MessageSizes(NamedTuple):
    """Bytes of one agent's messages: in every exchange of a round, as sent and whole, and before the first round.

    A compressed message travels between agents and up to the server; what comes down is an average, sent whole.
    """

    agents: int
    sent: list[int]
    whole: list[int]
    start_server: list[int]
    start_gossip: list[int]
    work: Sequence[int] = ()
    """Gradients of every agent before, between and after the exchanges of a round; empty where that is not known."""
    start_work: Sequence[int] = (0,)
    start_kinds: Sequence[str] = ()
    """The exchanges before the first round in their order: "server" or "gossip"."""
    codecs: Sequence[Codec] = ()
    """What compresses in a round, call by call, where its messages can travel."""
    words: Sequence[int] = ()
    """Where the server's sums are masked: bytes up to it in every exchange of a round. Empty: vectors go up as sent."""
    start_words: Sequence[int] = ()
    """The same of `start_server`."""
    shares_key: bool = False
    """Whether two gradients are called with one key, and so take the same batch."""

    @property
    def gradients(self) -> int:
        """Gradients of every agent in a round."""
        return sum(self.work)


class _Recorder(RoundMix):
    """A mix that only notes what it is given."""

    def __init__(self, sizes: MessageSizes):
        self.words: list[int] = []
        everyone = np.ones(sizes.agents, bool)
        super().__init__(lambda tree: tree, Told(everyone, 1.0, everyone))
        self.sizes = sizes
        self.codecs: list[Codec] = []

    def each(self, function: Any, key: Key, tree: Any) -> Any:
        if isinstance(function, Compressor):
            _check_message(function, like_one(tree))
        if not isinstance(function, Codec):
            return super().each(function, key, tree)
        self.codecs.append(function)
        return tree

    def exchange(self, tree: Any, compressor: Compressor | None) -> Any:
        whole = num_bytes(tree) // self.sizes.agents
        self.sizes.sent.append(whole if compressor is None else compressor.message_bytes(like_one(tree)))
        self.sizes.whole.append(whole)
        self.words.append(masked_bytes(tree) // self.sizes.agents)
        return _exchange(tree)


def _check_message(compressor: Compressor, one: Any) -> None:
    """Refuse a compressor of a user's own that returns something else than it was given, or no number of bytes."""
    name, made = type(compressor).__name__, jax.eval_shape(lambda *given: compressor(*given), one, jax.random.key(0))
    if jax.tree.structure(made) != jax.tree.structure(one) or any(
        (a.shape, a.dtype) != (b.shape, b.dtype)
        for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(one), strict=True)
    ):
        raise InputError(f"the compressor {name} returns other shapes or dtypes than it is given; keep them")
    size = compressor.message_bytes(one)
    check_number(f"what message_bytes of the compressor {name} returns", size, low=0, integer=True)


def message_sizes(algorithm: Algorithm, params: Params, num_agents: int, *, masked: bool = False) -> MessageSizes:
    """What a round and the start send, in order; `params` are all agents', or their shapes.

    They are traced, not run: every call of `mix` is one exchange that carries its whole tree. A gradient has
    the shapes of its parameters, so the loss is not even traced.
    """
    kinds: list[str] = []
    words: list[int] = []
    sizes = MessageSizes(num_agents, [], [], [], [])

    def note(kind: str, into: list[int]) -> Any:
        def noting(tree: Any) -> Any:
            kinds.append(kind)
            into.append(num_bytes(tree) // num_agents)
            words.extend([masked_bytes(tree) // num_agents] * (kind == "server"))
            return _exchange(tree)

        return noting

    start = StartMix(note("server", sizes.start_server), note("gossip", sizes.start_gossip))
    key, mix = jax.random.key(0), _Recorder(sizes)
    trace = jax.make_jaxpr(lambda params, key: algorithm.init(params, key, _gradient, start), return_shape=True)
    began, state = trace(params, key)
    once = jax.make_jaxpr(lambda s, key: algorithm.round(s, key, _gradient, mix), return_shape=True)
    traced, after = once(state, key)
    _check_round(algorithm.name, state, after)
    if any(_mixes_in_part(jaxpr.jaxpr) for jaxpr in (began, traced)):
        raise InputError(
            f"{algorithm.name} calls mix in a loop or a branch, where what is sent cannot be counted; call it outside"
        )
    shares = _shares_key(traced.jaxpr) or _shares_key(began.jaxpr)
    work, start_work = _work(traced.jaxpr), _work(began.jaxpr)
    found = {"work": work, "start_work": start_work, "start_kinds": kinds, "codecs": mix.codecs}
    if masked:
        found |= {"words": mix.words, "start_words": words}
    return sizes._replace(**found, shares_key=shares)


def uncounted(algorithm: Algorithm, params: Params, local_steps: int) -> int:
    """1 where a round takes one gradient more than the `local_steps` that it counts, as PISCO's does; else 0.

    `params` are one agent's, or their shapes: optimizers and compressors may fit one model alone.
    """
    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), params)
    return int(message_sizes(algorithm, stacked, 1).gradients == local_steps + 1)


def _check_round(name: str, before: Any, after: Any) -> None:
    """Refuse a round that gives another state than it is given."""

    def told(state: Any) -> dict[str, str]:
        leaves = jax.tree.leaves_with_path(state)
        return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}

    given, made = told(before), told(after)
    for where in given | made:
        if given.get(where) != made.get(where):
            one, other = (found.get(where, "nothing") for found in (given, made))
            raise InputError(
                f"a round of {name} makes {other} of the state's {where}, which is {one}; keep it as it is"
            )


def _mixes_in_part(jaxpr: Any, part: bool = False) -> bool:
    """Whether an exchange stands in a loop or a branch, however deep."""
    for step in jaxpr.eqns:
        if part and step.params.get("name") == "_exchange":
            return True
        inside = part or bool({"length", "branches", "cond_jaxpr"} & step.params.keys())
        if any(_mixes_in_part(inner, inside) for inner in core.jaxprs_in_params(step.params)):
            return True
    return False


@jax.jit
def _gradient(params: Params, key: Key) -> Params:
    return params


@jax.jit
def _exchange(tree: Any) -> Any:
    return tree


def _work(jaxpr: Any) -> list[int]:
    """Calls of `_gradient` between those of `_exchange`: of the longer branch, and as often as a loop turns."""
    work = [0]
    for step in jaxpr.eqns:
        name = step.params.get("name")
        if name in ("_gradient", "_exchange"):
            work = [*work[:-1], work[-1] + 1] if name == "_gradient" else [*work, 0]
            continue
        first, *more = max(map(_work, core.jaxprs_in_params(step.params)), key=sum, default=[0])
        work = [*work[:-1], work[-1] + first * step.params.get("length", 1), *more]
    return work


def _shares_key(jaxpr: Any, outer: Container[Any] = ()) -> bool:
    """Whether a key goes to two calls of `_gradient`; `outer` are variables that stay the same around a loop."""
    used: set[Any] = set()
    for step in jaxpr.eqns:
        if step.params.get("name") == "_gradient":
            key = step.invars[-1]
            if key in used or key in outer:
                return True
            used.add(key)
            continue
        for inner in core.jaxprs_in_params(step.params):
            fixed = loop_inputs(step.params, inner.invars)[0] if "length" in step.params else ()
            if _shares_key(inner, set(fixed)):
                return True
    return False


def cumulative_costs(links: Links, sizes: MessageSizes, start_edges: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of the history from links summed between rows; runs first, rows last.

    `start_edges` is how many directed edges a gossip exchange before the first round uses, for every run.
    """
    total = Links(*(np.cumsum(np.asarray(column, np.int64), axis=-1) for column in links))
    exchanges, sent, whole = len(sizes.sent), sum(sizes.sent), sum(sizes.whole)
    edges, before, up = np.asarray(start_edges)[:, None], 2 * sizes.agents, sum(sizes.words or sizes.sent)
    started = sizes.agents * (sum(sizes.start_words or sizes.start_server) + sum(sizes.start_server))
    work = total.present * sizes.gradients + sizes.agents * sum(sizes.start_work)
    return ({"gradients": work} if sizes.work else {}) | {
        "server": np.asarray(links.server, np.int64),
        "server_rounds": total.server,
        "gossip_rounds": total.gossip,
        "exchanges": total.rounds * exchanges + len(sizes.start_server) + len(sizes.start_gossip),
        "messages_gossip": total.edges * exchanges + edges * len(sizes.start_gossip),
        "messages_server": (total.uplinks + total.downlinks) * exchanges + before * len(sizes.start_server),
        "bytes_gossip": total.edges * sent + edges * sum(sizes.start_gossip),
        "bytes_server": total.uplinks * up + total.downlinks * whole + started,
    }
