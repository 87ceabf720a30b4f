"""Opening a container: what is opened, and what the library's errors mean."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from evr1_core.errors import MediaError
from evr1_core.media.extent import missing_bytes

_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpegts,mpeg,flv,asf,ogg,ivf,rm,h264,hevc,m4v"
"""Containers that are opened. Playlists are left out: they name other files and addresses."""


@contextmanager
def opened(path: str) -> Iterator[tuple[Any, Any]]:
    """(container, video stream) of `path`, closed at the end; errors of the library become MediaError."""
    import av

    with _explained(path, "not a video file, or its header is incomplete (a stopped download?)"):
        # An absolute path can't be read as the name of a protocol. Titles and names in other encodings than UTF-8 are common.
        options = {"format_whitelist": _FORMATS, "protocol_whitelist": "file"}
        container = av.open(os.path.abspath(path), options=options, metadata_errors="replace")
    with container, _explained(path, "the data after the header can't be read"):
        yield container, _stream(path, container)


def packets(container: Any, stream: Any) -> Iterator[Any]:
    """The packets of `stream` in file order; the last one is empty and makes the decoder give what it holds."""
    try:
        yield from container.demux(stream)
    except IndexError:
        # PyAV 18 stumbles over streams that appear in the middle of a file, after the last packet of those that it knew.
        return


def check_end(path: str) -> None:
    """Raise MediaError (damaged) for a file that is shorter than its headers say."""
    if missing := missing_bytes(path):
        raise MediaError(path, "damaged", f"the end of the file is missing: {missing} bytes that its headers promise (a stopped download?)")


@contextmanager
def _explained(path: str, invalid: str) -> Iterator[None]:
    import av.error

    try:
        yield
    except (av.error.InvalidDataError, av.error.EOFError) as error:
        raise MediaError(path, "damaged", invalid) from error
    except av.error.ArgumentError as error:
        raise MediaError(path, "unsupported", "the container format isn't one that is read here") from error
    except (av.error.DecoderNotFoundError, av.error.PatchWelcomeError) as error:
        raise MediaError(path, "unsupported", f"no decoder for this codec: {error.strerror}") from error
    except av.error.FileNotFoundError as error:
        raise MediaError(path, "missing", "it went away while it was read") from error
    except av.error.FFmpegError as error:
        if error.errno == errno.EIO:
            check_end(path)
        raise MediaError(path, "damaged", (error.strerror or type(error).__name__)[:200]) from error


def _stream(path: str, container: Any) -> Any:
    from av.stream import Disposition

    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            if stream.codec_context is None:
                check_end(path)
                raise MediaError(path, "unsupported", f"codec {_codec_name(container, stream)} has no decoder here; convert it to H.264")
            return stream
    check_end(path)
    kinds = ", ".join(sorted({stream.type for stream in container.streams}))
    if not kinds:
        raise MediaError(path, "damaged", "its header names no streams")
    raise MediaError(path, "unsupported", f"no video stream (streams: {kinds})")


def _codec_name(container: Any, stream: Any) -> str:
    """Name or four-character code of a codec without a decoder. Only the library's own description of the file tells it."""
    import av.logging

    level = av.logging.get_level()
    av.logging.set_level(av.logging.INFO)
    try:
        described = container.dumps_format()
    finally:
        av.logging.set_level(level)
    found = re.search(rf"Stream #0:{stream.index}\b.*?: Video: (\w+)(?: \((\w+))?", described)
    name, code = found.groups() if found else ("", "")
    return (name if name not in ("", "none") else code) or "unknown"
