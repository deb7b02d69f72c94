"""What `pisco attack` finds in runs without protection, clipped, and noised: prints JSON lines, and may draw.

A network on 200 images of Fashion-MNIST, few enough to be learned by heart, and logistic regression on a9a.

    python benchmarks/bench_attack.py [--figures FOLDER]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

import pisco
from pisco.cli.main import app
from pisco.experiments import load

KINDS = {
    "plain": [],
    "clipped": ["privacy.clip=0.5", "privacy.noise=0"],
    "noise 1": ["privacy.clip=0.5", "privacy.noise=1.0", "privacy.delta=1e-4"],
    "noise 4": ["privacy.clip=0.5", "privacy.noise=4.0", "privacy.delta=1e-4"],
}


def few_images(path: Path) -> str:
    """200 training images with every fifth label wrong, so that they must be learned by heart, and 2000 others."""
    data, random = pisco.data.load("fashion-mnist"), np.random.default_rng(0)
    rows = random.permutation(len(data.labels))[:200]
    labels = data.labels[rows].copy()
    labels[::5] = random.integers(0, 10, len(labels[::5]))
    test = {"test_features": data.test_features[:2000], "test_labels": data.test_labels[:2000]}
    np.savez(path, features=data.features[rows], labels=labels, **test)
    return str(path)


def command(*arguments: str) -> dict:
    """What a command prints as JSON."""
    return json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        images = few_images(Path(home) / "few.npz")
        work = {
            "network": ["mnist", f"problem.dataset={images}", "problem.partition=iid", "network.agents=2",
                        "network.graph=complete", "run.rounds=1000", "run.batch_size=4", "algorithm.local_lr=0.3",
                        "algorithm.local_steps=1", "run.eval_every=1000", "run.seeds=1"],
            "logistic": ["a9a", "run.rounds=100", "run.batch_size=16", "run.eval_every=100", "run.seeds=1"],
        }  # fmt: skip
        for model, (preset, *settings) in work.items():
            for kind, protection in KINDS.items():
                folder = Path(home) / model / kind.replace(" ", "-")
                config = load(preset, [*settings, *protection])
                result = config.execute()
                folder.mkdir(parents=True)
                (folder / "config.toml").write_text(config.to_toml())
                result.save(folder)
                row = {"model": model, "kind": kind}
                row["epsilon"] = float(np.ravel(result.history.get("epsilon", [np.nan]))[-1])
                row["accuracy"] = float(np.ravel(result.history["test_accuracy"])[-1])
                for size in (1, config.run.batch_size):
                    more = []
                    if given.figures and model == "network":
                        more = ["--figure", str(given.figures / f"attack-{folder.name}-{size}.png")]
                    told = command("attack", str(folder), "--batch-size", str(size), *more)
                    row[f"recovered of {size}"] = told["inversion"]["recovered"]
                    row[f"errors of {size}"] = told["inversion"]["errors"]
                    row[f"batch AUC of {size}"] = told["membership_from_message"]["auc"]
                row["model AUC"] = told["membership_from_model"]["auc"]
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
