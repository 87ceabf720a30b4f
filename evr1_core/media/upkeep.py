"""Care for a frame cache: what is in it, whether all of it is right, and making room. Safe while runs read and write it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from evr1_core.errors import MediaError, RequestError
from evr1_core.media.cache import DAY, FrameCache
from evr1_core.media.crew import Failure, Notify, Progress, each
from evr1_core.media.entry import UNFINISHED, frames_of, intact, read_entry

HOUR = 3_600.0
"""A temporary file that nobody wrote to for this long belongs to a writer that is gone."""

_UNITS = {"": 1, "B": 1, **{f"{letter}{end}": base**power for power, letter in enumerate("KMGT", 1)
                            for end, base in (("B", 1000), ("iB", 1024))}}  # fmt: skip


def parse_size(text: str) -> int:
    """Bytes in `500MB`, `2GiB`, `1.5 TB` or `1000000`. Raises RequestError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = match and next((factor for name, factor in _UNITS.items() if name.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise RequestError(f"{text!r} is no size: write bytes, or a number with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB")
    return round(float(match[1]) * unit)


@dataclass(frozen=True, slots=True)
class File:
    """One file of the cache, as the directory shows it."""

    path: Path
    size: int
    used: float
    """Last write or noted read, seconds since 1970."""


@dataclass(slots=True)
class Contents:
    """What a cache holds."""

    entries: int = 0
    bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    decoders: dict[str, int] = field(default_factory=dict)
    codecs: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0
    """Entries of another format, cut ones and the like; they count as entries."""
    unfinished: int = 0
    unfinished_bytes: int = 0
    hashes: int = 0
    """Files whose content hash is remembered."""
    oldest_use: float | None = None
    newest_use: float | None = None


def contents(directory: Path) -> Contents:
    """Count what is there, from names and headers."""
    found = Contents()
    for file in _files(FrameCache(directory).entries()):
        found.entries += 1
        found.bytes += file.size
        found.oldest_use = min(file.used, found.oldest_use or file.used)
        found.newest_use = max(file.used, found.newest_use or file.used)
        try:
            with open(file.path, "rb") as opened:
                entry = read_entry(opened)
        except (OSError, ValueError):
            found.unreadable += 1
            continue
        for counts, name in ((found.kinds, entry.clip["kind"]), (found.decoders, entry.clip["decoder"]), (found.codecs, entry.codec)):
            counts[name] = counts.get(name, 0) + 1
    for file in _files(_unfinished(directory)):
        found.unfinished += 1
        found.unfinished_bytes += file.size
    found.hashes = sum(1 for _ in _memos(directory))
    return found


def check_entry(path: Path) -> None:
    """Read all of an entry. Raises ValueError or OSError with the reason where it isn't valid."""
    import numpy as np

    with open(path, "rb") as file:
        entry = read_entry(file)
        if entry.key != path.stem:
            raise ValueError(f"it is the entry of {entry.key}")
        # Read, not mapped: an error of the disk is an exception here and the end of the process there.
        data = np.fromfile(file, np.uint8, entry.size)
    if not intact(entry, data):
        raise ValueError("the checksum does not agree")
    frames_of(entry, data)


@dataclass(frozen=True, slots=True)
class Verified:
    """What reading every entry has shown."""

    entries: int
    bytes: int
    bad: tuple[Failure, ...]
    interrupted: bool


def verify(directory: Path, workers: int = 2, delete: bool = False, notify: Notify | None = None) -> Verified:
    """Read every entry and name the bad ones; `delete` removes them."""
    files = list(_files(FrameCache(directory).entries()))
    progress = Progress("verify", len(files))
    bad: dict[int, Failure] = {}
    lock = threading.Lock()

    def check(file: File) -> None:
        try:
            check_entry(file.path)
        except FileNotFoundError:  # pruned meanwhile
            return
        except (OSError, ValueError) as error:
            if delete:
                _remove(file)
            raise MediaError(str(file.path), "damaged", str(error)) from error
        finally:
            with lock:
                progress.bytes += file.size

    whole = each(files, check, lambda file: str(file.path), workers, progress, notify, bad)
    return Verified(progress.done, progress.bytes, tuple(bad[place] for place in sorted(bad)), not whole)


@dataclass(slots=True)
class Pruned:
    """What was removed (or would be), and what stays."""

    entries: int = 0
    bytes: int = 0
    unfinished: int = 0
    hashes: int = 0
    kept: int = 0
    kept_bytes: int = 0


def prune(directory: Path, max_bytes: int | None = None, unused_days: float | None = None, dry_run: bool = False) -> Pruned:
    """Remove entries not used for `unused_days`, then the least recently used ones until `max_bytes` hold the rest.

    Also files that killed writers left, an hour after their last byte, and remembered hashes older than `unused_days`.
    """
    now, done = time.time(), Pruned()
    files = sorted(_files(FrameCache(directory).entries()), key=lambda file: file.used)
    total = sum(file.size for file in files)
    for file in files:
        old = unused_days is not None and now - file.used > unused_days * DAY
        if (old or (max_bytes is not None and total > max_bytes)) and (dry_run or _remove(file)):
            done.entries += 1
            done.bytes += file.size
            total -= file.size
    done.kept, done.kept_bytes = len(files) - done.entries, total
    for file in _files(_unfinished(directory)):
        done.unfinished += now - file.used > HOUR and (dry_run or _remove(file))
    if unused_days is not None:
        for file in _files(_memos(directory)):
            done.hashes += now - file.used > unused_days * DAY and (dry_run or _remove(file))
    return done


def _remove(file: File) -> bool:
    """Remove a file unless somebody wrote or used it since it was looked at. Whoever has it mapped keeps its bytes."""
    current = next(_files(iter([file.path])), None)
    if current != file:
        return False
    file.path.unlink(missing_ok=True)
    return True


def _files(paths: Iterator[Path]) -> Iterator[File]:
    for path in paths:
        try:
            status = path.stat()
        except FileNotFoundError:  # pruned or completed by another process
            continue
        yield File(path, status.st_size, status.st_mtime)


def _unfinished(directory: Path) -> Iterator[Path]:
    yield from directory.glob(f"*/{UNFINISHED}")  # entries and plans
    yield from directory.glob(f"hashes/[0-9a-f][0-9a-f]/{UNFINISHED}")


def _memos(directory: Path) -> Iterator[Path]:
    return directory.glob("hashes/[0-9a-f][0-9a-f]/[0-9a-f]*")
