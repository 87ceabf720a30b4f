"""What a media file says about itself: size, frames and clock, from its headers and at most one decoded frame.

Containers that hold a trustworthy index (MP4, AVI) are believed after a look at their first packets. All others, and files whose
frames come at a varying rate, get one scan of their packets, without decoding: presentation times, sorted once. Nothing is allocated
for what a header merely claims. A scan is bounded by the file, whose packets hold a byte each at least, by `MAX_FRAMES`, and in time
by the deadline of the child process that probes (`guard.DecodeGuard`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from evr1_core.errors import MediaError
from evr1_core.media.container import check_end, opened, packets
from evr1_core.media.orientation import orientation

if TYPE_CHECKING:
    import numpy as np

_RAW = ("h264", "hevc", "m4v")
_UNTIMED = ("avi", *_RAW)
"""Containers without presentation times: the times of their packets are in decode order, so frames are told apart by counting."""
_STREAMED = ("mpegts", "mpeg")
"""Containers that one may join at any moment; what a decoder needs comes again with each key frame, and packets before it don't decode."""
_HEAD = 48
"""Packets that must agree with the header before it is believed; more than any reordering depth."""
MAX_FRAMES = 5_000_000
"""Frames of one video above which it is refused: 46 hours at 30 frames per second."""
_UNKNOWN = -(2**63)
"""In place of a time that a packet doesn't give."""
_HDR = {16: "PQ", 18: "HLG"}
"""Transfer functions of high dynamic range, by their number in ITU-T H.273."""


@dataclass(frozen=True, eq=False)
class MediaInfo:
    """One image or one video stream."""

    path: str
    kind: Literal["image", "video"]
    width: int
    """Pixels as displayed: square ones, after the rotation."""
    height: int
    codec: str
    container: str
    pixel_format: str = ""
    rotation: int = 0
    """Degrees clockwise that make the picture upright: 0, 90, 180 or 270."""
    mirrored: bool = False
    """Whether left and right are exchanged before the rotation."""
    sample_aspect: Fraction = Fraction(1, 1)
    """Width of a stored pixel over its height."""
    hdr: str = ""
    """`PQ` or `HLG` where the picture has high dynamic range. It is not tone-mapped."""
    frames: int = 1
    """Frames that are shown."""
    fps: float = 0.0
    """Average frames per second; 0 for an image and for a single frame without a duration."""
    duration: float = 0.0
    """Seconds from the first frame shown to the end of the last."""
    start: float = 0.0
    """Presentation time of the first frame in the file's own clock, in seconds."""
    constant: bool = True
    """Whether no frame is further than half a frame from an even grid."""
    scanned: bool = False
    """Whether the packets had to be read."""
    time_base: Fraction = Fraction(1, 1)
    """Seconds of one tick."""
    stamps: np.ndarray | None = field(default=None, repr=False)
    """int64 [frames], ticks: presentation times in display order; None for an image."""
    keys: np.ndarray | None = field(default=None, repr=False)
    """int64, ticks: presentation times of the key frames, increasing, as far as packets and index tell them."""
    ordinal: bool = False
    """Whether the file gives no presentation times, so that frames are told apart by counting."""

    def times(self) -> np.ndarray:
        """float64 [frames], seconds after the first frame."""
        return self._times

    @cached_property
    def _times(self) -> np.ndarray:
        import numpy as np

        if self.stamps is None:
            return np.zeros(1)
        return (self.stamps - self.stamps[0]).astype(np.float64) * self.time_base.numerator / self.time_base.denominator


def probe(path: str | os.PathLike[str], kind: Literal["image", "video"] | None = None) -> MediaInfo:
    """Read what `path` is. Without `kind` the content decides; an animated GIF is then a video.

    Raises MediaError: missing, empty, damaged, unsupported.
    """
    from evr1_core.media.image import is_animated, probe_image, sniff

    name = check_file(path)
    signature = sniff(name)
    if kind is None:
        kind = "image" if signature and not (signature == "GIF" and is_animated(name)) else "video"
    if kind == "image":
        return probe_image(name)
    if signature not in ("", "GIF"):
        raise MediaError(name, "unsupported", f"this is an image ({signature}), and a video is asked for")
    return probe_video(name)


def check_file(path: str | os.PathLike[str]) -> str:
    """The path as text, after making sure that a readable, non-empty file lies there."""
    name = os.fspath(path)
    try:
        size = os.stat(name).st_size
    except OSError as error:
        raise MediaError(name, "missing", error.strerror or str(error)) from error
    except ValueError as error:
        # A name with a null character.
        raise MediaError(name, "missing", str(error)) from error
    if not os.path.isfile(name):
        raise MediaError(name, "missing", "this is not a file")
    if not os.access(name, os.R_OK):
        raise MediaError(name, "missing", "permission denied")
    if size == 0:
        raise MediaError(name, "empty", "the file has 0 bytes; fetch it again")
    return name


