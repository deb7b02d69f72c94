"""Graphs, weights, how fast they mix, and when the server is reached. What most people need is in `pisco` itself."""

from pisco.networks import graphs, schedules, spectral, weights

__all__ = ["graphs", "schedules", "spectral", "weights"]
