"""A hundred thousand agents on one small machine."""

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.slow
def test_a_ring_of_100_000_agents_runs_in_4_gb():
    """20 rounds of PISCO with d = 124 on synthetic logistic regression, in a process of its own."""
    program = textwrap.dedent(
        """
        from pathlib import Path

        import numpy as np

        import pisco

        agents, rng = 100_000, np.random.default_rng(0)
        features = (rng.random((2 * agents, 123), dtype=np.float32) < 0.1).astype(np.int8)
        labels = np.where(features[:, :10].sum(axis=1) > 1, 1, -1)
        data = pisco.data.Dataset("synthetic", features, labels)
        problem = pisco.problems.logistic(data, agents=agents, partition="iid")
        network = pisco.Network.ring(agents, server=pisco.bernoulli(0.1))
        rule = pisco.algorithms.pisco(local_lr=0.1, local_steps=1)
        result = pisco.run(rule, problem, network, rounds=20, batch_size=2, eval_every=10)
        assert result.params.shape == (agents, 124) and result.rounds == 20
        assert result.history["loss"][-1] < result.history["loss"][0]
        # Not ru_maxrss: that one begins with the size of the process that started this one.
        print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4e9
