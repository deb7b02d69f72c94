"""One file per update rule; `ALGORITHMS` names the published methods."""

from pisco.algorithms.dsgd import DsgdState, dsgd
from pisco.algorithms.pisco import PiscoState, pisco
from pisco.algorithms.registry import ALGORITHMS, Method, build

__all__ = ["ALGORITHMS", "DsgdState", "Method", "PiscoState", "build", "dsgd", "pisco"]
