"""`python -m pisco.experiments.bench SUITE FOLDER [PART [ONLY]]`: cells on a machine that has jax and numpy alone."""

import sys
from pathlib import Path

from pisco.experiments.bench.runner import run_suite
from pisco.experiments.bench.suite import Place, load, parse_part


def tell(place: Place, at: int, of: int) -> None:
    """A line for every cell."""
    print(f"{at}/{of} {place.name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    name, folder, *rest = sys.argv[1:]
    part, only = [*rest, None, None][:2]
    print(run_suite(load(name), Path(folder), part=parse_part(part or "1/1"), only=only, started=tell))
