"""`pisco federation collect` and `export`: the model that a federation ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pisco.cli.console import private_files, say


def collect(
    results: Annotated[list[Path], typer.Argument(help="KIT/result of every agent.")],
    kit: Annotated[Path, typer.Option("--kit", "-k", help="Any member's kit, with the newest plan.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the mean model.")] = Path("collected"),
) -> None:
    """Average the models that the agents ended with, where the plan had no closing average.

    Agents send their `result` folders to whoever collects. Everybody's must be there.

    Example:

      pisco federation collect north/result south/result --kit kits/server --out collected
    """
    from pisco.federation import models
    from pisco.federation.kits import Kit
    from pisco.results import Result

    made = models.collect(Kit.load(kit).federation, [Result.load(each) for each in results])
    with private_files():
        made.save(out)
    say(f"the mean model of {len(results)} agents: {out}")
    say(f"next: pisco federation export {out} --out model.npz")


def export(
    result: Annotated[Path, typer.Argument(help="A result: the server's, an agent's, or a collected one.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="model.npz, model.safetensors or model.pt.")],
) -> None:
    """Write a model without the axis of the agents: npz, safetensors, or a torch `state_dict`. Only you can read it.

    Example:

      pisco federation export kits/server/result --out model.npz
    """
    from pisco.federation import models
    from pisco.results import Result

    with private_files():
        model = models.export(Result.load(result), out)
    size = sum(array.size for array in model.values())
    say(f"{out}: {size:,} numbers ({', '.join(list(model)[:4])}{', …' if len(model) > 4 else ''})")
