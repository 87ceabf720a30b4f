"""Tracks: boxes by time, as answers and gold answers write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from evr1_core.scoring import InvalidGold, Unparsed
from evr1_core.scoring.json_answer import first_of
from evr1_rewards.boxes import BOX_KEYS, Box, Frames, in_order, is_strict_box, one_box
from evr1_rewards.spans import SpanReader

Track = dict[float, Box]
"""Time, rounded to milliseconds or to the thousandth of another unit -> box."""

MAX_KEYS = 5_000
KEY_NAMES = ("time", "timestamp", "second", "frame", "t")
_ONE_TIME = SpanReader()


def time_key(value: Any) -> float | None:
    """The time that a key names: 9, "9", "9.0", "00:09" and "9s" are one."""
    time = _ONE_TIME.one(value)
    return None if time is None else round(time, 3)


def entries(value: Any) -> list[tuple[Any, Any]] | None:
    """(key, box as it was written) of a mapping, or of a list of objects with a time and a box; None for any other form."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)) and all(isinstance(entry, dict) for entry in value):
        return [(first_of(entry, KEY_NAMES), entry) for entry in value]
    return None


def answer_track(value: Any, *, bare: bool) -> Track | None:
    """The boxes of an answer's JSON value, corners in order; what is no box or has no time is missing.

    They stand under one of `BOX_KEYS`; with `bare` the value itself may be the mapping or list, when it holds a box. None when there is
    no such mapping or list. Raises Unparsed(`too_many`).
    """
    named = first_of(value, BOX_KEYS) if isinstance(value, dict) else None
    if named is not None:
        found = entries(named)
        return None if found is None else _track(found)
    found = entries(value) if bare else None
    return (_track(found) or None) if found else None


def gold_track(value: Any, frames: Frames) -> Track:
    """The annotated boxes of a gold answer in the common frame; null or `[]` is not annotated.

    Raises InvalidGold: `type`, `bad_key`, `not_a_box`, `bad_box`.
    """
    named = first_of(value, BOX_KEYS) if isinstance(value, dict) else None
    found = entries({} if named is None else named)
    if found is None:
        raise InvalidGold("type")
    track: Track = {}
    for written, entry in found:
        key = time_key(written)
        if key is None:
            raise InvalidGold("bad_key")
        track.pop(key, None)
        value = first_of(entry, BOX_KEYS) if isinstance(entry, dict) else entry
        if value is None or value == []:
            continue
        box = one_box(value)
        if box is None:
            raise InvalidGold("not_a_box")
        track[key] = frames.gold_box(box)
    return track


def is_strict_track(value: Any) -> bool:
    """A JSON object with at least one key, all of them times, all values boxes."""
    if not isinstance(value, dict) or not value:
        return False
    return all(time_key(key) is not None and is_strict_box(box) for key, box in value.items())


def _track(found: Iterable[tuple[Any, Any]]) -> Track:
    found = list(found)
    if len(found) > MAX_KEYS:
        raise Unparsed("too_many")
    track: Track = {}
    for written, value in found:
        key = time_key(written)
        if key is None:
            continue
        track.pop(key, None)  # of keys that name one time the later one counts
        box = one_box(value)
        if box is not None:
            track[key] = in_order(box)
    return track
