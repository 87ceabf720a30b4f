"""Reading releases: annotation files of every form, and videos by the names that an annotation gives them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from evr1_core.errors import RequestError

T = TypeVar("T")
VIDEO_SUFFIXES = (".mp4", ".MP4", ".mkv", ".webm", ".mov", ".avi")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.parquet")


def find(root: Path, *names: str) -> Path:
    """The first of these files or folders (glob patterns) below `root`. Raises RequestError naming what is expected."""
    for name in names:
        found = sorted(Path(root).glob(name))
        if found:
            return found[0]
    raise RequestError(f"{root}: none of {', '.join(names)} is there; `evr1 benchmarks show NAME` shows the layout of the release")


def rows(path: Path) -> list[dict[str, Any]]:
    """Records of a .json (a list), .jsonl, .parquet (with all its parts), .csv or .tsv file. Raises RequestError naming file and line."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return [row for part in _parts(path) for row in _parquet(part)]
    if suffix in (".csv", ".tsv"):
        return _table(path, "\t" if suffix == ".tsv" else ",")
    if suffix == ".jsonl":
        return list(_lines(path))
    found = _json_or_lines(path)
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise RequestError(f"{path}: must hold a list of records")
    return found


def load(path: Path) -> Any:
    """The content of a JSON file. Raises RequestError where it can't be read."""
    content = text(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path}: not readable as JSON: {error}") from error


def _json_or_lines(path: Path) -> Any:
    """A JSON file, or one that has a record on each line in spite of its name, as `datasets` writes them."""
    try:
        return load(path)
    except RequestError as error:
        try:
            found = list(_lines(path))
        except RequestError:
            raise error from None
        if not found:
            raise error
        return found


def text(path: Path) -> str:
    """A text file, without the mark that some begin with. Raises RequestError where it can't be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: not readable as text in UTF-8: {error}") from error


def _table(path: Path, delimiter: str) -> list[dict[str, Any]]:
    try:
        return [dict(row) for row in csv.DictReader(io.StringIO(text(path)), delimiter=delimiter)]
    except csv.Error as error:
        raise RequestError(f"{path}: not readable as a table: {error}") from error


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(io.StringIO(text(path)), 1):  # splitlines() would part a line at U+2028, which JSON allows
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{path}, line {number}: not readable as JSON: {error}") from error
        if not isinstance(row, dict):
            raise RequestError(f"{path}, line {number}: must hold one record, a JSON object")
        yield row


def _parts(path: Path) -> list[Path]:
    """All parts of a table that is given away in several (`test-00000-of-00003.parquet`), in order."""
    shard = _SHARD.fullmatch(path.name)
    if shard is None:
        return [path]
    parts = [path.with_name(f"{shard[1]}-{place:05d}-of-{shard[3]}.parquet") for place in range(int(shard[3]))]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise RequestError(f"{path}: a part of {len(parts)}; missing beside it: {', '.join(missing[:5])}")
    return parts


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise RequestError(f"{path}: Parquet files need pyarrow: pip install 'evr1[parquet]'") from error
    try:
        return parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # what pyarrow raises for a broken file is a ValueError
        raise RequestError(f"{path}: not readable as Parquet: {error}") from error


def field(row: Mapping[str, Any], name: str, path: Path, number: int) -> Any:
    """A column of a record. Raises RequestError naming file, record and column."""
    if name not in row:
        raise RequestError(f"{path}, record {number}: has no {name!r}; columns: {', '.join(map(str, row))}")
    return row[name]


def text_of(row: Mapping[str, Any], name: str, path: Path, number: int) -> str:
    """A column as text; a whole number stands for its digits. Raises RequestError where it is blank or something else."""
    value = field(row, name, path, number)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{path}, record {number}: {name} must be a text, found {value!r}")
    return value


def number_of(row: Mapping[str, Any], name: str, path: Path, number: int) -> float:
    """A column as a finite number, also where it is printed. Raises RequestError for anything else."""
    value = field(row, name, path, number)
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise RequestError(f"{path}, record {number}: {name} must be a number, found {value!r}")
    return found


def part_of(row: Mapping[str, Any], start: str, end: str, path: Path, number: int) -> tuple[float, float]:
    """Two columns as start and end of a part of a video, seconds. Raises RequestError where they are none."""
    begin, stop = (number_of(row, name, path, number) for name in (start, end))
    if not 0 <= begin < stop:
        raise RequestError(f"{path}, record {number}: {start} {begin:g} to {end} {stop:g} is no part of a video")
    return begin, stop


def texts_of(row: Mapping[str, Any], name: str, path: Path, number: int) -> list[str]:
    """A column that is a list of texts or numbers, at least one. Raises RequestError for anything else."""
    value = field(row, name, path, number)
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, (str, int, float)) for item in value):
        raise RequestError(f"{path}, record {number}: {name} must be a list of texts, found {value!r}")
    return [str(item) for item in value]


def options_of(row: Mapping[str, Any], name: str, path: Path, number: int) -> dict[str, str]:
    """A column that maps letters to texts or numbers; blank texts stay. Raises RequestError for anything else."""
    value = field(row, name, path, number)
    if not isinstance(value, Mapping) or not all(isinstance(item, (str, int, float)) for item in value.values()):
        raise RequestError(f"{path}, record {number}: {name} must map letters to texts, found {value!r}")
    return {str(letter): str(item) for letter, item in value.items()}


def each(path: Path, found: Iterable[dict[str, Any]], make: Callable[[dict[str, Any], int], T]) -> list[T]:
    """What `make` gives for each record and its number, from 1. Raises RequestError for one that it can't take, and for none."""
    made: list[T] = []
    for number, row in enumerate(found, 1):
        try:
            made.append(make(row, number))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise RequestError(f"{path}, record {number}: has another form than the release: {error!r}") from error
    if not made:
        raise RequestError(f"{path}: holds no record")
    return made


def video(folders: Iterable[Path], name: str) -> str:
    """Path of a video below the first folder that has it, under any usual suffix; the first candidate where none has it."""
    candidates = [folder / name for folder in folders]
    for candidate in candidates:
        stems = [candidate] if candidate.suffix in VIDEO_SUFFIXES else []
        tried = [*stems, *(candidate.with_name(f"{candidate.name}{suffix}") for suffix in VIDEO_SUFFIXES)]
        if candidate.suffix in VIDEO_SUFFIXES:
            tried += [candidate.with_suffix(suffix) for suffix in VIDEO_SUFFIXES]
        else:
            tried.append(candidate)  # a file without a suffix
        for path in tried:
            if path.is_file():
                return str(path.absolute())
    first = candidates[0]
    return str((first if first.suffix in VIDEO_SUFFIXES else first.with_name(f"{first.name}.mp4")).absolute())


def places(root: Path, names: Sequence[str]) -> list[Path]:
    """Folders in which a release may keep its videos, `root` last."""
    return [*(root / name for name in names), root]
