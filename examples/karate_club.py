"""A network of your own from networkx: Zachary's karate club, whose two factions hold different labels."""

import networkx as nx
import numpy as np

import pisco

club = nx.karate_club_graph()
agents = club.number_of_nodes()
a9a = pisco.data.load("a9a")

# One faction holds the negative samples, the other the positive ones: gossip must cross between them.
officers = np.array([club.nodes[member]["club"] == "Officer" for member in club])
parts = [np.empty(0, int)] * agents
for side, label in ((officers, 1), (~officers, -1)):
    members, samples = np.flatnonzero(side), np.flatnonzero(a9a.labels == label)[:7000]
    for member, share in zip(members, np.array_split(samples, len(members)), strict=True):
        parts[member] = share
problem = pisco.problems.logistic(a9a, agents=agents, partition=parts)
print(problem)

rule = pisco.algorithms.pisco(local_lr=0.2, local_steps=1)
for p in (0.0, 0.1, 1.0):
    network = pisco.Network(club, weights="metropolis", server=pisco.bernoulli(p))
    result = pisco.run(rule, problem, network, rounds=100, batch_size=64, eval_every=1)
    (reached,) = result.at_target("grad_norm_sq_mean", at_most=0.05)
    print(
        f"{network}: λ_p = {network.expected_mixing_rate():.3f}, target in round {reached:.0f}, "
        f"{result.final('server_rounds')[0]} server rounds, accuracy {result.final('test_accuracy')[0]:.1%}"
    )
