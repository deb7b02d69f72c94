"""Overhead of a PISCO round over bare gradients.

The reference is the same number of batched gradients on batches drawn beforehand, in a compiled loop of the same shape
(T_o gradients in an inner loop, one after it): no algorithm can be faster than the gradients it needs.
"""

import jax
from common import a9a, bare_gradients, engine_rounds, mnist_shaped, report, row, shortest


def rows():
    workloads = [
        ("a9a, n=10, b=256, T_o=1", a9a(), 256, 1, 500, "≤ 1.3"),
        ("a9a, n=10, b=256, T_o=10", a9a(), 256, 10, 200, "≤ 1.3"),
        ("MNIST network, n=10, b=100, T_o=10", mnist_shaped(), 100, 10, 20, "≤ 1.15"),
    ]
    more = 1 if jax.default_backend() == "cpu" else 20  # so that what a call costs the host does not count
    for name, problem, batch_size, local_steps, rounds, target in workloads:
        rounds *= more
        calls = {
            "ours": engine_rounds(problem, batch_size, rounds, local_steps),
            "bare": bare_gradients(problem, batch_size, rounds, local_steps + 1),
        }
        times = shortest(calls, repeats=7)
        per_round = {which: 1e6 * found / rounds for which, found in times.items()}
        goal = target if more == 1 else "none set"
        yield row(f"overhead: {name}", per_round["ours"], per_round["bare"], "µs/round", goal)


if __name__ == "__main__":
    report(rows())
