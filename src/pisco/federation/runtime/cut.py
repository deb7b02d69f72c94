"""A round cut at its exchanges: between two of them everything is one compiled program.

A round function calls `mix` in its middle, and what `mix` returns comes from other machines. The function is traced
once with an `exchange` primitive in place of the communication; its equations are then cut there. So a round is a
handful of compiled stages with plain Python between them, where waiting, retrying and stopping are ordinary code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
from jax.extend import core

from pisco.errors import InputError

Exchange = Callable[[Any, int, Sequence[Any]], Sequence[Any]]
"""`exchange(kind, call, leaves)`: send one's own leaves and return the mixed ones, shapes and dtypes kept."""

Steps = Generator[tuple[Any, int, list[Any]], Any, Any]
"""The same the other way round: a generator yields what `exchange` would be called with."""

_exchange = core.Primitive("exchange")
_exchange.multiple_results = True
_exchange.def_abstract_eval(lambda *leaves, kind: leaves)


def exchange(tree: Any, kind: Any) -> Any:
    """Mark an exchange inside a function that `Cut` will cut."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, _exchange.bind(*leaves, kind=kind))


class Later:
    """An argument that is not known yet; a stage that needs it asks for it."""

    def __init__(self, get: Callable[[], Any]):
        self.get = get


def compiled_stage(part: core.Jaxpr) -> Callable[..., list[Any]]:
    """What stands between two exchanges, as a function of what it needs."""
    return jax.jit(core.jaxpr_as_fun(core.ClosedJaxpr(part, ())))


class Cut:
    """A function as compiled stages with exchanges between them.

    >>> import jax.numpy as jnp
    >>> stages = Cut(lambda x: 10 * exchange(x + 1, "mix"), jnp.ones(2))
    >>> stages(lambda kind, call, leaves: [jnp.flip(leaf) for leaf in leaves], jnp.array([1.0, 2.0]))
    Array([30., 20.], dtype=float32)
    """

    def __init__(self, function: Callable[..., Any], *example: Any):
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*example)
        jaxpr = closed.jaxpr
        self._structure = jax.tree.structure(shape)
        self._consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        self._inputs, self._outputs = jaxpr.invars, jaxpr.outvars
        cuts = [index for index, equation in enumerate(jaxpr.eqns) if equation.primitive is _exchange]
        _refuse_hidden(jaxpr)
        self.exchanges = [jaxpr.eqns[cut] for cut in cuts]
        pieces = [
            jaxpr.eqns[begin:end]
            for begin, end in zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(jaxpr.eqns)], strict=True)
        ]
        wanted = _variables(jaxpr.outvars)
        self._stages: list[tuple[list[core.Var], list[core.Var], Callable[..., list[Any]]]] = []
        for index in reversed(range(len(pieces))):
            piece = pieces[index]
            made = [v for equation in piece for v in equation.outvars if v in wanted]
            used = _variables([v for equation in piece for v in equation.invars])
            needed = [v for v in used if v not in {v for equation in piece for v in equation.outvars}]
            part = jaxpr.replace(
                constvars=[], invars=needed, outvars=made, eqns=piece, debug_info=jaxpr.debug_info.with_unknown_names()
            )
            self._stages.insert(0, (needed, made, compiled_stage(part)))
            wanted |= dict.fromkeys(needed)
            if index:
                wanted |= _variables(self.exchanges[index - 1].invars)

    @property
    def messages(self) -> list[tuple[Any, list[jax.ShapeDtypeStruct]]]:
        """The kind and the leaves of every exchange, in order."""
        return [
            (equation.params["kind"], [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars])
            for equation in self.exchanges
        ]

    @property
    def handed_on(self) -> list[tuple[int, int] | None]:
        """Of every leaf of the result, the exchange that it comes from as it is, and which leaf it is there.

        >>> x = jax.numpy.ones(2)
        >>> Cut(lambda x: (x, *exchange((x, 2 * x), "mix")), x).handed_on
        [None, (0, 0), (0, 1)]
        """
        heard = {v: (at, leaf) for at, cut in enumerate(self.exchanges) for leaf, v in enumerate(cut.outvars)}
        return [None if isinstance(atom, core.Literal) else heard.get(atom) for atom in self._outputs]

    def compile(self) -> Cut:
        """Compile now rather than at the first call."""
        self._stages = [
            (needed, made, stage.lower(*(v.aval for v in needed)).compile() if hasattr(stage, "lower") else stage)
            for needed, made, stage in self._stages
        ]
        return self

    def __call__(self, exchange: Exchange, *args: Any) -> Any:
        return answered(self.steps(*args), exchange)

    def steps(self, *args: Any) -> Steps:
        """The same as a generator: it yields what `exchange` would be called with, and is sent what that returns."""
        leaves = jax.tree.leaves(args)
        values = self._consts | dict(zip(self._inputs, leaves, strict=True))

        def value(atom: Any) -> Any:
            found = atom.val if isinstance(atom, core.Literal) else values[atom]
            return found.get() if isinstance(found, Later) else found

        for index, (needed, made, compiled) in enumerate(self._stages):
            values.update(zip(made, compiled(*[value(v) for v in needed]), strict=True))
            if index < len(self.exchanges):
                cut = self.exchanges[index]
                received = yield cut.params["kind"], index, [value(atom) for atom in cut.invars]
                values.update(zip(cut.outvars, received, strict=True))
        return jax.tree.unflatten(self._structure, [value(atom) for atom in self._outputs])


def answered(steps: Steps, exchange: Exchange) -> Any:
    """What steps come to when `exchange` answers all that they yield."""
    received = None
    while True:
        try:
            received = exchange(*steps.send(received))
        except StopIteration as end:
            return end.value


def _variables(atoms: Sequence[Any]) -> dict[core.Var, None]:
    """The variables among them, each once and in order."""
    return {atom: None for atom in atoms if not isinstance(atom, core.Literal)}


def _refuse_hidden(jaxpr: core.Jaxpr) -> None:
    """An exchange inside a loop, a branch or a jitted function cannot be cut at."""
    for equation in jaxpr.eqns:
        for inner in core.jaxprs_in_params(equation.params):
            if any(deep.primitive is _exchange for deep in inner.eqns):
                raise InputError(
                    f"the algorithm calls `mix` inside {equation.primitive.name}; "
                    "call it directly in `round`, so that its messages can be sent"
                )
            _refuse_hidden(inner)
