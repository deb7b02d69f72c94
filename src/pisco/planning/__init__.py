"""What to run, before running it: plans, safe step sizes, and warnings."""

from pisco.costs import Prices
from pisco.planning.automatic import auto_step
from pisco.planning.diagnosis import Answer, Diagnosis, diagnose
from pisco.planning.formulas import Outlook, outlook
from pisco.planning.planner import Choice, Plan, plan
from pisco.planning.settings import Setting
from pisco.planning.steps import Doubt, check_step

__all__ = [
    "Answer",
    "Choice",
    "Diagnosis",
    "Doubt",
    "Outlook",
    "Plan",
    "Prices",
    "Setting",
    "auto_step",
    "check_step",
    "diagnose",
    "outlook",
    "plan",
]
