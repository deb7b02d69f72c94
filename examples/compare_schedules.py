"""One update rule, five ways of reaching the server: what each sends until the same target."""

import math

import pisco

SCHEDULES = {
    "never": pisco.never(),
    "every tenth round": pisco.every(10),
    "one round of ten, by a coin": pisco.bernoulli(0.1),
    "each agent in one round of ten": pisco.per_agent([0.1] * 10),
    "always": pisco.always(),
}

problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10)
ring = pisco.Network.ring(10)
rule = pisco.algorithms.pisco(local_lr=0.2, local_steps=1)


def to_target(result, column):
    """The value of a column when the target is met, averaged over the seeds."""
    mean = result.at_target("grad_norm_sq_mean", column, at_most=0.02).mean()
    return "–" if math.isnan(mean) else f"{mean:,.0f}"


print(f"{'server':<32}{'rounds':>8}{'server':>8}{'gossip kB':>11}{'server kB':>11}")
for words, server in SCHEDULES.items():
    result = pisco.run(rule, problem, ring.with_server(server), rounds=120, batch_size=256, seed=[0, 1], eval_every=1)
    for cost in ("bytes_gossip", "bytes_server"):
        result.history[cost] = result.history[cost] / 1000
    columns = [to_target(result, name) for name in ("round", "server_rounds", "bytes_gossip", "bytes_server")]
    print(f"{words:<32}{columns[0]:>8}{columns[1]:>8}{columns[2]:>11}{columns[3]:>11}")
