"""Pictures of results."""

from pisco.report.demo_plot import plot_demo
from pisco.report.plots import plot_results

__all__ = ["plot_demo", "plot_results"]
