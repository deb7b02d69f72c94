"""Pictures and pages of results."""

from pisco.report.html import write_page
from pisco.report.plots import plot_results
from pisco.report.setup_plots import plot_labels, plot_network

__all__ = ["plot_labels", "plot_network", "plot_results", "write_page"]
