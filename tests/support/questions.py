"""A small question set over real encoded files: mp4 clips and PNG pictures of coloured squares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}


def frame(colour: str, step: int) -> np.ndarray:
    picture = np.zeros((64, 64, 3), np.uint8)
    picture[10 + step : 30 + step, 20:40] = COLOURS[colour]
    return picture


def write_clip(path: Path, colour: str, frames: int = 8, rate: int = 4) -> None:
    """H.264, `frames` frames at `rate` per second; the square falls."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for step in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame(colour, step), format="rgb24")))
        container.mux(stream.encode())


def write_questions(folder: Path, count: int = 12) -> Path:
    """Rows over videos, images and text, in turn; returns the JSONL file."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    names = list(COLOURS)
    for index in range(count):
        colour = names[index % 4]
        options = list(np.random.default_rng(index).permutation(names))
        row: dict[str, Any] = {
            "id": f"q{index}",
            "problem": "What colour is it?",
            "options": options,
            "answer": "ABCD"[options.index(colour)],
            "problem_type": "multiple choice",
        }
        if index % 3 == 0:
            write_clip(folder / f"{index}.mp4", colour, frames=6 + index % 5)
            row["videos"] = [f"{index}.mp4"]
        elif index % 3 == 1:
            Image.fromarray(frame(colour, 0)).save(folder / f"{index}.png")
            row["images"] = [f"{index}.png"]
        else:
            row["problem"] = f"What colour is a {colour} square?"
        rows.append(row)
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
