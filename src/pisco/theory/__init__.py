"""What is known before a run: the paper's step sizes and complexities, stability, and estimates from the problem."""

from pisco.theory.applied import guarantees
from pisco.theory.estimates import Estimates, agent_curvatures, estimate, smoothness, unlike_curvature
from pisco.theory.expected import Facts, expected_error, largest_step, least_error
from pisco.theory.orders import Setup, complexities, where_below
from pisco.theory.paper import (
    Bound,
    LargeBatch,
    MiniBatch,
    StepSizes,
    corollary_1,
    corollary_2,
    network_dependency,
    theorem_1,
    theorem_1_bound,
)
from pisco.theory.safe_steps import agents_growth, largest_safe_step
from pisco.theory.spread import Spread, adam_scale, descent, gradient_spread
from pisco.theory.stability import CURVATURES, best_step, growth, largest_stable_step, round_matrix, weight_modes

__all__ = [
    "CURVATURES",
    "Bound",
    "Estimates",
    "Facts",
    "LargeBatch",
    "MiniBatch",
    "Setup",
    "Spread",
    "StepSizes",
    "adam_scale",
    "agent_curvatures",
    "agents_growth",
    "best_step",
    "complexities",
    "corollary_1",
    "corollary_2",
    "descent",
    "estimate",
    "expected_error",
    "gradient_spread",
    "growth",
    "guarantees",
    "largest_safe_step",
    "largest_stable_step",
    "largest_step",
    "least_error",
    "network_dependency",
    "round_matrix",
    "smoothness",
    "theorem_1",
    "theorem_1_bound",
    "unlike_curvature",
    "weight_modes",
    "where_below",
]
