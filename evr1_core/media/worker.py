"""What a decoding process does: `python -m evr1_core.media.worker`, the child of `guard.DecodeGuard`.

It writes one byte when it is ready. Then it reads one request per line (JSON) and answers with messages: a length (4 bytes), JSON and,
for a frame, its raw bytes.

    {"info": ..., "plan": ...}       what the headers say
    {"frame": place} + bytes         each frame as soon as it is decoded; not when the frames go to the cache
    {"end": {...}}                   the places that came, what was stored; or {"error": code, "reason": text}

No more than a few frames are held at a time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evr1_core.errors import MediaError
from evr1_core.media.decode import VideoDecode, decoder_version
from evr1_core.media.entry import Codec, EntryWriter
from evr1_core.media.folder import CONTAINER, FolderDecode, probe_folder
from evr1_core.media.hashes import Fingerprint, unreadable
from evr1_core.media.image import decode_image
from evr1_core.media.plan import Plan, plan
from evr1_core.media.probe import MediaInfo, probe
from evr1_core.types import Budget, ImageBudget, MediaRef, PatchFactors, VideoBudget

if TYPE_CHECKING:
    import numpy as np

Send = Callable[[dict[str, Any], Any], None]
"""Takes a message and the frame that follows it, if any."""

_INFO = (
    "kind", "codec", "container", "pixel_format", "hdr", "width", "height", "rotation", "mirrored", "sample_aspect", "frames", "fps",
    "duration", "start", "constant", "scanned",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """Where in the frame cache the frames go."""

    directory: str
    key: str
    codec: Codec
    content_hash: str
    state: Fingerprint
    """The state of the file that the key belongs to."""
    temporary: str
    """The file to write to until the entry is complete; whoever asks removes it when this process is killed."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of one file."""

    path: str
    kind: Literal["image", "video"] | None
    """None: the content decides."""
    start: float | None
    end: float | None
    budget: Budget
    factors: PatchFactors
    frames: bool = True
    """Whether to decode; else the plan is all."""
    tolerate: float = 0.0
    """Share of the chosen frames that may be missing."""
    threads: int = 1
    """Decoder threads. The frames don't depend on it."""
    entry: EntryPlace | None = None
    """Store the frames instead of sending them."""
    fps: float | None = None
    """As in `MediaRef`."""

    @classmethod
    def parse(cls, given: dict[str, Any]) -> Request:
        limits, entry = given["budget"], given["entry"]
        return cls(
            **{
                **given,
                "budget": Budget(VideoBudget(**limits["video"]), ImageBudget(**limits["image"])),
                "factors": PatchFactors(**given["factors"]),
                "entry": entry and EntryPlace(**{**entry, "state": Fingerprint(**entry["state"])}),
            }
        )


def perform(request: Request, send: Send, until: float | None = None) -> None:
    """Do what is asked and send what comes of it. `until` is a moment of `time.monotonic`.

    Raises MediaError. When the entry can't be written, the end says so (`unstored`: errno and text).
    """
    try:
        try:
            info = probe(request.path, request.kind) if request.fps is None else probe_folder(request.path, request.fps)
        except OSError as error:
            raise unreadable(request.path, error) from error
        part = (None, None) if request.kind is None and info.kind == "image" else (request.start, request.end)
        planned = plan(info, MediaRef(request.path, info.kind, *part), request.budget, request.factors)
        send({"info": _facts(info), "plan": asdict(planned)}, None)
        if not request.frames:
            send({"end": {}}, None)
        elif request.entry is None:
            places = []
            for place, frame in _frames(request, info, planned, until):
                send({"frame": place}, frame)
                places.append(place)
            send({"end": {"places": places}}, None)
        else:
            send({"end": _store(request, request.entry, info, planned, until)}, None)
    except MemoryError as error:
        raise MediaError(request.path, "unsupported", "decoding it takes more memory than a decoding process may use") from error
    except MediaError as error:
        if isinstance(error.__cause__, MemoryError):
            raise MediaError(request.path, "unsupported", "decoding it takes more memory than a decoding process may use") from error
        raise


def _facts(info: MediaInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in _INFO} | {"sample_aspect": str(info.sample_aspect)}


