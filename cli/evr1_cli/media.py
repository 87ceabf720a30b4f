"""`evr1 media probe`: what files hold, and what a budget makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evr1_cli.group import group

if TYPE_CHECKING:
    from evr1_core.media.store import MediaStore
    from evr1_core.types import Budget, PatchFactors

app = group("Look into images and videos.")


@app.callback()
def _group() -> None:  # keeps `probe` a subcommand where it is the only one
    pass


@app.command()
def probe(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Images and videos.")],
    fps: Annotated[float, typer.Option(help="Frames per second to take from a video.")] = 2.0,
    min_frames: Annotated[int, typer.Option(min=1)] = 4,
    max_frames: Annotated[int, typer.Option(min=1)] = 128,
    max_pixels: Annotated[int | None, typer.Option(min=1, help="Per frame or image; else the defaults of training.")] = None,
    factor: Annotated[int, typer.Option(min=1, help="Sides are multiples of this; the model family gives it.")] = 32,
    start: Annotated[float | None, typer.Option(help="Seconds after the first frame.")] = None,
    end: Annotated[float | None, typer.Option(help="Seconds after the first frame.")] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode too: finds damage that headers don't show.")] = False,
    deadline: Annotated[float, typer.Option(help="Seconds for one file.")] = 120.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print size, clock and rotation of each file, and the frames that a budget takes. Exit code 1 when a file is bad."""
    from dataclasses import replace

    from evr1_cli.listing import print_json, show_rows
    from evr1_core.errors import RequestError
    from evr1_core.media.store import MediaStore
    from evr1_core.types import Budget, ImageBudget, PatchFactors, VideoBudget

    if fps <= 0 or min_frames > max_frames:
        raise RequestError("--fps must be above 0 and --min-frames not above --max-frames")
    video, image = VideoBudget(fps=fps, min_frames=min_frames, max_frames=max_frames), ImageBudget()
    if max_pixels is not None:
        low = min(max_pixels, video.min_pixels)
        video, image = replace(video, min_pixels=low, max_pixels=max_pixels), ImageBudget(low, max_pixels)
    store = MediaStore(mode="decode-only", deadline=deadline)
    rows = [_row(str(file), store, Budget(video, image), PatchFactors(factor), start, end, decode) for file in files]
    if json:
        print_json(rows)
    else:
        show_rows([_short(row) for row in rows], False)
    if any(row["status"] != "ok" for row in rows):
        raise typer.Exit(1)


def _row(
    path: str, store: MediaStore, budget: Budget, factors: PatchFactors, start: float | None, end: float | None, decode: bool
) -> dict[str, Any]:
    from evr1_core.errors import MediaError
    from evr1_core.media.probe import probe
    from evr1_core.types import MediaRef

    row: dict[str, Any] = {"file": path, "status": "ok", "reason": ""}
    try:
        info = probe(path)
        facts = (
            "kind",
            "codec",
            "container",
            "width",
            "height",
            "rotation",
            "frames",
            "fps",
            "duration",
            "start",
            "constant",
            "pixel_format",
        )
        row |= {name: getattr(info, name) for name in facts}
        ref = MediaRef(path, info.kind, start, end)
        planned = store.plan(ref, budget, factors)
        row["taken"] = {
            "frames": planned.frames, "height": planned.height, "width": planned.width, "sampled_fps": planned.sampled_fps,
            "indices": list(planned.indices), "times": list(planned.times),
        }  # fmt: skip
        if decode:
            store.load(ref, budget, factors)
    except MediaError as error:
        row |= {"status": error.code, "reason": error.reason}
    return row


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    taken = row.get("taken")
    is_video = row.get("kind") == "video"
    return {
        "file": row["file"],
        "status": row["status"],
        "codec": row.get("codec", ""),
        "size": f"{row['width']}x{row['height']}" if "width" in row else "",
        "rotation": row.get("rotation") or "",
        "frames": row["frames"] if is_video else "",
        "fps": f"{row['fps']:.3f}{'' if row['constant'] else ' (varies)'}" if is_video else "",
        "seconds": f"{row['duration']:.3f}" if is_video else "",
        "taken": f"{taken['frames']} of {taken['width']}x{taken['height']}" if taken else "",
        "at": f"{taken['times'][0]:.2f} .. {taken['times'][-1]:.2f} s" if taken and is_video else "",
        "reason": row["reason"],
    }
