"""Differential privacy: gradients that are clipped and noised, and what they spend."""

from pisco.privacy.gradients import Privacy

__all__ = ["Privacy"]
