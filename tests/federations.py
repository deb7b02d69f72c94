"""Small federations for the tests: real certificates, real gRPC, agents as threads of one process."""

import multiprocessing
import threading
import time

import jax
import numpy as np
from jax.extend import core

import pisco
from pisco.cli.federation.loopback import free_ports
from pisco.federation import kits
from pisco.federation.authority import Authority
from pisco.federation.plan import Federation
from pisco.federation.runtime import cut
from pisco.federation.runtime.peers import Stopped
from pisco.federation.runtime.rolled_agent import AGENTS
from pisco.federation.runtime.rolled_server import SERVERS

from waiting import wait_until
from worlds import Quadratics


def plan_for(agents=5, *, rounds=5, patience=300.0, algorithm=None, network=None, name="tests", **settings):
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


def holds_more(jaxpr):
    """Whether a program depends on something that its text does not tell: arrays, or functions of Python's."""
    for step in jaxpr.eqns:
        inner = [value for value in jax.tree.leaves(list(step.params.values())) if hasattr(value, "consts")]
        arrays = [atom.val for atom in step.invars if hasattr(atom, "val")] + [each.consts for each in inner]
        if "callback" in step.primitive.name or any(np.size(value) > 1 for value in jax.tree.leaves(arrays)):
            return True
        if any(map(holds_more, core.jaxprs_in_params(step.params))):
            return True
    return False


def shared_stage(part, made={}, own=cut.compiled_stage):  # noqa: B006
    """Agents whose data have one size share their compiled programs, as their processes do from a file.

    What they have written down alike is one program, in whichever test.
    """
    if holds_more(part):
        return own(part)
    text = (str(part), jax.config.jax_enable_x64)
    if text not in made:
        made[text] = own(part)
    return made[text]


cut.compiled_stage = shared_stage


class Running:
    """Members of a federation as threads of this process."""

    def __init__(self, home, plan, problem_of, *, kits_=None, server=True, only=None, **options):
        self.kits = kits_ or make_kits(home, plan)
        self.home, self.plan, self.problem_of, self.options = home, plan, problem_of, options
        self.members, self.results, self.errors, self.threads = {}, {}, {}, {}
        self.double = plan.dtype == "float64"
        names = [*(only or plan.names), *(["server"] if server else [])]
        for name in names:  # one compiles, the others find it done; nobody waits for one that is still compiling
            self.prepare(name)
        for name in names:
            self._launch(name)

    def prepare(self, name):
        with jax.enable_x64(self.double):
            try:
                self.members[name] = self.build(name)
            except BaseException as error:
                self.errors[name] = error

    def _launch(self, name):
        def work():
            with jax.enable_x64(self.double):
                try:
                    self.results[name] = self.members[name].run()
                except BaseException as error:
                    self.errors[name] = error

        self.threads[name] = threading.Thread(target=work if name not in self.errors else None, daemon=True)
        self.threads[name].start()

    def start(self, name):
        """Start a member, or start it again."""
        self.prepare(name)
        self._launch(name)

    def build(self, name):
        folder = self.home / "state" / name
        if name == "server":
            return SERVERS[self.plan.presence](self.kits[name], folder)
        index = self.plan.names.index(name)
        return AGENTS[self.plan.presence](self.kits[name], self.problem_of(index), folder, **self.options)

    def rounds(self):
        """How far everybody is: this moves as long as the federation does."""
        return [getattr(member, "done", None) for member in self.members.values()], len(self.results)

    def wait(self, condition):
        """Wait for something while the members run."""
        wait_until(condition, self.rounds, say=lambda: self.errors or self.alive())

    def alive(self):
        return [name for name, thread in self.threads.items() if thread.is_alive()]

    def join(self, *names, fine=True):
        """Wait for everybody to end, or for those named; an error ends the wait unless errors are expected."""
        try:
            self.wait(lambda: not set(self.alive()) & set(names or self.threads) or (fine and self.errors))
        finally:
            if self.alive() and not names:
                self.stop()
                for thread in self.threads.values():
                    thread.join(10)
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


class Poisoned(Running):
    """The last member sends a thousand times what it should."""

    def build(self, name):
        made = super().build(name)
        if name == "agent-4":
            honest = made.offer

            def offer(round_, phase, layout, data, readers, *more):
                arrays = [1000 * array for array in layout.split(data)]
                honest(round_, phase, layout, layout.join(arrays), readers, *more)

            made.offer = offer
        return made


def _slowed(work, seconds):
    def slowly(*args):
        time.sleep(seconds)
        return work(*args)

    return slowly


def _member_process(kit_folder, state, module_problem, cache, log_file, listen=None, seconds=0.0):
    """The life of one member as a process of its own; ends with `os._exit`, whatever threads still run."""
    import logging
    import os
    import sys
    import traceback

    handler = logging.FileHandler(log_file)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger("pisco.federation").addHandler(handler)
    logging.getLogger("pisco.federation").setLevel(logging.INFO)
    sys.stderr = sys.stdout = open(log_file, "a")  # noqa: SIM115, PTH123
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    code = 0
    try:
        kit = kits.Kit.load(kit_folder)
        kit.federation.use_precision()
        if kit.name == "server":
            member = SERVERS[kit.federation.presence](kit, state)
        else:
            own = module_problem(kit.federation.names.index(kit.name))
            member = AGENTS[kit.federation.presence](kit, own, state, listen=listen)
            member.programs.round = _slowed(member.programs.round, seconds)
        member.run().save(state / "result")
    except Stopped as stopped:
        print(f"stopped: {stopped}", flush=True)
        code = 3
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


class Processes:
    """Members as processes that can be killed: forked from one that has already imported everything."""

    def __init__(self, home, plan, problem_of, options=None):
        self.options = options or {}  # of single agents: where they listen, and how long they compute
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["federations"])
        self.home, self.plan, self.problem_of = home, plan, problem_of
        self.kits = make_kits(home, plan)
        self.processes = {}
        (home / "xla").mkdir()

    def start(self, *names):
        for name in names or ("server", *self.plan.names):
            args = (
                self.home / "kits" / name,
                self.state(name),
                self.problem_of,
                self.home / "xla",
                self.home / f"{name}.log",
            )
            more = self.options.get(name, {})
            self.processes[name] = self.context.Process(target=_member_process, args=args, kwargs=more, daemon=True)
            self.processes[name].start()

    def state(self, name):
        return self.home / "state" / name

    def kill(self, name):
        """As a power cut would."""
        self.processes[name].kill()
        self.processes[name].join()

    def done(self, name):
        """The round that a member has kept."""
        files = sorted(self.state(name).glob("round-*.ckpt"))
        return int(files[-1].stem.removeprefix("round-")) if files else -1

    def wait(self, condition):
        """Wait for something while the members run."""
        wait_until(condition, self.standing, every=0.005, say=self.logs)

    def standing(self):
        """How far everybody is, and who has ended."""
        return [(self.done(name), process.exitcode) for name, process in self.processes.items()]

    def wait_for_round(self, name, round_):
        self.wait(lambda: self.done(name) >= round_)

    def log(self, name):
        file = self.home / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def logs(self):
        return {name: self.log(name)[-500:] for name in self.processes}

    def join(self, *names):
        for name in names or self.processes:
            process = self.processes[name]
            self.wait(lambda process=process: process.exitcode is not None)
            assert process.exitcode == 0, f"{name} ended with {process.exitcode}: {self.log(name)[-2000:]}"

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.join()

    def params(self):
        own = [pisco.Result.load(self.state(name) / "result").params for name in self.plan.names]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *own)
