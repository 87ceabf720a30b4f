"""The frame cache: clips by key below one directory, one file each (layout: `entry`).

An entry is valid when its header, its size and (once per process) its checksum agree; anything else is a miss, never an
error and never a wrong frame. Entries are written under a unique name and renamed when complete, so writers need no lock.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evr1_core.media.entry import FORMAT, Codec, Entry, EntryWriter, entry_path, frames_of, intact, map_data, read_entry
from evr1_core.media.hashes import ContentHashes, Fingerprint
from evr1_core.types import Clip

__all__ = ["Codec", "ContentHashes", "EntryWriter", "Fingerprint", "FrameCache", "make_key"]

DAY = 86_400.0

_log = logging.getLogger(__name__)


def make_key(content_hash: str, **parts: Any) -> str:
    """sha256 over the content and everything that shapes the frames."""
    text = json.dumps({"content": content_hash, "format": FORMAT, **parts}, sort_keys=True, default=asdict)
    return hashlib.sha256(text.encode()).hexdigest()


class FrameCache:
    """Clips by key. Safe for threads and processes. `codec` is that of new entries; entries of either are read.

    A read counts as use: it renews the time of the file, once a day at most. (The access time of the system doesn't serve: most
    systems are mounted without it or renew it rarely, and a mapped read need not count.)
    """

    def __init__(self, directory: Path, codec: Codec = "raw", threads: int | None = None) -> None:
        self.directory = Path(directory)
        self.codec: Codec = codec
        self.threads = threads or min(4, len(os.sched_getaffinity(0)))
        """Threads that decode the frames of one compact entry; several loads often run at a time, so it isn't all of the processor."""
        self._verified: dict[str, tuple[int, int, int]] = {}
        self._warned = False
        self._lock = threading.Lock()

    def path(self, key: str) -> Path:
        return entry_path(self.directory, key)

    def get(self, key: str) -> Clip | None:
        """The clip under `key`; None is a miss. Raw frames are mapped from the file, and writes to them stay in memory."""
        path = self.path(key)
        try:
            with open(path, "rb") as file:
                entry = read_entry(file)
                if entry.key != key:
                    raise ValueError(f"it is the entry of {entry.key}")
                data = map_data(file, entry)
                self._check(key, file.fileno(), entry, data)
            frames = frames_of(entry, data, self.threads)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("%s: not a valid cache entry, decoding again (%s)", path, error)
            return None
        return Clip(frames=frames, **entry.clip)

    def holds(self, key: str) -> bool:
        """Whether there is an entry with a sound header; its bytes are not looked at."""
        try:
            with open(self.path(key), "rb") as file:
                return read_entry(file).key == key
        except (OSError, ValueError):
            return False

    def put(self, clip: Clip) -> int:
        """Write an entry and return its bytes; 0 when it could not be stored (disk full, no permission), which is warned of once."""
        meta = {name: getattr(clip, name) for name in Clip.__slots__ if name != "frames"}
        frames, channels, height, width = clip.frames.shape
        try:
            with EntryWriter(self.directory, clip.key, (frames, channels, height, width), self.codec) as writer:
                for frame in clip.frames:
                    writer.add(frame)
                return writer.commit(meta)
        except OSError as error:
            self.warn(error)
            return 0

    def entries(self) -> Iterator[Path]:
        """Every complete entry."""
        return self.directory.glob("[0-9a-f][0-9a-f]/*.safetensors")

    def warn(self, error: OSError) -> None:
        """Say once that frames can't be stored, and why."""
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
            _log.warning("%s: %s; frames are used without being stored from here on where this happens", self.directory, why)

    def _check(self, key: str, descriptor: int, entry: Entry, data: Any) -> None:
        """Compare with the checksum, once per file version, and note the use. Raises ValueError."""
        version = _version(descriptor)
        if self._verified.get(key) != version and not intact(entry, data):
            raise ValueError("the checksum does not agree")
        if time.time() - version[2] / 1e9 > DAY:
            try:
                os.utime(descriptor)
                version = _version(descriptor)
            except OSError as error:
                _log.debug("%s: its use can't be noted (%s)", self.path(key), error)  # somebody else's entry, or a read-only disk
        self._verified[key] = version


def _version(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size, status.st_mtime_ns
