"""What others do not see: gradients that are clipped and noised, what they spend, and sums that hide their terms."""

from pisco.privacy.gradients import Privacy

__all__ = ["Privacy"]
