"""Five sites in network namespaces of their own: all with one private address, behind gateways that let nobody in."""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import pisco
from pisco.data import load
from pisco.federation.plan import Federation

from federations import Running, make_kits, plan_for
from waiting import written

pytestmark = pytest.mark.slow

HUB, OUTSIDE, INSIDE = "10.98.0.1", "10.99.0.1", "192.168.1"
PORTS = {"server": 7400, "second": 7399, "relay-1": 7410}
GATEWAY = """
import asyncio, sys
hub, outside, inside, *ports = sys.argv[1:]

async def pump(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()

def forward(port):
    async def serve(reader, writer):
        far, back = await asyncio.open_connection(hub, port)
        await asyncio.gather(pump(reader, back), pump(far, writer))
    return serve

async def connect(reader, writer):
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    verb, target, _ = head.split(b"\\r\\n")[0].decode().split(" ")
    far, back = await asyncio.open_connection(hub, int(target.rpartition(":")[2]))
    writer.write(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
    await asyncio.gather(pump(reader, back), pump(far, writer))

async def main():
    servers = [await asyncio.start_server(connect, inside, 3128)]
    if outside:
        servers += [await asyncio.start_server(forward(int(port)), outside, int(port)) for port in ports]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))

asyncio.run(main())
"""


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def spaces():
    """A hub and, for every site, a gateway and a machine behind it."""
    names = []

    def add(name):
        names.append(f"pisco-{os.getpid()}-{name}")
        ip("netns", "add", names[-1])
        ip("-n", names[-1], "link", "set", "lo", "up")
        return names[-1]

    def wire(one, at, other, to):
        first, second = (f"v{os.getpid() % 10000}-{next(numbers)}" for _ in range(2))
        ip("link", "add", first, "netns", one, "type", "veth", "peer", "name", second, "netns", other)
        for space, device, address in ((one, first, at), (other, second, to)):
            ip("-n", space, "addr", "add", f"{address}/30", "dev", device)
            ip("-n", space, "link", "set", device, "up")

    numbers = itertools.count()
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        try:
            hub = add("hub")
            ip("-n", hub, "addr", "add", f"{HUB}/32", "dev", "lo")
            sites = []
            for i in range(5):
                gateway, site = add(f"gate-{i}"), add(f"site-{i}")
                wire(hub, f"10.200.{i}.1", gateway, f"10.200.{i}.2")
                wire(gateway, f"{INSIDE}.1", site, f"{INSIDE}.2")  # every site has the same addresses
                ip("-n", gateway, "addr", "add", f"{OUTSIDE}/32", "dev", "lo")
                ip("-n", gateway, "route", "add", HUB, "via", f"10.200.{i}.1")
                if i < 3:  # the others know no way but the proxy
                    ip("-n", site, "route", "add", "default", "via", f"{INSIDE}.1")
                sites.append((gateway, site))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        yield hub, sites
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def listening(space):
    """The addresses at which somebody listens in a namespace, for all the network."""
    found = []
    for table in ("tcp", "tcp6"):
        text = ip("netns", "exec", space, "cat", f"/proc/net/{table}")
        found += [line.split()[1] for line in text.splitlines()[1:] if line.split()[3] == "0A"]
    return found


def test_five_sites_without_an_inbound_port_behind_gateways(tmp_path, spaces):
    hub, sites = spaces
    rng, files = np.random.default_rng(0), {}
    for i in range(5):
        features = rng.normal(size=(30, 4)).astype(np.float32)
        files[f"agent-{i}"] = tmp_path / f"{i}.npz"
        np.savez(files[f"agent-{i}"], features=features, labels=np.where(features[:, 0] + 0.3 * i > 0, 1, -1))
    settings = {"rounds": 60, "eval_every": 60, "batch_size": 8, "problem": {"name": "logistic", "classes": [-1, 1]}}
    direct = plan_for(5, **settings)
    problems = [direct.build_problem(load(str(file))) for file in files.values()]
    calm = Running(tmp_path / "calm", direct, lambda i: problems[i]).join()

    plan = Federation.create(
        "tests",
        agents=dict.fromkeys(files, "outbound"),
        server_address=f"{OUTSIDE}:{PORTS['server']}",
        relays={"relay-1": f"{OUTSIDE}:{PORTS['relay-1']}", "server": f"{OUTSIDE}:{PORTS['second']}"},
        algorithm={"name": "pisco", "local_lr": 0.05, "local_steps": 1},
        network={"graph": "ring", "server_prob": 0.3},
        **settings,
    )
    make_kits(tmp_path, plan, (*plan.names, *plan.helpers))
    processes = {}

    def start(name, space, *command):
        with (tmp_path / f"{name}.log").open("ab") as log:
            words = ["ip", "netns", "exec", space, sys.executable, *command]
            processes[name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def pisco_(name, space, *words):
        start(name, space, "-m", "pisco.cli.main", *words, "--kit", str(tmp_path / "kits" / name))

    def tail(name):
        return (tmp_path / f"{name}.log").read_text()[-1500:]

    def wait(condition):
        last, since = written(tmp_path), time.monotonic()
        while not condition():
            for name, process in processes.items():
                assert process.poll() in (None, 0), f"{name}: {tail(name)}"
            if written(tmp_path) != last:
                last, since = written(tmp_path), time.monotonic()
            assert time.monotonic() - since < 120, {name: tail(name) for name in processes}
            time.sleep(0.05)

    def done(name):
        kept = (tmp_path / "kits" / name / "state").glob("round-*.ckpt")
        return max((int(file.stem.removeprefix("round-")) for file in kept), default=-1)

    try:
        for i, (gateway, _) in enumerate(sites):
            outside = OUTSIDE if i < 3 else ""
            start(f"gate-{i}", gateway, "-c", GATEWAY, HUB, outside, f"{INSIDE}.1", *map(str, PORTS.values()))
        pisco_("relay-1", hub, "relay", "--listen", f"{HUB}:{PORTS['relay-1']}")
        pisco_("server", hub, "server", "--listen", f"{HUB}:{PORTS['server']}")
        for i, (_, site) in enumerate(sites):
            way = [] if i < 3 else ["--proxy", f"http://{INSIDE}.1:3128"]
            pisco_(f"agent-{i}", site, "agent", "--data", str(files[f"agent-{i}"]), *way)
        wait(lambda: done("agent-0") >= 10)
        assert [listening(site) for _, site in sites] == [[]] * 5
        assert done("agent-0") < 50, "too late"
        killed = processes.pop("relay-1")  # the first relay; the server's takes over
        killed.kill()
        killed.wait()
        wait(lambda: done("agent-0") >= 30)
        pisco_("relay-1", hub, "relay", "--listen", f"{HUB}:{PORTS['relay-1']}")
        wait(lambda: all(processes[name].poll() == 0 for name in (*plan.names, "server")))
    finally:
        for process in processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
    own = [pisco.Result.load(tmp_path / "kits" / name / "result").params for name in plan.names]
    np.testing.assert_array_equal(np.concatenate(own), calm.params())