def _frames(request: Request, info: MediaInfo, planned: Plan, until: float | None) -> Iterator[tuple[int, np.ndarray]]:
    """(place, frame) in order. Raises MediaError after the last one when too many are missing."""
    if info.kind == "image":
        yield 0, decode_image(request.path, planned.height, planned.width)[0]
        return
    shape = planned.indices, planned.height, planned.width
    walk = FolderDecode(info, *shape, until) if info.container == CONTAINER else VideoDecode(info, *shape, until, request.threads)
    found = 0
    for place, frame in walk:
        yield place, frame
        found += 1
    missing = planned.frames - found
    if missing > allowed_missing(request.tolerate, planned.frames) or not found:
        share = f"; {missing} of the {planned.frames} chosen ones are missing, media.tolerate is {request.tolerate:g}"
        raise MediaError(request.path, "damaged", walk.damage() + (share if request.tolerate else ""))


def allowed_missing(tolerate: float, frames: int) -> int:
    """How many of `frames` chosen frames may be missing."""
    return math.floor(tolerate * frames + 1e-9)


def clip_fields(info: dict[str, Any], planned: Plan, places: list[int], content_hash: str, key: str) -> dict[str, Any]:
    """The fields of a `Clip`, but for its frames, when the frames at `places` of the plan came."""
    return {
        "times": tuple(planned.times[place] for place in places), "indices": tuple(planned.indices[place] for place in places),
        "source_fps": planned.source_fps, "source_frames": planned.source_frames, "duration": planned.duration, "span": planned.span,
        "rotation": info["rotation"], "decoder": decoder_version("image" if info["container"] == CONTAINER else planned.kind),
        "content_hash": content_hash, "key": key,
        "kind": planned.kind, "missing": planned.frames - len(places),
    }  # fmt: skip


def _store(request: Request, entry: EntryPlace, info: MediaInfo, planned: Plan, until: float | None) -> dict[str, Any]:
    places: list[int] = []
    shape = planned.frames, 3, planned.height, planned.width
    try:
        with EntryWriter(Path(entry.directory), entry.key, shape, entry.codec, Path(entry.temporary)) as writer:
            for place, frame in _frames(request, info, planned, until):
                writer.add(frame)
                places.append(place)
            # An entry must not hold the frames of another content than its key says.
            if Fingerprint.of(request.path) != entry.state:
                raise MediaError(request.path, "damaged", "the file changed while it was read")
            size = writer.commit(clip_fields(_facts(info), planned, places, entry.content_hash, entry.key))
    except OSError as error:
        return {"unstored": [error.errno or errno.EIO, error.strerror or str(error)]}
    return {"places": places, "stored": size}


def main(memory: int, lifeline: int) -> None:
    """Answer requests until the caller closes the pipe, in at most `memory` bytes of address space.

    The caller holds the other end of the pipe `lifeline` and writes nothing: when it dies, the system sends SIGIO, which ends this
    process whatever it is doing.
    """
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    # (PyAV's logging stays off: its callback takes the interpreter's lock in decoder threads, and closing a file waits for them.)
    # Libraries that print must not write into the answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(head: dict[str, Any], frame: Any) -> None:
        text = json.dumps(head).encode()
        out.write(len(text).to_bytes(4, "little") + text)
        if frame is not None:
            out.write(frame.reshape(-1).data)
        out.flush()

    # Before it is ready, so that a library that doesn't load is not taken for a fault of the first file.
    import av.filter  # noqa: F401
    import numpy as np  # noqa: F401
    from PIL import Image  # noqa: F401

    out.write(b"\0")
    out.flush()
    for line in sys.stdin.buffer:
        given = json.loads(line)
        deadline = given.pop("deadline")
        # Should the caller be unable to kill this process, the default action of the alarm ends it.
        signal.alarm(int(deadline) + 10)
        try:
            perform(Request.parse(given), send, time.monotonic() + deadline)
        except MediaError as error:
            send({"error": error.code, "reason": error.reason}, None)
        except Exception as error:
            # What neither library nor reader foresaw: the file is named with it, and the place in the code is on stderr.
            traceback.print_exc()
            send({"error": "damaged", "reason": f"reading it failed with {type(error).__name__}: {error}"[:200]}, None)
        signal.alarm(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
