"""`evr1 doctor`: check this machine, or every node of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from evr1_core.config.models import RunConfig
    from evr1_core.doctor.finding import Finding, Wanted

FIRST_ROWS = 20


def command(
    config: Annotated[list[Path] | None, typer.Option("--config", help="Check this run's folders, data files and model too.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="A running Ray: check each of its nodes. Else RAY_ADDRESS, if it is set.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Check versions, GPUs, communication, decoders, folders, memory and limits. Exit code 1 when something is at fault."""
    import os
    from dataclasses import asdict

    from evr1_cli.listing import print_json
    from evr1_core.doctor.machine import examine

    wanted = wanted_of(config or [])
    address = ray_address or os.environ.get("RAY_ADDRESS")
    if address:
        from evr1_core.doctor.nodes import examine_cluster

        found = examine_cluster(wanted, address)
    else:
        found = examine(wanted)
    if json:
        print_json({"fit": all(one.state != "fault" for one in found), "findings": [asdict(one) for one in found]})
    else:
        show(found)
    if any(one.state == "fault" for one in found):
        raise typer.Exit(1)


def wanted_of(files: list[Path]) -> Wanted:
    """What a configuration needs on every node."""
    import tempfile

    from evr1_core.config.load import load
    from evr1_core.doctor.finding import Wanted
    from evr1_core.media.store import MediaStore
    from evr1_core.policy.load import model_location

    run = load(files).config
    cache = str(MediaStore(run.media.cache_dir).cache_dir)
    temporary = str(run.cluster.temp_dir or tempfile.gettempdir())
    if not files:
        return Wanted(folders=(cache, temporary))
    output = str(run.output.absolute())
    location = model_location(run.model.path) if run.model.path else ""
    directory = (
        "" if not location.startswith(("/", ".", "~")) and not Path(location).is_dir() else str(Path(location).expanduser().absolute())
    )
    data = tuple(str(path.absolute()) for path in (*run.data.train, *run.data.validate_on))
    files_ = (*data, *_media(run))
    return Wanted((output, cache, temporary), (output,), files_, directory if location else "", run.cluster.min_free_disk_gib)


def _media(run: RunConfig) -> tuple[str, ...]:
    """Media of the first rows of each data file: enough to tell whether a disk is there. A file that can't be read is its own fault."""
    from evr1_core.data.rows import read_samples

    found: dict[str, None] = {}
    for path in (*run.data.train, *run.data.validate_on):
        if path.is_file():
            rows = read_samples(path, run.data.media_root, "exclude", FIRST_ROWS, check_media=False)
            found |= {str(Path(ref.path).absolute()): None for sample in rows.samples for ref in sample.media}
    return tuple(found)


def show(found: list[Finding]) -> None:
    from evr1_cli.listing import aligned

    node = None
    for line, one in zip(aligned([[one.state, one.check, one.text] for one in found]), found, strict=True):
        if one.node != node and (one.node or node):
            typer.echo(one.node or "all nodes")
        node = one.node
        typer.echo(line)
        if one.state != "ok" and one.remedy:
            typer.echo(f"         -> {one.remedy}")
    faults = sum(one.state == "fault" for one in found)
    warnings = sum(one.state == "warning" for one in found)
    typer.echo(f"{faults} fault{'s' * (faults != 1)}, {warnings} warning{'s' * (warnings != 1)}, {len(found)} checks")
