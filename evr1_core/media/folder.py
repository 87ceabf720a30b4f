"""A video that is given as a folder of pictures at a known rate: its frames are the picture files in the order of their numbers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from evr1_core.errors import MediaError
from evr1_core.media.image import decode_image, probe_image
from evr1_core.media.probe import MAX_FRAMES, MediaInfo, check_file

if TYPE_CHECKING:
    import numpy as np

    from evr1_core.types import MediaRef

CONTAINER = "folder"
"""`MediaInfo.container` of such a video."""

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".avif")


def check_source(ref: MediaRef) -> str:
    """The path of `ref`, after making sure that a readable file lies there, or a folder with pictures where it has a rate.

    Raises MediaError: missing, empty, unsupported.
    """
    if ref.fps is None:
        return check_file(ref.path)
    if not os.path.isdir(ref.path):
        why = "it has a rate of pictures, so it must be a folder of them, and is a file" if os.path.exists(ref.path) else "no such folder"
        raise MediaError(ref.path, "unsupported" if os.path.exists(ref.path) else "missing", why)
    pictures(ref.path)
    return ref.path


def pictures(path: str) -> list[str]:
    """Names of the pictures of a folder, by their numbers: `2.jpg` comes before `10.jpg`; hidden files don't count.

    Raises MediaError: missing (no permission, for example), empty, unsupported (too many).
    """
    try:
        names = os.listdir(path)
    except OSError as error:
        raise MediaError(path, "missing", error.strerror or str(error)) from error
    found = sorted((name for name in names if name.lower().endswith(_SUFFIXES) and not name.startswith(".")), key=_numbers)
    if not found:
        raise MediaError(path, "empty", f"the folder holds no pictures ({', '.join(_SUFFIXES)})")
    if len(found) > MAX_FRAMES:
        raise MediaError(path, "unsupported", f"more than {MAX_FRAMES:,} pictures; cut it into parts")
    return found


def _numbers(name: str) -> tuple[list[tuple[int, str]], str]:
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts], name


def probe_folder(path: str, fps: float) -> MediaInfo:
    """Size by the first picture, the clock by the rate. Raises MediaError as `probe` does."""
    import numpy as np

    names = pictures(path)
    first = probe_image(os.path.join(path, names[0]))
    step = 1 / Fraction(fps).limit_denominator(1_000_000)
    return MediaInfo(
        path=path, kind="video", width=first.width, height=first.height, codec=first.codec, container=CONTAINER,
        pixel_format=first.pixel_format, frames=len(names), fps=float(1 / step), duration=float(len(names) * step),
        time_base=step, stamps=np.arange(len(names), dtype=np.int64),
    )  # fmt: skip


class FolderDecode:
    """Iterates over (place among `indices`, uint8 [3, height, width]), as `decode.VideoDecode` does.

    Pictures that can't be read, or have another size than the first, don't come. `until` is a moment of `time.monotonic`, looked
    at between two pictures. Raises MediaError: timeout.
    """

    def __init__(self, info: MediaInfo, indices: Sequence[int], height: int, width: int, until: float | None = None) -> None:
        self.info, self.indices, self.height, self.width, self.until = info, indices, height, width, until
        self.broken: list[str] = []
        """What is wrong with the pictures that didn't come."""

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        names = pictures(self.info.path)
        for place, index in enumerate(self.indices):
            if self.until is not None and time.monotonic() > self.until:
                raise MediaError(self.info.path, "timeout", f"the deadline passed after {place} of {len(self.indices)} pictures")
            try:
                yield place, self._picture(os.path.join(self.info.path, names[index]))
            except MediaError as error:
                if error.code == "timeout":
                    raise
                self.broken.append(f"{os.path.basename(error.path)}: {error.reason}")

    def _picture(self, path: str) -> np.ndarray:
        size = probe_image(path)
        if (size.height, size.width) != (self.info.height, self.info.width):
            raise MediaError(path, "damaged", f"{size.width}x{size.height} pixels, the first has {self.info.width}x{self.info.height}")
        return decode_image(path, self.height, self.width)[0]

    def damage(self) -> str:
        return f"{len(self.broken)} of {len(self.indices)} chosen pictures can't be used; {self.broken[0] if self.broken else ''}"
