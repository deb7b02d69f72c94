"""Time: how long gradients and messages take, and what a run's clock shows after every round."""

from pisco.clock.clock import Clock

__all__ = ["Clock"]
