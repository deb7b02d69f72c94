"""What is known before a run: the paper's step sizes and complexities, stability, and estimates from the problem."""

from pisco.theory.estimates import Estimates, estimate, smoothness
from pisco.theory.paper import Setup, StepSizes, complexities, corollary_1, network_dependency, theorem_1
from pisco.theory.stability import CURVATURES, best_step, growth, largest_stable_step, round_matrix

__all__ = [
    "CURVATURES",
    "Estimates",
    "Setup",
    "StepSizes",
    "best_step",
    "complexities",
    "corollary_1",
    "estimate",
    "growth",
    "largest_stable_step",
    "network_dependency",
    "round_matrix",
    "smoothness",
    "theorem_1",
]
