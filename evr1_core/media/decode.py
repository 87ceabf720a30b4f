"""Frames of a video file as they are decoded: forward only, only the wanted frames converted, none kept.

Two short cuts spare work, and both are left at the first sign that they don't lead to the frames of a plain walk: long stretches
without a wanted frame are jumped over by key frame, and pictures that no other picture refers to are not decoded where nobody wants
them. What is still wanted then comes from a careful walk: one thread, every packet from the beginning, and a record of what was broken.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from evr1_core.errors import MediaError
from evr1_core.media import resize
from evr1_core.media.container import opened, packets
from evr1_core.media.orientation import Orientation
from evr1_core.media.probe import MediaInfo

if TYPE_CHECKING:
    import numpy as np

WORTH_A_JUMP = 24
"""Frames that a jump must save: less than that costs more than it gains, since the decoder starts anew."""

SKIPPABLE = ("h264",)
"""Codecs whose stream says of each picture, for certain, whether another one refers to it. (In HEVC the mark holds within one
temporal layer only.)"""

PLANAR = ("yuv420p", "yuvj420p")
"""Formats that libswscale gives the same RGB in planes, which the resize works on, as in triples. Only for widths of whole vectors: it
spoils the last columns of others."""

MOST_REORDERED = 16
"""Frames that H.264 and HEVC may keep back to show others first."""

AHEAD = 8
"""Decoded frames that wait for their conversion at most."""

Frames = Generator[tuple[int, "np.ndarray"], None, bool]


def decoder_version(kind: str) -> str:
    """Name and version of everything that turns bytes of the file into pixels; a part of every cache key."""
    if kind == "image":
        return f"{resize.method()}-upright"
    import av

    codec = ".".join(str(part) for part in av.library_versions["libavcodec"])
    return f"pyav-{av.__version__}-avcodec-{codec}-{resize.method()}-oriented"


def decode_video(
    info: MediaInfo, indices: Sequence[int], height: int, width: int, until: float | None = None, threads: int = 1
) -> np.ndarray:  # fmt: skip
    """uint8 [len(indices), 3, height, width] of the frames `indices`, all in memory; parameters and errors as for `VideoDecode`.

    Raises MediaError: damaged (names how many frames could be decoded), when one of them is missing.
    """
    import numpy as np

    out = np.empty((len(indices), 3, height, width), np.uint8)
    walk, found = VideoDecode(info, indices, height, width, until, threads), 0
    for place, frame in walk:
        out[place] = frame
        found += 1
    if found < len(indices):
        raise MediaError(info.path, "damaged", walk.damage())
    return out


class VideoDecode:
    """Iterates over (place among `indices`, uint8 [3, height, width]): RGB, upright, in order, each as soon as it is decoded.

    `indices` are increasing, in display order. Frames that can't be decoded, that the decoder marks as corrupt, or that lie between
    a broken packet and the next key frame don't come; `damage` then says what was found. `until` is a moment of `time.monotonic`
    after which the decode gives up between two packets. The frames don't depend on `threads`; with more than one, frames are
    converted and resized beside the decoder. Raises MediaError: timeout, damaged and unsupported as `opened` does.
    """

    def __init__(
        self, info: MediaInfo, indices: Sequence[int], height: int, width: int, until: float | None = None, threads: int = 1
    ) -> None:
        if info.stamps is None:
            raise TypeError(f"{info.path} is an image")
        self.info, self.until, self.threads = info, until, threads
        self.turn, self.height, self.width = Orientation(info.rotation, info.mirrored), height, width
        self.seen = 0
        """Frames that came out of the decoder in the last walk."""
        self.spoilt = 0
        """Those of them that something broken reaches."""
        self.broken = 0
        """Packets that were broken in the last walk."""
        self._wanted = list(indices) if info.ordinal else [int(info.stamps[index]) for index in indices]
        self._place = 0
        """The place of the first wanted frame that has neither come nor been passed."""
        self._given = -1

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        with ThreadPoolExecutor(1) if self.threads > 1 else nullcontext() as beside:
            if not (yield from self._run(False, beside)):
                self._place = self._given + 1
                yield from self._run(True, beside)

    def upright(self, frame: Any) -> np.ndarray:
        return upright_rgb(frame, self.turn, self.height, self.width)

    def damage(self) -> str:
        """What the walk to the end of the file found."""
        return f"{self.seen - self.spoilt} of {self.info.frames} frames could be decoded; {self.broken} broken packets"

    def _run(self, careful: bool, beside: ThreadPoolExecutor | None) -> Frames:
        """One way through the file; whether all that is wanted came."""
        import av.error

        self.seen = self.spoilt = self.broken = 0
        alone = careful or self.threads == 1
        with opened(self.info.path) as (container, stream):
            stream.thread_type, stream.codec_context.thread_count = ("NONE", 1) if alone else ("AUTO", self.threads)
            if careful:
                return (yield from _Walk(self, container, stream, len(self._wanted), True, beside).frames())
            while self._place < len(self._wanted):
                key = self._jump(self._place)
                if key is not None:
                    try:
                        container.seek(key, stream=stream)
                    except av.error.FFmpegError:
                        return False
                last = self._place + 1
                while last < len(self._wanted) and self._jump(last) is None:
                    last += 1
                if not (yield from _Walk(self, container, stream, last, False, beside, key is not None).frames()):
                    return False
        return True

    def _jump(self, place: int) -> int | None:
        """The presentation time of the key frame to jump to for the wanted frame at `place`, or None where that is no gain."""
        import numpy as np

        # Pictures of a GIF are painted over each other, whatever their packets say.
        if self.info.keys is None or self.info.stamps is None or self.info.container == "gif":
            return None
        key = int(np.searchsorted(self.info.keys, self._wanted[place], side="right")) - 1
        if key < 0:
            return None
        behind = int(np.searchsorted(self.info.stamps, self._wanted[place - 1], side="right")) if place else 0
        saved = int(np.searchsorted(self.info.stamps, self.info.keys[key])) - behind
        return int(self.info.keys[key]) if saved >= WORTH_A_JUMP else None


class _Walk:
    """One stretch of a file, from where the container stands to the wanted frame before `last`."""

    def __init__(
        self, decode: VideoDecode, container: Any, stream: Any, last: int, careful: bool, beside: ThreadPoolExecutor | None,
        jumped: bool = False,
    ) -> None:  # fmt: skip
        self.decode, self.container, self.stream = decode, container, stream
        self.careful, self.beside, self.jumped = careful, beside, jumped
        self.wanted, self.last = decode._wanted, last
        self.skips = not careful and not decode.info.ordinal and stream.codec_context.name in SKIPPABLE
        self.soon = set(islice(self.wanted, decode._place, last)) if self.skips else set()
        self.damage = _Damage(decode.info.ordinal)
        self.pending: deque[tuple[int, int, Future[np.ndarray] | Any]] = deque()
        """(place, moment, picture): a picture that others refer to may turn out corrupt only when it is shown, after them. So each
        waits until a frame of that moment is shown."""

    def frames(self) -> Frames:
        """Whether all that is wanted came; a short cut ends with False as soon as that is in doubt."""
        for frame in self._decoded():
            if frame is None or not self._take(frame):
                if not self.careful:
                    return False
                continue
            shown = self.decode.seen - 1 if self.decode.info.ordinal else frame.pts
            if shown is not None:
                yield from self._ready(shown)
            if self.decode._given == self.last - 1:
                return True
        yield from self._ready(sys.maxsize)
        return self.decode._given == self.last - 1

    def _take(self, frame: Any) -> bool:
        """Whether the frame is what a plain walk would give; if it is a wanted one, it is kept."""
        decode = self.decode
        moment = decode.seen if decode.info.ordinal else frame.pts
        decode.seen += 1
        if frame.is_corrupt:
            self.damage.mark(moment)
        decode.spoilt += frame.is_corrupt or (moment is not None and self.damage.reaches(moment))
        # The two fields of an interlaced picture may be packets with times of their own.
        if frame.is_corrupt or (self.skips and frame.interlaced_frame):
            return False
        if moment is None:
            return True
        while decode._place < self.last and self.wanted[decode._place] < moment:
            if not self.careful:
                return False
            decode._place += 1
        if decode._place < self.last and self.wanted[decode._place] == moment:
            self.pending.append(
                (decode._place, self.damage.settled(moment, self.stream.codec_context.has_b_frames > 0), self._converted(frame))
            )
            decode._place += 1
        return True

    def _converted(self, frame: Any) -> Any:
        if self.beside is None:
            return frame
        if len(self.pending) >= AHEAD:
            self.pending[-AHEAD][2].result()
        return self.beside.submit(self.decode.upright, frame)

    def _ready(self, shown: int) -> Iterator[tuple[int, np.ndarray]]:
        """What no frame after the one just shown can call in doubt."""
        decode = self.decode
        while self.pending and self.pending[0][1] <= shown:
            place, _, picture = self.pending.popleft()
            if self.damage.reaches(self.wanted[place]):
                continue
            decode._given = place
            yield place, picture.result() if self.beside else decode.upright(picture)

    def _decoded(self) -> Iterator[Any]:
        """Every frame in display order; None for a packet that is broken."""
        import av.error

        context = self.stream.codec_context
        for packet in self._packets():
            if packet is not None and self.skips:
                spare = packet.size and packet.pts is not None and packet.pts not in self.soon
                context.skip_frame = "NONREF" if spare else "DEFAULT"
            try:
                found = context.decode(packet)
            except av.error.InvalidDataError:
                found = None
            if found is None or (packet is not None and packet.is_corrupt):
                self._break(packet)
                yield None
            yield from found or ()

    def _packets(self) -> Iterator[Any]:
        """The packets from the first key frame on; None, which empties the decoder, where the file can't be read further."""
        import av.error

        decode, source = self.decode, packets(self.container, self.stream)
        while True:
            if decode.until is not None and time.monotonic() > decode.until:
                raise MediaError(decode.info.path, "timeout", "the decode did not end in time")
            try:
                packet = next(source, None)
            except av.error.MemoryError:
                raise
            except av.error.FFmpegError:
                self._break(None)
                yield None
                return
            if packet is None:
                return
            if self.jumped:
                if packet.size and not packet.is_keyframe:
                    continue
                self.jumped = False
                if packet.pts is None or packet.pts > self.wanted[decode._place]:
                    return
            self.damage.packet(packet)
            yield packet

    def _break(self, packet: Any) -> None:
        self.decode.broken += 1
        self.damage.mark(None if packet is None else packet.pts)


