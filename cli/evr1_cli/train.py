"""`evr1 train`: train a model with reinforcement learning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from evr1_core.config.load import Loaded
    from evr1_core.train.loop import Validate


def command(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="FILE... KEY=VALUE...", help="YAML files and dotted overrides.")] = None,
    algo: Annotated[str | None, typer.Option("--algo", help="algorithm.name; `evr1 algorithms list`.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="model.path: a preset, a directory or a repository id.")] = None,
    data: Annotated[list[Path] | None, typer.Option("--data", help="data.train; may be given several times.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The run's name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Resolve, check and plan; touch no model.")] = False,
) -> None:
    """Train a model with reinforcement learning from verifiable rewards.

    `evr1 train --algo dapo --model qwen3-vl-8b --data train.jsonl` is the recipe of EasyVideoR1 on your data.
    A run that is started again goes on from its last checkpoint.
    """
    from evr1_core.config.load import Flag, load, split_arguments

    flags = {
        "algorithm.name": Flag(algo, "--algo"),
        "model.path": Flag(model, "--model"),
        "data.train": Flag([str(path) for path in data] if data else None, "--data"),
        "name": Flag(name, "--name"),
    }
    loaded = load(*split_arguments(arguments or []), flags)
    if dry_run:
        show_plan(loaded)
    else:
        train(loaded)


def train(loaded: Loaded) -> None:
    """The run of one configuration, from the first step or from its last checkpoint."""
    import sys

    from evr1_core.train.loop import fit
    from evr1_core.train.run import open_run

    run = open_run(loaded.config, loaded.origins, command=sys.argv)
    try:
        fit(run, validation(loaded))
    finally:
        run.close()


def validation(loaded: Loaded) -> Validate | None:
    """Scores the policy on `data.validate_on` with its own engine; None when there is nothing to validate on."""
    if not loaded.config.data.validate_on:
        return None
    from evr1_cli.validate import validator

    return validator(loaded.config)


def show_plan(loaded: Loaded) -> None:
    import json

    from evr1_core.train.plan import plan

    found: dict[str, Any] = plan(loaded.config, loaded.origins)
    typer.echo(json.dumps(found, indent=2, default=str))
