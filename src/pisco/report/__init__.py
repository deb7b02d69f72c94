"""Pictures and pages of results."""

from pisco.report.demo_plot import plot_demo
from pisco.report.html import write_page
from pisco.report.plots import plot_results

__all__ = ["plot_demo", "plot_results", "write_page"]