class _Damage:
    """Which frames a broken packet spoils: those of its group, from it on. A group begins at a key frame, in decode order; frames
    shown before that key frame also refer to the group before."""

    def __init__(self, ordinal: bool) -> None:
        self._ordinal = ordinal
        self._packets: dict[int, tuple[int, int, int]] = {}
        """presentation time: group, number of the packet, latest presentation time so far; of the last two groups."""
        self._latest = -sys.maxsize
        self._begins: dict[int, int | None] = {}
        self._broken: dict[int, int] = {}
        """group: number of its first broken packet."""
        self._group = self._count = 0
        self._all = False

    def packet(self, packet: Any) -> None:
        self._count += 1
        if packet.is_keyframe:
            self._group += 1
            self._begins[self._group] = packet.pts
            self._packets = {moment: at for moment, at in self._packets.items() if at[0] >= self._group - 1}
        if packet.pts is not None:
            self._latest = max(self._latest, packet.pts)
            self._packets[packet.pts] = self._group, self._count, self._latest

    def settled(self, moment: int, reorders: bool) -> int:
        """The moment at which every picture has been shown that the one shown at `moment` can refer to: none that came after it in
        the file. By counting, the most that any codec reorders."""
        if self._ordinal:
            return moment + MOST_REORDERED * reorders
        return self._packets[moment][2] if moment in self._packets else moment

    def mark(self, moment: int | None) -> None:
        """A broken packet, or a frame marked as corrupt. Where frames are told apart by counting, the count is lost with it."""
        self._all |= self._ordinal
        known = None if moment is None else self._packets.get(moment)
        group, number = (self._group, self._count) if known is None else known[:2]
        self._broken[group] = min(number, self._broken.get(group, number))

    def reaches(self, moment: int) -> bool:
        """Whether the frame shown at `moment` may be spoilt."""
        if self._all or not self._broken or moment not in self._packets:
            return self._all
        group, number, _ = self._packets[moment]
        begin = self._begins.get(group)
        leads = begin is not None and moment < begin
        return number >= self._broken.get(group, number + 1) or (leads and group - 1 in self._broken)


