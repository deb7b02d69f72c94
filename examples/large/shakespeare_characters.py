"""A character model of 10 M parameters on Shakespeare by role, 32 agents.

python examples/large/shakespeare_characters.py --tiny          # on a laptop, to see that it runs
python examples/large/shakespeare_characters.py --seeds 0,1,2   # on a GPU
"""

import language
import methods
from models import GPT

import pisco

usual = {"agents": 32, "batch_size": 8, "local_steps": 8, "rounds": 60, "local_lr": "1e-3", "length": 128}
chosen = methods.options(__doc__, **usual)
sizes = {"layers": 6, "width": 384, "heads": 6}
if chosen.tiny:
    chosen.rounds, chosen.local_steps, chosen.batch_size, chosen.agents, chosen.length = 2, 1, 2, 4, 16
    sizes = {"layers": 2, "width": 16, "heads": 2}
# Samples begin every half of their length, so that every place is met with more before it.
texts = pisco.data.load("shakespeare", roles=chosen.agents, length=chosen.length, stride=chosen.length // 2)
model = GPT(**sizes, vocabulary=len(texts.classes), length=chosen.length, looped=True)
language.train("shakespeare", texts, model, chosen)
