"""The frame cache: one safetensors file per clip, uint8, with its clock in the header.

An entry is valid when its header, its shape, its size and (once per process) its checksum agree; anything else is a miss, never an
error and never a wrong frame. Entries are written under a unique name and renamed when complete, so writers need no lock.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import tempfile
import threading
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evr1_core.types import Clip

if TYPE_CHECKING:
    import numpy as np

FORMAT = 1
"""Version of the entry layout."""

_log = logging.getLogger(__name__)
_FIELDS = ("times", "indices", "source_fps", "source_frames", "duration", "span", "rotation", "decoder", "content_hash", "key", "kind")
_MAX_HEADER = 16 * 2**20


def make_key(content_hash: str, **parts: Any) -> str:
    """sha256 over the content and everything that shapes the frames."""
    text = json.dumps({"content": content_hash, "format": FORMAT, **parts}, sort_keys=True, default=asdict)
    return hashlib.sha256(text.encode()).hexdigest()


class FrameCache:
    """Clips by key below one directory. Safe for threads and processes; `bytes` sums what was written."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self._verified: dict[str, tuple[int, int, int]] = {}
        self._warned = False
        self._lock = threading.Lock()

    def path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.safetensors"

    def get(self, key: str) -> Clip | None:
        """The clip under `key`, its frames mapped from the file (writes to them stay in memory); None is a miss."""
        import numpy as np

        path = self.path(key)
        try:
            with open(path, "rb") as file:
                shape, offset, meta, checksum = _read_header(file)
                count = math.prod(shape)
                if meta["key"] != key or len(meta["times"]) != shape[0] or os.fstat(file.fileno()).st_size != offset + count:
                    return None
                # Copy on write: torch wants a writable array, and the file must stay as it is.
                frames = np.memmap(file, np.uint8, "c", offset, tuple(shape))
                if not self._trusted(key, file.fileno(), frames, checksum):
                    return None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s: not a valid cache entry, decoding again (%s)", path, error)
            return None
        fields = {name: meta[name] for name in _FIELDS}
        fields["times"], fields["indices"] = tuple(meta["times"]), tuple(meta["indices"])
        return Clip(frames=frames.view(np.ndarray), **fields)

    def put(self, clip: Clip) -> int:
        """Write an entry and return its bytes; 0 when it could not be stored (disk full, no permission), which is warned of once."""
        import numpy as np

        path = self.path(clip.key)
        frames = np.ascontiguousarray(clip.frames)
        temporary: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".writing-", suffix=".tmp", dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(_header(clip, zlib.crc32(frames.reshape(-1).data)))
                file.write(frames.reshape(-1).data)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            os.replace(temporary, path)
            temporary = None
        except OSError as error:
            self._warn(path, error)
            return 0
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
        return size

    def entries(self) -> Iterator[Path]:
        """Every complete entry."""
        return self.directory.glob("[0-9a-f][0-9a-f]/*.safetensors")

    def describe(self, path: Path) -> dict[str, Any] | None:
        """The clip fields in an entry's header, without a look at its frames; None when it isn't valid."""
        try:
            with open(path, "rb") as file:
                shape, offset, meta, _ = _read_header(file)
                whole = os.fstat(file.fileno()).st_size == offset + math.prod(shape) and meta["key"] == path.stem
                return meta if whole else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _trusted(self, key: str, descriptor: int, frames: np.ndarray, checksum: int) -> bool:
        """Whether the bytes agree with the checksum; looked at once per process and file version."""
        status = os.fstat(descriptor)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._verified.get(key) == version:
            return True
        if zlib.crc32(frames.reshape(-1).data) != checksum:
            _log.warning("%s: the checksum does not agree, decoding again", self.path(key))
            return False
        self._verified[key] = version
        return True

    def _warn(self, path: Path, error: OSError) -> None:
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
            _log.warning("%s: %s; frames are used without being stored from here on where this happens", path.parent, why)


def _header(clip: Clip, checksum: int) -> bytes:
    meta = {name: getattr(clip, name) for name in _FIELDS}
    body = {
        "__metadata__": {"format": str(FORMAT), "crc32": str(checksum), "clip": json.dumps(meta)},
        "frames": {"dtype": "U8", "shape": list(clip.frames.shape), "data_offsets": [0, int(clip.frames.size)]},
    }
    text = json.dumps(body).encode()
    # The layout wants data at a multiple of 8; 64 puts frames on a cache line.
    text += b" " * (-(len(text) + 8) % 64)
    return len(text).to_bytes(8, "little") + text


def _read_header(file: Any) -> tuple[list[int], int, dict[str, Any], int]:
    """(shape, offset of the data, clip fields, checksum); ValueError or KeyError when the file isn't an entry of this format."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= _MAX_HEADER:
        raise ValueError("no safetensors header")
    body = json.loads(file.read(length))
    meta, tensor = body["__metadata__"], body["frames"]
    shape = tensor["shape"]
    if meta["format"] != str(FORMAT) or tensor["dtype"] != "U8" or len(shape) != 4 or shape[1] != 3 or min(shape) < 1:
        raise ValueError("another format")
    return shape, 8 + length, json.loads(meta["clip"]), int(meta["crc32"])


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells one state of a file from another without reading it."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: str) -> Fingerprint:
        status = os.stat(path)
        return cls(os.path.abspath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class ContentHashes:
    """sha256 of files, each state of a file read once; remembered in memory and, given a directory, on disk.

    On disk a state is one small file named by its fingerprint: no lock, safe on network file systems, and a changed file is
    simply another name.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.computed = 0
        """Files that had to be read."""
        self._known: dict[Fingerprint, str] = {}

    def of(self, path: str) -> tuple[str, Fingerprint]:
        """(sha256 in hex, the state of the file it belongs to)."""
        state = Fingerprint.of(path)
        known = self._known.get(state) or self._recall(state)
        if known is None:
            with open(path, "rb") as file:
                known = hashlib.file_digest(file, "sha256").hexdigest()
            self.computed += 1
            self._remember(state, known)
        self._known[state] = known
        return known, state

    def _place(self, state: Fingerprint) -> Path | None:
        if self.directory is None:
            return None
        name = hashlib.sha256(json.dumps(asdict(state)).encode()).hexdigest()
        return self.directory / name[:2] / name

    def _recall(self, state: Fingerprint) -> str | None:
        place = self._place(state)
        try:
            text = place.read_text() if place else ""
        except (OSError, UnicodeDecodeError):
            return None
        return text if len(text) == 64 and not set(text) - set("0123456789abcdef") else None

    def _remember(self, state: Fingerprint, value: str) -> None:
        place = self._place(state)
        if place is None:
            return
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".writing-", suffix=".tmp", dir=place.parent)
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(value)
                os.replace(temporary, place)
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            # Only a short cut is lost: the next process reads the file again.
            _log.debug("%s: %s", place, error)
