"""A PyTorch module, a loss and a data loader become an agent's problem.

    def agent(data):
        arrays = numpy.load(data)
        samples = TensorDataset(torch.tensor(arrays["features"]), torch.tensor(arrays["labels"]))
        return pisco.interop.torch.problem(Net, torch.nn.functional.cross_entropy, DataLoader(samples))

Parameters travel as NumPy arrays, by their names in the module. PyTorch is an extra: `pip install pisco-fl[torch]`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from typing import Any

import numpy as np

from pisco.errors import InputError, a_kind_of, brief
from pisco.interop.host import Local, Resident
from pisco.interop.host import problem as host_problem
from pisco.problems.problem import Problem

__all__ = ["local", "problem"]

SHARED = ("cuda",)
"""Kinds of devices whose memory PyTorch and JAX can share."""

PART = 1024
"""Samples that pass through a module at once, at most: it bounds memory."""

_TURN = threading.RLock()

Tensor = Any
TorchLoss = Callable[[Tensor, Tensor], Tensor]


def _torch() -> Any:
    """PyTorch, which is imported only when it is used."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
        import torch.utils.data  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("PyTorch is not installed; run pip install 'pisco-fl[torch]'") from error
    return torch


def problem(
    module: Any, loss: TorchLoss, samples: Any, *, name: str = "torch", parts: Mapping[str, Any] | None = None
) -> Problem:
    """One agent's problem: the mean of `loss(module(inputs), targets)` over its samples.

    Parameters with `requires_grad=False` are frozen: they stay in the module and are never sent, so give every agent
    the same ones (of a function they are those that it makes after `torch.manual_seed(0)`). Running statistics of
    BatchNorm are renewed once a round, and averaged unless `parts` says otherwise. Buffers that are only read, such as
    masks, are frozen.

    Args:
      module: a function that makes the `torch.nn.Module` (its start is then drawn by the federation's seed, the
        same everywhere), or the module itself (its start is then the parameters it has).
      loss: of outputs and targets; one value per sample or their mean.
      samples: a map-style dataset of (input, target) pairs, or a `DataLoader` of one. Which samples make a batch is
        the federation's choice; the loader's own batch size and order are not used, its `collate_fn` is.
      name: for tables and plots.
      parts: as in `pisco.Problem`, by names in the module: {"local": "head.*", "local_buffers": "*.running_*"}.
    """
    return host_problem(local(module, loss, samples), name=name, parts=parts)


