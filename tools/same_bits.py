"""Does this tree compute what another revision computes, to the bit? Every preset, parameters and history.

    python tools/same_bits.py main~3              # 50 rounds of every preset, there and here
    python tools/same_bits.py main~3 a9a mnist    # some presets only
    python tools/same_bits.py main~3 cifar10 --rounds 10 --samples 250   # minutes: measured on few samples

Presets whose data is not at hand (`PISCO_DATA`) are named and left out. Columns that only one side has are named too.
Exit code 1 when anything that both sides have differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
SPARSE = ("mnist", "cifar10")
"""Measured at the start, in the middle and at the end: a pass over their data costs more than the rounds."""

WORKER = """
import sys, warnings
import jax, numpy as np
import pisco
from pisco.errors import InputError
from pisco.experiments import load, presets

folder, rounds, samples, sparse, *names = sys.argv[1:]
warnings.simplefilter("ignore")
for name in names or presets():
    every = int(rounds) // 2 if name in sparse.split(",") else 1
    settings = [f"run.rounds={rounds}", f"run.eval_every={every}", "run.seeds=2"]
    try:
        config = load(name, settings)
        if int(samples):
            from pisco.problems.subsample import subsample
            algorithm, problem, network = config.build()
            options = {"rounds": config.run.rounds, "batch_size": config.run.batch_size, "eval_every": every}
            problem, seed = subsample(problem, int(samples)), config.run.seed_or_seeds()
            result = pisco.run(algorithm, problem, network, seed=seed, **options)
        else:
            result = config.execute()
    except InputError as error:
        print(f"left out {name}: {error}", flush=True)
        continue
    leaves = {f"params{jax.tree_util.keystr(p)}": x for p, x in jax.tree_util.tree_leaves_with_path(result.params)}
    np.savez(f"{folder}/{name}.npz", **leaves, **{f"history {n}": a for n, a in result.history.items()})
"""


def compute(tree: Path, folder: Path, rounds: int, samples: int, names: list[str]) -> None:
    """Run the presets with the sources of a tree."""
    folder.mkdir()
    program = [sys.executable, "-c", WORKER, str(folder), str(rounds), str(samples), ",".join(SPARSE), *names]
    subprocess.run(program, check=True, env=os.environ | {"PYTHONPATH": str(tree / "src")}, cwd=folder)


def compare(there: Path, here: Path) -> int:
    """Print one line a preset; how many differ."""
    import numpy as np

    different = 0
    for path in sorted(there.glob("*.npz")):
        other = here / path.name
        if not other.exists():
            print(f"{path.stem}: missing here")
            different += 1
            continue
        with np.load(path) as old, np.load(other) as new:
            both = [name for name in old.files if name in new.files]
            odd = [name for name in both if old[name].tobytes() != new[name].tobytes()]
            alone = sorted(set(old.files) ^ set(new.files))
        verdict = f"DIFFERENT in {', '.join(odd)}" if odd else f"the same {len(both)} arrays"
        print(f"{path.stem}: {verdict}" + (f"; on one side only: {', '.join(alone)}" if alone else ""))
        different += bool(odd)
    return different


def main() -> int:
    """Compute both sides and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="what to compare this tree with")
    parser.add_argument("presets", nargs="*", help="presets (default: all)")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--samples", type=int, default=0, help="measure on so many samples (default: as the preset)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        there = Path(scratch) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", there, given.revision], check=True, cwd=HERE)
        try:
            for tree, name in ((there, "there"), (HERE, "here")):
                compute(tree, Path(scratch) / name, given.rounds, given.samples, given.presets)
            return int(compare(Path(scratch) / "there", Path(scratch) / "here") > 0)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", there], check=True, cwd=HERE)


if __name__ == "__main__":
    sys.exit(main())
