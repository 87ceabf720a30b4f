"""Writes tests/vectors/published_sampling.npz: what qwen-vl-utils 0.0.14 makes of made-up requests. Needs qwen-vl-utils, decord and torch.

    python tests/support/make_published_sampling.py

Its own reader runs over a video that is not there: only numbers come out. `requests` is float64 [N, 14], columns as in `COLUMNS`,
NaN where nothing was asked. `counts` holds the number of frames of each, 0 where it was refused; `steps` the differences of all
indices, one request after the other; `sizes` int32 [N, 2] height and width, 0 where they were refused.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

COLUMNS = (
    "frames", "fps", "start", "end", "rate", "min_frames", "max_frames", "nframes",
    "height", "width", "factor", "min_pixels", "max_pixels", "total_pixels",
)  # fmt: skip
TARGET = Path(__file__).parents[1] / "vectors" / "published_sampling.npz"
RATES = (1.0, 5.0, 8.0, 10.0, 12.5, 14.985, 15.0, 24000 / 1001, 24.0, 25.0, 30000 / 1001, 30.0, 50.0, 60000 / 1001, 60.0, 120.0)


def draw(rng: random.Random) -> dict[str, float]:
    fps, factor = rng.choice(RATES), rng.choice((28, 32))
    frames = rng.choice((rng.randint(1, 12), rng.randint(1, 300), rng.randint(1, 6_000), rng.randint(1, 60_000)))
    asked: dict[str, float] = dict.fromkeys(COLUMNS, math.nan)
    asked |= {"frames": frames, "fps": fps, "factor": factor}
    if rng.random() < 0.25:
        start = rng.uniform(0, frames / fps)
        digits = rng.choice((1, 2, 3, 12))
        asked |= {"start": round(start, digits), "end": round(start + 0.1 + rng.uniform(0.1, frames / fps), digits)}
    if rng.random() < 0.2:
        asked["nframes"] = rng.choice((1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 64, 100, 256))
    else:
        low = rng.choice((1, 2, 3, 4, 8, 16))
        asked |= {"rate": rng.choice((0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 7.5)), "min_frames": low,
                  "max_frames": max(low, rng.choice((1, 3, 8, 16, 31, 64, 128, 255, 768)))}  # fmt: skip
    shape = rng.choice(
        (
            (rng.randint(1, 4320), rng.randint(1, 4320)),
            (1080, 1920),
            (1280, 720),
            (rng.randint(16, 600), rng.randint(16, 600)),
            (rng.randint(1, 60), rng.randint(60, 2_000)),
        )
    )
    low = rng.choice((1, 4, 16, 128)) * factor**2
    asked |= {"height": shape[0], "width": shape[1], "min_pixels": low, "max_pixels": rng.randint(low, 768 * factor**2),
              "total_pixels": rng.choice((rng.randint(1, 4_000), rng.randint(4_000, 120_000))) * factor**2}  # fmt: skip
    return asked


def answer(process: Any, asked: dict[str, float]) -> tuple[list[int], tuple[int, int]]:
    """(indices, (height, width)) by the library's own code; empty and zeros where it refuses."""
    import torch

    names = {"start": "video_start", "end": "video_end", "rate": "fps"}
    whole = ("min_frames", "max_frames", "nframes", "min_pixels", "max_pixels", "total_pixels")
    ele = {names.get(name, name): int(value) if name in whole else value for name, value in asked.items()
           if name in (*names, *whole) and not math.isnan(value)}  # fmt: skip
    process.decord = SimpleNamespace(VideoReader=lambda _: _Absent(int(asked["frames"]), asked["fps"]))
    try:
        _, facts, _ = process.reader({**ele, "video": ""})
    except ValueError:
        return [], (0, 0)
    indices = facts["frames_indices"]
    video = torch.empty(len(indices), 3, int(asked["height"]), int(asked["width"]), dtype=torch.uint8, device="meta")
    process.module.VIDEO_READER_BACKENDS["decord"] = lambda _: (video, facts, 0.0)
    try:
        made = process.module.fetch_video({**ele, "video": ""}, image_patch_size=int(asked["factor"]) // 2)
    except ValueError:
        return indices, (0, 0)
    return indices, tuple(made.shape[2:])


class _Absent:
    """A video reader without a video."""

    def __init__(self, frames: int, fps: float) -> None:
        self.frames, self.fps = frames, fps

    def __len__(self) -> int:
        return self.frames

    def get_avg_fps(self) -> float:
        return self.fps

    def get_batch(self, indices: list[int]) -> Any:
        return SimpleNamespace(asnumpy=lambda: np.zeros((len(indices), 1, 1, 3), np.uint8))


def main(count: int = 4_000) -> None:
    import sys

    from qwen_vl_utils import vision_process  # pyright: ignore[reportMissingImports]

    process = SimpleNamespace(module=vision_process, reader=vision_process._read_video_decord)
    sys.modules["decord"] = process.proxy = SimpleNamespace(VideoReader=lambda path: process.decord.VideoReader(path))  # type: ignore[assignment]
    vision_process.get_video_reader_backend = lambda: "decord"
    vision_process.transforms = SimpleNamespace(
        functional=SimpleNamespace(resize=lambda video, size, **_: video.new_empty(*video.shape[:2], *size))
    )
    rng = random.Random(0)
    asked = [draw(rng) for _ in range(count)]
    found = [answer(process, one) for one in asked]
    np.savez_compressed(
        TARGET,
        requests=np.array([list(one.values()) for one in asked]),
        counts=np.array([len(indices) for indices, _ in found], np.int32),
        steps=np.diff([index for indices, _ in found for index in indices], prepend=0).astype(np.int32),
        sizes=np.array([size for _, size in found], np.int32),
    )


if __name__ == "__main__":
    main()
