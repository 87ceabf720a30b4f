"""Frames of a video file: forward only, only the wanted frames converted, long stretches without any jumped over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from evr1_core.errors import MediaError
from evr1_core.media import resize
from evr1_core.media.probe import MediaInfo, clockwise, opened

if TYPE_CHECKING:
    import numpy as np

THREADS = 2
"""Threads of one decoder. Output does not depend on it."""

WORTH_A_JUMP = 24
"""Frames that a jump must save: less than that costs more than it gains, since the decoder starts anew."""


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
    wanted = list(indices) if info.ordinal else [int(info.stamps[index]) for index in indices]
    out = np.empty((len(indices), 3, height, width), np.uint8)
    # Jumps are a short cut: where one does not lead to the frame it was meant for, everything is decoded from the beginning.
    if any(_saved(info, here, there) for here, there in pairwise([None, *wanted])) and _Pass(info, wanted, out, until, True).run():
        return out
    walk = _Pass(info, wanted, out, until, False)
    if walk.run():
        return out
    raise MediaError(info.path, "damaged", f"{walk.seen} of {info.frames} frames could be decoded; {walk.broken} broken packets")


def _saved(info: MediaInfo, here: int | None, there: int | None) -> int:
    """Frames that a jump from the frame at `here` (None: the beginning) to the last key frame before `there` spares the decoder;
    0 when that is no gain."""
    import numpy as np

    if info.keys is None or info.stamps is None or there is None:
        return 0
    place = int(np.searchsorted(info.keys, there, side="right")) - 1
    behind = 0 if here is None else int(np.searchsorted(info.stamps, here, side="right"))
    saved = int(np.searchsorted(info.stamps, info.keys[place])) - behind if place >= 0 else 0
    return saved if saved >= WORTH_A_JUMP else 0


class _Pass:
    """One way through a file, forward: the frames with the presentation times `wanted` (increasing) go to `out`."""

    def __init__(self, info: MediaInfo, wanted: list[int], out: np.ndarray, until: float | None, jumping: bool) -> None:
        self.info, self.wanted, self.out, self.until, self.jumping = info, wanted, out, until, jumping
        self.seen = 0
        """Frames that came out of the decoder."""
        self.broken = 0

    def run(self) -> bool:
        """Whether every wanted frame was found and nothing on the way was broken."""
        with opened(self.info.path) as (container, stream):
            stream.thread_type, stream.codec_context.thread_count = "AUTO", THREADS
            if not self.jumping:
                return self._walk(container, stream, self.wanted, 0)
            return all(self._walk(container, stream, *leg) for leg in self._legs(container, stream))

    def _legs(self, container: Any, stream: Any) -> Iterator[tuple[list[int], int]]:
        """(wanted, place of the first) of each run of frames without a jump; the file stands where the run begins."""
        first, here = 0, None
        while first < len(self.wanted):
            if _saved(self.info, here, self.wanted[first]):
                container.seek(self.wanted[first], stream=stream)
            last = first + 1
            while last < len(self.wanted) and not _saved(self.info, self.wanted[last - 1], self.wanted[last]):
                last += 1
            yield self.wanted[first:last], first
            first, here = last, self.wanted[last - 1]

    def _walk(self, container: Any, stream: Any, wanted: list[int], first: int) -> bool:
        places = {moment: first + place for place, moment in enumerate(wanted)}
        for frame in self._frames(container, stream):
            if frame is None:
                self.broken += 1
                if self.jumping:
                    return False
                continue
            moment = self.seen if self.info.ordinal else frame.pts
            self.seen += 1
            place = places.pop(moment, None)
            if place is not None:
                self.out[place] = upright_rgb(frame, *self.out.shape[2:]).transpose(2, 0, 1)
                self.broken += frame.is_corrupt
            if not places and not self.broken:
                return True
            if self.jumping and moment is not None and moment > wanted[-1]:
                return False
        return False

    def _frames(self, container: Any, stream: Any) -> Iterator[Any]:
        """Every frame in display order; None for a packet that could not be decoded."""
        import av.error

        for packet in container.demux(stream):
            if self.until is not None and time.monotonic() > self.until:
                raise MediaError(self.info.path, "timeout", "the decode did not end in time")
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
