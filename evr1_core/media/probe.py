"""What a media file says about itself: size, frames and clock, from its headers and at most one decoded frame.

Containers that hold a trustworthy index (MP4, AVI) are believed after a look at their first packets. All others, and files whose
frames come at a varying rate, get one scan of their packets, without decoding: presentation times, sorted once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from evr1_core.errors import MediaError

if TYPE_CHECKING:
    import numpy as np

_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpegts,mpeg,flv,asf,ogg,ivf,rm,h264,hevc,m4v"
"""Containers that are opened. Playlists are left out: they name other files and addresses."""
_UNTIMED = ("avi", "h264", "hevc", "m4v")
"""Containers without presentation times: the times of their packets are in decode order, so frames are told apart by counting."""
_HEAD = 48
"""Packets that must agree with the header before it is believed; more than any reordering depth."""


@dataclass(frozen=True, eq=False)
class MediaInfo:
    """One image or one video stream."""

    path: str
    kind: Literal["image", "video"]
    width: int
    """Pixels as displayed: after the rotation."""
    height: int
    codec: str
    container: str
    pixel_format: str = ""
    rotation: int = 0
    """Degrees clockwise that make the picture upright: 0, 90, 180 or 270."""
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
        return (self.stamps - self.stamps[0]) * self.time_base.numerator / self.time_base.denominator


def probe(path: str | os.PathLike[str], kind: Literal["image", "video"] | None = None) -> MediaInfo:
    """Read what `path` is. Without `kind` the content decides; an animated GIF is then a video.

    Raises MediaError: missing, empty, damaged, unsupported.
    """
    from evr1_core.media.image import probe_image, sniff_image

    name = check_file(path)
    signature = sniff_image(name)
    if kind == "image" or (kind is None and signature not in ("", "GIF")):
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
    if not os.path.isfile(name):
        raise MediaError(name, "missing", "this is not a file")
    if not os.access(name, os.R_OK):
        raise MediaError(name, "missing", "permission denied")
    if size == 0:
        raise MediaError(name, "empty", "the file has 0 bytes; fetch it again")
    return name


@contextmanager
def opened(path: str) -> Iterator[tuple[Any, Any]]:
    """(container, video stream) of `path`, closed at the end; errors of the library become MediaError."""
    import av
    import av.error

    try:
        # An absolute path can't be read as the name of a protocol.
        with av.open(os.path.abspath(path), options={"format_whitelist": _FORMATS, "protocol_whitelist": "file"}) as container:
            yield container, _stream(path, container)
    except (av.error.InvalidDataError, av.error.EOFError) as error:
        raise MediaError(path, "damaged", "not a video file, or its header is incomplete (a stopped download?)") from error
    except av.error.ArgumentError as error:
        raise MediaError(path, "unsupported", "the container format isn't one that is read here") from error
    except (av.error.DecoderNotFoundError, av.error.PatchWelcomeError) as error:
        raise MediaError(path, "unsupported", f"no decoder for this codec: {error.strerror}") from error
    except av.error.FFmpegError as error:
        raise MediaError(path, "damaged", (error.strerror or type(error).__name__)[:200]) from error


def _stream(path: str, container: Any) -> Any:
    from av.stream import Disposition

    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            if stream.codec_context is None:
                raise MediaError(path, "unsupported", "the codec of the video stream has no decoder here")
            return stream
    kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "none"
    raise MediaError(path, "unsupported", f"no video stream (streams: {kinds})")


def clockwise(frame: Any) -> int:
    """Degrees clockwise that make a decoded frame upright. The library gives the angle counter-clockwise."""
    return round(-frame.rotation / 90) % 4 * 90


def probe_video(path: str) -> MediaInfo:
    """`probe` of a video file that exists."""
    with opened(path) as (container, stream):
        codec, container_name = stream.codec_context.name, container.format.name
        untimed = container_name in _UNTIMED
        time_base, average = stream.time_base, stream.average_rate or stream.guessed_rate
        grid = _indexed(stream)
        head = list(islice(_packets(container, stream), _HEAD if grid else None))
        stamps, ordinal = _sorted_stamps(head, untimed)
        scanned = grid is None or not _agrees(grid, stamps, len(head))
        if scanned and grid is not None:
            head += _packets(container, stream)
            stamps, ordinal = _sorted_stamps(head, untimed)
    keys = _keys(head)
    if grid is not None and not scanned:
        stamps, keys = grid.stamps(int(stamps[0])), grid.keys(int(stamps[0]))
    if not len(stamps):
        raise MediaError(path, "damaged", "the video stream holds no frames")
    frame = first_frame(path)
    rotation = clockwise(frame)
    wide, tall = (frame.height, frame.width) if rotation in (90, 270) else (frame.width, frame.height)
    fps, duration, constant = _rate(stamps, time_base, average, None if grid and not scanned else _last_duration(head))
    return MediaInfo(
        path=path, kind="video", width=wide, height=tall, codec=codec, container=container_name, pixel_format=frame.format.name,
        rotation=rotation, frames=len(stamps), fps=fps, duration=duration, start=float(stamps[0] * time_base), constant=constant,
        scanned=scanned, time_base=time_base, stamps=stamps, ordinal=ordinal, keys=None if ordinal else keys,
    )  # fmt: skip


def first_frame(path: str) -> Any:
    """The first frame shown: the only one that a probe decodes. It alone tells rotation and real size."""
    with opened(path) as (container, stream):
        stream.thread_type = "NONE"
        for frame in container.decode(stream):
            return frame
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


def _indexed(stream: Any) -> _Grid | None:
    """The constant grid in the container's index, or None when there is no full index, no one rate, or frames that aren't shown."""
    entries = stream.index_entries
    if not stream.frames or len(entries) != stream.frames or len(entries) < 2:
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


def _agrees(grid: _Grid, stamps: np.ndarray, packets: int) -> bool:
    """Whether the first packets lie on the grid. The last ones of the head may miss a neighbour that comes later in the file."""
    import numpy as np

    if len(stamps) != packets:
        return False
    settled = stamps if packets >= grid.frames else stamps[: max(2, packets - 16)]
    return bool(np.all(np.diff(settled) == grid.step))


_Packet = tuple[int | None, int | None, int | None, bool]


def _packets(container: Any, stream: Any) -> Iterator[_Packet]:
    """(pts, dts, duration, is a key frame) of every packet that is shown, in file order."""
    hidden_alt = stream.codec_context.name in ("vp8", "libvpx")
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard:
            continue
        # VP8 keeps reference pictures that are never shown in packets of their own; bit 4 of the first byte tells.
        if hidden_alt and not bytes(packet)[0] & 0x10:
            continue
        yield packet.pts, packet.dts, packet.duration, packet.is_keyframe


def _keys(packets: list[_Packet]) -> np.ndarray:
    import numpy as np

    return np.unique(np.array([pts for pts, _, _, key in packets if key and pts is not None], dtype=np.int64))


def _sorted_stamps(packets: list[_Packet], untimed: bool) -> tuple[np.ndarray, bool]:
    """Presentation times in display order, each once, and whether frames must be counted for want of them."""
    import numpy as np

    if untimed or any(pts is None for pts, _, _, _ in packets):
        given = [dts for _, dts, _, _ in packets]
        known = all(dts is not None for dts in given) and len(set(given)) == len(given)
        return np.array(sorted(given) if known else range(len(given)), dtype=np.int64), True  # type: ignore[type-var]
    return np.unique(np.array([pts for pts, _, _, _ in packets], dtype=np.int64)), False


def _last_duration(packets: list[_Packet]) -> int:
    """Ticks that the frame shown last stays on screen, by its packet; 0 when unknown."""
    return max(packets, key=lambda packet: packet[0] if packet[0] is not None else packet[1] or 0)[2] or 0


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
