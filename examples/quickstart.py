"""PISCO in ten lines: a9a over a ring of ten agents that reach the server in one round of ten."""

import pisco

network = pisco.Network.ring(10, weights="fdla", server=pisco.bernoulli(0.1))
problem = pisco.problems.logistic(pisco.data.load("a9a"), agents=10, partition="sorted", rho=0.01)
rule = pisco.algorithms.pisco(local_lr=0.03, local_steps=1)
result = pisco.run(rule, problem, network, rounds=200, batch_size=256, seed=0, eval_every=1)

(reached,) = result.at_target("grad_norm_sq_mean", at_most=0.05)
print(result)
print(f"the running mean of ‖∇f(x̄)‖² fell to 0.05 in round {reached:.0f}")
print(f"{result.final('server_rounds')[0]} server rounds, {result.final('gossip_rounds')[0]} gossip rounds")
print(f"test accuracy {result.final('test_accuracy')[0]:.1%}")
