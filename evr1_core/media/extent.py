"""How long a container says its file is: what tells a stopped download from a whole video where no index counts the frames."""

from __future__ import annotations

import os
from typing import BinaryIO

_BOXES = 1_000_000
"""Boxes of an MP4 that are looked at: more than a day of one-second fragments."""


def missing_bytes(path: str) -> int:
    """Bytes that the headers of `path` promise beyond its end; 0 for whole files, for formats that promise nothing (MPEG-TS, raw
    streams) and for recordings that leave the length open.

    Matroska and WebM: the size of the segment (RFC 9559). MP4 and MOV: the size of the last box (ISO/IEC 14496-12). AVI: that of the
    first RIFF chunk.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(12)
        file.seek(0)
        if head.startswith(b"\x1aE\xdf\xa3"):
            end = _segment_end(file, size)
        elif head[:4] == b"RIFF":
            end = 8 + int.from_bytes(head[4:8], "little")
        elif head[4:8] in (b"ftyp", b"styp", b"moov", b"mdat", b"free", b"wide"):
            end = _last_box_end(file, size)
        else:
            end = 0
    return max(0, end - size)


def _segment_end(file: BinaryIO, size: int) -> int:
    file.seek(4)
    head = _length(file)
    if head is None or head > size:
        return 0
    file.seek(head, os.SEEK_CUR)
    if file.read(4) != b"\x18\x53\x80\x67":
        return 0
    length = _length(file)
    return 0 if length is None else file.tell() + length


def _length(file: BinaryIO) -> int | None:
    """A variable-length EBML size; None when it is left open (all ones) or no size."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    more = 8 - first[0].bit_length()
    value = int.from_bytes(bytes([first[0] & ((1 << (7 - more)) - 1)]) + file.read(more), "big")
    return None if value == (1 << 7 * (more + 1)) - 1 else value


def _last_box_end(file: BinaryIO, size: int) -> int:
    place = 0
    for _ in range(_BOXES):
        file.seek(place)
        head = file.read(16)
        # Less than a box, and what is no box, may follow the last one.
        if len(head) < 8 or not head[4:8].isalnum():
            break
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8:
            break
        place += length
        if place >= size:
            break
    return place
