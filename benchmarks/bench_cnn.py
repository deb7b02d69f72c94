"""The paper's CIFAR-10 network (5 agents, b = 20, T_o = 4).

On an accelerator: samples per second of PISCO's rounds against one model on the joint batch of 100 in the same
precision, the most that this many gradients allow. On a CPU: a gradient inside the loop against one plain compiled
step.
"""

import jax
import jax.numpy as jnp
from common import cifar_shaped, engine_rounds, joint_steps, report, row, shortest

import pisco

AGENTS, BATCH, LOCAL_STEPS = 5, 20, 4
SAMPLES = AGENTS * BATCH * (LOCAL_STEPS + 1)


def rows():
    if jax.default_backend() == "cpu":
        yield on_cpu(cifar_shaped(agents=1))
        return
    rounds = 50
    for precision in ("float32", "bfloat16"):
        problem = cifar_shaped(agents=AGENTS, compute=precision)
        calls = {
            "ours": engine_rounds(problem, BATCH, rounds, LOCAL_STEPS),
            "joint": joint_steps(problem, AGENTS * BATCH, rounds * (LOCAL_STEPS + 1)),
        }
        times = shortest(calls, repeats=5)
        speeds = {which: rounds * SAMPLES / found for which, found in times.items()}
        name = f"CNN: {AGENTS} agents ({precision}) against one model on the joint batch ({precision})"
        yield row(name, speeds["ours"], speeds["joint"], "samples/s", "≥ 0.6")


def on_cpu(joint: pisco.Problem) -> dict:
    """The reference is outside any loop, where XLA's native convolution is quick."""
    problem, rounds = cifar_shaped(agents=AGENTS), 1
    batch = jax.tree.map(lambda leaf: leaf[: AGENTS * BATCH], joint.data)
    params = joint.init(jax.random.key(0))

    @jax.jit
    def plain(params, batch):
        grads = jax.grad(lambda p: jnp.mean(joint.loss(p, batch, jax.random.key(1))))(params)
        return jax.tree.map(lambda x, g: x - 1e-3 * g, params, grads)

    calls = {"ours": engine_rounds(problem, BATCH, rounds, LOCAL_STEPS), "plain": lambda: plain(params, batch)}
    times = shortest(calls, repeats=3)
    ours = times["ours"] / rounds / (LOCAL_STEPS + 1)
    name = "CNN: a gradient of 5 agents in the loop against a plain step of the joint batch"
    return row(name, 1e3 * ours, 1e3 * times["plain"], "ms", "≤ 1.6")


if __name__ == "__main__":
    report(rows())
