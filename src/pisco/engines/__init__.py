"""How rounds are run: `scan` on one device, `sharded` on many, `debug` in plain Python."""

from pisco.engines.driver import Progress
from pisco.engines.job import Engine, attendance
from pisco.engines.run import ENGINES, run, sweep
from pisco.engines.sizes import usual_eval_every

__all__ = ["ENGINES", "Engine", "Progress", "attendance", "run", "sweep", "usual_eval_every"]
