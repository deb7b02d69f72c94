"""Shared fixtures."""

import contextlib
import functools
import gc
import os
import platform
import subprocess
import sys
from pathlib import Path

# One XLA thread pool per pytest-xdist worker is plenty; must be set before jax is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Matrices are small and the cores are busy: threads of BLAS wait for each other longer than they work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The programs of the tests are small and many: compiling them takes most of the time, and half of it is spent on
# making them fast. `XLA_FLAGS= make test` compiles as users do, and so does `make test-slow`.
QUICKLY = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
QUICKLY += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
QUICKLY += ["--xla_llvm_force_inline_before_split=false"]
QUICKLY += ["--xla_cpu_max_isa=SSE4_2"] if platform.machine() in ("x86_64", "AMD64") else []


def understood(flags):
    """Those of the flags that this jax knows: one that it does not know ends the process, which names it."""
    start = [sys.executable, "-c", "import jax; jax.devices()"]
    done = subprocess.run(start, env=os.environ | {"XLA_FLAGS": " ".join(flags)}, capture_output=True, text=True)
    known = [flag for flag in flags if flag not in done.stderr]
    return flags if done.returncode == 0 else understood(known) if len(known) < len(flags) else []


if "XLA_FLAGS" not in os.environ:  # asked once: the workers inherit it
    os.environ["XLA_FLAGS"] = " ".join(understood(QUICKLY))

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from browsers import browser, opened  # noqa: E402, F401 (fixtures)

# A command that runs inside the tests' process would switch on the cache of programs for all tests after it.
jax.config.update("jax_enable_compilation_cache", False)
jax.config.update("jax_traceback_in_locations_limit", 0)  # lines of source in programs: a twentieth of the time

# Every program is written in a context of its own, which takes a third of the time of a small one: one does for all.
with contextlib.suppress(ImportError, AttributeError):
    from jax._src.interpreters import mlir

    mlir.make_ir_context = functools.cache(mlir.make_ir_context)

COMPILED = {}
"""Programs by what they say. Tests write many that differ in nothing: one in five was compiled before."""

with contextlib.suppress(ImportError, AttributeError):
    from jax._src import compiler

    def once(backend, module, devices, options, callbacks, own=compiler.backend_compile_and_load):
        said = module.operation.get_asm(enable_debug_info=False), repr(devices), options.SerializeAsString()
        if callbacks or "callback" in said[0]:  # calls back to an object that its text does not tell
            return own(backend, module, devices, options, callbacks)
        if said not in COMPILED:
            COMPILED[said] = own(backend, module, devices, options, callbacks)
        return COMPILED[said]

    compiler.backend_compile_and_load = once

# Tracing makes many small objects that live: looking for cycles among them every 700 took a twelfth of the time.
gc.freeze()
gc.set_threshold(200_000, 20, 20)

settings.register_profile("pisco", deadline=None, max_examples=12, derandomize=True)
settings.load_profile("pisco")


QUICK = {"api", "checkpoint", "compressors", "data", "federation_state", "graphs", "inputs", "layering", "partition"}
QUICK |= {"results", "sizes", "targets", "twins"}
"""Files of tests that together take less than a minute on two cores: what `make check` runs."""

TWINS = {"test_pisco", "test_a_transposed_matrix_is_noticed"}
"""Of the twins these."""


WAITING = ("runtime_faults", "cli", "federation_sites", "runtime_rolls", "report_browser", "runtime_cli", "runtime")
WAITING += (
    "launch",
    "playground",
    "runtime_closing",
    "relay",
    "federation_security",
    "federation_page",
    "certificates",
)
"""Files of tests that wait for other processes, longest first. One at a time leaves the cores to the others."""

LONG = ("conformance", "planning", "docs", "parts", "twins", "compare", "identities", "bench", "privacy", "diagnosis")
LONG += ("optimizers", "stream", "clock", "presence", "extend", "attacks", "report", "problems", "directed", "engines")
"""Files of tests that compute longest. They are begun first, so that no worker is left alone with one at the end."""


def in_turn(files):
    """The order in which workers take files: long ones first, and after every second one a file that waits."""
    named = {file.stem.removeprefix("test_"): file for file in files if file.stem.startswith("test_")}
    waiting = [named[name] for name in WAITING if name in named]
    others = [named[name] for name in LONG if name in named]
    others += [file for file in files if file not in {*waiting, *others}]
    order = [file for at, file in enumerate(waiting) for file in (file, *others[2 * at : 2 * at + 2])]
    return order + others[2 * len(waiting) :]


def quick_alone(config):
    return config.getoption("markexpr").startswith("quick")


def pytest_xdist_auto_num_workers(config):
    """One more than there are cores, as some tests wait for other processes; the quick ones leave one to the types."""
    cores = len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
    return max(1, cores - 1) if quick_alone(config) else cores + 1


def pytest_ignore_collect(collection_path, config):
    """Every worker imports every file that it may run tests of: the quick ones need no others."""
    other = collection_path.is_file() and collection_path.stem.removeprefix("test_") not in QUICK
    return True if other and quick_alone(config) else None


def pytest_collection_modifyitems(items):
    turn = {file: at for at, file in enumerate(in_turn(list(dict.fromkeys(item.path for item in items))))}
    items.sort(key=lambda item: turn[item.path])
    for item in items:
        name = item.path.stem.removeprefix("test_")
        if name in QUICK and (name != "twins" or item.originalname in TWINS):
            item.add_marker("quick")


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Every compiled program holds pieces of memory, and the system ends a process that holds too many of them."""
    yield
    pieces = Path("/proc/self/maps")
    if pieces.exists() and pieces.read_bytes().count(b"\n") > 35_000:  # of 65,530 that Linux allows
        COMPILED.clear()
        jax.clear_caches()


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def single_precision_again():
    """An experiment in float64 switches jax for good; the next test starts in float32 again."""
    yield
    jax.config.update("jax_enable_x64", False)
