"""Rows of data files, checked, as samples. A row is right or it is named with file, line and field; never guessed.

Columns, in the order in which aliases count when a row has several:

    problem, question, prompt      answer, solution, ground_truth      id, problem_id, question_id
    path, videos, video, images, image, image_path                     data_source, source
    options, choices   offline_output, offline   has_offline_trajectory   scoring   problem_type   data_type

Every other column is kept in `Sample.extra`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from evr1_core.data.media_fields import COLUMNS, EXTRA_COLUMNS, FieldFault, in_order_of_marks, read_media
from evr1_core.data.options import read_options, read_printed
from evr1_core.data.records import Record, read_records
from evr1_core.errors import RequestError, nearest
from evr1_core.plugins import catalogue, normal_problem_type
from evr1_core.specs import RewardSpec
from evr1_core.types import Exclusion, MediaRef, Sample

PROBLEM = ("problem", "question", "prompt")
ANSWER = ("answer", "solution", "ground_truth")
ID = ("id", "problem_id", "question_id")
OPTIONS = ("options", "choices")
OFFLINE = ("offline_output", "offline")
SOURCE = ("data_source", "source")
HIDDEN = frozenset((*ANSWER, *OFFLINE, "has_offline_trajectory"))
"""Columns that no prompt may show: a template can't leak the answer."""

_MAX_FAULTS = 20
_TAKEN = {*EXTRA_COLUMNS, *OFFLINE, *COLUMNS["image"], *COLUMNS["video"], "has_offline_trajectory", "scoring", "problem_type"}
_NAMES = {*_TAKEN, *PROBLEM, *ANSWER, *ID, *OPTIONS, *SOURCE}

KnownType = Callable[[str], bool] | Collection[str] | None


@dataclass(frozen=True)
class Rows:
    """What was read. Every row of the files is in one of the two lists, in the order of the files."""

    samples: list[Sample]
    exclusions: list[Exclusion]
    places: Mapping[str, str] = field(default_factory=dict)
    """Sample id -> `file:line`."""
    numbers: Mapping[str, tuple[Path, int]] = field(default_factory=dict)
    """Sample id -> its file and the number of its row there, from 1. Unlike a place it is never shared."""
    notes: tuple[str, ...] = ()
    """What the reader did that a user should know, for example ids that got their file's name in front."""


def read_samples(
    files: str | Path | Sequence[str | Path],
    media_root: str | Path | None = None,
    bad_rows: Literal["error", "exclude"] = "error",
    limit: int | None = None,
    known_problem_type: KnownType = None,
    check_media: bool = True,
    advice: str = "Mend them, or leave them out with data.bad_rows=exclude.",
) -> Rows:
    """Read and check rows.

    `media_root` is where relative media paths start, by default the data file's own folder. `limit` reads only the
    first rows of all files together. `known_problem_type` is a predicate or the collection of known types in normal
    form. `check_media` looks whether media files exist. Raises RequestError for unreadable files, and with `bad_rows`
    "error" for bad rows, naming up to 20 of them and ending with `advice`; with "exclude" they become exclusions.
    """
    paths = [Path(file).expanduser() for file in ([files] if isinstance(files, (str, Path)) else files)]
    root = Path(media_root).expanduser() if media_root is not None else None
    reader = _Reader(bad_rows, known_problem_type, check_media, root, advice)
    if reader.media_root is not None and not reader.media_root.is_dir():
        raise RequestError(f"media_root {reader.media_root}: no such folder")
    count = 0
    for path in paths:
        for record in read_records(path):
            if limit is not None and count >= limit:
                break
            count += 1
            reader.take(record)
    return reader.rows(count)


