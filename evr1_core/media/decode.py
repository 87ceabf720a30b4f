"""Frames of a video file: one forward pass, only the wanted frames converted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from evr1_core.errors import MediaError
from evr1_core.media import resize
from evr1_core.media.probe import MediaInfo, clockwise, opened

if TYPE_CHECKING:
    import numpy as np

THREADS = 2
"""Threads of one decoder. Output does not depend on it."""


def decoder_version(kind: str) -> str:
    """Name and version of everything that turns bytes of the file into pixels; a part of every cache key."""
    if kind == "image":
        return f"{resize.method()}-upright"
    import av

    codec = ".".join(str(part) for part in av.library_versions["libavcodec"])
    return f"pyav-{av.__version__}-avcodec-{codec}-{resize.method()}-upright"


def decode_video(info: MediaInfo, indices: tuple[int, ...], height: int, width: int, until: float | None = None) -> np.ndarray:
    """uint8 [len(indices), 3, height, width], RGB, upright, of the frames `indices` of `info` (increasing, display order).

    `until` is a moment of `time.monotonic` after which the decode gives up between two packets.
    Raises MediaError: damaged (names how many frames could be decoded), timeout.
    """
    import numpy as np

    if info.stamps is None:
        raise TypeError(f"{info.path} is an image")
    out = np.empty((len(indices), 3, height, width), np.uint8)
    places = {index if info.ordinal else int(info.stamps[index]): place for place, index in enumerate(indices)}
    seen, broken = 0, 0
    for frame in _frames(info.path, until):
        if frame is None:
            broken += 1
            continue
        place = places.pop(seen if info.ordinal else frame.pts, None)
        seen += 1
        if place is not None:
            out[place] = upright_rgb(frame, height, width).transpose(2, 0, 1)
            broken += frame.is_corrupt
        if not places and not broken:
            return out
    raise MediaError(info.path, "damaged", f"{seen} of {info.frames} frames could be decoded; {broken} broken packets")


def _frames(path: str, until: float | None) -> Any:
    """Every frame in display order; None for a packet that could not be decoded."""
    import av.error

    with opened(path) as (container, stream):
        stream.thread_type, stream.codec_context.thread_count = "AUTO", THREADS
        for packet in container.demux(stream):
            if until is not None and time.monotonic() > until:
                raise MediaError(path, "timeout", "the decode did not end in time")
            try:
                yield from packet.decode()
            except av.error.InvalidDataError:
                yield None


def upright_rgb(frame: Any, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3] of one decoded frame: 8-bit RGB, transparency on white, resized, rotated upright.

    Resizing treats both axes alike, so the small picture is rotated instead of the large one.
    """
    import numpy as np

    turn = clockwise(frame)
    tall, wide = (width, height) if turn in (90, 270) else (height, width)
    picture = resize.resize_rgb(_rgb(frame), tall, wide)
    return np.rot90(picture, -turn // 90) if turn else picture


def _rgb(frame: Any) -> np.ndarray:
    import numpy as np

    if not any(component.is_alpha for component in frame.format.components) and not frame.format.has_palette:
        return frame.to_ndarray(format="rgb24")
    picture = frame.to_ndarray(format="rgba").astype(np.uint16)
    alpha = picture[..., 3:]
    return ((picture[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
