"""Weights for PISCO itself: chosen for the step sizes that they allow as well as for how fast they mix.

FDLA weights minimise ‖W − J‖₂ and so push the smallest eigenvalue towards −1, where gradient tracking with two
exchanges is stable for tiny steps only. Shrinking them, W_a = I − a(I − W_FDLA), moves every eigenvalue to
1 − a(1 − μ): a little mixing is given up at the other end, and the usable step grows by orders of magnitude.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pisco.errors import check_number
from pisco.networks.graph import Graph
from pisco.networks.spectral import inner_modes
from pisco.theory.stability import best_step

if TYPE_CHECKING:
    csr_array = Any  # SciPy ships no types, and what checkers infer is wrong

SHRINK = np.linspace(0.3, 1.0, 29)
"""The a that are tried."""


def pisco_step(
    graph: Graph, *, condition: float = 10.0, one_exchange: bool = False, lazy: bool = False
) -> csr_array:
    """W_a = I − a(I − W_FDLA) with the a that makes PISCO on gossip alone converge fastest.

    a minimises over step sizes the slowest mode of a round (`stability.best_step`: T_o = 1, p = 0) on quadratics of the
    given condition number. a is about 0.8 on most graphs; for the one-exchange form it is 1, FDLA itself.

    Args:
      graph: yours.
      condition: the largest curvature over the smallest that matters.
      one_exchange: choose for the one-exchange form.
      lazy: (I + W)/2 of the result.

    >>> from pisco.networks.graphs import ring
    >>> [round(mode, 2) for mode in inner_modes(pisco_step(ring(10)))]      # FDLA: −0.83 and 0.83
    [-0.51, 0.86]
    """
    from scipy.sparse import csr_array, eye_array

    from pisco.networks.weights import fdla

    check_number("condition", condition, low=1)
    fastest = fdla(graph)
    modes = np.array(inner_modes(fastest))
    shrink = 1.0
    if modes.size:
        rates = [
            best_step(
                1 - a * (1 - modes), 1.0, condition=condition, local_steps=1, one_exchange=one_exchange
            )[1]
            for a in SHRINK
        ]
        # The largest of equals: on a complete graph all are as fast, and a = 1 averages exactly.
        shrink = float(SHRINK[np.asarray(rates) <= min(rates) + 1e-9].max())
    shrink *= 0.5 if lazy else 1.0
    identity = eye_array(graph.num_agents, format="csr")
    return csr_array(identity - shrink * (identity - fastest))
