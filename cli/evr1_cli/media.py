"""`evr1 media probe`: what files hold, and what a budget makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evr1_cli.group import group

if TYPE_CHECKING:
    from evr1_core.media.plan import Plan
    from evr1_core.media.store import MediaStore
    from evr1_core.policy.adapter import ModelAdapter
    from evr1_core.types import Budget, PatchFactors

app = group("Look into images and videos.")

WIDTH = 100
"""Columns that the table takes at most; names of files are cut for it."""


@app.callback()
def _group() -> None:  # keeps `probe` a subcommand where it is the only one
    pass


@app.command()
def probe(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Images and videos.")],
    fps: Annotated[float, typer.Option(help="Frames per second to take from a video.")] = 2.0,
    min_frames: Annotated[int, typer.Option(min=1)] = 4,
    max_frames: Annotated[int, typer.Option(min=1)] = 128,
    frames: Annotated[int | None, typer.Option(min=1, help="So many frames, whatever the rate.")] = None,
    max_pixels: Annotated[int | None, typer.Option(min=1, help="Per frame or image; else the defaults of training.")] = None,
    total_pixels: Annotated[int | None, typer.Option(min=1, help="Over all temporal patches of one video.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Preset or directory: its multiples, and its tokens.")] = None,
    factor: Annotated[int | None, typer.Option(min=1, help="Multiples of the sides, instead of a model's. [default: 32]")] = None,
    start: Annotated[float | None, typer.Option(help="Seconds after the first frame.")] = None,
    end: Annotated[float | None, typer.Option(help="Seconds after the first frame.")] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode too: finds damage that headers don't show.")] = False,
    deadline: Annotated[float, typer.Option(help="Seconds for one file.")] = 120.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print size, clock and rotation of each file, and the frames that a budget takes. Exit code 1 when a file is bad."""
    from dataclasses import replace

    from evr1_cli.listing import aligned, print_json
    from evr1_core.errors import RequestError
    from evr1_core.media.store import MediaStore
    from evr1_core.types import Budget, ImageBudget, PatchFactors, VideoBudget

    if fps <= 0 or min_frames > max_frames or deadline <= 0:
        raise RequestError("--fps and --deadline must be above 0 and --min-frames not above --max-frames")
    if model is not None and factor is not None:
        raise RequestError("--model gives the multiples already; leave --factor out")
    video = VideoBudget(fps=fps, min_frames=min_frames, max_frames=max_frames, frames=frames, total_pixels=total_pixels)
    image = ImageBudget()
    if max_pixels is not None:
        low = min(max_pixels, video.min_pixels)
        video, image = replace(video, min_pixels=low, max_pixels=max_pixels), ImageBudget(low, max_pixels)
    adapter = _adapter(model)
    factors = PatchFactors(factor or 32) if adapter is None else adapter.factors
    look = _Look(MediaStore(mode="decode-only", deadline=deadline), Budget(video, image), factors, adapter, start, end, decode)
    rows = [look.row(str(file)) for file in files]
    bad = [row for row in rows if row["status"] != "ok"]
    if json:
        print_json(rows)
    else:
        for line in aligned(_table([row for row in rows if row["status"] == "ok"])) if len(bad) < len(rows) else ():
            typer.echo(line)
        for row in bad:
            typer.echo(f"{row['file']}: {row['status']}: {row['reason']}")
    if bad:
        raise typer.Exit(1)


def _adapter(model: str | None) -> ModelAdapter | None:
    if model is None:
        return None
    from evr1_core.policy.load import load_adapter

    return load_adapter(model)


@dataclass(frozen=True, slots=True)
class _Look:
    store: MediaStore
    budget: Budget
    factors: PatchFactors
    adapter: ModelAdapter | None
    start: float | None
    end: float | None
    decode: bool

    def row(self, path: str) -> dict[str, Any]:
        """Everything that is known of one file."""
        from evr1_core.errors import MediaError
        from evr1_core.media.digest import frames_digest
        from evr1_core.types import MediaRef

        row: dict[str, Any] = {"file": path, "status": "ok", "reason": ""}
        try:
            facts, plan = self.store.look(path, self.budget, self.factors, self.start, self.end)
            row |= facts
            row["taken"] = {
                "frames": plan.frames, "height": plan.height, "width": plan.width, "sampled_fps": plan.sampled_fps, "span": plan.span,
                "indices": list(plan.indices), "times": list(plan.times),
            }  # fmt: skip
            if self.adapter is not None:
                row["tokens"] = self._tokens(plan, self.adapter)
            if self.decode:
                part = (self.start, self.end) if plan.kind == "video" else (None, None)
                row["sha256"] = frames_digest(self.store.load(MediaRef(path, plan.kind, *part), self.budget, self.factors))
        except MediaError as error:
            row |= {"status": error.code, "reason": error.reason}
        return row

    def _tokens(self, plan: Plan, adapter: ModelAdapter) -> dict[str, int]:
        """`vision`: features of the medium. `prompt`: a user's turn that holds the medium alone, chat template and all."""
        cells = (plan.height // self.factors.pixels) * (plan.width // self.factors.pixels)
        text, _ = adapter.render([{"role": "user", "content": [{"type": plan.kind}]}])
        return {"vision": cells * -(-plan.frames // self.factors.frames), "prompt": adapter.plan_tokens(text, [plan])}


def _table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A heading and a line per good file; columns that are empty everywhere are left out."""
    lines = [_line(row) for row in rows]
    columns = [name for name in lines[0] if any(line[name] for line in lines)]
    cells = [columns, *([line[name] for name in columns] for line in lines)]
    room = max(12, WIDTH - sum(2 + max(len(line[place]) for line in cells) for place in range(1, len(columns))))
    return [[_cut(line[0], room), *line[1:]] for line in cells]


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else "..." + name[3 - room :]


def _line(row: dict[str, Any]) -> dict[str, str]:
    taken, is_video = row["taken"], row["kind"] == "video"
    return {
        "file": row["file"],
        "codec": row["codec"],
        "size": f"{row['width']}x{row['height']}",
        "turn": str(row["rotation"] or ""),
        "frames": str(row["frames"]) if is_video else "",
        "fps": f"{'' if row['constant'] else '~'}{row['fps']:.4g}" if is_video else "",
        "seconds": f"{row['duration']:.2f}" if is_video else "",
        "taken": f"{taken['frames']} {taken['width']}x{taken['height']}",
        "at (s)": f"{taken['times'][0]:.2f}-{taken['times'][-1]:.2f}" if is_video else "",
        "tokens": str(row["tokens"]["vision"]) if "tokens" in row else "",
        "sha256": row.get("sha256", "")[:8],
    }
