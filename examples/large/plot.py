"""Test loss against gradients and against bytes: medians over seeds, with the range, from what the examples write.

python examples/large/plot.py runs.jsonl [more.jsonl …] picture.png
"""

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

*files, picture = sys.argv[1:]
runs = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
runs = [run for run in runs if "test_loss" in run and not run.get("tuning")]
for run in runs:
    run["example"] += ", shuffled" * (run["shuffled"] and "shuffled" not in run["example"])
    run["gigabytes"] = [each / 1000 for each in run["megabytes"]]
    run["label"] = run["method"] + (f", p = {run['server_prob']:g}" if run.get("server_prob", 0.1) != 0.1 else "")
names = list(dict.fromkeys(run["example"] for run in runs))
labels = sorted({run["label"] for run in runs})
unit = "gigabytes" if max(run["megabytes"][-1] for run in runs) > 10_000 else "megabytes"
figure = Figure(figsize=(4 * len(names), 7), layout="constrained")
axes = figure.subplots(2, len(names), squeeze=False)
for row, (column, words) in enumerate({"gradients": "gradients", unit: f"{unit} sent"}.items()):
    for place, name in zip(axes[row], names, strict=True):
        for label in labels:
            same = [run for run in runs if (run["example"], run["label"]) == (name, label)]
            if not same or (row and same[0]["method"] == "central"):
                continue
            along = np.median([run[column][1:] for run in same], axis=0)
            losses = np.array([run["test_loss"][1:] for run in same])
            colour = f"C{labels.index(label)}"
            place.plot(along, np.median(losses, axis=0), colour, label=f"{label} ({len(same)})")
            place.fill_between(along, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.2, linewidth=0)
        place.set(xlabel=words, ylabel="test loss", title=name)
        place.locator_params(axis="x", nbins=5)
        if row == 0:
            place.legend(fontsize="small")
figure.savefig(picture, dpi=70)
print(f"{len(runs)} runs: {picture}")
