"""Parts of a model: leaves that are trained and sent, trained and kept, only carried along, or not touched at all.

What an algorithm sees are the trained leaves. Where all of them are sent that is the user's tree; otherwise it is a
`Parted`, which no algorithm knows of: every operation of theirs is leafwise, and `mix` passes over what is not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pisco.errors import InputError, brief, choose

FROZEN, SHARED, LOCAL, BUFFERS, LOCAL_BUFFERS = "frozen", "shared", "local", "buffers", "local_buffers"
KINDS = {
    FROZEN: "as they start: neither trained nor sent, and held once for all agents",
    LOCAL: "trained, and never sent",
    BUFFERS: "renewed by the loss and averaged like parameters",
    LOCAL_BUFFERS: "renewed by the loss, and never sent",
}
"""What `Problem(parts=…)` can say of leaves; all others are shared: trained and sent."""

SENT, TRAINED, RENEWED = (SHARED, BUFFERS), (SHARED, LOCAL), (BUFFERS, LOCAL_BUFFERS)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Parted:
    """The leaves of a model by kind: each is the user's tree with None in the places of the others."""

    shared: Any
    local: Any
    buffers: Any
    local_buffers: Any

    @property
    def whole(self) -> Any:
        """The user's tree; None in the places that nothing fills."""
        return merged(self.shared, self.local, self.buffers, self.local_buffers)

    def keep(self, kinds: tuple[str, ...]) -> Parted:
        """Only these kinds."""
        return Parted(*(getattr(self, f.name) if f.name in kinds else None for f in fields(self)))

    def filled(self, other: Parted) -> Parted:
        """Itself, and what it lacks from another."""
        mine = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Parted(*(own if own is not None else its for own, its in mine))


def _parted(tree: Any) -> bool:
    return isinstance(tree, Parted)


def merged(*trees: Any) -> Any:
    """One tree of several that have None in the places of each other's leaves."""

    def first(*leaves):
        return next((leaf for leaf in leaves if leaf is not None), None)

    return jax.tree.map(first, *(tree for tree in trees if tree is not None), is_leaf=lambda leaf: leaf is None)


def only(tree: Any, kinds: tuple[str, ...] = SENT) -> Any:
    """The same tree with the leaves of these kinds alone; one without parts as it is.

    >>> only((Parted({"w": 1, "head": None}, {"w": None, "head": 2}, None, None), 3))
    (Parted(shared={'w': 1, 'head': None}, local=None, buffers=None, local_buffers=None), 3)
    """
    return jax.tree.map(lambda part: part.keep(kinds) if _parted(part) else part, tree, is_leaf=_parted)


def over(new: Any, old: Any) -> Any:
    """`new`, with what `only` left out of `old` put back."""
    return jax.tree.map(lambda a, b: a.filled(b) if _parted(a) else a, new, old, is_leaf=_parted)


def sent_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """A map of trees that leaves alone what is not sent."""
    return lambda tree, *rest: over(function(only(tree), *rest), tree)


def whole(tree: Any) -> Any:
    """The user's own tree."""
    return jax.tree.map(lambda part: part.whole if _parted(part) else part, tree, is_leaf=_parted)


