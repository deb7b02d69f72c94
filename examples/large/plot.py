"""Test loss against gradients and against bytes, from the lines that the examples write with --out.

python examples/large/plot.py runs.jsonl picture.png
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

runs = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
runs = [run for run in runs if "test_loss" in run]
names = list(dict.fromkeys(run["example"] for run in runs))
methods = list(dict.fromkeys(run["method"] for run in runs))
figure = Figure(figsize=(4 * len(names), 7), layout="constrained")
axes = figure.subplots(2, len(names), squeeze=False)
for row, (column, label) in enumerate({"gradients": "gradients", "megabytes": "megabytes sent"}.items()):
    for place, name in zip(axes[row], names, strict=True):
        for run in runs:
            if run["example"] == name and (row == 0 or run["method"] != "central"):
                colour = f"C{methods.index(run['method'])}"
                place.plot(run[column][1:], run["test_loss"][1:], colour, label=run["method"])
        place.set(xlabel=label, ylabel="test loss", title=name)
        if row == 0:
            place.legend(fontsize="small")
figure.savefig(sys.argv[2], dpi=80)
print(f"{len(runs)} runs: {sys.argv[2]}")
