"""Which frames are taken."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from media_clips import info, uneven

from evr1_core.errors import RequestError
from evr1_core.media.plan import plan
from evr1_core.media.sampling import check_request, evenly, frame_count, select
from evr1_core.media.store import MediaStore
from evr1_core.types import Budget, ImageBudget, MediaRef, PatchFactors, VideoBudget

# frames, fps, budget fps, min, max -> frames taken; the published rule where it has an answer.
COUNTS = [
    (300, 30, 2.0, 4, 128, 20),
    (30, 30, 2.0, 4, 128, 4),
    (5, 30, 2.0, 4, 128, 4),
    (3, 30, 2.0, 4, 128, 2),
    (17, 1, 2.0, 4, 128, 16),
    (31, 8, 2.0, 32, 32, 30),
    (300, 30, 2.0, 4, 3, 2),
    (9000, 30, 2.0, 4, 128, 128),
    (60, Fraction(30000, 1001), 2.0, 4, 128, 4),
    # The published rule refuses these.
    (1, 30, 2.0, 4, 128, 1),
    (300, 30, 2.0, 1, 1, 1),
]


@pytest.mark.parametrize(("frames", "fps", "rate", "low", "high", "taken"), COUNTS)
def test_counts(frames: int, fps: int, rate: float, low: int, high: int, taken: int) -> None:
    chosen = select(info(frames, fps), VideoBudget(fps=rate, min_frames=low, max_frames=high), 2)
    assert len(chosen.indices) == taken
    assert chosen.indices[0] == 0 and (taken == 1 or chosen.indices[-1] == frames - 1)


def test_indices_of_the_published_rule() -> None:
    assert select(info(32, 8), VideoBudget(), 2).indices == (0, 4, 9, 13, 18, 22, 27, 31)
    assert select(info(31, 8), VideoBudget(), 2).indices == (0, 6, 12, 18, 24, 30)
    chosen = select(info(300), VideoBudget(max_frames=8), 2)
    assert chosen.indices == (0, 43, 85, 128, 171, 214, 256, 299)
    assert chosen.times == tuple(index / 30 for index in chosen.indices)
    assert len(chosen.indices) / chosen.span == pytest.approx(0.8)


def test_part_of_a_video() -> None:
    chosen = select(info(300), VideoBudget(), 2, start=2.0, end=4.0)
    assert chosen.indices == (60, 80, 100, 120)
    assert chosen.times[0] == 2.0 and chosen.span == pytest.approx(61 / 30)
    assert select(info(300), VideoBudget(), 2, start=2.01, end=2.02).indices == (60,)
    assert select(info(300), VideoBudget(), 2, end=99).indices[-1] == 299
    # 5.25 * 60 is 314.99999 in floats: the frame at the end counts all the same.
    assert select(info(400, 60), VideoBudget(), 2, start=0.22, end=5.249999999999999).indices[-1] == 315


def test_a_part_after_the_end() -> None:
    with pytest.raises(ValueError, match="starts at 10 s, the video ends at 10 s"):
        select(info(300), VideoBudget(), 2, start=10.0)


@pytest.mark.parametrize(
    ("budget", "start", "end", "message"),
    [
        (VideoBudget(), 4.0, 4.0, "is empty"),
        (VideoBudget(), 5.0, 2.0, "is empty"),
        (VideoBudget(), None, 0.0, "is empty"),
        (VideoBudget(), -1.0, None, "start is -1.0"),
        (VideoBudget(), math.nan, None, "start is nan"),
        (VideoBudget(), None, math.inf, "end is inf"),
        (VideoBudget(frames=0), None, None, "frames 0"),
        (VideoBudget(fps=0), None, None, "fps 0"),
        (VideoBudget(fps=math.nan), None, None, "fps nan"),
        (VideoBudget(max_frames=0), None, None, "max_frames 0"),
        (VideoBudget(total_pixels=0), None, None, "total_pixels 0"),
        (VideoBudget(min_pixels=9, max_pixels=8), None, None, "min_pixels 9 above max_pixels 8"),
    ],
)
def test_a_request_that_cannot_be(budget: VideoBudget, start: float | None, end: float | None, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_request(budget, start, end)
    with pytest.raises(RequestError, match=message):
        select(info(300), budget, 2, start, end)


# frames asked, frames of the video, frames taken: rounded to the temporal patch as the option `nframes` of the published rule.
@pytest.mark.parametrize(
    ("asked", "total", "taken"),
    [(8, 300, 8), (7, 300, 8), (5, 300, 4), (3, 300, 4), (1, 300, 2), (32, 31, 30), (20, 10, 10), (16, 5, 4), (2, 1, 1), (8, 1, 1)],
)
def test_a_number_of_frames(asked: int, total: int, taken: int) -> None:
    # Rate and limits play no part.
    chosen = select(info(total), VideoBudget(frames=asked, fps=0.1, min_frames=1, max_frames=1), 2)
    assert len(set(chosen.indices)) == taken and chosen.indices[0] == 0 and chosen.indices[-1] == (total - 1 if taken > 1 else 0)
    varying = uneven([0, *range(100, 100 * total, 100)][:total]) if total > 1 else info(1)
    assert len(select(varying, VideoBudget(frames=asked), 2).indices) <= taken
    assert len(select(info(300), VideoBudget(frames=asked), 2, start=1.0, end=9.0).indices) == max(2, round(asked / 2) * 2)


def test_sampled_fps_is_that_of_the_frames_taken() -> None:
    """20 seconds at 2 frames per second, at most 16 of them."""
    ref, factors = MediaRef("x.mp4", "video"), PatchFactors(32)
    assert plan(info(600), ref, Budget(VideoBudget(fps=2.0, max_frames=16)), factors).sampled_fps == pytest.approx(0.8)
    assert plan(info(600), ref, Budget(VideoBudget(frames=16)), factors).sampled_fps == pytest.approx(0.8)
    assert plan(info(600), ref, Budget(VideoBudget(fps=1.0)), factors).sampled_fps == 1.0
    assert plan(info(1), ref, Budget(), factors).sampled_fps == pytest.approx(30)


@pytest.mark.parametrize(
    ("ref", "budget", "factors", "message"),
    [
        (MediaRef("x.png", "image", 1.0), Budget(), PatchFactors(32), "an image has no start and end"),
        (MediaRef("x.png", "image"), Budget(image=ImageBudget(9, 8)), PatchFactors(32), "the image budget is 9 to 8 pixels"),
        (MediaRef("x.png", "image"), Budget(image=ImageBudget(0, 8)), PatchFactors(32), "the image budget is 0 to 8 pixels"),
        (MediaRef("x.mp4", "video"), Budget(), PatchFactors(0), "the patch factors are 0 pixels and 2 frames"),
        (MediaRef("x.mp4", "video", 2.0, 1.0), Budget(), PatchFactors(32), "is empty: end must come after start"),
    ],
)
def test_a_request_is_refused_before_the_file_is_opened(ref: MediaRef, budget: Budget, factors: PatchFactors, message: str) -> None:
    """None of these files is there."""
    store = MediaStore(mode="decode-only", isolate=False)
    for ask in (store.plan, store.load):
        with pytest.raises(RequestError, match=message):
            ask(ref, budget, factors)


def test_varying_rate_goes_by_the_frame_shown() -> None:
    video = uneven([125 * index for index in range(8)] + [1000 + 2000 * index for index in range(8)])
    assert select(video, VideoBudget(max_frames=8), 2).indices == (0, 8, 9, 10, 11, 12, 13, 15)
    # 2.0 s to 6.0 s: the first picture is the one on screen since 1.0 s.
    assert select(video, VideoBudget(fps=1.0, min_frames=2), 2, start=2.0, end=6.0).indices == (8, 10)
    assert select(video, VideoBudget(), 2, start=2.0, end=2.5).indices == (8,)


budgets = st.builds(
    lambda fps, low, more, frames: VideoBudget(fps=fps, min_frames=low, max_frames=low + more, frames=frames),
    st.floats(0.05, 120), st.integers(1, 64), st.integers(0, 700), st.none() | st.integers(1, 800),
)  # fmt: skip


def _sound(video, budget: VideoBudget, factor: int, start: float | None, end: float | None) -> None:
    if end is not None and end <= (start or 0.0):
        with pytest.raises(RequestError):
            select(video, budget, factor, start, end)
        return
    try:
        chosen = select(video, budget, factor, start, end)
    except ValueError as error:
        assert "starts at" in str(error)
        return
    indices = chosen.indices
    assert 1 <= len(indices) <= video.frames and (budget.frames or len(indices) <= budget.max_frames)
    assert all(a < b for a, b in zip(indices, indices[1:], strict=False)), "increasing, so never twice"
    assert indices[0] >= 0 and indices[-1] < video.frames
    assert chosen.times == tuple(float(video.times()[index]) for index in indices)
    assert chosen.span > 0
    # The picture on screen at `start` may have come before it, and none comes after `end`.
    assert end is None or chosen.times[-1] <= end + 1e-5
    if video.constant and start is None and end is None:
        assert len(indices) == frame_count(video.frames, video.frames / video.fps * budget.fps, budget, factor)
        assert indices[0] == 0 and (len(indices) == 1 or indices[-1] == video.frames - 1)


@given(st.integers(1, 20_000), st.sampled_from([1, 8, 24, 30, 60, Fraction(30000, 1001), Fraction(24000, 1001)]), budgets,
       st.sampled_from([1, 2, 4]), st.none() | st.floats(0, 50), st.none() | st.floats(0, 60))  # fmt: skip
def test_any_constant_video(frames, fps, budget, factor, start, end) -> None:
    _sound(info(frames, fps), budget, factor, start, end)


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=200),
    budgets,
    st.sampled_from([1, 2]),
    st.none() | st.floats(0, 50),
    st.none() | st.floats(0, 60),
)
def test_any_uneven_video(steps, budget, factor, start, end) -> None:
    stamps = [700]
    for step in steps:
        stamps.append(stamps[-1] + step)
    _sound(uneven(stamps), budget, factor, start, end)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=100), st.integers(2, 40), st.none() | st.floats(0, 20), st.floats(0.001, 300))
def test_the_frame_taken_is_the_one_on_screen(steps: list[int], frames: int, start: float | None, length: float) -> None:
    """Every frame taken is shown at one of the evenly spaced moments, and every moment has its frame."""
    stamps = [0]
    for step in steps:
        stamps.append(stamps[-1] + step)
    video = uneven(stamps)
    begin = min(start or 0.0, video.duration * 0.99)
    chosen = select(video, VideoBudget(frames=frames), 1, start=begin, end=begin + length)
    latest = min(begin + length, stamps[-1] / 1000)
    low = max(index for index, stamp in enumerate(stamps) if stamp <= begin * 1000 + 1e-3)
    high = max(low, *(index for index, stamp in enumerate(stamps) if stamp <= latest * 1000 + 1e-3))
    count = min(frames, high - low + 1)
    moments = [min(begin, latest) + place * (latest - min(begin, latest)) / max(count - 1, 1) for place in range(count)]
    shown = [max([low, *(index for index, stamp in enumerate(stamps) if stamp <= moment * 1000 + 1e-3)]) for moment in moments]
    near = [any(abs(stamp - moment * 1000) < 2e-3 for stamp in stamps) for moment in moments]
    assert set(chosen.indices) == set(shown) or any(near)


@given(st.integers(0, 10_000), st.integers(0, 100_000), st.integers(1, 768))
def test_evenly_has_both_ends(first: int, more: int, count: int) -> None:
    count = min(count, more + 1)
    indices = evenly(first, first + more, count)
    assert indices[0] == first and (count == 1 or indices[-1] == first + more)
    assert all(earlier < later for earlier, later in pairwise(indices))
    # A float32 is at most 1/128 coarse here, and its error adds up over the step.
    assert all(abs(index - (first + more * step / max(count - 1, 1))) <= 0.55 for step, index in enumerate(indices))
