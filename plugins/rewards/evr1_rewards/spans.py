"""Spans of time: how answers and gold answers write them, and how much two sets of them overlap."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any

from evr1_core.scoring import Answer, InvalidGold, Unparsed
from evr1_core.scoring.json_answer import first_of, json_number, number, read
from evr1_core.scoring.text import names_nothing, unwrap
from evr1_core.types import Sample

Span = tuple[float, float]

MAX_SPANS = 100
PROSE_CHARS = 10_000
SPAN_KEYS = tuple(
    name + plural for name in ("time", "timestamp", "span", "interval", "segment", "window", "time_span") for plural in ("", "s")
)
START_KEYS = ("start", "start_time", "begin", "from", "start_sec", "start_seconds")
END_KEYS = ("end", "end_time", "stop", "to", "end_sec", "end_seconds")
_LONG_TEXT = 300
"""Characters from which a text without an answer block is read line by line."""

_NUMBER = r"(?:\d{1,60}(?:\.\d{1,60})?|\.\d{1,60})"
_WORD_END = r"(?![A-Za-z])"
_HOURS = rf"[ -]?(?:hours?|hrs?|h|小时|時間){_WORD_END}"
_MINUTES = rf"[ -]?(?:minutes?|mins?|m|分钟|分鐘|分){_WORD_END}"
_SECONDS = rf"[ -]?(?:seconds?|secs?|s|秒钟|秒){_WORD_END}"
_JOINED = r"\s{0,2}(?:,\s{0,2}|and\s{1,2})?"
_CLOCK = rf"(?:\d{{1,3}}:)?\d{{1,3}}:[0-5]\d(?:\.\d{{1,9}})?(?![\d:])(?:{_SECONDS}|{_MINUTES}|{_HOURS})?"
_IN_UNITS = (
    rf"(?:{_NUMBER}{_HOURS}(?:{_JOINED}{_NUMBER}{_MINUTES})?(?:{_JOINED}{_NUMBER}{_SECONDS})?"
    rf"|{_NUMBER}{_MINUTES}(?:{_JOINED}{_NUMBER}{_SECONDS})?|{_NUMBER}{_SECONDS})"
)
_ALONE = rf"{_NUMBER}(?![A-Za-z\d]|\.\d|:\d)"
_SIGN = r"(?:(?<![^\s(\[{=:,])[-−])?"
_ONE = rf"{_SIGN}(?<![A-Za-z\d_])(?<!\d[.:])(?:{_CLOCK}|{_IN_UNITS}|{_ALONE})"
_TIME = re.compile(_ONE, re.IGNORECASE)
_TO = r"\s{0,4}(?:=>|->|→|[-–—−~～〜]|\b(?:to|until|till|through)\b|至|到)\s{0,4}"
_PAIR = re.compile(
    rf"\bbetween\s{{1,4}}(?P<after>{_ONE})\s{{1,4}}and\s{{1,4}}(?P<before>{_ONE})|(?P<first>{_ONE}){_TO}(?P<second>{_ONE})", re.IGNORECASE
)
_UNITS = tuple(
    (re.compile(rf"({_NUMBER}){unit}", re.IGNORECASE), factor) for unit, factor in ((_HOURS, 3600.0), (_MINUTES, 60.0), (_SECONDS, 1.0))
)


@dataclass(frozen=True, slots=True)
class Time:
    """One time in words or digits."""

    value: float
    """Seconds, or the number as it stands where there is no unit."""
    unit: float = 0.0
    """Seconds of its largest unit; 0 without a unit. A clock time counts in seconds."""


def seconds_per_unit(sample: Sample, column: str) -> float:
    """Seconds of one unit of the times that a row's `column` declares: `second` (default), `frame` or `fraction` of the duration.

    Raises InvalidGold: `time_unit`, `missing_fps`, `missing_duration`.
    """
    unit = sample.extra.get(column, "second")
    if unit == "second":
        return 1.0
    if unit == "frame":
        return 1.0 / positive(sample, "fps")
    if unit == "fraction":
        return positive(sample, "duration")
    raise InvalidGold("time_unit")


def positive(sample: Sample, column: str) -> float:
    """A column with a number above 0. Raises InvalidGold(`missing_<column>`)."""
    value = number(sample.extra.get(column))
    if value is None or value <= 0:
        raise InvalidGold(f"missing_{column}")
    return value


class SpanReader:
    """Reads spans, in seconds and as they were written: the end may come first."""

    def __init__(self, scale: float = 1.0) -> None:
        """`scale`: seconds of a number without a unit."""
        self.scale = scale

    def answer(self, answer: Answer, limit: int) -> list[Span]:
        """The spans of an answer, each in order. Raises Unparsed (`no_span`, `bad_shape`, `too_long`, `too_many`)."""
        found = read(answer.read(limit), self.shape)
        if found is not None:
            return in_order(found)
        return [] if names_nothing(answer.read(PROSE_CHARS)) else self.in_prose(answer)

    def in_prose(self, answer: Answer) -> list[Span]:
        """The spans that the words of an answer name, each in order. Raises Unparsed (`no_span`, `too_long`, `too_many`)."""
        text = answer.read(PROSE_CHARS)
        found = self.prose(text, long=answer.source == "whole" and len(text) > _LONG_TEXT)
        if found is None:
            raise Unparsed("no_span")
        return in_order(found)

    def gold(self, value: Any) -> list[Span]:
        """The spans of a gold answer; none of an empty list. Raises InvalidGold (`missing`, `not_a_span`, `bad_span`)."""
        if value is None or value == "":
            raise InvalidGold("missing")
        found = self._gold_text(value) if isinstance(value, str) else self.shape(value)
        if found is None or value == {}:
            raise InvalidGold("not_a_span")
        if any(start >= end or not isfinite(end - start) for start, end in found):
            raise InvalidGold("bad_span")
        return found

    def one(self, value: Any) -> float | None:
        """One time: a number, or a text that is one."""
        if isinstance(value, str):
            text = value.strip()
            if number(text) is None:
                return self._seconds(_time(text)) if len(text) <= 200 and _TIME.fullmatch(text) else None
        found = number(value)
        seconds = None if found is None else self._seconds(Time(found))
        return seconds if seconds is not None and isfinite(seconds) else None

    def shape(self, value: Any) -> list[Span] | None:
        """The spans of a JSON value, None when it has no form in which spans are written."""
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, str):
            found = self.prose(value)
            return found if found and len(found) == 1 else None
        if not isinstance(value, (list, tuple)):
            return None
        if len(value) == 2:
            first, second = self.one(value[0]), self.one(value[1])
            if first is not None and second is not None:
                return [(first, second)]
        return self._several(value)

    def prose(self, text: str, *, long: bool = False) -> list[Span] | None:
        """The spans that words name; of a `long` text those of its last line that names any."""
        lines = text.split("\n")[::-1] if long else [unwrap(text)]
        for find in (self._pairs, self._two_times):
            for line in lines:
                if found := find(line):
                    return found
        return None

    def _gold_text(self, text: str) -> list[Span] | None:
        try:
            found = read(text, self.shape)
        except Unparsed:
            return None
        if found is None:
            found = [] if names_nothing(text) else self.prose(text)
        return found

    def _object(self, value: dict[Any, Any]) -> list[Span] | None:
        if not value:
            return []
        named = first_of(value, SPAN_KEYS)
        if named is not None:
            return self.shape(named)
        start, end = self.one(first_of(value, START_KEYS)), self.one(first_of(value, END_KEYS))
        return None if start is None or end is None else [(start, end)]

    def _several(self, values: list[Any] | tuple[Any, ...]) -> list[Span] | None:
        spans: list[Span] = []
        for value in values:
            found = self.shape(value)
            if not found:
                return None
            spans += found
        return spans

    def _pairs(self, text: str) -> list[Span]:
        return [self._span(match["after"] or match["first"], match["before"] or match["second"]) for match in _PAIR.finditer(text)]

    def _two_times(self, text: str) -> list[Span]:
        times = [match[0] for match in islice(_TIME.finditer(text), 3)]
        return [self._span(*times)] if len(times) == 2 else []

    def _span(self, first: str, second: str) -> Span:
        start, end = _time(first), _time(second)
        if not start.unit and end.unit > 1:  # "1 to 2 minutes"
            start = Time(start.value * end.unit, end.unit)
        return self._seconds(start), self._seconds(end)

    def _seconds(self, time: Time) -> float:
        return time.value if time.unit else time.value * self.scale


def _time(text: str) -> Time:
    """What a text that matches `_TIME` says."""
    sign = -1.0 if text[0] in "-−" else 1.0
    text = text.lstrip("-−")
    if ":" in text:
        seconds = 0.0
        for part in re.findall(r"[\d.]+", text):
            seconds = 60 * seconds + float(part)
        return Time(sign * seconds, 1.0)
    parts = [(float(match[1]) * factor, factor) for pattern, factor in _UNITS if (match := pattern.search(text))]
    if not parts:
        return Time(sign * float(text))
    return Time(sign * sum(seconds for seconds, _ in parts), parts[0][1])


def in_order(spans: list[Span]) -> list[Span]:
    """Spans with the earlier end first. Raises Unparsed(`too_many`) above 100."""
    if len(spans) > MAX_SPANS:
        raise Unparsed("too_many")
    return [(min(span), max(span)) for span in spans]


def is_strict_time(value: Any) -> bool:
    """`[s, e]` or a list of such pairs, which may be empty: JSON numbers, s < e."""
    if not isinstance(value, list):
        return False
    pairs = [value] if value and not isinstance(value[0], list) else value
    for pair in pairs:
        numbers = [json_number(entry) for entry in pair] if isinstance(pair, list) else []
        if len(numbers) != 2 or numbers[0] is None or numbers[1] is None or numbers[0] >= numbers[1]:
            return False
    return True


def merged(spans: list[Span]) -> list[Span]:
    """The same times without overlaps, ascending."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def clipped(spans: list[Span], duration: float) -> list[Span]:
    """The parts of spans in [0, duration]."""
    inside = [(max(start, 0.0), min(end, duration)) for start, end in spans]
    return [(start, end) for start, end in inside if start < end]


def set_iou(one: list[Span], other: list[Span]) -> float:
    """Time in both sets of spans over the time in any of them, in [0, 1]; 1 when both are empty.

    For one span on each side it is the temporal IoU of TALL (arXiv 1705.02101).
    """
    if not one or not other:
        return float(not one and not other)
    one, other = merged(one), merged(other)
    shared = _shared(one, other)
    if shared <= 0:
        return 0.0
    union = _length(one) + _length(other) - shared
    return min(shared / union, 1.0)


def _length(spans: list[Span]) -> float:
    return sum(end - start for start, end in spans)


def _shared(one: list[Span], other: list[Span]) -> float:
    """Length of the overlap of two ascending lists without overlaps of their own."""
    total, at, to = 0.0, 0, 0
    while at < len(one) and to < len(other):
        total += max(min(one[at][1], other[to][1]) - max(one[at][0], other[to][0]), 0.0)
        if one[at][1] <= other[to][1]:
            at += 1
        else:
            to += 1
    return total
