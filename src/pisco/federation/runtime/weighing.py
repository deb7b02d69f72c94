"""Members that count by their samples: everybody tells the server its count at the start, and hears the mean.

An agent's loss is then multiplied by its own count over the founders' mean count, so that all minimise the mean over
samples. The mean is kept with the agent's state: who comes back does not ask again.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from pisco.errors import InputError
from pisco.federation.kits import Refused
from pisco.federation.roster import SERVER
from pisco.federation.runtime.lines import printable
from pisco.federation.runtime.peers import Patience, Stopped, stop_if_refused
from pisco.federation.runtime.transport import grpc
from pisco.federation.runtime.wire_pb2 import Report

if TYPE_CHECKING:
    from pisco.federation.runtime.agent import Agent

log = logging.getLogger("pisco.federation")


def ask_mean(agent: Agent, samples: int) -> float:
    """The founders' mean number of samples, once the server knows them all; ours is told with the question."""
    patience = Patience(agent.plan.patience, agent.mailroom.stopping)
    told = Report(federation=agent.federation_hash(agent.done + 1), round=agent.done, samples=samples)
    while True:
        missing = f"{SERVER}: no answer from {agent.plan.server_address}"
        try:
            receipt = agent.peer(SERVER, agent.done).report(told, 10.0)
            agent.mailroom.hear(receipt.troubles)
            if receipt.mean_samples:
                break
            missing = printable(receipt.missing) or missing
        except grpc.RpcError as error:
            stop_if_refused(error)
        except (OSError, Refused, ValueError):
            pass
        patience.wait(f"the sample counts of {missing}", "type the command again once all members are there")
    if not (math.isfinite(receipt.mean_samples) and receipt.mean_samples >= 1):
        raise Stopped(f"the server says that members have {receipt.mean_samples:g} samples each, which is impossible")
    mean = receipt.mean_samples
    log.info("members have %.6g samples on average and we %d: we count %.3g times", mean, samples, samples / mean)
    return mean


def notes(agent: Agent) -> dict[str, Any]:
    """What an agent keeps with its state."""
    return {"samples": agent.num_samples, "mean_samples": agent.mean_samples}


def check_samples(agent: Agent) -> None:
    """Refuse other data than our weight was computed from; without such weights warn that the data are others."""
    now = agent.num_samples
    before = agent.found.job.get("samples", now) if agent.found else now
    if before != now and agent.plan.weigh_by == "samples":
        agent.store.close()
        raise InputError(
            f"the state in {agent.store.folder} was begun with {before} samples, which give our weight, and now "
            f"there are {now}; give the same data as before"
        )
    if before != now:
        log.warning("there are %d samples, where there were %d: a replay cannot repeat this run", now, before)
