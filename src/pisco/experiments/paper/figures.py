"""Every figure and table by name, in the paper's order."""

from __future__ import annotations

from pisco.experiments.paper.cifar import CNN
from pisco.experiments.paper.figure import Figure
from pisco.experiments.paper.mnist import TOPOLOGY
from pisco.experiments.paper.network_dependency import NETWORK_DEPENDENCY
from pisco.experiments.paper.regression import DIFFERENT_P, ITER_P
from pisco.experiments.paper.tables import COMMUNICATION, SEMI_ML
from pisco.experiments.paper.theory import THEORY

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (SEMI_ML, COMMUNICATION, NETWORK_DEPENDENCY, ITER_P, DIFFERENT_P, TOPOLOGY, CNN, THEORY)
}
