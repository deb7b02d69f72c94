"""One attacker of eight against `guard = "clip"`: the loss of the honest and who is named; prints JSON lines.

For every data set, method and attack: the honest members' loss at their mean, over that of a run in which the attacker
is absent, with the guard and without, the worst of the seeds; in how many seeds the attacker was named and who else
was. Then runs without an attacker on unlike data: the guarded loss over the plain one, and in how many seeds anybody is
named.

    python benchmarks/bench_poison.py                 # a9a, logistic regression, data sorted by label
    python benchmarks/bench_poison.py --fashion       # Fashion-MNIST (in PISCO_DATA), a small network, sorted by label
    python benchmarks/bench_poison.py --graph ring    # where it fails: two neighbours, and one of them lies
    python benchmarks/bench_poison.py --attackers 2   # a quarter of all
    python benchmarks/bench_poison.py --partition iid
"""

from __future__ import annotations

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np

import pisco
from pisco.attacks.poison import ATTACKS
from pisco.networks.graphs import GRAPHS

AGENTS, ATTACKERS = 8, (5, 2, 0)
"""Who attacks: the first, or the first few."""
METHODS = {
    "pisco": (lambda lr: pisco.algorithms.pisco(local_lr=lr, local_steps=1), pisco.bernoulli(0.1)),
    "pisco-server": (lambda lr: pisco.algorithms.pisco(local_lr=lr, local_steps=1), pisco.always()),
    "dsgt": (lambda lr: pisco.algorithms.dsgt(local_lr=lr), pisco.never()),
    "kgt": (lambda lr: pisco.algorithms.kgt(local_lr=lr / 3, local_steps=3), pisco.never()),
    "dsgd": (lambda lr: pisco.algorithms.dsgd(local_lr=lr), pisco.never()),
    "fedavg": (lambda lr: pisco.algorithms.build("fedavg", local_lr=lr, local_steps=5), pisco.always()),
}


def a9a(partition: str) -> pisco.Problem:
    return pisco.problems.logistic(pisco.data.load("a9a"), agents=AGENTS, partition=partition, rho=0.01)


def fashion(partition: str) -> pisco.Problem:
    return pisco.problems.mlp(pisco.data.load("fashion-mnist"), agents=AGENTS, partition=partition)


def honest_losses(problem: pisco.Problem, honest: np.ndarray):
    """Of a result: the honest agents' mean loss on their own samples, at the mean of their parameters, by seed."""
    agents = np.flatnonzero(honest)
    held = [range(int(problem.offsets[i]), int(problem.offsets[i] + problem.sizes[i])) for i in agents]

    @jax.jit
    def loss(params):
        mean = jax.tree.map(lambda leaf: leaf[agents].mean(axis=0), params)
        own = [problem.sample_losses(mean, problem.take(jnp.arange(rows.start, rows.stop))).mean() for rows in held]
        return jnp.stack(own).mean()

    def each(result: pisco.Result) -> np.ndarray:
        leaves, structure = jax.tree.flatten(result.params)
        return np.array([float(loss(structure.unflatten(seed))) for seed in zip(*leaves, strict=True)])

    return each


def rows(problem, name, methods, options):
    how = {"rounds": options.rounds, "batch_size": options.batch_size, "eval_every": options.rounds}
    attackers, clip = ATTACKERS[: options.attackers], pisco.clip(leave_out_at=options.leave_out_at)
    there = ~np.isin(np.arange(AGENTS), attackers)
    losses = honest_losses(problem, there)
    few, many = list(range(options.seeds)), list(range(options.honest_seeds))
    for method in methods:
        make, server = METHODS[method]
        rule, about = make(options.lr), {"data": name, "partition": options.partition, "graph": options.graph}
        about |= {"method": method, "attackers": len(attackers)}

        def network(server=server, **more):
            return pisco.Network(GRAPHS[options.graph](agents=AGENTS), server=server, **more)

        def run(net, seeds, rule=rule):
            return pisco.run(rule, problem, net, seed=seeds, **how)

        if not options.only_attacks:
            plain, guarded = run(network(), many), run(network(guard=clip), many)
            ratio = losses(guarded) / losses(plain)
            named = sum(bool(one) for one in guarded.named)
            worst = float(f"{ratio.max():.4g}")
            yield about | {"attack": None, "seeds": len(many), "loss_ratio": worst, "seeds_with_false_names": named}
        alone = losses(run(network(presence=there), few))
        for attack in options.attacks.split(","):
            ratios = {}
            for guard in (clip,) if options.guarded_only else (None, clip):
                attacked = run(pisco.testing.poisoned(network(guard=guard), attackers, attack), few)
                ratio = (losses(attacked) / alone).max()
                ratios[guard is not None] = float(f"{ratio:.4g}") if np.isfinite(ratio) else None
            whom = [{each["agent"] for each in one} for one in attacked.named]
            left = [each["left_off"] for one in attacked.named for each in one if each["agent"] in attackers]
            yield about | {
                "attack": attack,
                "seeds": len(few),
                "loss_ratio": ratios[True],
                "unguarded": ratios.get(False),
                "named": sum(set(attackers) <= one for one in whom),
                "seeds_with_false_names": sum(bool(one - set(attackers)) for one in whom),
                "left_off_at": [at for at in left if at is not None],
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fashion", action="store_true", help="Fashion-MNIST instead of a9a")
    parser.add_argument("--graph", default="complete")
    parser.add_argument("--partition", default="sorted", help="or iid, dirichlet, by_label")
    parser.add_argument("--methods", default=",".join(METHODS), help="some of them, by commas")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3, help="with an attacker")
    parser.add_argument("--honest-seeds", type=int, default=20, help="without")
    parser.add_argument("--attackers", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--leave-out-at", type=float, default=8.0, help="of the guard")
    parser.add_argument("--only-attacks", action="store_true")
    parser.add_argument("--guarded-only", action="store_true", help="no run with an attacker and without a guard")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="some of them, by commas")
    options = parser.parse_args()
    name, make = ("fashion-mnist", fashion) if options.fashion else ("a9a", a9a)
    problem = make(options.partition)
    for row in rows(problem, name, [each.strip() for each in options.methods.split(",")], options):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
