"""Any optimizer of optax in place of the plain gradient step, for every agent on its own.

>>> Optimizer.read({"name": "momentum", "decay": 0.8})
Optimizer(momentum(decay=0.8))
>>> Optimizer.read(["clip", "adam"])
Optimizer(clip, adam)
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from pisco.errors import InputError, brief, check_counts, check_number, check_positive
from pisco.parts import TRAINED, only, over
from pisco.registry import Registry
from pisco.tree import descend, lerp, subtract
from pisco.types import Mix, Params

__all__ = ["OPTIMIZERS", "PLAIN", "Optimizer"]


def clip(*, max_norm: float = 1.0) -> Any:
    """An agent's whole direction cut to this norm."""
    check_positive(max_norm=max_norm)
    import optax

    return optax.clip_by_global_norm(max_norm)


def momentum(*, decay: float = 0.9, nesterov: bool = False) -> Any:
    """Heavy-ball momentum, or Nesterov's."""
    check_number("decay", decay, low=0, high=1)
    import optax

    return optax.trace(decay, nesterov)


def weight_decay(*, weight: float = 0.01) -> Any:
    """Adds weight·x to the direction: behind Adam in a list it is AdamW."""
    check_number("weight", weight, low=0)
    import optax

    return optax.add_decayed_weights(weight)


def cosine(*, steps: int, warmup: int = 0, end: float = 0.0) -> Any:
    """Steps that rise over the first `warmup`, then fall to `end` times their size along half a cosine.

    It counts an agent's own steps, and stays at `end` after `steps` of them.
    """
    import optax

    check_counts(steps=steps)
    check_number("warmup", warmup, low=0, high=steps - 1, integer=True)
    check_number("end", end, low=0, high=1)

    def size(count: Any) -> jax.Array:
        done = jnp.asarray(count, float)
        along = jnp.clip((done - warmup) / (steps - warmup), 0, 1)
        falls = end + (1 - end) * (1 + jnp.cos(jnp.pi * along)) / 2
        return jnp.where(done < warmup, (done + 1) / (warmup + 1), falls)

    return optax.scale_by_schedule(size)


