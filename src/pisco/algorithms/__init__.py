"""One file per update rule; `ALGORITHMS` names the published methods."""

from pisco.algorithms import compressors, optimizers
from pisco.algorithms.beer import beer
from pisco.algorithms.compressed import compressed
from pisco.algorithms.dsgd import dsgd
from pisco.algorithms.dsgt import dsgt
from pisco.algorithms.kgt import kgt
from pisco.algorithms.momentum import momentum_dsgd
from pisco.algorithms.pisco import pisco
from pisco.algorithms.registry import ALGORITHMS, Method, build
from pisco.algorithms.scaffold import scaffold

__all__ = [
    "ALGORITHMS",
    "Method",
    "beer",
    "build",
    "compressed",
    "compressors",
    "dsgd",
    "dsgt",
    "kgt",
    "momentum_dsgd",
    "optimizers",
    "pisco",
    "scaffold",
]
