"""Files that are complete or not there, and JSON-lines files that survive a kill at any byte."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evr1_core.errors import Evr1Error, RequestError


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Force a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, text: str) -> None:
    """Replace a file in one move: a reader sees the old or the new text, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(path)  # a full disk names no file by itself
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync_tree(directory: Path) -> None:
    """Force everything below a directory to the disk; a full disk shows itself here at the latest."""
    for folder, _, names in os.walk(directory):
        for name in names:
            sync(Path(folder) / name)
        sync(Path(folder))


def publish(temporary: Path, final: Path) -> None:
    """Move a finished directory to its name: everything below it is on the disk before the name is."""
    sync_tree(temporary)
    temporary.rename(final)
    sync(final.parent)


def next_free(path: Path, word: str) -> Path:
    """`metrics.jsonl`, "cut" -> `metrics.cut-1.jsonl`, or the next number that is free."""
    number = 1
    while (found := path.with_name(f"{path.stem}.{word}-{number}{path.suffix}")).exists():
        number += 1
    return found


def to_json(value: Any) -> str:
    """One line of standard JSON; a number that JSON does not have is refused."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """Paths and scalars of numeric libraries, which json does not know."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"{type(value).__name__} is no JSON value")


class JsonLines:
    """Appends one JSON object per line and flushes it. A kill leaves whole lines and at most one torn one at the end.

    A torn end is cut off when the file is opened for the first append, so that it never runs into a new line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None

    def append(self, row: Mapping[str, Any]) -> None:
        # A lone surrogate of broken model output becomes its JSON escape, and comes back as it was.
        line = (to_json(row) + "\n").encode("utf-8", "backslashreplace")
        if self._file is None:
            cut_torn_end(self.path)
            self._file = self.path.open("ab")
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise Evr1Error(f"{self.path}: could not be written ({error.strerror}): free space on this disk") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file, a torn last line left out. Raises Evr1Error with file and line for a damaged one."""
    for number, _, row in _lines(path):
        if row is None:
            raise Evr1Error(f"{path}:{number}: not a JSON object, the file was edited or damaged: take it out, or put an old copy back")
        yield row


def cut_torn_end(path: Path) -> int:
    """Remove a last line without its line end; returns the number of bytes removed."""
    if not path.exists():
        return 0
    size = path.stat().st_size
    with path.open("rb+") as file:
        end = size
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            position = file.read(end - start).rfind(b"\n")
            if position >= 0:
                end = start + position + 1
                break
            end = start
        if end < size:
            file.truncate(end)
            os.fsync(file.fileno())
    return size - end


def cut_from(path: Path, beyond: Callable[[dict[str, Any]], bool]) -> Path | None:
    """Move every line from the first one that is `beyond` (or torn) into a side file; returns its path, None if nothing was cut.

    The lines are in the side file before they leave the file: a kill in between doubles them there, never here.
    """
    if not path.exists():
        return None
    offset = next((position for _, position, row in _lines(path, torn=True) if row is None or beyond(row)), None)
    if offset is None:
        return None
    side = next_free(path, "cut")
    with path.open("rb") as source, side.open("xb") as target:
        source.seek(offset)
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())
    os.truncate(path, offset)
    sync(path)
    return side


def _lines(path: Path, torn: bool = False) -> Iterator[tuple[int, int, dict[str, Any] | None]]:
    """(line number, byte offset, row); row None where the line holds no JSON object."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                if torn:
                    yield number, offset, None
                return
            try:
                row = json.loads(line.decode("utf-8"))
            except ValueError:
                row = None
            yield number, offset, row if isinstance(row, dict) else None
            offset += len(line)


def lock(directory: Path) -> int:
    """Keep a second process out of a directory; the descriptor to close. The system releases it when this process ends, however it ends."""
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        host, _, process = os.pread(descriptor, 256, 0).decode().strip().rpartition(" ")
        # A worker that outlived its parent may still hold the lock: it does not write here.
        if host != platform.node() or (process != str(os.getpid()) and Path(f"/proc/{process}").exists()):
            os.close(descriptor)
            raise RequestError(f"{directory} is in use by process {process} on {host}: stop it, or take another name") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{platform.node()} {os.getpid()}\n".encode(), 0)
    return descriptor
