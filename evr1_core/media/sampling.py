"""Which frames of a video are taken. One sampler for every reader, every model and every phase.

The clock is presentation time, in seconds after the first frame shown. Where frames come at a constant rate, evenly spaced times
and evenly spaced indices are the same thing, and the indices are those of the published rule
`round(linspace(first, last, n))`, to the last one (docs/media.md names its source). Where they don't, the frame *shown* at each of n
evenly spaced times is taken. A frame is never taken twice, so a clip may have fewer frames than were asked for, down to one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from evr1_core.errors import RequestError
from evr1_core.types import VideoBudget

if TYPE_CHECKING:
    from evr1_core.media.probe import MediaInfo

VERSION = "3"
"""A part of every cache key: raise it when the choice of frames changes (what counts as one too), or the size that `resize` gives them."""

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


def check_request(budget: VideoBudget, start: float | None = None, end: float | None = None) -> None:
    """Refuse what no video can answer, before a file is opened.

    Raises RequestError: a rate, a number of frames or of pixels that is not above 0; limits in the wrong order; a part that is
    negative, empty or no number.
    """
    for name in ("fps", "min_frames", "max_frames", "frames", "min_pixels", "max_pixels", "total_pixels"):
        value = getattr(budget, name)
        if value is not None and not 0 < value < math.inf:
            raise RequestError(f"the video budget has {name} {value}; it must be a number above 0")
    if budget.min_pixels > budget.max_pixels:
        raise RequestError(f"the video budget has min_pixels {budget.min_pixels} above max_pixels {budget.max_pixels}")
    for name, value in (("start", start), ("end", end)):
        if value is not None and not 0 <= value < math.inf:
            raise RequestError(f"{name} is {value}; it must be seconds after the first frame, 0 or more")
    if end is not None and end <= (start or 0.0):
        raise RequestError(f"the part from {start or 0.0:g} s to {end:g} s is empty: end must come after start")


def frame_count(total: int, wanted: float, budget: VideoBudget, factor: int) -> int:
    """How many of `total` frames are taken when the rate asks for `wanted`.

    Multiples of the temporal factor: `min_frames` is rounded up to one, `max_frames` down, and `budget.frames`, which replaces all three,
    to the nearest, at least one factor. Never more than there are; below one factor as many as there are.
    """
    if budget.frames is not None:
        count = max(1, round(budget.frames / factor)) * factor
        return min(count, total // factor * factor) or total
    low = math.ceil(budget.min_frames / factor) * factor
    high = math.floor(budget.max_frames / factor) * factor
    count = math.floor(min(min(max(wanted, low), high), total) / factor) * factor
    return count or max(1, min(total, budget.max_frames))


def select(info: MediaInfo, budget: VideoBudget, factor: int, start: float | None = None, end: float | None = None) -> Selection:
    """The frames of `info` between `start` and `end` (seconds after the first frame; both ends count).

    A part that lies between two frames shows one frame: the one on screen at `start`.
    Raises RequestError (`check_request`), and ValueError when the part lies after the end of the video.
    """
    check_request(budget, start, end)
    if info.frames < 1:
        raise ValueError("the video has no frames")
    begin = start or 0.0
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
    """`torch.linspace(first, last, count).round()`, bit for bit; `count` is at most the number of frames from `first` to `last`.

    What the published models were given depends on single-precision rounding, so it is repeated here as the CPU kernel of torch does
    it (RangeFactoriesKernel.cpp): one float32 step; the lower half counts up from `first` and the upper half down from `last`, each
    value by one fused multiply-add, which double precision gives exactly. Only where that would take a frame twice, or where
    float32 can't count the frames (2**24), the quotient is exact.
    """
    import numpy as np

    if count == 1:
        return [first]
    step = float(np.float32(last - first) / np.float32(count - 1))
    place = np.arange(count)
    spaced = np.where(place < count // 2, first + step * place, last - step * (count - 1 - place))
    indices = np.rint(spaced.astype(np.float32)).astype(np.int64).tolist()
    if last < 2**24 and len(set(indices)) == count:
        return indices
    return [round(Fraction(first * (count - 1) + place * (last - first), count - 1)) for place in range(count)]
