"""Which frames of a video are taken. One sampler for every reader, every model and every phase.

The clock is presentation time, in seconds after the first frame shown. Where frames come at a constant rate, evenly spaced times
and evenly spaced indices are the same thing, and the indices are those of the published rule
`round(linspace(first, last, n))`. Where they don't, the frame *shown* at each of n evenly spaced times is taken. A frame is never
taken twice, so a clip may have fewer frames than were asked for, down to one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from evr1_core.types import VideoBudget

if TYPE_CHECKING:
    from evr1_core.media.probe import MediaInfo

VERSION = "1"
"""A part of every cache key: raise it when the choice of frames changes."""

_TICK = 1e-6
"""Seconds (or frames) that count as the same moment: below one tick of any clock in use, above the error of a float."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The frames of one clip."""

    indices: tuple[int, ...]
    """Among the frames of the source in display order; increasing."""
    times: tuple[float, ...]
    """Seconds after the first frame of the source."""
    span: float
    """Seconds of the source that these frames stand for."""


def frame_count(total: int, wanted: float, budget: VideoBudget, factor: int) -> int:
    """How many of `total` frames are taken when the rate asks for `wanted`.

    Multiples of the temporal factor, `min_frames` rounded up to one and `max_frames` down; below one multiple as many as there are.
    """
    low = math.ceil(budget.min_frames / factor) * factor
    high = math.floor(budget.max_frames / factor) * factor
    count = math.floor(min(min(max(wanted, low), high), total) / factor) * factor
    return count or max(1, min(total, budget.max_frames))


def select(info: MediaInfo, budget: VideoBudget, factor: int, start: float | None = None, end: float | None = None) -> Selection:
    """The frames of `info` between `start` and `end` (seconds after the first frame; both ends count).

    A part that lies between two frames shows one frame: the one on screen at `start`.
    Raises ValueError when the part is empty or lies after the end.
    """
    if info.frames < 1:
        raise ValueError("the video has no frames")
    begin = max(0.0, start or 0.0)
    if end is not None and end <= begin:
        raise ValueError(f"the part from {begin:g} s to {end:g} s is empty")
    if begin > 0 and begin >= info.duration:
        raise ValueError(f"the part starts at {begin:g} s, the video ends at {info.duration:g} s")
    chosen = _by_index if info.constant and info.fps > 0 else _by_time
    indices, span = chosen(info, budget, factor, begin, end)
    times = info.times()
    return Selection(tuple(indices), tuple(float(times[index]) for index in indices), span)


def _by_index(info: MediaInfo, budget: VideoBudget, factor: int, begin: float, end: float | None) -> tuple[list[int], float]:
    first = math.ceil(begin * info.fps - _TICK)
    last = info.frames - 1 if end is None else min(math.floor(end * info.fps + _TICK), info.frames - 1)
    if first > last:
        first = last = min(math.floor(begin * info.fps + _TICK), info.frames - 1)
    total = last - first + 1
    count = frame_count(total, total / info.fps * budget.fps, budget, factor)
    return evenly(first, last, count), total / info.fps


def _by_time(info: MediaInfo, budget: VideoBudget, factor: int, begin: float, end: float | None) -> tuple[list[int], float]:
    import numpy as np

    times = info.times()
    stop = min(info.duration if end is None else end, info.duration)
    latest = min(stop, float(times[-1]))
    first = max(0, int(np.searchsorted(times, begin + _TICK, side="right")) - 1)
    last = max(first, int(np.searchsorted(times, latest + _TICK, side="right")) - 1)
    count = frame_count(last - first + 1, (stop - begin) * budget.fps, budget, factor)
    moments = np.linspace(min(begin, latest), latest, count)
    shown = np.searchsorted(times, moments + _TICK, side="right") - 1
    return [int(index) for index in np.unique(np.clip(shown, first, last))], stop - begin


def evenly(first: int, last: int, count: int) -> list[int]:
    """`round(linspace(first, last, count))`, computed without rounding error."""
    if count == 1:
        return [first]
    return [round(Fraction(first * (count - 1) + step * (last - first), count - 1)) for step in range(count)]
