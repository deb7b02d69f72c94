"""What the large examples share: five ways to train one model, and a table of test loss against gradients and bytes."""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

import pisco
from pisco.algorithms import build

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # models.py has the networks, in plain JAX

METHODS = ("central", "pisco-adam", "dsgd-adam", "diloco", "diloco-mild", "noloco")


def rule_and_network(method, agents, local_steps, local_lr):
    """The rule and its network: a ring that reaches its server in a tenth of the rounds, or what was published."""
    steps = {"local_steps": local_steps, "local_lr": local_lr}
    if method == "central":
        return build("local-dsgd", direction="adam", **steps), pisco.Network.complete(1)
    if method.startswith("diloco"):  # outer step 0.7 as published; "diloco-mild" moves as far as the agents' mean did
        outer = 0.1 if method == "diloco-mild" else 0.7
        return build("diloco", comm_lr=outer, **steps), pisco.Network.ring(agents, server=pisco.always())
    if method == "noloco":
        pairs = pisco.networks.varying.random_matching()
        return build("noloco", **steps), pisco.Network.complete(agents, server=pisco.never(), varying=pairs)
    if method == "pisco-adam":
        rule = build("pisco-adam", **steps)
    elif method == "dsgd-adam":
        rule = build("local-dsgd", direction="adam", **steps)
    else:
        raise SystemExit(f"unknown method {method}; choose from {', '.join(METHODS)}")
    return rule, pisco.Network.ring(agents, server=pisco.bernoulli(0.1))


def together(parts):
    """One agent that holds everybody's samples, as many of each: what everybody minimises together."""
    most = max(len(jax.tree.leaves(part)[0]) for part in parts)
    rows = [np.resize(np.arange(len(jax.tree.leaves(part)[0])), most) for part in parts]
    resized = [jax.tree.map(lambda leaf, at=at: leaf[at], part) for part, at in zip(parts, rows, strict=True)]
    return [jax.tree.map(lambda *leaves: np.concatenate(leaves), *resized)]


def shuffled(parts, seed=0):
    """The same samples dealt out at random, as many to each as before."""
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    sizes = [len(jax.tree.leaves(part)[0]) for part in parts]
    order = np.random.default_rng(seed).permutation(sum(sizes))
    return [jax.tree.map(lambda leaf, at=at: leaf[at], whole) for at in np.split(order, np.cumsum(sizes)[:-1])]


def options(description, **usual):
    """What can be set on the command line; `usual` are the example's own numbers."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), help="as in pisco-adam,dsgd-adam")
    parser.add_argument("--seeds", default="0", help="as in 0,1,2")
    parser.add_argument("--shuffled", action="store_true", help="deal the samples out at random")
    parser.add_argument("--tiny", action="store_true", help="a small model for two rounds, to try the script")
    parser.add_argument("--diagnose", action="store_true", help="say what will pay, at the end of the first run")
    parser.add_argument("--out", help="append a line of JSON for every run to this file")
    for name, value in usual.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()


def compare(name, problem_of, parts, chosen, transform=None):
    """Run every method with every seed and print what each came to.

    problem_of(parts) makes the problem; one method after the other, so that memory is that of one.
    """
    agents, parts = len(parts), shuffled(parts) if chosen.shuffled else parts
    print(f"{name}: {agents} agents, {sum(len(jax.tree.leaves(part)[0]) for part in parts)} samples", flush=True)
    print("method       seed  round  gradients   MB sent  train loss  test loss  test accuracy", flush=True)
    for method in chosen.methods.split(","):
        rule, network = rule_and_network(method, agents, chosen.local_steps, chosen.local_lr)
        problem = problem_of(together(parts) if method == "central" else parts)
        batch = chosen.batch_size * (agents if method == "central" else 1)
        for seed in map(int, chosen.seeds.split(",")):
            began = time.monotonic()
            result = pisco.run(
                rule,
                problem,
                network,
                rounds=chosen.rounds,
                batch_size=batch,
                seed=seed,
                eval_every=max(1, chosen.rounds // 10),
                chunk_rounds=max(1, chosen.rounds // 10),
            )
            history = result.history
            rounds = history["round"]
            sent = 0 * rounds if method == "central" else history["bytes_gossip"] + history["bytes_server"]
            columns = {
                "round": rounds,
                "gradients": rounds * chosen.local_steps * agents,
                "megabytes": sent / 1e6,
                "loss": history["loss"],
                "test_loss": history["test_loss"],
                "test_accuracy": history["test_accuracy"],
            }
            for row in list(zip(*columns.values(), strict=True))[-1:]:
                print("{:12} {:4} {:6} {:10} {:9.0f} {:11.4f} {:10.4f} {:14.4f}".format(method, seed, *row), flush=True)
            if chosen.out:
                line = {"example": name, "method": method, "shuffled": chosen.shuffled, "seed": seed}
                line |= {key: np.asarray(value, float).round(5).tolist() for key, value in columns.items()}
                line["seconds"] = round(time.monotonic() - began, 1)
                with Path(chosen.out).open("a") as file:
                    file.write(json.dumps(line) + "\n")
        if chosen.diagnose and method != "central":
            say_what_pays(problem, network, result, chosen)
            chosen.diagnose = False


def say_what_pays(problem, network, result, chosen):
    """`pisco diagnose` at the mean model of a run."""
    from pisco.planning import diagnose

    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), result.params)
    numbers = {"rounds": chosen.rounds, "batch_size": chosen.batch_size, "local_steps": chosen.local_steps}
    found = diagnose(problem, network, params=mean, samples=64 * problem.num_agents, **numbers)
    print(found.facts)
    for verdict in found.verdicts:
        print(f"{verdict.question}: {verdict.words}", flush=True)
    if chosen.out:
        told = {verdict.question: [verdict.ratio, verdict.words] for verdict in found.verdicts}
        spread = found.facts.spread._asdict()
        line = {"shuffled": chosen.shuffled, "diagnosis": told, "spread": spread, "curvature": found.facts.curvature}
        with Path(chosen.out).open("a") as file:
            file.write(json.dumps(line) + "\n")