def shared_adam(*, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimizer:
    """Adam whose second moment is mixed like the parameters, so that all agents scale their steps alike."""
    import optax

    return Optimizer(rule=optax.scale_by_adam(b1, b2, eps), shared=("nu",))


PROBED = 100
"""Steps of an optimizer that are tried at most, to see which way it goes."""

OPTIMIZERS = Registry[Callable[..., Any]](
    "optimizer",
    "pisco.optimizers",
    {
        "adam": "optax:scale_by_adam",
        "shared-adam": shared_adam,
        "rms": "optax:scale_by_rms",
        "lion": "optax:scale_by_lion",
        "momentum": momentum,
        "clip": clip,
        "weight-decay": weight_decay,
        "cosine": cosine,
    },
)


@dataclass(frozen=True, repr=False)
class Optimizer:
    """What an agent makes of a direction before it takes its step: x ← x − η·update(direction).

    Made by `read` from an optax transformation *without a step size* (`optax.scale_by_adam()`), from a name, a table
    such as {"name": "momentum", "decay": 0.8}, or a list of these, one after the other. Its memory is one agent's own:
    it stays there, except for what `shared` names.
    """

    text: str = ""
    rule: Any = None
    shared: tuple[str, ...] = ()
    """Fields of its memory that travel beside the parameters and are mixed as they are."""
    made_by: Any = field(default=None, compare=False)
    """The function and arguments that make it again, where it is copied or sent to another process."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self is PLAIN:
            return "PLAIN"
        return self.made_by or super().__reduce_ex__(protocol)

    @classmethod
    def read(cls, given: Any) -> Optimizer:
        """An optimizer from whatever a user gives; None leaves directions as they are."""
        if isinstance(given, cls):
            return given
        if given is None:
            return PLAIN
        if isinstance(given, list):
            if not given:
                raise InputError('the optimizer is an empty list; name some, as in ["clip", "adam"], or leave it out')
            return _chain(tuple(cls.read(each) for each in given))
        table = {"name": given} if isinstance(given, str) else given
        if isinstance(table, Mapping) and "name" in table:
            try:
                return _named(table["name"], tuple((k, v) for k, v in table.items() if k != "name"))
            except InputError:
                raise
            except Exception as error:  # of optax, which checks little
                raise InputError(f"the optimizer {given!r} cannot be made ({brief(error)}); fix its options") from error
        update = getattr(given, "update", None)
        if not (callable(getattr(given, "init", None)) and callable(update)):
            raise InputError(f'the optimizer is {given!r}, expected one of optax, or a name such as "adam"')
        return cls(_described(update), given)

    def start(self, params: Params) -> Any:
        """Every agent's memory before the first step."""
        if self.rule is None:
            return ()
        rule, params = self.rule, only(params, TRAINED)
        # Small leaves: what an optimizer does to a leaf may depend on its path and its axes, hardly on their lengths.
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct([min(size, 2) for size in x.shape[1:]], x.dtype), params)
        if any(along < 0 for along in _probe(self, 1.0, like)):
            raise InputError(
                f"the optimizer {self.text} reverses the direction, because it holds a step size; set that with "
                "local_lr or comm_lr instead, as in optax.scale_by_adam() for optax.adam(0.001)"
            )
        try:
            memory = jax.vmap(rule.init)(params)
            moves, after = jax.eval_shape(lambda: jax.vmap(rule.update)(params, memory, params))
        except Exception as error:
            raise InputError(
                f"the optimizer {self.text} fails on this model ({brief(error)}); it is given directions, its memory "
                "and the parameters, and nothing else"
            ) from error
        if any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(memory)):
            raise InputError(
                f"the optimizer {self.text} holds a random key, and all agents would draw the same with it; leave it "
                "out, and add noise with pisco.Privacy"
            )
        if _forms(moves, dtypes=False) != _forms(params, dtypes=False):
            raise InputError(
                f"the optimizer {self.text} changes the leaves or shapes of the direction; let it return the same ones"
            )
        if _forms(memory) != _forms(after):
            raise InputError(
                f"the memory of the optimizer {self.text} changes its shapes or types in a step; keep them"
            )
        return memory

    def update(self, direction: Params, memory: Any, params: Params) -> tuple[Params, Any]:
        """What every agent steps along, and its memory afterwards."""
        if self.rule is None:
            return direction, memory
        trained = only(params, TRAINED)  # weight decay, say, is not for buffers
        moves, memory = jax.vmap(self.rule.update)(only(direction, TRAINED), memory, trained)
        return over(jax.tree.map(lambda move, x: move.astype(x.dtype), moves, trained), direction), memory

    def move(self, start: Params, end: Params, weight: Any, memory: Any) -> tuple[Params, Any]:
        """start − weight·update(start − end): the whole way from start to end where it is plain and the weight is 1."""
        if self.rule is None:
            whole = isinstance(weight, int | float) and weight == 1
            return end if whole else lerp(start, end, weight), memory
        move, memory = self.update(subtract(start, end), memory, start)
        return descend(start, weight, move), memory

    def sent(self, memory: Any) -> list[Any]:
        """What of its memory travels beside the parameters; nothing, unless it shares some."""
        return list(_held(memory, self.shared))

    def heard(self, memory: Any, mixed: list[Any]) -> Any:
        """Its memory with what the others' became."""
        # Second moments are positive, and stay so where a weight is negative.
        return _put(memory, self.shared, iter(jax.tree.map(jnp.abs, mixed))) if mixed else memory

    def shared_by(self, mix: Mix, memory: Any) -> Any:
        """Its memory once the others have heard of it, in an exchange of its own; no exchange if it shares nothing."""
        return self.heard(memory, mix(self.sent(memory))) if self.shared else memory

    @property
    def normalises(self) -> bool:
        """Whether the size of a direction hardly matters, as for Adam: then its noise is not averaged out."""
        number = jax.ShapeDtypeStruct((), jnp.result_type(float))
        found = [along for size in (1e-3, 2e-3) for along in _probe(self, size, number)]
        return len(found) == 2 and abs(found[1]) < 1.5 * abs(found[0])

    def __repr__(self) -> str:
        return f"Optimizer({self.text})" if self.text else "None"