def probe_video(path: str) -> MediaInfo:
    """`probe` of a video file that exists."""
    with opened(path) as (container, stream):
        codec, container_name = stream.codec_context.name, container.format.name
        _check_area(path, stream.codec_context.width, stream.codec_context.height)
        rate = stream.average_rate or stream.guessed_rate
        if container_name in _RAW:
            # The demuxer stamps a rate of its own on these; only the decoder reads the one in the stream.
            rate = stream.guessed_rate or rate
        grid = _indexed(stream, os.path.getsize(path))
        given = _shown(path, container, stream)
        table = _table(islice(given, _HEAD) if grid else given)
        clock = _clock(table, stream.time_base, rate, container_name in _UNTIMED)
        if scanned := grid is None or not _agrees(grid, clock.stamps, len(table)):
            import numpy as np

            table = np.concatenate([table, _table(given)])
            clock = _clock(table, stream.time_base, rate, container_name in _UNTIMED)
    if scanned:
        check_end(path)
    if not len(clock.stamps):
        raise MediaError(path, "damaged", "the video stream holds no frames")
    stamps, keys = clock.stamps, _keys(table)
    if grid is not None and not scanned:
        stamps, keys = grid.stamps(int(stamps[0])), grid.keys(int(stamps[0]))
    if int(stamps[-1]) - int(stamps[0]) >= 2**53:
        raise MediaError(path, "damaged", "its presentation times lie further apart than any clock can tell")
    frame, aspect, broken = first_frame(path)
    if not clock.ordinal and (not broken or container_name in _STREAMED):
        stamps = stamps[_leading(stamps, table, frame.pts) :]
    up, hdr = orientation(frame), _HDR.get(frame.color_trc, "")
    wide, tall = max(1, round(frame.width * aspect)), frame.height
    if up.swaps_sides:
        wide, tall = tall, wide
    exact = clock.counted or (grid is not None and not scanned)
    fps, duration, constant = _rate(stamps, clock.time_base, rate, None if exact else _last_duration(table))
    return MediaInfo(
        path=path, kind="video", width=wide, height=tall, codec=codec, container=container_name, pixel_format=frame.format.name,
        rotation=up.rotation, mirrored=up.mirrored, sample_aspect=aspect, hdr=hdr, frames=len(stamps), fps=fps, duration=duration,
        start=float(int(stamps[0]) * clock.time_base), constant=constant, scanned=scanned, time_base=clock.time_base, stamps=stamps,
        ordinal=clock.ordinal, keys=None if clock.ordinal else keys,
    )  # fmt: skip


def _check_area(path: str, width: int, height: int) -> None:
    from evr1_core.media.image import MAX_PIXELS

    if width * height > MAX_PIXELS:
        raise MediaError(path, "unsupported", f"{width}x{height} pixels; at most {MAX_PIXELS:,} are decoded")


def first_frame(path: str) -> tuple[Any, Fraction, int]:
    """The first frame shown, the aspect of its pixels, and how many packets before it were broken. It is the only one that a probe
    decodes, and it alone tells rotation and real size."""
    import av.error

    broken = 0
    with opened(path) as (container, stream):
        stream.thread_type = "NONE"
        for packet in packets(container, stream):
            try:
                frames = packet.decode()
            except av.error.InvalidDataError:
                # How much of the file is whole is for the decoder to say.
                broken += 1
                continue
            if frames:
                _check_area(path, frames[0].width, frames[0].height)
                # FFmpeg's rule: what the container says comes before what the codec says.
                aspect = stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio
                return frames[0], aspect if aspect and aspect > 0 else Fraction(1), broken
    raise MediaError(path, "damaged", "0 frames could be decoded")


@dataclass(frozen=True, slots=True)
class _Grid:
    """A constant rate as the container's index tells it."""

    frames: int
    step: int
    key_places: tuple[int, ...]
    """Places of the key frames in decode order."""

    def keys(self, first: int) -> np.ndarray:
        """Presentation times of the key frames, taking their delay after decoding to be that of the first frame."""
        import numpy as np

        return first + self.step * np.array(self.key_places, dtype=np.int64)

    def stamps(self, first: int) -> np.ndarray:
        import numpy as np

        return first + self.step * np.arange(self.frames, dtype=np.int64)


def _indexed(stream: Any, size: int) -> _Grid | None:
    """The constant grid in the container's index, or None when there is no full index, no one rate, frames that aren't shown, or more
    frames than the file has bytes."""
    entries = stream.index_entries
    if not stream.frames or len(entries) != stream.frames or not 2 <= len(entries) <= min(MAX_FRAMES, size):
        return None
    step, previous = entries[1].timestamp - entries[0].timestamp, entries[0].timestamp
    if step <= 0:
        return None
    keys = [0]
    for place, entry in enumerate(islice(entries, 1, None), 1):
        if entry.is_discard or entry.timestamp - previous != step:
            return None
        previous = entry.timestamp
        if entry.is_keyframe:
            keys.append(place)
    return None if entries[0].is_discard else _Grid(len(entries), step, tuple(keys))


