"""Graphs, weights, how fast they mix, and when the server is reached. What most people need is in `pisco` itself."""

from pisco.networks import graphs, mixing, sampling, schedules, spectral, varying, weights

__all__ = ["graphs", "mixing", "sampling", "schedules", "spectral", "varying", "weights"]
