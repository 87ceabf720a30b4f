"""Reading releases: annotation files of every form, and videos by the names that an annotation gives them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evr1_core.errors import RequestError

VIDEO_SUFFIXES = (".mp4", ".MP4", ".mkv", ".webm", ".mov", ".avi")


def find(root: Path, *names: str) -> Path:
    """The first of these files or folders (glob patterns) below `root`. Raises RequestError naming what is expected."""
    for name in names:
        found = sorted(Path(root).glob(name))
        if found:
            return found[0]
    raise RequestError(f"{root}: none of {', '.join(names)} is there; `evr1 benchmarks show NAME` shows the layout of the release")


def rows(path: Path) -> list[dict[str, Any]]:
    """Records of a .json (a list), .jsonl, .parquet, .csv or .tsv file. Raises RequestError naming file and line."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet(path)
    if suffix in (".csv", ".tsv"):
        text = path.read_text(encoding="utf-8-sig")
        return [dict(row) for row in csv.DictReader(io.StringIO(text), delimiter="\t" if suffix == ".tsv" else ",")]
    if suffix == ".jsonl":
        return list(_lines(path))
    found = load(path)
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise RequestError(f"{path}: must hold a list of records")
    return found


def load(path: Path) -> Any:
    """The content of a JSON file. Raises RequestError where it can't be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: not readable as JSON: {error}") from error


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise RequestError(f"{path}, line {number}: not readable as JSON: {error}") from error


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise RequestError(f"{path}: Parquet files need pyarrow: pip install 'evr1[parquet]'") from error
    return parquet.read_table(path).to_pylist()


def field(row: Mapping[str, Any], name: str, path: Path, number: int) -> Any:
    """A column of a record. Raises RequestError naming file, record and column."""
    if name not in row:
        raise RequestError(f"{path}, record {number}: has no {name!r}; columns: {', '.join(map(str, row))}")
    return row[name]


def video(folders: Iterable[Path], name: str) -> str:
    """Path of a video below the first folder that has it, under any usual suffix; the first candidate where none has it."""
    candidates = [folder / name for folder in folders]
    for candidate in candidates:
        stems = [candidate] if candidate.suffix in VIDEO_SUFFIXES else []
        tried = [*stems, *(candidate.with_name(f"{candidate.name}{suffix}") for suffix in VIDEO_SUFFIXES)]
        if candidate.suffix in VIDEO_SUFFIXES:
            tried += [candidate.with_suffix(suffix) for suffix in VIDEO_SUFFIXES]
        for path in tried:
            if path.is_file():
                return str(path.absolute())
    first = candidates[0]
    return str((first if first.suffix in VIDEO_SUFFIXES else first.with_name(f"{first.name}.mp4")).absolute())


def places(root: Path, names: Sequence[str]) -> list[Path]:
    """Folders in which a release may keep its videos, `root` last."""
    return [*(root / name for name in names), root]