@dataclass
class _Reader:
    bad_rows: str
    known: KnownType
    check_media: bool
    media_root: Path | None
    advice: str
    entries: list[tuple[Record, Sample | Exclusion]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    lines: dict[tuple[Path, str], Record] = field(default_factory=dict)
    present: dict[tuple[str, bool], str] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        try:
            if record.fault:
                raise FieldFault("", "unreadable_row", record.fault)
            sample = self._sample(record)
            row = replace(record, values={})
            first = self.lines.setdefault((row.file, sample.id), row)
            if first.number != record.number:
                where = first.place if first.place != record.place else f"row {first.number}"
                raise FieldFault("id", "duplicate_id", f"{sample.id!r} is the id of {where} too; give every row its own, or none at all")
            self.entries.append((row, sample))
        except FieldFault as fault:
            self.faults.append(f"{record.place}: {fault}")
            try:
                name = _name(record.values, record)
            except FieldFault:
                name = _name({}, record)
            self.entries.append((replace(record, values={}), Exclusion(name, fault.code, self.faults[-1])))
            if self.bad_rows == "error" and len(self.faults) >= _MAX_FAULTS:
                self._refuse(f"the first {_MAX_FAULTS} bad rows:")

    def rows(self, count: int) -> Rows:
        if self.faults and self.bad_rows == "error":
            self._refuse(f"{len(self.faults)} of {count} rows {'is' if len(self.faults) == 1 else 'are'} bad:")
        notes = self._separate()
        samples = {entry.id: record for record, entry in self.entries if isinstance(entry, Sample)}
        return Rows(
            samples=[entry for _, entry in self.entries if isinstance(entry, Sample)],
            exclusions=[entry for _, entry in self.entries if isinstance(entry, Exclusion)],
            places={name: record.place for name, record in samples.items()},
            notes=notes,
            numbers={name: (record.file, record.number) for name, record in samples.items()},
        )

    def _refuse(self, head: str) -> None:
        text = "\n  ".join((head, *self.faults))
        raise RequestError(f"{text}\n{self.advice}")

    def _separate(self) -> tuple[str, ...]:
        """Files that share an id get their name in front of every id: many data sets count their rows from 1."""
        owners: dict[str, set[Path]] = defaultdict(set)
        for path, name in self.lines:
            owners[name].add(path)
        clashing = {path for paths in owners.values() if len(paths) > 1 for path in paths}
        if not clashing:
            return ()
        seen: dict[str, str] = {}
        for at, (record, entry) in enumerate(self.entries):
            path = record.file
            if isinstance(entry, Exclusion) and path in clashing:
                self.entries[at] = (record, replace(entry, sample_id=f"{path.stem}-{entry.sample_id}"))
            elif isinstance(entry, Sample):
                if path in clashing:
                    entry = replace(entry, id=f"{path.stem}-{entry.id}")
                    self.entries[at] = (record, entry)
                first = seen.setdefault(entry.id, record.place)
                if first != record.place:
                    raise RequestError(f"{record.place}: id: {entry.id!r} is the id of {first} too; rename one of the files or its ids")
        names = ", ".join(sorted(path.name for path in clashing))
        return (f"{names} share ids: each id has its file's name in front, for example {next(iter(seen))!r}",)

    def _sample(self, record: Record) -> Sample:
        values = record.values
        problem = _text(values, PROBLEM)
        if not problem.strip():
            raise FieldFault("problem", "empty_problem", "is empty" if _first(values, PROBLEM) else _absent("problem", PROBLEM, values))
        answer_key = _first(values, ANSWER)
        answer = values[answer_key] if answer_key else None
        # The tests of a program are a gold answer too.
        if (answer is None or isinstance(answer, str) and not answer.strip()) and not values.get("tests"):
            raise FieldFault("answer", "missing_answer", "is empty" if answer_key else _absent("answer", ANSWER, values))
        root = self.media_root if self.media_root is not None else record.file.parent
        media = in_order_of_marks(problem, read_media(values, root))
        self._exist(media)
        return Sample(
            id=_name(values, record),
            problem=problem,
            answer=answer,
            problem_type=self._problem_type(values),
            media=media,
            options=_options(values),
            offline=_offline(values),
            source=_text(values, SOURCE),
            scoring=_scoring(values),
            extra=_extra(values),
        )

    def _problem_type(self, values: Mapping[str, Any]) -> str:
        name = normal_problem_type(_text(values, ("problem_type",)))
        if not name:
            raise FieldFault("problem_type", "missing_problem_type", "is missing: it says how the answer is scored")
        known = self.known
        if known is not None and not (known(name) if callable(known) else name in known):
            names = [key for spec in catalogue().specs(RewardSpec) for key in spec.problem_types] if callable(known) else known
            raise FieldFault("problem_type", "unknown_problem_type", f"no reward serves {name!r}{nearest(name, names)}")
        return name

    def _exist(self, media: Iterable[MediaRef]) -> None:
        for ref in media if self.check_media else ():
            key = ref.path, ref.fps is None
            if key not in self.present:
                folder, there = os.path.isdir(ref.path), os.path.exists(ref.path)
                if ref.fps is not None:
                    reason = "" if folder else "is a file; fps is the rate of a folder of pictures" if there else "no such folder"
                elif folder:
                    reason = 'is a folder; frames without a clock aren\'t read: give {"path": ..., "fps": ...}'
                else:
                    reason = "" if os.path.isfile(ref.path) else "is no ordinary file" if there else "no such file"
                self.present[key] = reason
            if self.present[key]:
                raise FieldFault(ref.kind, "missing_media", f"{ref.path}: {self.present[key]}")


def _first(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of the columns that is filled; else the first that is there; else nothing."""
    filled = (name for name in names if values.get(name) is not None and values[name] != "")
    return next(filled, next((name for name in names if values.get(name) is not None), ""))


def _absent(name: str, names: Sequence[str], values: Mapping[str, Any]) -> str:
    near = [key for key in values if key not in _NAMES and any(nearest(key, [known]).startswith("; did") for known in names)]
    return f"is missing (column {', '.join(names)})" + (f"; did you mean to call {near[0]!r} {name!r}?" if near else "")


def _text(values: Mapping[str, Any], names: Sequence[str]) -> str:
    name = _first(values, names)
    value = values[name] if name else ""
    if not isinstance(value, str):
        raise FieldFault(name, "bad_type", f"must be text, found {type(value).__name__}")
    return value


def _name(values: Mapping[str, Any], record: Record) -> str:
    """The id that the row gives, else `<file stem>-<row number>`."""
    column = _first(values, ID)
    value = values[column] if column else None
    if value is None or isinstance(value, str) and not value.strip():
        return f"{record.file.stem}-{record.number}"
    if isinstance(value, float) and value.is_integer():  # a Parquet column of numbers with gaps
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise FieldFault(column, "bad_type", f"must be text or a whole number, found {value!r}")
    return str(value).strip()


def _extra(values: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that no field of the sample was made from; of aliases only the one that counted was used."""
    used = _TAKEN | {_first(values, names) for names in (PROBLEM, ANSWER, ID, OPTIONS, SOURCE)}
    return {key: item for key, item in values.items() if key not in used and item is not None}


def _options(values: Mapping[str, Any]) -> tuple[str, ...] | dict[str, str] | None:
    name = next((name for name in OPTIONS if values.get(name) is not None), "")
    try:
        return read_options(values.get(name))
    except ValueError as error:
        raise FieldFault(name, "bad_options", str(error)) from None


def _scoring(values: Mapping[str, Any]) -> dict[str, Any]:
    value = values.get("scoring")
    if isinstance(value, str):
        try:
            value = read_printed(value)
        except ValueError as error:
            raise FieldFault("scoring", "bad_type", str(error)) from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FieldFault("scoring", "bad_type", f"must be a mapping, found {type(value).__name__}")
    return {str(key): item for key, item in value.items()}


def _offline(values: Mapping[str, Any]) -> tuple[str, ...]:
    name = _first(values, OFFLINE)
    value = values[name] if name else None
    texts = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise FieldFault(name, "bad_type", f"must be a text or a list of texts, found {type(value).__name__}")
    said = values.get("has_offline_trajectory")
    flags = [_flag(flag) for flag in (said if isinstance(said, (list, tuple)) else [said] * max(len(texts), 1))]
    if said is not None and None in flags:
        raise FieldFault("has_offline_trajectory", "bad_type", f"must be true or false, found {said!r}")
    if isinstance(said, (list, tuple)) and len(flags) != len(texts):
        raise FieldFault("has_offline_trajectory", "bad_type", f"has {len(flags)} entries, {name or OFFLINE[0]} has {len(texts)}")
    kept = [text for text, flag in zip(texts, flags, strict=False) if flag is not False]
    blank = [text for text in kept if not text.strip()]
    if said is not None and (True in flags and not kept or blank and True in flags) or blank and len(kept) > 1:
        raise FieldFault(name or OFFLINE[0], "missing_offline", "is blank although the row says it has a trajectory")
    return tuple(text for text in kept if text.strip())


def _flag(value: Any) -> bool | None:
    return {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())
