"""The model that a federation ends with: the mean over its agents, as files for those who use it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pisco.errors import InputError, choose, writing
from pisco.federation.plan import Federation
from pisco.files import atomic_write
from pisco.parts import names_of
from pisco.results import Result, npz

Named = dict[str, np.ndarray]
"""The arrays of a model by name, without the axis of the agents."""


def collect(plan: Federation, results: Sequence[Result]) -> Result:
    """The mean model of all agents of the last roster, from each one's own result; agents lead, there is one.

    Every agent's must be there once, finished, and of this plan.
    """
    members, found = plan.epochs[-1].names, {}
    for result in results:
        told, name = result.settings.get("federation"), result.settings.get("agent")
        if not isinstance(told, Mapping) or name is None:
            raise InputError(f"{result.label!r} is not the result of an agent; give KIT/result of every agent")
        if told.get("hash") != plan.hash_at(plan.rounds):
            raise InputError(
                f"the result of {name!r} comes from another plan than the kit's; copy the newest plan there"
            )
        if name in found or name not in members:
            why = "is given twice" if name in found else "left before the last round"
            raise InputError(f"{name!r} {why}; give one result of each of {', '.join(members)}")
        if result.rounds != plan.rounds:
            raise InputError(f"{name!r} did {result.rounds} of {plan.rounds} rounds; let it finish first")
        found[name] = result
    missing = [name for name in members if name not in found]
    if missing:
        raise InputError(f"the result of {', '.join(missing)} is missing; the mean is over everybody")
    own = [found[name] for name in members]
    shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(each.params)] for each in own]
    if any(each != shapes[0] for each in shapes):
        raise InputError("the results have parameters of different shapes; they are not of one model")
    params = jax.tree.map(
        lambda *leaves: np.mean(np.concatenate(leaves), axis=0, keepdims=True), *(e.params for e in own)
    )
    loss = [each.history["loss"][-1] for each in own if len(each.history.get("loss", ()))]
    history = {"round": np.asarray([plan.rounds])} | ({"loss": np.asarray([np.mean(loss)])} if loss else {})
    settings = {name: value for name, value in own[0].settings.items() if name != "agent"}
    return Result(params, history, own[0].seeds, settings, rounds=plan.rounds, label=plan.name)


def named(result: Result) -> Named:
    """A result's model: the mean over its agents, every array by its name.

    >>> named(Result({"w": np.array([[1.0, 2.0], [3.0, 4.0]])}, {"round": np.array([0])}, (0,), {}))
    {'w': array([2., 3.])}
    """
    leaves = jax.tree.leaves(result.params)
    if not leaves:
        raise InputError(
            f"the result of {result.label!r} holds no parameters: agents keep theirs; export an agent's result, plan "
            "with closing = true, or `pisco federation collect` everybody's"
        )
    if result.stacked:
        raise InputError(f"the result holds {len(result.seeds)} seeds, and a model comes from one; run one seed")
    return {
        name.replace("/", ".") if name != "." else "params": np.asarray(leaf).mean(axis=0).astype(leaf.dtype)
        for name, leaf in zip(names_of(result.params), leaves, strict=True)
    }


def export(result: Result, path: Path) -> Named:
    """Write a result's model as the suffix says: .npz, .safetensors, or .pt, a torch `state_dict`."""
    write, model = choose("kind of file", path.suffix, FORMATS), named(result)
    content = write(model)
    with writing(path):
        atomic_write(path, content)
    return model


def _safetensors(model: Named) -> bytes:
    try:
        from safetensors.numpy import save  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("a .safetensors file needs the package safetensors; install it, or write .npz") from None
    return save({name: np.ascontiguousarray(array) for name, array in model.items()})


def _state_dict(model: Named) -> bytes:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("a .pt file needs PyTorch; run pip install 'pisco-fl[torch]', or write .npz") from None
    buffer = io.BytesIO()
    torch.save({name: torch.from_numpy(np.array(array)) for name, array in model.items()}, buffer)
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Named], Any]] = {".npz": npz, ".safetensors": _safetensors, ".pt": _state_dict}
