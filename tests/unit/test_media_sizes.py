"""Sizes of frames and images, for any shape and budget."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evr1_core.media.resize import MAX_RATIO, image_size, smart_size, video_size
from evr1_core.types import ImageBudget, PatchFactors, VideoBudget

sides = st.integers(1, 10_000)
factors = st.sampled_from([14, 16, 28, 32])


@given(sides, sides, factors, st.integers(1, 2_000_000), st.integers(0, 4_000_000))
@example(31, 639, 28, 3136, 20 * 28 * 28 - 3136)
@example(32, 1024, 32, 4096, 12_288)
def test_any_picture(height: int, width: int, factor: int, low: int, more: int) -> None:
    """Multiples of the factor, never 0, inside the limits."""
    high = low + more
    if max(height, width) / min(height, width) > MAX_RATIO:
        with pytest.raises(ValueError, match=f"the picture is {width}x{height} pixels; sides may differ by a factor of at most 200"):
            smart_size(height, width, factor, low, high)
        return
    tall, wide = smart_size(height, width, factor, low, high)
    assert tall >= factor and wide >= factor and tall % factor == 0 and wide % factor == 0
    natural = max(factor, round(height / factor) * factor) * max(factor, round(width / factor) * factor)
    if natural > high:
        assert tall * wide <= max(high, factor * factor)
    elif natural < low:
        assert tall * wide >= low
        # Growing rounds up, by less than one factor a side.
        scale = math.sqrt(low / (height * width))
        assert tall < height * scale + factor and wide < width * scale + factor
    else:
        assert (tall, wide) == (max(factor, round(height / factor) * factor), max(factor, round(width / factor) * factor))
    assert smart_size(width, height, factor, low, high) == (wide, tall)


@given(sides, sides, factors, st.integers(1, 800), st.integers(1, 200), st.integers(0, 2_000), st.integers(1, 100_000))
def test_any_video(height: int, width: int, factor: int, frames: int, low: int, more: int, total: int) -> None:
    """All temporal patches together stay inside `total_pixels`, but for the floor that `min_pixels` gives."""
    if max(height, width) / min(height, width) > MAX_RATIO:
        return
    token = factor * factor
    budget = VideoBudget(min_pixels=low * token, max_pixels=(low + more) * token, total_pixels=total * token)
    tall, wide = video_size(height, width, frames, budget, PatchFactors(factor, 2))
    patches = math.ceil(frames / 2)
    free = video_size(height, width, frames, VideoBudget(min_pixels=low * token, max_pixels=(low + more) * token), PatchFactors(factor, 2))
    assert tall * wide <= free[0] * free[1] or tall * wide <= 1.05 * low * token
    natural = max(factor, round(height / factor) * factor) * max(factor, round(width / factor) * factor)
    if natural >= budget.min_pixels:
        assert tall * wide <= max(total * token / patches, 1.05 * budget.min_pixels, token)


def test_an_odd_frame_fills_a_patch_of_its_own() -> None:
    budget, factor = VideoBudget(total_pixels=5 * 65_536, max_pixels=1_000_000), PatchFactors(32)
    assert video_size(1080, 1920, 9, budget, factor) == video_size(1080, 1920, 10, budget, factor) == (192, 320)
    one = VideoBudget(total_pixels=65_536, max_pixels=1_000_000)
    assert video_size(1080, 1920, 1, one, factor) == video_size(1080, 1920, 2, one, factor) == (192, 320)


@pytest.mark.parametrize(("height", "width"), [(0, 64), (64, 0), (-1, 5)])
def test_no_picture(height: int, width: int) -> None:
    with pytest.raises(ValueError, match="the picture is"):
        image_size(height, width, ImageBudget(), PatchFactors(32))