def name_of(path: Any) -> str:
    """The path of a leaf as its name, as in "encoder/0/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or "."


def names_of(tree: Any) -> list[str]:
    """The names of all leaves."""
    return [name_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def sent_names(tree: Any) -> list[str]:
    """The path of every leaf that is sent, in the user's own tree and in the order of `only`.

    >>> sent_names(Parted({"w": 1, "head": None}, {"w": None, "head": 2}, {"m": 3}, None))
    ['w', 'm']
    """
    kept = only(tree)
    return [name for part in ((kept.shared, kept.buffers) if _parted(kept) else (kept,)) for name in names_of(part)]


@dataclass(frozen=True)
class Kinds:
    """Which kind every leaf of a model is."""

    structure: Any
    names: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def read(cls, parts: Any, model: Any) -> Kinds:
        """From kind → predicate: a function of a leaf's path, a pattern such as "head/*", or several patterns."""
        if not isinstance(parts, Mapping):
            raise InputError(f'parts is {parts!r}, expected patterns by kind, as in {{"local": "head/*"}}')
        names, found = names_of(model), {}
        for kind, given in parts.items():
            choose("kind of part", kind, KINDS)
            tests = matchers(kind, given)
            matched = {told: [name for name in names if test(name)] for told, test in tests.items()}
            for told in (told for told, found in matched.items() if not found):
                some = ", ".join(names[:4]) + ", …" * (len(names) > 4)
                some = "one array without a name" if names == [name_of(())] else some
                raise InputError(f"no leaf is matched by {told}; the model has {some}")
            for name in dict.fromkeys(name for found in matched.values() for name in found):
                if name in found:
                    raise InputError(f"{name} is both {found[name]} and {kind}; let one of the two match it")
                found[name] = kind
        kinds = tuple(found.get(name, SHARED) for name in names)
        for what, any_of in (("train", TRAINED), ("send", SENT)):
            if not set(any_of) & set(kinds):
                raise InputError(f"parts leave nothing to {what}; let them match fewer leaves")
        return cls(jax.tree.structure(model), tuple(names), kinds)

    def of(self, kind: str) -> list[str]:
        """The paths of the leaves of a kind."""
        return [name for name, its in zip(self.names, self.kinds, strict=True) if its == kind]

    @property
    def renews(self) -> bool:
        """Whether the loss returns buffers."""
        return any(kind in RENEWED for kind in self.kinds)

    def split(self, model: Any) -> tuple[Any, Any]:
        """What algorithms see, and what is frozen."""
        leaves = jax.tree.leaves(model)

        def pick(kind: str) -> Any:
            chosen = [x if its == kind else None for x, its in zip(leaves, self.kinds, strict=True)]
            return jax.tree.unflatten(self.structure, chosen)

        if set(self.kinds) <= {FROZEN, SHARED}:
            return pick(SHARED), pick(FROZEN)
        return Parted(*(pick(f.name) if f.name in self.kinds else None for f in fields(Parted))), pick(FROZEN)

    def join(self, trained: Any, frozen: Any) -> Any:
        """The user's whole tree for its loss; the loss renews buffers, their gradient is zero."""
        if _parted(trained):
            parts = (trained.buffers, trained.local_buffers)
            trained = merged(trained.shared, trained.local, *map(jax.lax.stop_gradient, parts))
        return merged(trained, frozen)

    def renewed(self, trained: Parted, new: Any) -> Parted:
        """The same leaves with the buffers that a loss returned; refuses other ones."""
        given = dict(zip(names_of(new), jax.tree.leaves(new), strict=True))
        wanted = self.of(BUFFERS) + self.of(LOCAL_BUFFERS)
        odd = sorted(given.keys() ^ set(wanted))
        if odd:
            raise InputError(
                f"the loss returns the buffers {', '.join(given) or 'none'}, and parts names {', '.join(wanted)}; "
                "return each of these and nothing else, in the model's own structure"
            )

        def leaf(path: Any, old: Any) -> Any:
            name = name_of(path)
            made = jnp.asarray(given[name])
            if made.shape != old.shape or made.dtype != old.dtype:
                raise InputError(
                    f"the loss returns the buffer {name} as {made.dtype}{made.shape}, and it starts as "
                    f"{old.dtype}{old.shape}; keep shape and dtype"
                )
            return jax.lax.stop_gradient(made)

        put = (jax.tree_util.tree_map_with_path(leaf, part) for part in (trained.buffers, trained.local_buffers))
        return Parted(trained.shared, trained.local, *put)

    def __str__(self) -> str:
        return "; ".join(f"{kind}: {', '.join(self.of(kind))}" for kind in KINDS if kind in self.kinds)


def matchers(kind: str, given: Any) -> dict[str, Callable[[str], bool]]:
    """The tests of a path that a user's predicate makes, by how they are called in messages."""
    if callable(given):

        def test(name: str) -> bool:
            try:
                return bool(given(name))
            except Exception as error:
                raise InputError(
                    f"the function of {kind} fails at the path {name!r} ({brief(error)}); let it return True or False"
                ) from error

        return {f"the function of {kind}": test}
    patterns = [given] if isinstance(given, str) else given
    if not isinstance(patterns, list | tuple) or not patterns or not all(isinstance(each, str) for each in patterns):
        raise InputError(
            f'{kind} is {given!r}, expected a pattern such as "head/*", several, or a function of a leaf\'s path'
        )
    return {f"{kind}={pattern!r}": partial(fnmatchcase, pat=pattern) for pattern in patterns}
