"""The fastest weights of Erdős–Rényi graphs of 200 agents: seconds, and the deviation against a tighter solution's."""

import time
from unittest.mock import patch

import numpy as np
from common import report, row

from pisco.networks import graphs
from pisco.networks.spectral import mixing_rate
from pisco.networks.weights import fdla


def rows():
    for probability in (0.03, 0.1, 0.3):
        graph = graphs.erdos_renyi(200, probability, seed=1)
        began = time.perf_counter()
        found = np.sqrt(1 - mixing_rate(fdla(graph)))
        took = time.perf_counter() - began
        with patch("pisco.networks.fastest.ROUGH", 1e-6):
            optimum = np.sqrt(1 - mixing_rate(fdla(graph)))
        name = f"FDLA: 200 agents, {graph.num_edges} edges"
        yield row(f"{name}, time", took, 10.0, "s", "≤ 1")
        yield row(f"{name}, ‖W − J‖", found, optimum, "", "≤ 1.01")


if __name__ == "__main__":
    report(rows())