def upright_rgb(frame: Any, turn: Orientation, height: int, width: int) -> np.ndarray:
    """uint8 [3, height, width] of one decoded frame: 8-bit RGB, transparency on white, resized, turned upright.

    Resizing treats both axes and both directions alike, so the small picture is turned instead of the large one. (The side data of
    the frame itself is left alone: whoever looks at it makes a cycle of references that keeps the picture in memory.)
    """
    import numpy as np

    tall, wide = (width, height) if turn.swaps_sides else (height, width)
    picture = turn.upright(resize.resize_rgb(_rgb(frame), tall, wide))
    return np.ascontiguousarray(picture.transpose(2, 0, 1))


def _rgb(frame: Any) -> np.ndarray:
    import numpy as np

    if frame.format.name in PLANAR and not (frame.width % 16 or frame.height % 2):
        planes = frame.reformat(format="gbrp", threads=1).planes
        green, blue, red = (np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:, : frame.width] for plane in planes)
        return np.stack([red, green, blue]).transpose(1, 2, 0)
    if not any(component.is_alpha for component in frame.format.components) and not frame.format.has_palette:
        return frame.reformat(format="rgb24", threads=1).to_ndarray()
    picture = frame.reformat(format="rgba", threads=1).to_ndarray().astype(np.uint16)
    alpha = picture[..., 3:]
    return ((picture[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
