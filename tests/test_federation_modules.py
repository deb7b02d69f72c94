"""Bring your own model: the examples as agents of a real federation, against the same model in one process."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pisco
from pisco.federation import kits
from pisco.federation.authority import Authority
from pisco.interop.modules import load_problem

import needs
from federations import Running, plan_for
from waiting import outcome

EXAMPLES = Path(__file__).parents[1] / "examples"
if not EXAMPLES.is_dir():
    pytest.skip("only a checkout has the examples", allow_module_level=True)


def example(name):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_one_process(plan, problem):
    return pisco.run(
        plan.build_algorithm(),
        problem,
        plan.network_of(plan.epochs[0]),
        rounds=plan.rounds,
        batch_size=plan.batch_size,
        seed=plan.seed,
    )


def agree(one, other):
    for name, leaf in other.items():
        np.testing.assert_allclose(one[name], leaf, atol=1e-6, err_msg=name)


def test_a_jax_loss_of_ones_own(tmp_path):
    module = example("federate_jax")
    plan = plan_for(3, rounds=8, batch_size=16, seed=4)
    files = [module.make_data(tmp_path, index) for index in range(3)]
    running = Running(tmp_path, plan, lambda i: load_problem(EXAMPLES / "federate_jax.py", files[i])).join()
    simulated = pisco.Problem(module.loss, module.START, [module.agent(file).data for file in files])
    agree(running.params(), in_one_process(plan, simulated).params)


@pytest.mark.slow
def test_a_pytorch_model_as_real_processes(tmp_path):
    torch = needs.module("torch", "torch")
    from pisco.interop import host
    from pisco.interop import torch as interop

    module = example("federate_torch")
    plan = plan_for(3, rounds=20, batch_size=20)
    files = [module.make_data(tmp_path, index) for index in range(3)]
    home = tmp_path / "home"
    home.mkdir()

    def pisco_(*words, **options):
        command = [sys.executable, "-m", "pisco.cli.main", *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)

    Authority.create(home / "authority", plan.name)
    for name in (*plan.names, "server"):
        kits.issue(home, plan, name, home / "kits" / name)
    environment = {"env": os.environ | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}}
    running = [pisco_("server", "--kit", home / "kits/server", **environment)]
    for name, file in zip(plan.names, files, strict=True):
        words = ("agent", "--kit", home / "kits" / name, "--module", EXAMPLES / "federate_torch.py", "--data", file)
        running.append(pisco_(*words, **environment))
    try:
        for process in running:
            code, said, _ = outcome(process, home)
            assert code == 0, said
    finally:
        for process in running:
            process.kill()
    agents = [interop.local(module.network, torch.nn.functional.cross_entropy, module.loader(file)) for file in files]
    expected = in_one_process(plan, host.problem(*agents)).params
    for index, name in enumerate(plan.names):
        own = pisco.Result.load(home / "kits" / name / "result").params
        agree({key: leaf[0] for key, leaf in own.items()}, {key: leaf[index] for key, leaf in expected.items()})
