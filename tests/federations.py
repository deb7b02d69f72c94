"""Small federations for the tests: real certificates, real gRPC, agents as threads of one process."""

import socket
import threading
import time

import jax
import numpy as np

import pisco
from pisco.engines.remote.agent import Agent
from pisco.engines.remote.server import Server
from pisco.federation import kits
from pisco.federation.authority import Authority
from pisco.federation.plan import Federation

from worlds import Quadratics


def free_ports(count):
    """Ports that nobody listens on right now."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in taken]
    for each in taken:
        each.close()
    return ports


def plan_for(agents=5, *, rounds=5, patience=20.0, algorithm=None, network=None, name="tests", **settings):
    """A plan on free ports of this machine."""
    first, *others = free_ports(agents + 1)
    return Federation.create(
        name,
        rounds=rounds,
        agents={f"agent-{i}": f"127.0.0.1:{port}" for i, port in enumerate(others)},
        server_address=f"127.0.0.1:{first}",
        algorithm=algorithm or {"name": "pisco", "local_lr": 0.05, "local_steps": 1},
        network=network or {"graph": "ring", "server_prob": 0.3},
        patience=patience,
        **settings,
    )


def make_kits(home, plan, names=None):
    """A kit for everybody."""
    if not (home / "authority").exists():
        Authority.create(home / "authority", plan.name)
    made = {}
    for name in names or (*plan.names, "server"):
        kits.issue(home, plan, name, home / "kits" / name)
        made[name] = kits.Kit.load(home / "kits" / name)
    return made


def quadratic_of(agent, world=None, dtype=np.float32):
    """One agent's own quadratic of a shared world, as `worlds.Quadratics` has it."""
    world = world or Quadratics(agents=5)
    return pisco.problems.quadratic(
        world.hessians[agent : agent + 1], world.minimizers[agent : agent + 1], init=world.x0.astype(dtype)
    )


class Running:
    """Members of a federation as threads of this process."""

    def __init__(self, home, plan, problem_of, *, kits_=None, server=True, only=None, **options):
        self.kits = kits_ or make_kits(home, plan)
        self.home, self.plan, self.problem_of, self.options = home, plan, problem_of, options
        self.members, self.results, self.errors, self.threads = {}, {}, {}, {}
        self.double = plan.dtype == "float64"
        for name in [*(only or plan.names), *(["server"] if server else [])]:
            self.start(name)

    def start(self, name):
        def work():
            with jax.enable_x64(self.double):
                try:
                    member = self.build(name)
                    self.members[name] = member
                    self.results[name] = member.run()
                except BaseException as error:
                    self.errors[name] = error

        self.threads[name] = threading.Thread(target=work, daemon=True)
        self.threads[name].start()

    def build(self, name):
        folder = self.home / "state" / name
        if name == "server":
            return Server(self.kits[name], folder)
        index = self.plan.names.index(name)
        return Agent(self.kits[name], self.problem_of(index), folder, **self.options)

    def join(self, seconds=60, fine=True):
        end = time.monotonic() + seconds
        while any(thread.is_alive() for thread in self.threads.values()):
            late = time.monotonic() > end
            if late or (fine and self.errors):
                self.stop()
                for thread in self.threads.values():
                    thread.join(10)
                assert not late, f"members hang: {[n for n, t in self.threads.items() if t.is_alive()]}"
                break
            time.sleep(0.02)
        if fine and self.errors:
            raise next(iter(self.errors.values()))
        return self

    def stop(self, *names):
        """Ask members to stop, all of them unless some are named."""
        for name in names or list(self.members):
            self.members[name].mailroom.stop()

    def params(self):
        """Everybody's final parameters, agents leading."""
        own = [self.results[name].params for name in self.plan.names]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *own)