def _agrees(grid: _Grid, stamps: np.ndarray, count: int) -> bool:
    """Whether the first packets lie on the grid. The last ones of the head may miss a neighbour that comes later in the file."""
    import numpy as np

    if len(stamps) != count:
        return False
    settled = stamps if count >= grid.frames else stamps[: max(2, count - 16)]
    return bool(np.all(np.diff(settled) == grid.step))


def _leading(stamps: np.ndarray, table: np.ndarray, first: int | None) -> int:
    """How many frames at the beginning no decoder can show, since what they refer to lies before the file: those of a recording that
    begins between two key frames, or of a cut at an open group of pictures. `first` is the time of the first frame that came."""
    import numpy as np

    keyed = table["pts"][table["key"]]
    if first is None or not len(keyed):
        return 0
    return int(np.searchsorted(stamps, min(first, int(keyed[0]))))


def _shown(path: str, container: Any, stream: Any) -> Iterator[tuple[int, int, int, bool]]:
    """(pts, dts, duration, is a key frame) of every packet that is shown, in file order.

    Raises MediaError: damaged, when there are more of them than bytes in the file; unsupported, above `MAX_FRAMES`.
    """
    hidden_alt, size, count = stream.codec_context.name in ("vp8", "libvpx"), os.path.getsize(path), 0
    for packet in packets(container, stream):
        if not packet.size or packet.is_discard:
            continue
        # VP8 keeps reference pictures that are never shown in packets of their own; bit 4 of the first byte tells.
        if hidden_alt and not bytes(packet)[0] & 0x10:
            continue
        count += 1
        if count > size:
            raise MediaError(path, "damaged", f"its index names more frames than the file has bytes ({size})")
        if count > MAX_FRAMES:
            raise MediaError(path, "unsupported", f"more than {MAX_FRAMES:,} frames; cut it into parts")
        yield (
            _UNKNOWN if packet.pts is None else packet.pts, _UNKNOWN if packet.dts is None else packet.dts,
            packet.duration or 0, packet.is_keyframe,
        )  # fmt: skip


def _table(shown: Iterator[tuple[int, int, int, bool]]) -> np.ndarray:
    """Packets as an array with the fields pts, dts, duration and key: 25 bytes each, however many there are."""
    import numpy as np

    return np.fromiter(shown, [("pts", "i8"), ("dts", "i8"), ("duration", "i8"), ("key", "?")])


def _keys(table: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.unique(table["pts"][table["key"] & (table["pts"] != _UNKNOWN)])


@dataclass(frozen=True, slots=True)
class _Clock:
    stamps: np.ndarray
    """Presentation times in display order, each once."""
    time_base: Fraction
    ordinal: bool
    """Whether frames must be counted for want of presentation times."""
    counted: bool = False
    """Whether there are no times of any kind, and `time_base` is the length of a frame."""


def _clock(table: np.ndarray, time_base: Fraction, rate: Fraction | None, untimed: bool) -> _Clock:
    """When the frames of the packets are shown. Where the file gives no times at all, they follow each other at `rate`, else at 25 a
    second, the rate FFmpeg assumes."""
    import numpy as np

    if not untimed and not (table["pts"] == _UNKNOWN).any():
        return _Clock(np.unique(table["pts"]), time_base, False)
    given = np.unique(table["dts"])
    if len(given) == len(table) and (not len(given) or given[0] != _UNKNOWN):
        return _Clock(given, time_base, True)
    return _Clock(np.arange(len(table), dtype=np.int64), 1 / Fraction(rate or 25), True, True)


def _last_duration(table: np.ndarray) -> int:
    """Ticks that the frame shown last stays on screen, by its packet; 0 when unknown."""
    import numpy as np

    times = np.where(table["pts"] == _UNKNOWN, table["dts"], table["pts"])
    return max(0, int(table["duration"][np.argmax(times)]))


def _rate(stamps: np.ndarray, time_base: Fraction, average: Fraction | None, last: int | None) -> tuple[float, float, bool]:
    """(fps, duration in seconds, constant). `last` is the length of the last frame in ticks; None for an exact grid."""
    import numpy as np

    count, tick = len(stamps), float(time_base)
    if count == 1:
        seconds = (last or 0) * tick or (1 / float(average) if average else 0.0)
        return (1 / seconds if seconds else 0.0), seconds, True
    step = int(stamps[-1] - stamps[0]) / (count - 1)
    constant = bool(np.max(np.abs(stamps - stamps[0] - step * np.arange(count))) <= step / 2)
    if not constant:
        duration = (int(stamps[-1] - stamps[0]) + (last or step)) * tick
        return count / duration, duration, False
    fps = Fraction(count - 1) / (int(stamps[-1] - stamps[0]) * time_base)
    # Clocks of a millisecond round the step: the container's own rate is the better number where it explains all stamps.
    if last is not None and average and abs((count - 1) / average / time_base - int(stamps[-1] - stamps[0])) <= 1:
        fps = average
    return float(fps), float(count / fps), True
