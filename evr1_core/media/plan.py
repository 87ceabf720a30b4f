"""What loading a medium will give, from its headers: the numbers that the token count of a prompt is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from evr1_core.errors import MediaError, RequestError
from evr1_core.media import sampling
from evr1_core.media.image import MAX_PIXELS
from evr1_core.media.probe import MediaInfo
from evr1_core.media.resize import image_size, video_size
from evr1_core.types import Budget, MediaRef, PatchFactors


@dataclass(frozen=True, slots=True)
class Plan:
    """Shape and clock of a clip that isn't decoded yet; the fields mean what they mean in `Clip`."""

    kind: Literal["image", "video"]
    frames: int
    height: int
    width: int
    indices: tuple[int, ...]
    times: tuple[float, ...]
    source_fps: float
    source_frames: int
    duration: float
    span: float

    @property
    def sampled_fps(self) -> float:
        """Frames per second of the frames that will be taken."""
        return self.frames / self.span if self.span else 0.0


def check_request(ref: MediaRef, budget: Budget, factors: PatchFactors) -> None:
    """Refuse what no file can answer, before `ref` is opened. Raises RequestError."""
    if min(factors.pixels, factors.frames) < 1:
        raise RequestError(f"the patch factors are {factors.pixels} pixels and {factors.frames} frames; both must be 1 or more")
    if ref.fps is not None and (ref.kind == "image" or not 0 < ref.fps < math.inf):
        raise RequestError(f"{ref.path} has the rate {ref.fps}: it must be a video, a folder of pictures, and the rate a number above 0")
    if ref.kind == "video":
        sampling.check_request(budget.video, ref.start, ref.end)
    elif not 0 < budget.image.min_pixels <= budget.image.max_pixels:
        raise RequestError(f"the image budget is {budget.image.min_pixels} to {budget.image.max_pixels} pixels")
    elif ref.start is not None or ref.end is not None:
        raise RequestError(f"{ref.path} is asked for as an image: an image has no start and end")


def plan(info: MediaInfo, ref: MediaRef, budget: Budget, factors: PatchFactors) -> Plan:
    """The clip that `MediaStore.load` returns for `ref`, without decoding.

    Raises MediaError: unsupported (the shape), empty (no frame between start and end); RequestError (`check_request`).
    """
    check_request(ref, budget, factors)
    if info.kind == "image":
        height, width = _sized(info.path, lambda: image_size(info.height, info.width, budget.image, factors))
        return Plan("image", 1, height, width, (0,), (0.0,), 0.0, 1, 0.0, 0.0)
    try:
        chosen = sampling.select(info, budget.video, factors.frames, ref.start, ref.end)
    except ValueError as error:
        raise MediaError(info.path, "empty", str(error)) from error
    count = len(chosen.indices)
    height, width = _sized(info.path, lambda: video_size(info.height, info.width, count, budget.video, factors))
    return Plan("video", count, height, width, chosen.indices, chosen.times, info.fps, info.frames, info.duration, chosen.span)


def _sized(path: str, size: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    try:
        height, width = size()
    except ValueError as error:
        raise MediaError(path, "unsupported", str(error)) from error
    if height * width > MAX_PIXELS:
        raise MediaError(path, "unsupported", f"the budget makes it {width}x{height} pixels; at most {MAX_PIXELS:,} are made")
    return height, width
