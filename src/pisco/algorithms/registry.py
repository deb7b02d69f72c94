"""Published methods by name: an update rule, what the name fixes of it, and the network it is defined on.

Adding a method is one file with its update rule, one row here and one entry in the docs. Methods from elsewhere are
entry points of the group `pisco.algorithms`, or named as "my_algos.py:extra".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pisco.algorithms.beer import beer
from pisco.algorithms.compressed import compressed
from pisco.algorithms.compressors import compressor as as_compressor
from pisco.algorithms.dsgd import dsgd
from pisco.algorithms.dsgt import dsgt
from pisco.algorithms.extra import extra
from pisco.algorithms.fedadam import fedadam
from pisco.algorithms.feddyn import feddyn
from pisco.algorithms.fedprox import fedprox
from pisco.algorithms.gt_hsgd import gt_hsgd
from pisco.algorithms.kgt import kgt
from pisco.algorithms.led import led
from pisco.algorithms.momentum import momentum_dsgd
from pisco.algorithms.noloco import noloco
from pisco.algorithms.optimizers import PLAIN, Optimizer
from pisco.algorithms.pisco import pisco
from pisco.algorithms.proxskip import proxskip
from pisco.algorithms.quasi_global import quasi_global
from pisco.algorithms.scaffold import scaffold
from pisco.algorithms.sd_gt import sd_gt
from pisco.errors import InputError, a_kind_of, check_counts
from pisco.registry import Options, Registry, checked, fit, is_reference, move, options
from pisco.types import Algorithm


def lsgt(*, local_lr: float, local_steps: int) -> Algorithm:
    """Gradient tracking with E local steps between exchanges, semi-ATC: one-exchange PISCO with T_o = E − 1."""
    check_counts(local_steps=local_steps)
    return pisco(local_lr=local_lr, local_steps=local_steps - 1, one_exchange=True)


def choco(*, local_lr: float, consensus_lr: float = 0.3, compressor: Any = "top-k") -> Algorithm:
    """Gossip SGD with error-feedback compression."""
    inner = dsgd(local_lr=local_lr)
    return compressed(inner=inner, consensus_lr=consensus_lr, compressor=as_compressor(compressor))


def compressed_beer(*, local_lr: float, consensus_lr: float = 0.3, compressor: Any = "top-k") -> Algorithm:
    """BEER with a compressor by name."""
    return beer(local_lr=local_lr, consensus_lr=consensus_lr, compressor=as_compressor(compressor))


def motef(*, local_lr: float, consensus_lr: float = 0.3, momentum: float = 0.1, compressor: Any = "top-k") -> Algorithm:
    """BEER on a running mean of the gradients, with a compressor by name."""
    steps: Any = {"local_lr": local_lr, "consensus_lr": consensus_lr, "momentum": momentum}
    return beer(**steps, compressor=as_compressor(compressor))


def compressed_pisco(
    *,
    local_lr: float,
    comm_lr: float = 1.0,
    local_steps: int,
    one_exchange: bool = False,
    direction: Optimizer = PLAIN,
    outer: Optimizer = PLAIN,
    consensus_lr: float = 0.3,
    compressor: Any = "top-k",
) -> Algorithm:
    """PISCO with error-feedback compression of its exchanges, on gossip and server rounds alike."""
    steps: Any = {"local_lr": local_lr, "comm_lr": comm_lr, "local_steps": local_steps}
    inner = pisco(**steps, one_exchange=one_exchange, direction=direction, outer=outer)
    return compressed(inner=inner, consensus_lr=consensus_lr, compressor=as_compressor(compressor))


def adam_pisco(
    *,
    local_lr: float,
    comm_lr: float = 1.0,
    local_steps: int,
    lasting: bool = False,
    direction: Any = "adam",
    outer: Optimizer = PLAIN,
) -> Algorithm:
    """K-GT's averaged correction through Adam, or another optimizer."""
    steps: Any = {"local_lr": local_lr, "comm_lr": comm_lr, "local_steps": local_steps, "lasting": lasting}
    return kgt(**steps, direction=Optimizer.read(direction), outer=outer)


