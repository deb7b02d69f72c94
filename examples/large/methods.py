"""What the large examples share: five ways to train one model, and a table of test loss against gradients and bytes."""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

import pisco
from pisco.algorithms import build, dsgd, noloco

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # models.py has the networks, in plain JAX

METHODS = ("central", "dsgd-adam", "pisco-adam", "pisco-lasting", "dsgd-shared", "dsgd-often")
METHODS += ("diloco", "diloco-mild", "noloco")
DECAY, NESTEROV = {"name": "weight-decay", "weight": 0.1}, {"name": "momentum", "decay": 0.9, "nesterov": True}


def halved(method, local_steps):
    """Local steps, and how many times the rounds: "dsgd-often" sends as much as two vectors a round would."""
    return (max(1, local_steps // 2), 2) if method == "dsgd-often" else (local_steps, 1)


def rule_and_network(method, agents, local_steps, local_lr, schedule=(), server_prob=0.1):
    """The rule and its network: a ring that reaches its server with probability p, or what was published."""
    steps = {"local_steps": local_steps, "local_lr": local_lr}
    adam, adamw = ["adam", *schedule], ["adam", DECAY, *schedule]
    ring = pisco.Network.ring(agents, server=pisco.bernoulli(server_prob))
    if method == "central":
        return dsgd(direction=adam, **steps), pisco.Network.complete(1)
    if method.startswith("diloco"):  # outer step 0.7 as published; "diloco-mild" moves as far as the agents' mean did
        outer = 0.1 if method == "diloco-mild" else 0.7
        rule = dsgd(direction=adamw, outer=NESTEROV, comm_lr=outer, **steps)
        return rule, pisco.Network.ring(agents, server=pisco.always())
    if method == "noloco":
        pairs = pisco.networks.varying.random_matching()
        return noloco(direction=adamw, **steps), pisco.Network.complete(agents, server=pisco.never(), varying=pairs)
    if method in ("pisco-adam", "pisco-lasting"):
        return build("pisco-adam", direction=adam, lasting=method == "pisco-lasting", **steps), ring
    if method == "dsgd-shared":  # the second moments travel too
        return dsgd(direction=["shared-adam", *schedule], **steps), ring
    if method in ("dsgd-adam", "dsgd-often"):
        return dsgd(direction=adam, **steps), ring
    raise SystemExit(f"unknown method {method}; choose from {', '.join(METHODS)}")


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
    parser.add_argument("--diagnose", action="store_true", help="say what will pay, at the end of the last run")
    parser.add_argument("--server-prob", type=float, default=0.1, help="how often the ring reaches its server")
    parser.add_argument("--warmup", type=float, default=0.0, help="share of the steps in which they grow")
    parser.add_argument("--constant", action="store_true", help="no cosine decay of the step size")
    parser.add_argument("--tuning-seed", type=int, default=9, help="where the best of several --local-lr is found")
    parser.add_argument("--out", help="append a line of JSON for every run to this file")
    for name, value in usual.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()


def compare(name, problem_of, parts, chosen):
    """Run every method with every seed and print what each came to.

    problem_of(parts) makes the problem; one method after the other, so that memory is that of one. Of several step
    sizes (--local-lr 3e-4,1e-3) a method takes the one with the least test loss on the tuning seed.
    """
    agents, parts = len(parts), shuffled(parts) if chosen.shuffled else parts
    print(f"{name}: {agents} agents, {sum(len(jax.tree.leaves(part)[0]) for part in parts)} samples", flush=True)
    print("method       seed      η  round  gradients   MB sent  train loss  test loss  test accuracy", flush=True)
    rates, seeds = [float(rate) for rate in chosen.local_lr.split(",")], [int(seed) for seed in chosen.seeds.split(",")]
    for method in chosen.methods.split(","):
        problem = problem_of(together(parts) if method == "central" else parts)
        setup = (name, method, problem, agents, chosen)
        ended = {rate: one_run(*setup, rate, chosen.tuning_seed)[0] for rate in (rates if len(rates) > 1 else [])}
        best = min(rates, key=lambda rate: np.nan_to_num(ended.get(rate, 0.0), nan=np.inf))
        for seed in seeds:
            _, result, network = one_run(*setup, best, seed)
    if chosen.diagnose:
        say_what_pays(name, problem, network, result, chosen)


def one_run(name, method, problem, agents, chosen, rate, seed):
    """The last test loss, the result and the network of one run, which is printed and added to the file."""
    local_steps, often = halved(method, chosen.local_steps)
    rounds = chosen.rounds * often
    total = rounds * local_steps
    cosine = {"name": "cosine", "steps": total, "warmup": int(chosen.warmup * total)}
    schedule = () if chosen.constant else (cosine,)
    rule, network = rule_and_network(method, agents, local_steps, rate, schedule, chosen.server_prob)
    began = time.monotonic()
    result = pisco.run(
        rule,
        problem,
        network,
        rounds=rounds,
        batch_size=chosen.batch_size * (agents if method == "central" else 1),
        seed=seed,
        eval_every=max(1, rounds // 10),
        chunk_rounds=max(1, rounds // 10),
    )
    history = result.history
    sent = history["bytes_gossip"] + history["bytes_server"]
    columns = {
        "round": history["round"],
        "gradients": history["round"] * local_steps * agents,
        "megabytes": 0 * sent if method == "central" else sent / 1e6,
        "loss": history["loss"],
        "test_loss": history["test_loss"],
        "test_accuracy": history["test_accuracy"],
    }
    last = [values[-1] for values in columns.values()]
    row = "{:12} {:4} {:6g} {:6} {:10} {:9.0f} {:11.4f} {:10.4f} {:14.4f}"
    print(row.format(method, seed, rate, *last), flush=True)
    if chosen.out:
        line = {"example": name, "method": method, "shuffled": chosen.shuffled, "seed": seed, "local_lr": rate}
        line |= {key: np.asarray(value, float).round(5).tolist() for key, value in columns.items()}
        line |= {"tuning": seed == chosen.tuning_seed, "constant": chosen.constant, "server_prob": chosen.server_prob}
        line["seconds"] = round(time.monotonic() - began, 1)
        with Path(chosen.out).open("a") as file:
            file.write(json.dumps(line) + "\n")
    return float(history["test_loss"][-1]), result, network


def say_what_pays(name, problem, network, result, chosen):
    """`pisco diagnose` at the mean model of a run."""
    from pisco.planning import diagnose

    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), result.params)
    numbers = {"rounds": chosen.rounds, "batch_size": chosen.batch_size, "local_steps": chosen.local_steps}
    for direction in ("adam", None):
        found = diagnose(problem, network, params=mean, samples=16 * problem.num_agents, direction=direction, **numbers)
        print(f"through {direction}: {found.facts}")
        for verdict in found.verdicts:
            print(f"{verdict.question}: {verdict.words}", flush=True)
        if not chosen.out:
            continue
        told = {verdict.question: [verdict.ratio, verdict.words] for verdict in found.verdicts}
        line = {"example": name, "shuffled": chosen.shuffled, "diagnosis": told, "through": found.through}
        line["spread"] = found.facts.spread._asdict()
        with Path(chosen.out).open("a") as file:
            file.write(json.dumps(line) + "\n")