def local(module: Any, loss: TorchLoss, samples: Any) -> Local:
    """The same as `problem`, to put several agents into one `pisco.interop.host.problem` and simulate them."""
    torch = _torch()
    drawn = module if not isinstance(module, torch.nn.Module) else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what is frozen is the same everywhere
        net = _checked_module(_made(module) if drawn is not None else module)
    held = tuple(key for key, value in net.named_buffers() if value.is_floating_point())
    dataset, collate = _indexable(samples)
    size = len(dataset)
    if not size:
        raise InputError("the data set is empty; every agent needs at least one sample")

    @_in_turn
    def start(seed: int) -> dict[str, np.ndarray]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            source = net if drawn is None else drawn()
        trained = {key: value.detach() for key, value in source.named_parameters() if value.requires_grad}
        carried = trained | {key: value for key, value in source.named_buffers() if key in held}
        return {key: value.cpu().numpy().copy() for key, value in carried.items()}

    def device() -> Any:  # asked every time: the module may be moved
        return next(net.parameters()).device

    def mean(params: dict[str, Any], rows: np.ndarray) -> Tensor:
        inputs, targets = _pair(collate([dataset[int(row)] for row in rows]))
        there = device()
        return loss(torch.func.functional_call(net, params, (inputs.to(there),)), targets.to(there)).mean()

    @_in_turn
    def slopes(tensors: dict[str, Tensor], rows: np.ndarray, seed: int | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its gradient, on the module's device; without the leaves that it does not depend on."""
        net.train(seed is not None)
        leaves = {key: leaf.requires_grad_() for key, leaf in tensors.items() if key not in held}
        total, sums = torch.zeros(()), {}
        with _seeded(device(), seed or 0):  # what dropout draws
            for part in _parts(rows, len(rows) if held and seed is not None else PART):  # a norm sees whole batches
                value = len(part) / len(rows) * mean(tensors, part)
                found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
                total = total.to(value) + value.detach()
                for key, slope in zip(leaves, found, strict=True):
                    if slope is not None:
                        sums[key] = sums[key] + slope if key in sums else slope
        return total, sums

    def gradient(params: dict[str, np.ndarray], rows: np.ndarray, seed: int | None) -> tuple[float, Any]:
        value, found = slopes(_tensors(device(), params), rows, seed)
        zeros = {key: np.zeros_like(params[key]) for key in params if key not in found}
        return float(value), zeros | _on_host(found)

    def write(context: Any, out: tuple[Any, Any], params: dict[str, Any], rows: np.ndarray, seed: int) -> None:
        with _on_stream(context):
            given = {key: torch.from_dlpack(array).to(device()) for key, array in params.items()}
            # A training pass writes into running statistics, and these are JAX's.
            tensors = {key: leaf.clone() if key in held else leaf for key, leaf in given.items()}
            value, found = slopes(tensors, rows, seed)
            torch.from_dlpack(out[0]).copy_(value)
            for key, array in out[1].items():
                there = torch.from_dlpack(array)
                there.copy_(found[key]) if key in found else there.zero_()

    @_in_turn
    def passed(params: dict[str, np.ndarray], rows: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        net.train()
        tensors = _tensors(device(), params)
        with torch.no_grad(), _seeded(device(), seed):
            mean(tensors, rows)  # writes into the buffers it is given
        return {key: tensors[key].cpu().numpy() for key in held}

    def renew(params: dict[str, np.ndarray], rows: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        made = passed(params, rows, seed)
        return {key: made[key] for key in buffers}

    def written(params: dict[str, np.ndarray]) -> set[str]:
        made = passed(params, rows, 0)
        return {key for key in held if not np.array_equal(made[key], params[key], equal_nan=True)}

    @_in_turn
    def whole(params: dict[str, np.ndarray], rows: np.ndarray) -> float:
        net.eval()
        tensors, total = _tensors(device(), params), 0.0
        with torch.no_grad():
            for part in _parts(rows, PART):
                total += float(mean(tensors, part)) * len(part)
        return total / len(rows)

    first, rows = start(0), np.arange(min(2, size))
    try:
        gradient(first, rows, 0)
        changed = written(first) if held else set()
        if len(changed) < len(held):
            # Statistics of zeros stay zero: so from numbers, too, that no samples make. Not every number will do.
            other = {key: first[key] + first[key].dtype.type(0.7071) for key in held if key not in changed}
            with suppress(Exception):
                changed |= written(first | other)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the loss of the first samples fails ({brief(error)}); check that module, loss and data fit"
        ) from error
    buffers, constants = (tuple(key for key in held if (key in changed) == renewed) for renewed in (True, False))
    resident = Resident(_fetched, write) if device().type in SHARED else None
    return Local(start, gradient, whole, size, renew if buffers else None, buffers, constants, resident)


def _in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """One at a time: programs that train and that measure call at once, and a module has one mode, torch one seed."""

    @wraps(function)
    def called(*given: Any) -> Any:
        with _TURN:
            return function(*given)

    return called


def _parts(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


def _tensors(device: Any, params: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {key: _torch().tensor(np.asarray(value), device=device) for key, value in params.items()}


def _on_host(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """NumPy arrays of them: from a GPU all at once, as every copy waits for the device."""
    torch, every = _torch(), list(tensors.values())
    if not every or every[0].device.type == "cpu" or len({leaf.dtype for leaf in every}) > 1:
        return {key: leaf.detach().cpu().numpy() for key, leaf in tensors.items()}
    flat = torch.cat([leaf.reshape(-1) for leaf in every]).cpu()
    parts = torch.split(flat, [leaf.numel() for leaf in every])
    return {key: part.view(leaf.shape).numpy() for (key, leaf), part in zip(tensors.items(), parts, strict=True)}


@contextmanager
def _seeded(device: Any, seed: int) -> Iterator[None]:
    """Randomness of this seed, and what it was before afterwards."""
    torch = _torch()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _on_stream(context: Any) -> Any:
    """Work in the order of JAX's own on the same GPU."""
    torch = _torch()
    return torch.cuda.stream(torch.cuda.ExternalStream(context.stream)) if torch.cuda.is_available() else nullcontext()


def _fetched(context: Any, arrays: Sequence[Any]) -> list[np.ndarray]:
    torch = _torch()
    with _on_stream(context):
        return [torch.from_dlpack(array).cpu().numpy() for array in arrays]


def _made(module: Any) -> Any:
    """What a user's function makes."""
    try:
        return module()
    except Exception as error:
        raise InputError(
            f"the module is {module!r:.80}, which cannot be called without arguments ({brief(error)}); give a "
            "torch.nn.Module, or a function that makes one, as in lambda: Net(10)"
        ) from error


def _checked_module(net: Any) -> Any:
    torch = _torch()
    if not isinstance(net, torch.nn.Module):
        raise InputError(f"the module is {type(net).__name__}, expected a torch.nn.Module or a function that makes one")
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise InputError("the module has no parameters with requires_grad, so there is nothing to train")
    for name, part in net.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.momentum is None:
            raise InputError(
                f"{name or 'the module'} counts its batches ({type(part).__name__} with momentum=None), and counts are "
                "not carried; give it a momentum, such as 0.1"
            )
    for name, parameter in net.named_parameters():
        if parameter.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{name} has dtype {parameter.dtype}, expected float32 or float64; use module.float()")
    return net


def _indexable(samples: Any) -> tuple[Any, Callable[[list[Any]], Any]]:
    data = _torch().utils.data
    dataset, collate, sampler = samples, data.default_collate, None
    if isinstance(samples, data.DataLoader):
        dataset, collate = samples.dataset, samples.collate_fn
        sampler = getattr(samples.batch_sampler, "sampler", samples.sampler)
    if isinstance(dataset, data.IterableDataset) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        raise InputError(
            f"the data set is {type(dataset).__name__}, which cannot be indexed; batches are drawn by number, so give "
            "one with __getitem__ and __len__, such as TensorDataset"
        )
    batched: Any = getattr(samples, "batch_sampler", None)
    if batched is not None and not isinstance(batched, data.BatchSampler):
        sampler = batched
    plain = isinstance(sampler, data.SequentialSampler | data.RandomSampler)
    if sampler is not None and not (plain and getattr(sampler, "data_source", None) is dataset):
        raise InputError(
            f"the loader chooses samples by {a_kind_of(sampler)} of its own, but here samples of its whole data "
            "set are drawn by number; give the data set of those you mean, as in torch.utils.data.Subset(dataset, rows)"
        )
    return dataset, collate


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise InputError("a batch is not a pair of inputs and targets; give a dataset of such pairs")
    return batch[0], batch[1]
