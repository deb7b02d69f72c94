"""One file per update rule; `ALGORITHMS` names the published methods."""

from pisco.algorithms import compressors
from pisco.algorithms.beer import BeerState, beer
from pisco.algorithms.compressed import CompressedState, compressed
from pisco.algorithms.dsgd import DsgdState, dsgd
from pisco.algorithms.dsgt import DsgtState, dsgt
from pisco.algorithms.kgt import KgtState, kgt
from pisco.algorithms.momentum import MomentumState, momentum_dsgd
from pisco.algorithms.pisco import PiscoState, pisco
from pisco.algorithms.registry import ALGORITHMS, Method, build
from pisco.algorithms.scaffold import ScaffoldState, scaffold

__all__ = [
    "ALGORITHMS",
    "BeerState",
    "CompressedState",
    "DsgdState",
    "DsgtState",
    "KgtState",
    "Method",
    "MomentumState",
    "PiscoState",
    "ScaffoldState",
    "beer",
    "build",
    "compressed",
    "compressors",
    "dsgd",
    "dsgt",
    "kgt",
    "momentum_dsgd",
    "pisco",
    "scaffold",
]
