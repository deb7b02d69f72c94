"""A user's own networks: PISCO's rounds over what the same gradients allow.

    python benchmarks/bench_models.py              # CPU: a small convolutional network, against a loop over agents
    python benchmarks/bench_models.py --resnet     # ResNet-18 with GroupNorm, 8 agents × 32, against the joint batch
    python benchmarks/bench_models.py --gpt        # a GPT of 110 M parameters, 4 agents × 16 × 256 tokens, in many ways
    python benchmarks/bench_models.py --billion    # a GPT of 1 B parameters, 2 agents, checkpointed

The joint batch is one model on all agents' samples at once, in the same precision, with XLA's own convolutions: the
most that this many gradients allow. Memory of a large model should stay within 2 × (X, Y, G) beside one agent's
activations, which a process of its own measures (`xyg_beside_activations`). Every model is written in plain JAX and
knows nothing of agents.
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
from common import held_rounds, joint_steps, own_processes, report, row, shortest
from models import GPT, ResNet, SmallNet

import pisco
from pisco.engines.scan import ScanEngine
from pisco.problems.gradient import in_turn, lean, stacked

LOCAL_STEPS = 4
GRADIENTS = LOCAL_STEPS + 1


def images(shape, agents, samples):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (agents, samples, *shape), dtype=np.uint8)
    return {"x": x, "y": rng.integers(0, 10, (agents, samples), dtype=np.int32)}


def loop_over_agents(problem, batch_size, steps):
    """The plain loop: one compiled step, called for every agent in turn."""
    agents, size = problem.num_agents, problem.min_size
    rng = np.random.default_rng(1)
    data = jax.tree.map(np.asarray, problem.data)
    loss = jax.jit(
        lambda params, batch: jax.tree.map(
            lambda x, g: x - 1e-3 * g, params, jax.grad(lambda p: jnp.mean(problem.loss(p, batch, None)))(params)
        )
    )
    state = [problem.init(jax.random.key(0))] * agents

    def call():
        for _ in range(steps):
            for agent in range(agents):
                drawn = agent * size + rng.integers(0, size, batch_size)
                state[agent] = loss(state[agent], jax.tree.map(lambda leaf, drawn=drawn: leaf[drawn], data))
        return state

    return call


def small():
    """The network of a user on a laptop."""
    agents, batch_size, rounds = 5, 32, 10
    model = SmallNet()
    problem = pisco.Problem(model.loss, model.init, images((28, 28, 1), agents, 500), name="small")
    calls = {
        "as usual": held_rounds(problem, batch_size, rounds, LOCAL_STEPS),
        "stacked": held_rounds(problem, batch_size, rounds, LOCAL_STEPS, ScanEngine(batching=stacked)),
        "loop": loop_over_agents(problem, batch_size, rounds * GRADIENTS),
    }
    times = shortest(calls, repeats=5)
    speeds = {how: rounds * GRADIENTS * agents * batch_size / found for how, found in times.items()}
    for how, target in (("as usual", "≥ 0.7"), ("stacked", "")):
        name = f"own CNN: 5 agents × 32 in the engine, {how}, against a jitted loop"
        yield row(name, speeds[how], speeds["loop"], "samples/s", target)


def resnet():
    """Deep learning on an accelerator."""
    agents, batch_size, rounds = 8, 32, 10
    for precision, target in (("float32", "≥ 0.5"), ("bfloat16", "≥ 0.45")):
        model = ResNet(precision)
        problem = pisco.Problem(model.loss, model.init, images((32, 32, 3), agents, 512), name=f"ResNet-18 {precision}")
        calls = {
            "ours": held_rounds(problem, batch_size, rounds, LOCAL_STEPS),
            "joint": joint_steps(problem, agents * batch_size, rounds * GRADIENTS),
        }
        times = shortest(calls, repeats=3)
        samples = rounds * GRADIENTS * agents * batch_size
        name = f"ResNet-18, GroupNorm, {precision}: 8 agents × 32 against the joint batch of 256"
        yield row(name, samples / times["ours"], samples / times["joint"], "images/s", target)


def one_gradient(problem, batch_size):
    """The gradient of one agent's batch, as the user's loss is written."""
    params = problem.init(jax.random.key(0))
    batch = jax.tree.map(lambda leaf: leaf[:batch_size], problem.data)
    grad = jax.jit(jax.grad(lambda params, batch: jnp.mean(problem.loss(params, batch, None))))
    return lambda: grad(params, batch)


BATCHINGS = {"as usual": None, "stacked": stacked, "in turn": in_turn, "in turn, lean": lean(in_turn)}


def language(sizes, agents, batch_size, rounds, variants, checkpoint=False):
    """Every variant as a call, the tokens that each takes, and the parameters of the model."""
    model = GPT(**sizes, checkpoint=checkpoint)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, model.vocabulary, (agents, 64, model.length + 1), dtype=np.int32)
    problem = pisco.Problem(model.loss, model.init, {"tokens": tokens}, name="GPT", eval_samples=1)
    shapes = jax.eval_shape(problem.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    steps, calls = rounds * GRADIENTS, {}
    for variant in variants:
        what, _, how = variant.partition(", ")
        if what == "joint":
            calls[variant] = joint_steps(problem, agents * batch_size, steps)
        elif what == "one agent":
            calls[variant] = one_gradient(problem, batch_size)
        else:
            engine = ScanEngine(batching=BATCHINGS[how])
            calls[variant] = held_rounds(problem, batch_size, rounds, LOCAL_STEPS, engine)
    return calls, steps * agents * batch_size * model.length, count


def gpt(variant, repeats=2, **case):
    """One variant: its tokens a second and the most memory that this process took."""
    calls, tokens, count = language(**case, variants=[variant])
    seconds = shortest(calls, repeats)[variant]
    stats = jax.devices()[0].memory_stats() or {}
    return {
        "tokens_per_second": tokens / seconds,
        "parameters": count,
        "peak_gb": stats.get("peak_bytes_in_use", 0) / 1e9,
        "xyg_gb": 3 * 4 * count * case["agents"] / 1e9,  # X, Y and G of all agents in float32
    }


GPT_SIZES = {"layers": 12, "width": 768, "heads": 12, "vocabulary": 32000, "length": 256}
BILLION = {"layers": 20, "width": 2048, "heads": 16, "vocabulary": 32000, "length": 256, "looped": True}
TINY = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64, "length": 16}

EVERY = ["joint", "one agent", *(f"engine, {how}" for how in BATCHINGS)]

CASES = {
    # arguments of `gpt`, and what is tried
    "gpt": ({"sizes": GPT_SIZES, "agents": 4, "batch_size": 16, "rounds": 4}, EVERY),
    "gpt-checkpoint": (
        {"sizes": GPT_SIZES, "agents": 4, "batch_size": 16, "rounds": 4, "checkpoint": True},
        ["joint", "one agent", "engine, stacked", "engine, in turn"],
    ),
    "billion": (
        {"sizes": BILLION, "agents": 2, "batch_size": 8, "rounds": 1, "checkpoint": True},
        ["joint", "one agent", "engine, in turn", "engine, stacked"],
    ),
    "tiny": (  # to try the script itself
        {"sizes": TINY, "agents": 2, "batch_size": 2, "rounds": 1},
        EVERY,
    ),
}


def transformers(case):
    """All variants of a case over the joint batch, each in a process of its own: peaks of memory are the process's."""
    variants = CASES[case][1]
    found = own_processes(__file__, [["--case", case, "--variant", variant] for variant in variants])
    speeds, activations = {}, float("nan")
    for variant, one in zip(variants, found, strict=True):
        if "failed" in one:
            print(json.dumps({"variant": variant, **one}, ensure_ascii=False), flush=True)
            continue
        if variant == "one agent":  # beside its parameters and their gradient
            activations = one["peak_gb"] - 2 * 4 * one["parameters"] / 1e9
            print(json.dumps({"variant": variant, "activations_gb": float(f"{activations:.4g}")}), flush=True)
            continue
        speeds[variant] = one["tokens_per_second"]
        target = "≥ 0.88, ≤ 2" if variant.startswith("engine") and case == "gpt" else ""
        more = {name: float(f"{one[name]:.4g}") for name in ("parameters", "peak_gb", "xyg_gb")}
        more["limit_gb"] = float(f"{2 * one['xyg_gb'] + activations:.4g}")
        more["xyg_beside_activations"] = float(f"{(one['peak_gb'] - activations) / one['xyg_gb']:.3g}")
        reference = speeds.get("joint", float("nan"))
        yield row(f"{case}: {variant} against the joint batch", speeds[variant], reference, "tokens/s", target, **more)


def rows():
    return small() if jax.default_backend() == "cpu" else resnet()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for case in ("resnet", *CASES):
        parser.add_argument(f"--{case}", action="store_true")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(gpt(**CASES[options.case][0], variant=options.variant), ensure_ascii=False), flush=True)
        return
    chosen = [case for case in CASES if getattr(options, case.replace("-", "_"))]
    every = [resnet()] if options.resnet else []
    every += [transformers(case) for case in chosen]
    report(one for rows_of in every or [small()] for one in rows_of)


if __name__ == "__main__":
    main()
