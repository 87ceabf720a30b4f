"""The size a picture gets, and the one resize that everything goes through.

Sizes follow the published rule of the video models (round both sides to the factor, keep the area inside the limits);
they differ from it only where that rule would return a side of zero.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

from evr1_core.types import ImageBudget, PatchFactors, VideoBudget

if TYPE_CHECKING:
    import numpy as np

MAX_RATIO = 200.0
"""A picture this many times longer than wide is refused: it would be a line of patches."""


def smart_size(height: int, width: int, factor: int, min_pixels: int, max_pixels: float) -> tuple[int, int]:
    """(height, width) in multiples of `factor`, at least one factor each, close to the aspect ratio: the published rule
    (docs/media.md names its source) wherever that gives a size. `sampling.VERSION` covers it.

    The area is at most `max_pixels` (or one factor squared) when the picture is too large; a picture that is too small grows to at
    least `min_pixels` and may then exceed `max_pixels` by the rounding up, as the published rule does.
    Raises ValueError when the sides differ by more than `MAX_RATIO`.
    """
    if height < 1 or width < 1:
        raise ValueError(f"the picture is {width}x{height} pixels")
    if max(height, width) / min(height, width) > MAX_RATIO:
        raise ValueError(f"the picture is {width}x{height} pixels; sides may differ by a factor of at most {MAX_RATIO:.0f}")
    tall, wide = max(factor, round(height / factor) * factor), max(factor, round(width / factor) * factor)
    if tall * wide > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        tall, wide = math.floor(height / beta / factor) * factor, math.floor(width / beta / factor) * factor
        # A thin side stops at one factor; the long side then gives back what that added.
        if tall < factor:
            tall, wide = factor, min(wide, int(max_pixels // factor // factor) * factor)
        elif wide < factor:
            tall, wide = min(tall, int(max_pixels // factor // factor) * factor), factor
    elif tall * wide < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        tall, wide = math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
    return max(tall, factor), max(wide, factor)


def video_size(height: int, width: int, frames: int, budget: VideoBudget, factors: PatchFactors) -> tuple[int, int]:
    """(height, width) of each of `frames` frames.

    `total_pixels` counts one frame per temporal patch, a last one that is not full among them, as the models count tokens: it is a
    budget of tokens times the pixels of a token. It never pushes a frame below 1.05 times `min_pixels`.
    """
    limit: float = budget.max_pixels
    if budget.total_pixels is not None:
        limit = min(limit, max(budget.total_pixels / math.ceil(frames / factors.frames), int(budget.min_pixels * 1.05)))
    return smart_size(height, width, factors.pixels, budget.min_pixels, limit)


def image_size(height: int, width: int, budget: ImageBudget, factors: PatchFactors) -> tuple[int, int]:
    """(height, width) of an image."""
    return smart_size(height, width, factors.pixels, budget.min_pixels, budget.max_pixels)


_SHIFT, _MIDDLE = 6, 24_576
"""Eight-bit levels lie 64 apart in the middle of 16 bits, so that what a kernel adds beyond black and white in one direction is
still there in the other: the scaler cuts off and rounds once, at the end."""

_FLAGS = "bicubic+accurate_rnd+bitexact:param0=0:param1=0.5"
"""Bicubic with a = -0.5, widened by the scale where the picture shrinks (antialiased): the kernel of torch and Pillow."""

_LEAST = 8
"""Pixels below which a side is too short for the scaler's filter."""

_scalers: dict[int, tuple[tuple[int, int, int, int], Any]] = {}
"""Thread -> its last sizes and the filter for them. Not thread-local data: a process that is forked from another thread lets go of
those before anything else, and a filter whose threads did not come along would never end."""
_MOST_SCALERS = 64


def method() -> str:
    """Name and version of the resize, a part of every cache key."""
    import av

    version = ".".join(str(part) for part in av.library_versions["libswscale"])
    return f"swscale-{version}-bicubic16"


def resize_rgb(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [height, width, 3] (planes one after the other in memory); bicubic, antialiased, rounded once.

    libswscale scales the three channels as planes of their own. Beyond the edge it repeats the outermost pixel, where torch leaves
    the kernel's weight out: the two or three outermost rows and columns differ where the edge itself is sharp.
    Raises MemoryError for sizes that no memory holds.
    """
    import av
    import numpy as np

    tall, wide = picture.shape[:2]
    if (tall, wide) == (height, width):
        return picture
    rows, columns = (math.ceil((_LEAST / side - 1) / 2) if side < _LEAST else 0 for side in (tall, wide))
    if rows or columns:
        # As far as the edge is repeated, it is repeated here: whole pictures, so that the grids of pixels still lie as they did.
        around = ((rows * tall,) * 2, (columns * wide,) * 2, (0, 0))
        large = resize_rgb(np.pad(picture, around, "edge"), (2 * rows + 1) * height, (2 * columns + 1) * width)
        return large[rows * height : (rows + 1) * height, columns * width : (columns + 1) * width]
    source = av.VideoFrame(wide, tall, "yuv444p16le")
    for channel, plane in enumerate(source.planes):
        levels = _levels(plane, tall, wide)
        np.left_shift(picture[..., channel], _SHIFT, out=levels, dtype=np.uint16)
        levels += _MIDDLE
    scaler = _scaler(tall, wide, height, width)
    scaler.push(source)
    out = np.empty((3, height, width), np.uint8)
    for channel, plane in zip(out, scaler.pull().planes, strict=True):
        levels = _levels(plane, height, width).astype(np.int32)
        levels += (1 << _SHIFT) // 2 - _MIDDLE
        levels >>= _SHIFT
        np.clip(levels, 0, 255, out=channel, casting="unsafe")
    return out.transpose(1, 2, 0)


def _levels(plane: Any, height: int, width: int) -> np.ndarray:
    import numpy as np

    return np.frombuffer(plane, np.uint16).reshape(height, plane.line_size // 2)[:, :width]


def _scaler(tall: int, wide: int, height: int, width: int) -> Any:
    """The filter for these sizes; each thread keeps its last one, since the frames of a clip are all alike."""
    thread = threading.get_ident()
    import av.error
    from av.filter import Graph

    sizes = tall, wide, height, width
    known = _scalers.get(thread)
    if known is None or known[0] != sizes:
        graph = Graph()
        source = graph.add("buffer", f"video_size={wide}x{tall}:pix_fmt=yuv444p16le:time_base=1/1")
        scale, sink = graph.add("scale", f"{width}:{height}:flags={_FLAGS}"), graph.add("buffersink")
        source.link_to(scale)
        scale.link_to(sink)
        try:
            graph.configure()
        except av.error.ArgumentError as error:
            raise MemoryError(f"{wide}x{tall} to {width}x{height} pixels is more than the scaler holds") from error
        known = _scalers[thread] = sizes, graph
        if len(_scalers) > _MOST_SCALERS:
            alive = {one.ident for one in threading.enumerate()}
            for ended in [one for one in list(_scalers) if one not in alive]:
                _scalers.pop(ended, None)
    return known[1]