PLAIN = Optimizer()
"""Plain gradient steps."""


@functools.cache  # the same object for the same words: runs of one job must agree in what is not traced
def _named(name: str, options: tuple[tuple[str, Any], ...]) -> Optimizer:
    words = ", ".join(f"{key}={value!r}" for key, value in options)
    for key, value in options:
        if isinstance(value, float):  # optax takes any
            check_number(key, value)
    made = OPTIMIZERS[name](**dict(options))
    made = made if isinstance(made, Optimizer) else Optimizer(rule=made)
    text = f"{name}({words})" if words else name
    return replace(made, text=text, made_by=(_named, (name, options)))


@functools.cache
def _chain(parts: tuple[Optimizer, ...]) -> Optimizer:
    import optax

    shared = tuple(dict.fromkeys(field for part in parts for field in part.shared))
    text, rule = ", ".join(part.text for part in parts), optax.chain(*(part.rule for part in parts))
    return Optimizer(text, rule, shared, (_chain, (parts,)))


def _held(memory: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """The fields of these names in what an optimizer, or a chain of them, remembers."""
    for name, part in _named_parts(memory):
        yield from [part] if name in names else _held(part, names)


def _put(memory: Any, names: tuple[str, ...], new: Iterator[Any]) -> Any:
    """The same memory with others in the places that `_held` finds."""
    if not isinstance(memory, tuple):
        return memory
    parts = [next(new) if name in names else _put(part, names, new) for name, part in _named_parts(memory)]
    return type(memory)(*parts) if hasattr(memory, "_fields") else tuple(parts)


def _named_parts(memory: Any) -> list[tuple[str, Any]]:
    parts = memory if isinstance(memory, tuple) else ()
    return list(zip(getattr(memory, "_fields", [""] * len(parts)), parts, strict=True))


def _forms(tree: Any, *, dtypes: bool = True) -> Any:
    leaves = [(jnp.shape(x), jnp.result_type(x) if dtypes else None) for x in jax.tree.leaves(tree)]
    return jax.tree.structure(tree), leaves


def _probe(made: Optimizer, size: float, like: Params) -> list[float]:
    """How far every leaf goes in the second step along the same direction; nothing if the model is not to its liking.

    One that gathers the directions of several steps, and stands still meanwhile, gets up to PROBED of them.
    """
    try:
        with jax.ensure_compile_time_eval():
            ones = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), like)
            direction = jax.tree.map(lambda x: size * x, ones)
            memory, update, moves, steps = made.rule.init(ones), made.rule.update, [0.0], 0
            while steps < 2 or (not any(moves) and steps < PROBED):
                update = jax.jit(update) if steps == 2 else update  # compiled for a long wait alone
                move, memory = update(direction, memory, ones)
                moves, steps = [float(jnp.sum(x)) for x in jax.tree.leaves(move)], steps + 1
            return moves
    except Exception:
        return []


def _described(part: Any, inside: tuple[int, ...] = ()) -> str:
    """What tells one transformation from another in every process: its functions, and the numbers they hold."""
    if id(part) in inside:
        return "…"  # a function that knows itself
    told = functools.partial(_described, inside=(*inside, id(part)))
    if isinstance(part, Mapping):
        return ", ".join(f"{key}: {told(value)}" for key, value in part.items())
    if isinstance(part, tuple | list):
        return ", ".join(map(told, part))
    if isinstance(part, functools.partial):
        return ", ".join(filter(None, map(told, (part.func, part.args, part.keywords))))
    if not callable(part):
        return repr(part) if isinstance(part, int | float | str | bool | None) else type(part).__name__
    name = getattr(part, "__qualname__", type(part).__qualname__).split(".")[0]
    cells = getattr(part, "__closure__", None) or ()
    held = [cell.cell_contents for cell in cells if cell != _EMPTY]
    inner = [told(each) for each in held if not isinstance(each, tuple | list)]
    inner += [told(each) for many in held if isinstance(many, tuple | list) for each in many]
    return f"{name}({', '.join(inner)})" if inner else name


_EMPTY = types.CellType()
"""A closure's variable that is not set yet."""
