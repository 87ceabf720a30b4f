"""JSON that stands in an answer: alone, in a fence, or among words; strict, nearly strict, or as a Python literal.

Nothing is evaluated, and the gold answer is not looked at. All attempts at one text together read a bounded number of
characters, so that brackets without an end don't cost more than a long answer does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

from evr1_core.scoring.reward import Unparsed
from evr1_core.scoring.text import FENCE_INFO, MAX_NESTING, parse_json

T = TypeVar("T")

ATTEMPT_CHARS = 1_000_000
"""Characters that all attempts at one text may read. The longest text that a task reads fits three times."""
_ATTEMPT_COST = 150
"""What one attempt costs apart from its length, in characters: the refusal of a short piece takes about 30 microseconds."""

_MARKS = re.compile(r'\\[^\n]|["\n\[\]{}]')
_PAIRS = {"]": "[", "}": "{"}
_NUMERIC = re.compile(r"[+-]?(?:\d{1,60}(?:\.\d{0,60})?|\.\d{1,60})(?:[eE][+-]?\d{1,3})?")


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of a text that is JSON."""

    value: Any
    has_object: bool
    """It contains an object; else it is a list of plain values and lists."""


class JsonText:
    """One text and the attempts to read JSON in it. Raises Unparsed(`too_complex`) when they take too much."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._left = ATTEMPT_CHARS
        self._refused: set[str] = set()  # hostile answers repeat one piece thousands of times

    def whole(self) -> Any:
        """The value of the whole text, or else of its last fenced block that has one; a string is read once more.

        Raises ValueError when there is none.
        """
        for piece in self._candidates():
            try:
                value = self._parse(piece)
            except ValueError:
                continue  # the next candidate
            return self._inside(value) if isinstance(value, str) else value
        raise ValueError("no JSON")

    def regions(self, objects_only: bool = False) -> Iterator[Region]:
        """Outermost balanced `[...]` and `{...}` that parse, left to right; `objects_only` leaves out those without an object."""
        pieces = _balanced(self.text, strings=True)
        end = 0
        for start, stop, deep in sorted(_balanced(self.text, strings=False) or [] if pieces is None else pieces):
            if start < end or deep > MAX_NESTING:
                continue
            has_object = self.text.find("{", start, stop) >= 0
            if objects_only and not has_object:
                end = stop
                continue
            try:
                yield Region(self._parse(self.text[start:stop]), has_object)
            except ValueError:
                continue  # a smaller piece inside it may parse
            end = stop

    def _candidates(self) -> Iterator[str]:
        yield self.text
        parts = self.text.split("```")
        for block in reversed(parts[1:-1:2]):
            info = FENCE_INFO.match(block)
            yield block[info.end() :] if info else block

    def _inside(self, text: str) -> Any:
        try:
            return self._parse(text)
        except ValueError:
            return text

    def _parse(self, piece: str) -> Any:
        piece = piece.strip()
        if piece in self._refused:
            raise ValueError("not JSON")
        self._left -= len(piece) + _ATTEMPT_COST
        if self._left < 0:
            raise Unparsed("too_complex")
        try:
            return parse_json(piece)
        except ValueError:
            self._refused.add(piece)
            raise


def read(text: str, shape: Callable[[Any], list[T] | None]) -> list[T] | None:
    """What `shape` finds in the JSON of a text; None when there is nothing for it, and words may be read.

    `shape(value)` gives None for a value of a form that it doesn't know. A text that is JSON as a whole must have a known form; JSON
    null holds nothing. Among words the last region with an object counts, or else all regions without one, together. Raises Unparsed
    (`bad_shape`, `too_complex`).
    """
    answer = JsonText(text)
    try:
        value = answer.whole()
    except ValueError:
        value = text
    if value is None:
        return []
    if isinstance(value, (list, dict)):
        found = shape(value)
        if found is None:
            raise Unparsed("bad_shape")
        return found
    with_object: list[T] | None = None
    plain: list[T] | None = None
    for region in answer.regions():
        found = shape(region.value)
        if found is not None and region.has_object:
            with_object = found
        elif found is not None:
            plain = (plain or []) + found
    return plain if with_object is None else with_object


def strict_json(text: str) -> Any:
    """A text that is JSON by the letter, nested at most 32 deep, without NaN, Infinity and numbers that overflow. Raises ValueError."""
    return parse_json(text, lenient=False)


def strict_object(content: str, limit: int) -> dict[str, Any] | None:
    """The object that a text of at most `limit` characters is in strict JSON; None for anything else."""
    if len(content) > limit:
        return None
    try:
        value = strict_json(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def number(value: Any) -> float | None:
    """A finite number, or the number that a text is (at most 60 digits on a side of its point); no truth value."""
    kind = type(value)
    if kind is int or kind is float:  # the usual case, without the abstract class
        return _finite(value)
    if isinstance(value, str):
        value = value.strip().replace("\u2212", "-")
        if not _NUMERIC.fullmatch(value):
            return None
    elif isinstance(value, bool) or not isinstance(value, Real):
        return None
    return _finite(value)


def json_number(value: Any) -> float | None:
    """A finite number that was written as one, not as text."""
    return None if isinstance(value, str) else number(value)


def _finite(value: Any) -> float | None:
    try:
        found = float(value)
    except OverflowError:  # an integer with hundreds of digits
        return None
    return found if math.isfinite(found) else None


def first_of(value: dict[Any, Any], names: tuple[str, ...]) -> Any:
    """The value under the first of `names` that is a key, in any case, with blanks or dashes for `_`; None when none is."""
    keys = {re.sub(r"[\s-]+", "_", str(key).strip().lower()): key for key in value}
    return next((value[keys[name]] for name in names if name in keys), None)


def compact(value: Any) -> str:
    """A value that was read as one line of JSON."""
    return json.dumps(value, separators=(",", ":"))


def _balanced(text: str, *, strings: bool) -> list[tuple[int, int, int]] | None:
    """(start, end, nesting) of every balanced piece.

    With `strings`, brackets in double quotes inside a piece don't count; None when such a quote doesn't end on its line: it is no string.
    """
    found: list[tuple[int, int, int]] = []
    opened: list[list[Any]] = []  # bracket, start, nesting of what it encloses so far
    quoted = False
    for match in _MARKS.finditer(text):
        mark = match[0]
        if mark == '"':
            quoted = strings and bool(opened) and not quoted
        elif mark == "\n":
            if quoted:
                return None
        elif quoted or len(mark) > 1:
            continue
        elif mark in "[{":
            opened.append([mark, match.start(), 1])
        elif opened and opened[-1][0] == _PAIRS[mark]:
            _, start, deep = opened.pop()
            found.append((start, match.end(), deep))
            if opened:
                opened[-1][2] = max(opened[-1][2], deep + 1)
        else:
            opened.clear()  # nothing around a bracket of the wrong kind can parse
    return None if quoted else found