@dataclass(frozen=True)
class Method:
    """One row: the factory, what the name fixes, the network it is published on, and a line of description."""

    factory: Callable[..., Algorithm]
    summary: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    """Network settings of the published method; a configuration that sets its own wins."""

    @property
    def hyperparameters(self) -> Options:
        """The hyperparameters left to the caller."""
        return {name: option for name, option in options(self.factory).items() if name not in self.fixed}


def needed(name: str, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the usual hyperparameters that a method has no default for."""
    taken = ALGORITHMS[name].hyperparameters
    return {key: value for key, value in usual.items() if key in taken and taken[key].default is taken[key].empty}


def _method(what: str, found: Any) -> Method:
    """A row as it is, or around a factory from elsewhere, described by the first line of its docstring."""
    if isinstance(found, Method):
        named = {key: value for key, value in found.network.items() if is_reference(value)}
        if not named:
            return found
        beside = Path(inspect.getfile(inspect.unwrap(found.factory))).parent  # where its own files stand
        moved = {key: move(value, lambda path: beside / path) for key, value in named.items()}
        return replace(found, network={**found.network, **moved})
    checked(what, found)
    return Method(found, ((found.__doc__ or "").strip().splitlines() or [what])[0].rstrip(".:"))


GOSSIP = {"server": "never"}
FEDERATED = {"server": "always"}
MILD = {"server": "never", "weights": "metropolis"}  # no eigenvalue far below zero
PAIRS = {"graph": "complete", "server": "never", "varying": "random_matching"}
SKIPPING = {"gossip_steps": 0}
ADAMW = ["adam", {"name": "weight-decay", "weight": 0.1}]
NESTEROV = {"name": "momentum", "decay": 0.9, "nesterov": True}
ONE_STEP = {"local_steps": 1, "comm_lr": 1.0, "combine_first": False}
SUBNETS = {"graph": "clusters", "clusters": 2, "inner": "ring", "server": "every", "period": 5}
CLUSTERED = SUBNETS | {"gossip_before_server": True, "reporters": 2}

_ROWS = {
    "pisco": Method(pisco, "local gradient tracking, two exchanges a round (the paper's Algorithm 1)"),
    "pisco-one-exchange": Method(pisco, "PISCO with parameters and tracker in one message", {"one_exchange": True}),
    "pisco-compressed": Method(compressed_pisco, "PISCO with error-feedback compression"),
    "pisco-vr": Method(
        kgt, "PISCO with K-GT's averaged correction, no centralised start", {"last_gradient": False, "start": "zero"}
    ),
    "pisco-adam": Method(adam_pisco, "Adam on gradients with an averaged correction: PISCO for deep networks"),
    "dsgd": Method(dsgd, "decentralized SGD, adapt-then-combine", ONE_STEP, GOSSIP),
    "dsgd-cta": Method(dsgd, "decentralized SGD, combine-then-adapt", ONE_STEP | {"combine_first": True}, GOSSIP),
    "local-dsgd": Method(dsgd, "decentralized SGD with local steps", {"combine_first": False}, GOSSIP),
    "fedavg": Method(dsgd, "federated averaging with local steps", {"combine_first": False}, FEDERATED),
    "gossip-pga": Method(
        dsgd, "gossip SGD with a server average every H rounds", ONE_STEP, {"server": "every", "period": 10}
    ),
    "gossip-aga": Method(
        dsgd, "gossip SGD whose averaging period grows as the loss falls", ONE_STEP, {"server": "adaptive", "period": 4}
    ),
    "hl-sgd": Method(
        dsgd, "gossip in clusters, a server average of sampled agents every τ rounds", ONE_STEP, CLUSTERED
    ),
    "ha-fed": Method(momentum_dsgd, "HL-SGD with heavy-ball momentum", {}, CLUSTERED),
    "tt-hf": Method(
        dsgd,
        "local steps with Γ gossip steps in clusters; one random agent per cluster reports every T rounds",
        ONE_STEP,
        CLUSTERED | {"reporters": 1, "gossip_steps": 2},
    ),
    "sampled-to-sampled": Method(
        dsgd,
        "gossip in clusters; agents sampled every τ rounds average at the server, for themselves alone",
        {"combine_first": False},
        CLUSTERED | {"receivers": "sampled"},
    ),
    "scaffold": Method(scaffold, "federated averaging with control variates", {}, FEDERATED),
    "dsgt": Method(dsgt, "gradient tracking, semi-ATC", {"combine_first": False}, GOSSIP),
    "dsgt-cta": Method(dsgt, "gradient tracking, combine-then-adapt", {"combine_first": True}, GOSSIP),
    "dsgt-full-atc": Method(
        pisco,
        "gradient tracking, full-ATC (PISCO without local steps)",
        {"local_steps": 0, "comm_lr": 1.0, "one_exchange": False},
        GOSSIP,
    ),
    "kgt": Method(kgt, "K-GT: local steps with an averaged correction", {"last_gradient": False}, GOSSIP),
    "periodical-gt": Method(kgt, "local steps corrected with the last gradient", {"last_gradient": True}, GOSSIP),
    "sd-gt": Method(sd_gt, "gradient tracking within clusters and between them, corrected every τ rounds", {}, SUBNETS),
    "lsgt": Method(lsgt, "gradient tracking with local steps, semi-ATC", {}, GOSSIP),
    "push-pull": Method(
        pisco,
        "gradient tracking on one-way links: parameters pulled, trackers pushed",
        {"local_steps": 0, "comm_lr": 1.0, "one_exchange": True},
        {"graph": "random-digraph", "prob": 0.2, "weights": "metropolis", "server": "never"},
    ),
    "choco": Method(choco, "gossip SGD with error-feedback compression", {}, GOSSIP),
    "beer": Method(compressed_beer, "compressed gradient tracking", {}, GOSSIP),
    "motef": Method(motef, "compressed gradient tracking of a running mean of the gradients", {}, GOSSIP),
    "extra": Method(extra, "exact with one vector a round, on steady links", {}, GOSSIP),
    "exact-diffusion": Method(
        led, "exact diffusion (D²): exact with one vector a round", {"local_steps": 1, "lazy": False}, MILD
    ),
    "nids": Method(led, "NIDS with equal steps: lazy exact diffusion", {"local_steps": 1, "lazy": True}, GOSSIP),
    "led": Method(led, "local exact diffusion: one vector a round, local steps", {"lazy": False}, MILD),
    "proxskip": Method(proxskip, "local steps with a control variate; communicates by a coin", {}, SKIPPING),
    "qg-dsgdm": Method(quasi_global, "gossip SGD with quasi-global momentum", {}, GOSSIP),
    "gt-hsgd": Method(gt_hsgd, "gradient tracking of a variance-reduced estimate", {}, MILD),
    "fedprox": Method(fedprox, "federated averaging held near the server's model", {}, FEDERATED),
    "feddyn": Method(feddyn, "federated learning with a dynamic regulariser", {}, FEDERATED),
    "fedadam": Method(fedadam, "federated averaging with Adam at the server", {}, FEDERATED),
    "diloco": Method(
        dsgd,
        "AdamW inside, Nesterov momentum on the mean of what the agents moved",
        {"combine_first": False, "direction": ADAMW, "outer": NESTEROV},
        FEDERATED,
    ),
    "noloco": Method(noloco, "AdamW inside, momentum with a random partner outside", {"direction": ADAMW}, PAIRS),
}

ALGORITHMS = Registry[Method]("algorithm", "pisco.algorithms", _ROWS, adopt=_method)


def build(name: str, **hyperparameters: Any) -> Algorithm:
    """The method called `name`, or the one in a file of yours ("my_algos.py:extra"), with these hyperparameters.

    >>> build("dsgt", local_lr=0.1)
    dsgt(local_lr=0.1, combine_first=False)
    >>> build("dsgd", locallr=0.1)
    Traceback (most recent call last):
    ...
    pisco.errors.InputError: algorithm 'dsgd' has no option 'locallr'; did you mean 'local_lr'?
    """
    method, what = ALGORITHMS[name], f"algorithm {name!r}"
    made = method.factory(**method.fixed, **fit(what, method.hyperparameters, hyperparameters))
    if not isinstance(made, Algorithm):
        raise InputError(f"{what} is {a_kind_of(made)}; put @pisco.algorithm above its factory")
    return made
