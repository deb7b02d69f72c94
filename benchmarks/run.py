"""Run benchmarks by name and print one JSON object a row, then the table. Every number is a ratio within one run."""

import argparse
import importlib

from common import report

LAPTOP = ("round", "sweep", "scale", "cnn", "models", "fdla", "memory", "start")
ACCELERATOR = ("round", "sweep", "scale", "cnn", "models")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(LAPTOP)}; all of them by default")
    parser.add_argument("--accelerator", action="store_true", help="those that are about an accelerator")
    options = parser.parse_args()
    names = options.names or (ACCELERATOR if options.accelerator else LAPTOP)
    unknown = [name for name in names if name not in LAPTOP]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; choose from {', '.join(LAPTOP)}")
    report(one for name in names for one in importlib.import_module(f"bench_{name}").rows())


if __name__ == "__main__":
    main()
