"""What to run, before running it: plans, safe step sizes, and warnings."""

from pisco.costs import LinkTimes, Prices
from pisco.planning.plan import Choice, Plan, plan
from pisco.planning.settings import Setting

__all__ = ["Choice", "LinkTimes", "Plan", "Prices", "Setting", "plan"]
