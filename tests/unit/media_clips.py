"""Clips that the media tests write for themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from evr1_core.media.probe import MediaInfo
from evr1_core.types import MediaRef

CLIPS = Path(__file__).parents[1] / "clips"


def clip(name: str) -> str:
    return str(CLIPS / name)


def video(name: str, start: float | None = None, end: float | None = None) -> MediaRef:
    return MediaRef(clip(name), "video", start, end)


def grey(index: int) -> np.ndarray:
    """A frame that tells its index by its brightness."""
    return np.full((48, 64, 3), index * 6, np.uint8)


def corners(_: int) -> np.ndarray:
    """Red top left, green top right, blue bottom left, black bottom right."""
    frame = np.zeros((48, 64, 3), np.uint8)
    frame[:16, :16], frame[:16, 48:], frame[32:, :16] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    return frame


def write_clip(
    path: Path,
    frames: int = 20,
    codec: str = "libx264",
    paint: Callable[[int], np.ndarray] = grey,
    options: dict[str, str] | None = None,
    rotation: int | None = None,
    container: dict[str, str] | None = None,
    prepare: Callable[[Any], None] | None = None,
    milliseconds: Sequence[int] | None = None,
    muxer: str | None = None,
) -> str:
    """A clip of `frames` pictures, 10 a second or at `milliseconds`; `prepare` gets the stream before it is opened."""
    with av.open(str(path), "w", format=muxer, options=container or {}) as out:
        stream: Any = out.add_stream(codec, rate=10, options=options or {})
        stream.height, stream.width, stream.pix_fmt = *paint(0).shape[:2], "yuv420p"
        if rotation is not None:
            stream.set_display_rotation(rotation)
        if milliseconds is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        if prepare is not None:
            prepare(stream)
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(paint(index)), format="rgb24")
            if milliseconds is not None:
                frame.pts, frame.time_base = milliseconds[index], Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return str(path)


def info(frames: int, fps: Fraction | int = 30) -> MediaInfo:
    """A constant-rate video that is no file."""
    rate = Fraction(fps)
    return MediaInfo(
        "x.mp4", "video", 64, 48, "h264", "mp4", frames=frames, fps=float(rate), duration=float(frames / rate), time_base=1 / rate,
        stamps=np.arange(frames, dtype=np.int64),
    )  # fmt: skip


def uneven(stamps: list[int], per_second: int = 1000) -> MediaInfo:
    """A variable-rate video that is no file; `stamps` in ticks, the last frame lasting one tick."""
    duration = (stamps[-1] - stamps[0] + 1) / per_second
    return MediaInfo(
        "x.webm", "video", 64, 48, "vp9", "webm", frames=len(stamps), fps=len(stamps) / duration, duration=duration, constant=False,
        time_base=Fraction(1, per_second), stamps=np.array(stamps, np.int64),
    )  # fmt: skip
