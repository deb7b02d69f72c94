"""What a federation's rounds send, counted from their structure."""

from __future__ import annotations

import numpy as np

from pisco.costs import MessageSizes, cumulative_costs
from pisco.federation.plan import Federation
from pisco.federation.rolls import Roll
from pisco.federation.runtime.routes import Routes
from pisco.networks.rounds import Links
from pisco.privacy.summing import word_of
from pisco.seeds import seed_key, streams


def costs(
    plan: Federation, rounds: list[int], sizes: dict[str, list[int]], rolls: list[Roll] | None = None
) -> dict[str, np.ndarray]:
    """What was sent until every measured round, counted from the structure of the rounds; among those on `rolls`."""
    keys = streams(seed_key(plan.seed))
    every: list[np.ndarray] = []
    ends = [epoch.start for epoch in plan.epochs[1:]] + [plan.rounds]
    for epoch, end in zip(plan.epochs, ends, strict=True):
        if epoch.start >= end:
            continue  # who is gone in the last round is removed after it
        routes = Routes(plan.network_of(epoch), keys)
        if rolls is not None:
            these = rolls[epoch.start : end]
            if these:
                links = routes.links_among(epoch.start, np.stack([epoch.places(r.present) for r in these]))
                tried = np.asarray([plan.tries_server(r.attempt) for r in these])
                to_server = {name: getattr(links, name) * tried for name in ("server", "uplinks", "downlinks")}
                every.append(np.stack(links._replace(**to_server)))
        else:
            every.append(np.stack(routes.links(epoch.start, end)))
    counts = np.concatenate([np.zeros((len(Links._fields), 1), np.int64), *every], axis=1)
    between = np.diff(np.cumsum(counts, axis=1)[:, rounds], axis=1, prepend=0)
    first = plan.network_of(plan.epochs[0])
    edges = np.asarray([int(first.gossip.rule.draw(keys.links, 0)[1])])
    whole = sizes.get("whole", sizes["sent"])
    messages = MessageSizes(first.num_agents, sizes["sent"], whole, sizes["start_server"], sizes["start_gossip"])
    if plan.server_sum:  # up to the server a number is a word, whatever a method compresses
        word, size = word_of(plan.dtype).size, np.dtype(plan.dtype).itemsize
        words, start = ([each // size * word for each in sent] for sent in (whole, sizes["start_server"]))
        messages = messages._replace(words=words, start_words=start)
    found = cumulative_costs(Links(*between[:, None, :]), messages, edges)
    return {name: column[0] for name, column in found.items()}
