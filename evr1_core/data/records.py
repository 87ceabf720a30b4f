"""Read raw rows from JSON, JSONL, Parquet and CSV files, each with the place it stands at.

A file that is no file of its kind raises RequestError; a single row that can't be read is a `Record` with a `fault`,
so that one broken line of a large file is reported like any other bad row. JSONL and CSV are streamed.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from evr1_core.errors import RequestError

_FIELD_LIMIT = 1 << 30  # characters of one CSV field; the csv module's own limit is 131,072


@dataclass(frozen=True, slots=True)
class Record:
    """One row as the file has it. `NaN` reads as None."""

    values: dict[str, Any]
    file: Path
    number: int
    """1 is the first row of the file."""
    line: int | None = None
    """Line of the file where the row starts; None for a file without lines."""
    fault: str = ""
    """Why the row can't be read; then `values` is empty."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line is not None else f"{self.file}: row {self.number}"


class _Twice(ValueError):
    """A JSON object names a key twice."""


def read_records(path: Path) -> Iterator[Record]:
    """The rows of one file in order. Raises RequestError for a missing file, an unknown kind, a broken file."""
    reader = _READERS.get(path.suffix.lower())
    if not path.exists():
        raise RequestError(f"{path}: no such data file")
    if path.is_dir():
        raise RequestError(f"{path}: is a folder; name its files ({', '.join(sorted(_READERS))})")
    if reader is None:
        raise RequestError(f"{path}: unknown kind {path.suffix!r}; evr1 reads {', '.join(sorted(_READERS))}")
    try:
        yield from reader(path)
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}; convert the file") from None
    except OSError as error:
        raise RequestError(f"{path}: can't be read: {error}") from None


def _json_array(path: Path) -> Iterator[Record]:
    text = path.read_text(encoding="utf-8-sig")
    start = _skip(text, 0)
    if text[start : start + 1] == "{":
        raise RequestError(f"{path}: starts with an object, expected an array of rows; one object per line is a .jsonl file")
    if text[start : start + 1] != "[":
        raise RequestError(f"{path}:1: expected an array of rows, found {text[start : start + 20]!r}")
    at, line, counted = _skip(text, start + 1), 1, 0
    number = 0
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        number += 1
        try:
            value, at = _DECODER.raw_decode(text, at)
            yield _record(value, path, number, line)
        except _Twice as error:
            yield Record({}, path, number, line, fault=str(error))
            _, at = json.JSONDecoder().raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise RequestError(f"{path}:{error.lineno}: not JSON (row {number}): {error.msg}") from None
        except (RecursionError, ValueError) as error:
            raise RequestError(f"{path}:{line}: not usable (row {number}): {_json_fault(error)}") from None
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
            if text[at : at + 1] != "]":
                continue
            place = line + text.count("\n", counted, at)
            raise RequestError(f"{path}:{place}: not JSON: a comma after the last row; delete it")
        if text[at : at + 1] != "]":
            place = line + text.count("\n", counted, at)
            raise RequestError(f"{path}:{place}: not JSON: expected ',' or ']' after row {number}; the file may be cut off")
    if _skip(text, at + 1) != len(text):
        place = line + text.count("\n", counted, at)
        raise RequestError(f"{path}:{place}: not JSON: text after the end of the array")


def _skip(text: str, at: int) -> int:
    """Position of the next character that isn't JSON white space."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _json_lines(path: Path) -> Iterator[Record]:
    number = 0
    with path.open(encoding="utf-8-sig", newline="\n") as stream:
        for line, text in enumerate(stream, 1):
            if not text.strip():
                continue
            number += 1
            try:
                yield _record(_DECODER.decode(text), path, number, line)
            except (ValueError, RecursionError) as error:
                yield Record({}, path, number, line, fault=_json_fault(error))


def _csv(path: Path, delimiter: str = ",") -> Iterator[Record]:
    csv.field_size_limit(_FIELD_LIMIT)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        try:
            header = next(reader, None)
            if not header:
                return
            if len(set(header)) < len(header):
                twice = sorted({name for name in header if header.count(name) > 1})
                raise RequestError(f"{path}:1: column {twice[0]!r} appears twice in the header")
            number, before = 0, reader.line_num
            for cells in reader:
                line, before = before + 1, reader.line_num
                if not cells:
                    continue
                number += 1
                if len(cells) != len(header):
                    yield Record({}, path, number, line, fault=f"has {len(cells)} cells, the header has {len(header)}")
                else:
                    yield _record(
                        {name: cell if cell.strip() else None for name, cell in zip(header, cells, strict=True)}, path, number, line
                    )
        except csv.Error as error:
            raise RequestError(f"{path}:{reader.line_num}: not CSV: {error}") from None


def _tsv(path: Path) -> Iterator[Record]:
    return _csv(path, "\t")


def _parquet(path: Path) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise RequestError(f"{path}: Parquet needs pyarrow: pip install 'evr1[parquet]'") from None
    number = 0
    try:
        with ParquetFile(path) as source:
            for batch in source.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    number += 1
                    yield _record(values, path, number, None, absent_inside=True)
    except ArrowException as error:
        raise RequestError(f"{path}: not Parquet (after row {number}): {error}") from None


def _record(value: Any, path: Path, number: int, line: int | None, absent_inside: bool = False) -> Record:
    if not isinstance(value, dict):
        return Record({}, path, number, line, fault=f"a row must be an object with named fields, found {type(value).__name__}")
    try:
        return Record({key: _clean(item, absent_inside) for key, item in value.items()}, path, number, line)
    except UnicodeEncodeError:
        return Record({}, path, number, line, fault="holds half of a surrogate pair, which is no Unicode text")
    except ValueError as error:
        return Record({}, path, number, line, fault=str(error))


def _clean(value: Any, absent_inside: bool) -> Any:
    """NaN becomes None; with `absent_inside`, None inside an object goes, since Parquet gives every struct all names."""
    if isinstance(value, str):
        value.encode()
        if "\0" in value:
            raise ValueError("holds a NUL character")
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, dict):
        cleaned = {key: _clean(item, absent_inside) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item is not None} if absent_inside else cleaned
    if isinstance(value, (list, tuple)):
        return [_clean(item, absent_inside) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return value


def _json_fault(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "not JSON: nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error}"
    return str(error) if isinstance(error, _Twice) else "holds a whole number of more than 4300 digits"  # Python's own limit


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(f"key {next(name for name in names if names.count(name) > 1)!r} appears twice in one object")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_no_key_twice)
_READERS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".json": _json_array,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
    ".csv": _csv,
    ".tsv": _tsv,
}
