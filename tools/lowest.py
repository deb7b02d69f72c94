"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `make test-lowest` tests with them.

Of what the library and its extras use; the tools that test it may be as new as they like.
"""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = ("federation", "mlflow", "pandas", "tensorboard")


def main() -> None:
    wanted = list(PROJECT["dependencies"])
    for extra in EXTRAS:
        wanted += PROJECT["optional-dependencies"][extra]
    for each in wanted:
        name, least = re.match(r"([\w-]+)>=([\w.]+)", each).groups()
        print(f"{name}=={least}")


if __name__ == "__main__":
    main()
