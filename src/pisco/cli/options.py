"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pisco.cli.completion import experiments

if TYPE_CHECKING:
    from pisco.experiments import Config

Experiment = Annotated[
    str, typer.Argument(help="A TOML file, or a preset (`pisco list presets`).", autocompletion=experiments)
]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", help="Replace a setting, as in network.server_prob=0.2.")]
Goals = Annotated[
    str | None,
    typer.Option(
        "--targets",
        metavar="COLUMN=BOUND,…",
        help="What to reach.",
        show_default="grad_norm_sq_mean=0.05, test_accuracy=0.8",
    ),
]
NumRounds = Annotated[int | None, typer.Option(min=1, help="Rounds of every run, instead of the experiment's.")]
Json = Annotated[bool, typer.Option("--json", help="Print the table as JSON.")]
PriceServer = Annotated[float, typer.Option(min=0, help="Price of a message to or from the server.")]
PriceGradient = Annotated[float, typer.Option(min=0, help="Price of a gradient of one agent.")]
PriceGossip = Annotated[float, typer.Option(min=0, help="Price of a message between agents.")]


def load_experiment(experiment: str, settings: list[str] | None, rounds: int | None) -> Config:
    """The experiment with settings replaced."""
    from pisco.experiments.loading import load

    extra = [] if rounds is None else [f"run.rounds={rounds}"]
    return load(experiment, [*(settings or ()), *extra])
