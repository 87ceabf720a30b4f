"""Frames and sizes against qwen-vl-utils 0.0.14: 4,000 requests that its own code answered (tests/support/make_published_sampling.py).

Where the two differ on purpose, the test says why, and how often.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_clips import info

from evr1_core.media.resize import video_size
from evr1_core.media.sampling import evenly, select
from evr1_core.types import PatchFactors, VideoBudget

VECTORS = np.load(Path(__file__).parents[1] / "vectors" / "published_sampling.npz")
COLUMNS = (
    "frames", "fps", "start", "end", "rate", "min_frames", "max_frames", "nframes",
    "height", "width", "factor", "min_pixels", "max_pixels", "total_pixels",
)  # fmt: skip


def requests() -> list[tuple[dict[str, Any], list[int], tuple[int, int]]]:
    """(request, published indices, published size) of each."""
    places = np.split(np.cumsum(VECTORS["steps"]), np.cumsum(VECTORS["counts"])[:-1])
    return [
        ({name: None if math.isnan(value) else value for name, value in zip(COLUMNS, row, strict=True)}, taken.tolist(), tuple(size))
        for row, taken, size in zip(VECTORS["requests"].tolist(), places, VECTORS["sizes"].tolist(), strict=True)
    ]


def budget_of(asked: dict[str, Any]) -> VideoBudget:
    limits = {name: int(asked[name]) for name in ("min_pixels", "max_pixels", "total_pixels")}
    if asked["nframes"]:
        return VideoBudget(frames=int(asked["nframes"]), **limits)
    return VideoBudget(fps=asked["rate"], min_frames=int(asked["min_frames"]), max_frames=int(asked["max_frames"]), **limits)


def on_the_edge(asked: dict[str, Any]) -> bool:
    """Whether start or end names a frame exactly, and only the rounding of a float puts it beside that."""
    for name in ("start", "end"):
        place = (asked[name] or 0.0) * asked["fps"]
        if place != round(place) and abs(place - round(place)) < 1e-6:
            return True
    return False


def refusal(asked: dict[str, Any]) -> str:
    """Why the published rule gives no frames."""
    total = int(asked["frames"])
    if asked["end"] is not None:
        total = min(math.floor(min(asked["end"], total / asked["fps"]) * asked["fps"]), total - 1) - math.ceil(
            asked["start"] * asked["fps"]
        )
        if total < 1:
            return "a part of one frame or none"
        total += 1
    if total < 2:
        return "one frame"
    if asked["nframes"]:
        return "more frames than there are" if round(asked["nframes"] / 2) * 2 > total else "a number of frames that rounds to 0"
    return "max_frames below 2" if asked["max_frames"] < 2 else "unknown"


def test_frames_of_the_published_rule() -> None:
    differ: Counter[str] = Counter()
    for asked, published, _ in requests():
        video = info(int(asked["frames"]), Fraction(asked["fps"]).limit_denominator(2000))
        assert video.fps == asked["fps"]
        try:
            ours = list(select(video, budget_of(asked), 2, asked["start"], asked["end"]).indices)
        except ValueError as error:
            assert "the part starts at" in str(error) and not published
            differ["a part that is not there"] += 1
            continue
        if not published:
            differ[refusal(asked)] += 1
            assert 1 <= len(ours) <= max(2, video.frames)
        elif ours != published:
            assert on_the_edge(asked), asked
            differ["an end of the part is a frame, but for the rounding of a float"] += 1
    assert differ == {
        "a number of frames that rounds to 0": 74,
        "a part of one frame or none": 97,
        "a part that is not there": 6,
        "an end of the part is a frame, but for the rounding of a float": 6,
        "max_frames below 2": 69,
        "more frames than there are": 150,
        "one frame": 77,
    }


def test_sizes_of_the_published_rule() -> None:
    differ: Counter[str] = Counter()
    for asked, taken, published in requests():
        if not taken:
            continue
        height, width, factor = (int(asked[name]) for name in ("height", "width", "factor"))
        try:
            ours = video_size(height, width, len(taken), budget_of(asked), PatchFactors(factor, 2))
        except ValueError:
            assert max(height, width) / min(height, width) > 200 and published == (0, 0)
            differ["both refuse the shape"] += 1
            continue
        if ours != published:
            assert min(published) == 0 and min(ours) == factor, (asked, ours, published)
            differ["a side of 0"] += 1
    assert differ == {"a side of 0": 58, "both refuse the shape": 68}


@pytest.mark.parametrize(
    ("last", "place", "published"), [(204_604, 118, 190_104), (191_470, 98, 147_748), (99_560, 119, 93_288), (206_059, 42, 68_146)]
)
def test_single_precision(last: int, place: int, published: int) -> None:
    """Values of torch 2.13 on a CPU with fused multiply-add (AVX2 and later); the exact index is another one."""
    assert evenly(0, last, 128)[place] == published != round(Fraction(place * last, 127))


def test_single_precision_never_takes_a_frame_twice() -> None:
    """The published rule would: at frame 50,000 a float32 is too coarse for steps that are barely longer than a frame."""
    assert len(set(evenly(50_000, 50_700, 700))) == 700  # torch: 699 different ones
    assert evenly(0, 2**25, 3) == [0, 2**24, 2**25]


def test_torch_on_this_machine() -> None:
    """Random parts of videos of up to three hours."""
    torch = pytest.importorskip("torch")
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("without fused multiply-add torch rounds differently")
    rng = random.Random(0)
    for _ in range(2_000):
        first, frames = rng.choice((0, rng.randint(0, 50_000))), rng.choice((rng.randint(2, 400), rng.randint(2, 200_000)))
        last, count = first + frames - 1, min(2 * rng.randint(1, 384), frames // 2 * 2)
        published = torch.linspace(first, last, count).round().long().tolist()
        assert evenly(first, last, count) == published or len(set(published)) < count, (first, last, count)
