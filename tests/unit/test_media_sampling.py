"""Which frames are taken."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from media_clips import info, uneven

from evr1_core.media.sampling import evenly, select
from evr1_core.types import VideoBudget

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


@pytest.mark.parametrize(("start", "end", "message"), [(4.0, 4.0, "is empty"), (5.0, 2.0, "is empty"), (10.0, None, "ends at 10 s")])
def test_a_part_that_is_nothing(start: float, end: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(info(300), VideoBudget(), 2, start=start, end=end)


def test_varying_rate_goes_by_the_frame_shown() -> None:
    video = uneven([125 * index for index in range(8)] + [1000 + 2000 * index for index in range(8)])
    assert select(video, VideoBudget(max_frames=8), 2).indices == (0, 8, 9, 10, 11, 12, 13, 15)
    # 2.0 s to 6.0 s: the first picture is the one on screen since 1.0 s.
    assert select(video, VideoBudget(fps=1.0, min_frames=2), 2, start=2.0, end=6.0).indices == (8, 10)
    assert select(video, VideoBudget(), 2, start=2.0, end=2.5).indices == (8,)


budgets = st.builds(
    lambda fps, low, more: VideoBudget(fps=fps, min_frames=low, max_frames=low + more),
    st.floats(0.05, 120), st.integers(1, 64), st.integers(0, 700),
)  # fmt: skip


def _sound(video, budget: VideoBudget, factor: int, start: float | None, end: float | None) -> None:
    try:
        chosen = select(video, budget, factor, start, end)
    except ValueError as error:
        assert "starts at" in str(error) or "is empty" in str(error)
        return
    indices = chosen.indices
    assert 1 <= len(indices) <= min(budget.max_frames, video.frames)
    assert all(a < b for a, b in zip(indices, indices[1:], strict=False)), "increasing, so never twice"
    assert indices[0] >= 0 and indices[-1] < video.frames
    assert chosen.times == tuple(float(video.times()[index]) for index in indices)
    assert chosen.span > 0
    # The picture on screen at `start` may have come before it, and none comes after `end`.
    assert end is None or chosen.times[-1] <= end + 1e-5


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


@given(st.integers(0, 10_000), st.integers(0, 100_000), st.integers(1, 768))
def test_evenly_has_both_ends(first: int, more: int, count: int) -> None:
    indices = evenly(first, first + more, count)
    assert indices[0] == first and (count == 1 or indices[-1] == first + more)
    assert all(abs(index - (first + more * step / max(count - 1, 1))) <= 0.5 + 1e-9 for step, index in enumerate(indices))
