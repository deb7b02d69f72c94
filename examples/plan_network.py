"""What a server is worth: plans for one problem at two prices of a server message, on a ring that mixes slowly."""

import numpy as np

import pisco
from pisco.planning import Prices, check_step, plan

random = np.random.default_rng(0)
agents, d = 12, 6
roots = random.normal(size=(agents, d, d))
problem = pisco.problems.quadratic(roots @ roots.transpose(0, 2, 1) / d + np.eye(d), random.normal(size=(agents, d)))
ring = pisco.Network.ring(agents)

for price in (0.1, 10.0):
    found = plan(
        problem,
        ring,
        rounds=300,
        target=("grad_norm_sq", 1e-4),
        prices=Prices(server=price, gossip=1.0),
        probabilities=(0.0, 0.1, 1.0),
        seconds=300,
    )
    how = "measured" if found.measured else "predicted"
    print(f"a server message at {price:g}: {found.setting.describe()}; {found.price:.4g} ({how})")

# A step that somebody might have tried instead, and what is said of it before any round is run.
careless = pisco.algorithms.pisco(local_lr=0.3, local_steps=1)
print(check_step(careless, problem, pisco.Network.ring(agents, weights="fdla"), rounds=300))
