"""`evr1 train`: train a model with reinforcement learning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from evr1_core.config.load import Loaded
    from evr1_core.config.models import RunConfig
    from evr1_core.train.loop import Validate


def command(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="FILE... KEY=VALUE...", help="YAML files and dotted overrides.")] = None,
    algo: Annotated[str | None, typer.Option("--algo", help="algorithm.name; `evr1 algorithms list`.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="model.path: a preset, a directory or a repository id.")] = None,
    data: Annotated[list[Path] | None, typer.Option("--data", help="data.train; may be given several times.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The run's name.")] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="cluster.backend: local or ray.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="cluster.workers: processes that the policy is sharded over.")] = None,
    ray_address: Annotated[str | None, typer.Option("--ray-address", help="cluster.address: a running Ray cluster, HOST:PORT.")] = None,
    max_restarts: Annotated[
        int | None, typer.Option("--max-restarts", help="cluster.max_restarts: go on so often after workers failed.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Resolve, check and plan; touch no model.")] = False,
    gpu: Annotated[str | None, typer.Option(help="With --dry-run: plan memory and time on this kind of GPU, for example h200.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="With --dry-run: so many of them.")] = None,
) -> None:
    """Train a model with reinforcement learning from verifiable rewards.

    `evr1 train --algo dapo --model qwen3-vl-8b --data train.jsonl` is the recipe of EasyVideoR1 on your data.
    A run that is started again goes on from its last checkpoint. Ctrl-C or SIGTERM finishes the step, saves and stops.
    """
    from evr1_core.config.load import Flag, load, split_arguments
    from evr1_core.errors import RequestError

    flags = {
        "algorithm.name": Flag(algo, "--algo"),
        "model.path": Flag(model, "--model"),
        "data.train": Flag([str(path) for path in data] if data else None, "--data"),
        "name": Flag(name, "--name"),
        "cluster.backend": Flag(backend, "--backend"),
        "cluster.workers": Flag(workers, "--workers"),
        "cluster.address": Flag(ray_address, "--ray-address"),
        "cluster.max_restarts": Flag(max_restarts, "--max-restarts"),
    }
    loaded = load(*split_arguments(arguments or []), flags)
    if dry_run:
        show_plan(loaded, gpu, gpus)
    elif gpu is not None or gpus is not None:
        raise RequestError("--gpu and --gpus plan memory before a run: give --dry-run too; cluster.workers says how many GPUs a run takes")
    else:
        train(loaded)


def train(loaded: Loaded) -> None:
    """The run of one configuration, from the first step or from its last checkpoint, and again after workers failed."""
    import sys

    from evr1_core.errors import Stopped
    from evr1_core.record.record import write_event
    from evr1_core.train.loop import fit
    from evr1_core.train.restart import newest_checkpoint, with_restarts
    from evr1_core.train.run import open_run
    from evr1_core.train.stop import StopRequest

    config, stop = loaded.config, StopRequest()

    def start(again: bool) -> None:
        run = open_run(going_on(config) if again else config, loaded.origins, command=sys.argv)
        try:
            fit(run, validation(loaded), stop)
        finally:
            run.close()

    def newest() -> tuple[int, int]:
        return newest_checkpoint(config.directory / "checkpoints")

    def note(text: str) -> None:
        write_event(config.directory, "warning", text)
        print(f"warning: {text}", file=sys.stderr)

    with stop.listen():
        try:
            with_restarts(start, config.cluster.max_restarts, newest, note, lambda: stop.requested)
        except KeyboardInterrupt:
            step, _ = newest()
            left = f"the last checkpoint is that of step {step}" if step else "there is no checkpoint yet"
            raise Stopped(f"stopped at once; {left}", stop.signal or "SIGINT") from None


def going_on(config: RunConfig) -> RunConfig:
    """The same run from its last checkpoint, wherever it began."""
    return config.model_copy(update={"train": config.train.model_copy(update={"resume": "auto"})})


def validation(loaded: Loaded) -> Validate | None:
    """Scores the policy on `data.validate_on` with its own engine; None when there is nothing to validate on."""
    if not loaded.config.data.validate_on:
        return None
    from evr1_cli.validate import validator

    return validator(loaded.config)


def show_plan(loaded: Loaded, gpu: str | None = None, gpus: int | None = None) -> None:
    import json

    from evr1_core.capacity.cluster import machines
    from evr1_core.capacity.plan import check
    from evr1_core.train.plan import plan

    found: dict[str, Any] = plan(loaded.config, loaded.origins, machines(gpu, gpus))
    typer.echo(json.dumps(found, indent=2, default=str))
    if "capacity" in found:
        check(found["capacity"])
