"""Content hashes of source files, each state of a file read once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from evr1_core.errors import MediaError
from evr1_core.media.entry import unfinished
from evr1_core.media.folder import pictures

_log = logging.getLogger(__name__)


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
        """Of a folder of pictures: their sizes together and the latest times. Raises MediaError: the file is gone."""
        try:
            status = os.stat(path)
            if not stat.S_ISDIR(status.st_mode):
                return cls(os.path.abspath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            found = [os.stat(os.path.join(path, name)) for name in pictures(path)]
        except OSError as error:
            raise unreadable(path, error) from error
        latest = max(status.st_mtime_ns, *(one.st_mtime_ns for one in found)), max(status.st_ctime_ns, *(one.st_ctime_ns for one in found))
        return cls(os.path.abspath(path), sum(one.st_size for one in found), *latest, status.st_ino)


def unreadable(path: str, error: OSError) -> MediaError:
    """What an error of the file system says of a source file: it is gone, or can't be read to its end."""
    why = error.strerror or str(error)
    if isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
        return MediaError(path, "missing", why)
    return MediaError(path, "damaged", f"it can't be read to its end: {why}")


class ContentHashes:
    """sha256 of files and of folders of pictures, each state of a file read once; remembered in memory and, given a directory, on disk.

    On disk a state is one small file named by its fingerprint: no lock, safe on network file systems, and a changed file is
    simply another name.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.computed = 0
        """Files that had to be read."""
        self._known: dict[Fingerprint, str] = {}

    def of(self, path: str) -> tuple[str, Fingerprint]:
        """(sha256 in hex, the state of the file it belongs to). Raises MediaError: missing, damaged (an error of the disk)."""
        state = Fingerprint.of(path)
        known = self._known.get(state) or self._recall(state)
        if known is None:
            try:
                known = _folder_sha256(path) if os.path.isdir(path) else _sha256(path)
            except OSError as error:
                raise unreadable(path, error) from error
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
        temporary = unfinished(place.parent)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_text(value)
                os.replace(temporary, place)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            # Only a short cut is lost: the next process reads the file again.
            _log.debug("%s: %s", place, error)


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder_sha256(path: str) -> str:
    """Over the names of the pictures, in their order, and the hash of each."""
    lines = (f"{name}\0{_sha256(os.path.join(path, name))}\n" for name in pictures(path))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
