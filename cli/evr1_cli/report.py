"""`evr1 report`: one page of evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of evaluations, or of suites.")],
    output: Annotated[Path | None, typer.Option("--output", help="The page; report.html in the first folder otherwise.")] = None,
    questions: Annotated[int, typer.Option("--questions", min=1, help="Questions on the page, of each benchmark.")] = 300,
    frames: Annotated[int, typer.Option("--frames", min=1, help="Frames of one clip, evenly over those that the model saw.")] = 8,
    megabytes: Annotated[int, typer.Option("--megabytes", min=0, help="Frames on the page, at most.")] = 20,
    cache_dir: Annotated[Path | None, typer.Option("--cache-dir", help="Frame cache; otherwise the one that the run used.")] = None,
) -> None:
    """Write one HTML page: tables, plots with intervals, and every question with its answers and the frames that the model saw.

    Nothing on it is loaded from elsewhere. Runs over the same benchmark stand beside each other.
    """
    from evr1_core.evaluate.page import Frames, page
    from evr1_core.evaluate.stored import open_runs
    from evr1_core.record.files import write_atomic

    found = [one for path in runs for one in open_runs(path)]
    taken = Frames(per_clip=frames, max_bytes=megabytes << 20)
    path = output or runs[0] / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page(found, frames=taken, questions=questions, cache_dir=cache_dir))
    lost = sum(not clip["frames"] for clip in taken.clips.values())
    gone = f"; of {lost} clips no frames" if lost else ""
    typer.echo(f"{path}: {path.stat().st_size / (1 << 20):.1f} MiB, {len(taken.clips) - lost} clips with frames{gone}")
