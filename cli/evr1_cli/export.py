"""`evr1 export`: a checkpoint as a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    source: Annotated[Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="Folder of a run; RUN/20, RUN/best, or a checkpoint.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make; it must not exist.")],
    step: Annotated[int | None, typer.Option("--step", help="Step of the checkpoint; the last complete one otherwise.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model that was trained; the run's manifest names it otherwise.")] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="Of a LoRA run: the adapters alone, as a directory that peft loads.")] = False,
) -> None:
    """Write a checkpoint as a model directory that transformers and inference engines load.

    The result is loaded and compared with the checkpoint, tensor by tensor, before the folder gets its name. Adapters
    are merged into the weights of the model that was trained. Needs no GPU, and no more processes than this one for the
    checkpoint of any number of them.
    """
    from evr1_core.policy.load import local_directory
    from evr1_core.train.export import base_of, export, find_checkpoint

    checkpoint = find_checkpoint(source, step, note=lambda text: typer.echo(text, err=True))
    made = export(checkpoint, local_directory(model or base_of(checkpoint)), out, adapter_only=adapter)
    typer.echo(f"{made}: {checkpoint.name}, loaded back and equal")
