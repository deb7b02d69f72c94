"""One file per update rule; `ALGORITHMS` names the published methods."""

from pisco.algorithms import compressors, optimizers
from pisco.algorithms.beer import beer
from pisco.algorithms.compressed import compressed
from pisco.algorithms.dsgd import dsgd
from pisco.algorithms.dsgt import dsgt
from pisco.algorithms.extra import extra
from pisco.algorithms.fedadam import fedadam
from pisco.algorithms.feddyn import feddyn
from pisco.algorithms.fedprox import fedprox
from pisco.algorithms.gt_hsgd import gt_hsgd
from pisco.algorithms.kgt import kgt
from pisco.algorithms.led import led
from pisco.algorithms.momentum import momentum_dsgd
from pisco.algorithms.noloco import noloco
from pisco.algorithms.pisco import pisco
from pisco.algorithms.proxskip import proxskip
from pisco.algorithms.quasi_global import quasi_global
from pisco.algorithms.registry import ALGORITHMS, Method, build
from pisco.algorithms.scaffold import scaffold
from pisco.algorithms.sd_gt import sd_gt

__all__ = [
    "ALGORITHMS",
    "Method",
    "beer",
    "build",
    "compressed",
    "compressors",
    "dsgd",
    "dsgt",
    "extra",
    "fedadam",
    "feddyn",
    "fedprox",
    "gt_hsgd",
    "kgt",
    "led",
    "momentum_dsgd",
    "noloco",
    "optimizers",
    "pisco",
    "proxskip",
    "quasi_global",
    "scaffold",
    "sd_gt",
]
