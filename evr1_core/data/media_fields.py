"""The media of a row: which columns hold them, what kind they are, where the files lie, which mark each belongs to."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from evr1_core.data.options import read_printed
from evr1_core.types import MediaRef

Kind = Literal["image", "video"]

COLUMNS: dict[Kind, tuple[str, ...]] = {"video": ("videos", "video"), "image": ("images", "image", "image_path")}
"""Columns by kind; of several for one kind the first one that is filled counts. `path` is of the kind of its file."""
EXTRA_COLUMNS = ("path", "video_start", "video_end", "data_type")
MARK = re.compile(r"(?<!\\)<(image|video)>")
"""The place of a medium in a question. `\\<video>` is the text itself."""

_IMAGE = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".jfif"}
_VIDEO = {".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".flv", ".wmv", ".ts", ".m2ts", ".3gp", ".ogv"}
_MAPPING_KEYS = {"path", "start", "end", "fps", "video", "image", "video_start", "video_end", "bytes", "type"}


class FieldFault(ValueError):
    """A field of a row is wrong. `code` becomes the reason of an exclusion."""

    def __init__(self, field: str, code: str, reason: str) -> None:
        self.field, self.code, self.reason = field, code, reason
        super().__init__(f"{field}: {reason}" if field else reason)


def read_media(values: Mapping[str, Any], root: Path) -> tuple[MediaRef, ...]:
    """All media of a row, images before videos. Raises FieldFault; whether the files exist is not looked at."""
    declared = str(values.get("data_type") or "").strip().lower()
    found: dict[Kind, tuple[str, list[Any]]] = {}
    if values.get("path") is not None:
        items = _items(values["path"], "path")
        named: set[Kind] = {_kind_of(_path_of(item, "path"), declared) for item in items}
        if len(named) > 1:
            raise FieldFault("path", "bad_media", "holds images and videos; put them in `images` and `videos`")
        if named:
            found[named.pop()] = ("path", items)
    for kind, columns in COLUMNS.items():
        for column in columns:
            if kind not in found and values.get(column) not in (None, "", []):
                found[kind] = (column, _items(values[column], column))
    refs: list[MediaRef] = []
    kinds: tuple[Kind, ...] = ("image", "video")
    for kind in kinds:
        column, items = found.get(kind, ("", []))
        cuts = _cuts(values, len(items)) if kind == "video" else [(None, None)] * len(items)
        refs += [_ref(item, kind, column, root, *cut) for item, cut in zip(items, cuts, strict=True)]
    _agree(declared, {ref.kind for ref in refs})
    return tuple(refs)


def in_order_of_marks(problem: str, media: Sequence[MediaRef]) -> tuple[MediaRef, ...]:
    """Media in the order of their marks; a kind without marks comes first. Raises FieldFault when counts differ."""
    marks: list[str] = MARK.findall(problem)
    queues: dict[str, list[MediaRef]] = {}
    for kind in ("image", "video"):
        queues[kind] = [ref for ref in media if ref.kind == kind]
        count = marks.count(kind)
        if count > len(queues[kind]) or 0 < count < len(queues[kind]):
            raise FieldFault(
                "problem",
                "marks",
                f"has {count} <{kind}> mark(s), the row has {len(queues[kind])} {kind}(s); give each its mark, or none at all, "
                f"or write \\<{kind}> for the plain text",
            )
    unmarked = [ref for kind in ("image", "video") if kind not in marks for ref in queues[kind]]
    return (*unmarked, *(queues[kind].pop(0) for kind in marks))


def _items(value: Any, column: str) -> list[Any]:
    if isinstance(value, str):
        text = value.strip()
        if not text:
            return []
        if text[0] in "[{" and text[-1] in "]}":
            try:
                value = read_printed(text)
            except ValueError:
                return [text]
        else:
            return [text]
    if isinstance(value, (list, tuple)):
        return [item for item in value if item is not None]
    return [value]


def _path_of(item: Any, column: str) -> str:
    if isinstance(item, Mapping):
        unknown = sorted(set(item) - _MAPPING_KEYS)
        if unknown:
            raise FieldFault(column, "bad_media", f"unknown key {unknown[0]!r} in a medium; known: path, start, end, fps")
        if item.get("bytes") is not None:
            raise FieldFault(column, "bad_media", "holds a file's bytes; save it as a file and give its path")
        item = _given(item, ("path", "video", "image"))
    if isinstance(item, (bytes, bytearray)):
        raise FieldFault(column, "bad_media", "holds a file's bytes; save it as a file and give its path")
    if not isinstance(item, str) or not item.strip():
        raise FieldFault(column, "bad_media", f"must be a path or {{path, start, end}}, found {type(item).__name__}")
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", item):
        raise FieldFault(column, "bad_media", f"{item!r} is an address; download it and give the path")
    return item.strip()


def _given(item: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)


def _ref(item: Any, kind: Kind, column: str, root: Path, start: float | None, end: float | None) -> MediaRef:
    path = _path_of(item, column)
    natural = _extension_kind(path)
    if natural and natural != kind:
        raise FieldFault(column, "bad_media", f"{path!r} is the name of {_a(natural)}, expected {_a(kind)}")
    if isinstance(item, Mapping):
        own_start, own_end = (_seconds(_given(item, names), column) for names in (("start", "video_start"), ("end", "video_end")))
        start, end = start if own_start is None else own_start, end if own_end is None else own_end
    if kind == "image" and (start is not None or end is not None):
        raise FieldFault(column, "bad_media", "an image has no start and end")
    if start is not None and end is not None and end <= start:
        raise FieldFault(column, "bad_media", f"the part ends at {end} s, before its start at {start} s")
    return MediaRef(str(root / path), kind, start, end, _rate(item, kind, column))


def _rate(item: Any, kind: Kind, column: str) -> float | None:
    """Pictures per second of a folder of pictures."""
    fps = _seconds(item.get("fps"), column) if isinstance(item, Mapping) else None
    if fps is not None and (kind == "image" or not fps):
        raise FieldFault(column, "bad_media", f"has fps {fps:g}: that is the rate of a folder of pictures, above 0, and only of a video")
    return fps


def _cuts(values: Mapping[str, Any], count: int) -> list[tuple[float | None, float | None]]:
    """Start and end of every video from the columns `video_start` and `video_end`: a number, or a list of one per video."""
    columns = []
    for name in ("video_start", "video_end"):
        value = values.get(name)
        entries = list(value) if isinstance(value, (list, tuple)) else [value]
        if value is None:
            entries = [None] * count
        elif len(entries) != count:
            raise FieldFault(name, "bad_media", f"has {len(entries)} value(s) for {count} video(s)")
        columns.append([_seconds(entry, name) for entry in entries])
    return list(zip(*columns, strict=True))


def _seconds(value: Any, name: str) -> float | None:
    if value is None:
        return None
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise FieldFault(name, "bad_media", f"must be seconds from the start, found {value!r}")
    return seconds


def _kind_of(path: str, declared: str) -> Kind:
    natural = _extension_kind(path)
    if natural:
        return natural
    if declared in ("image", "video"):
        return declared  # type: ignore[return-value]
    raise FieldFault("path", "bad_media", f"can't tell whether {path!r} is an image or a video; set data_type, or use `images`/`videos`")


def _extension_kind(path: str) -> Kind | None:
    suffix = Path(path).suffix.lower()
    return "image" if suffix in _IMAGE else "video" if suffix in _VIDEO else None


def _agree(declared: str, kinds: set[str]) -> None:
    if declared == "text" and kinds:
        raise FieldFault("data_type", "bad_media", f"is text, but the row has {_a(sorted(kinds)[0])}")
    if declared in ("image", "video") and declared not in kinds:
        has = f"only {_a(kinds.copy().pop())}" if kinds else "no medium"
        raise FieldFault("data_type", "bad_media", f"is {declared}, but the row has {has}")


def _a(kind: str) -> str:
    return "an image" if kind == "image" else "a video"
