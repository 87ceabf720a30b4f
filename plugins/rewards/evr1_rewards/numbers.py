"""Numbers as people and models write them, as exact rationals.

    read_number("The answer is about 1,234.5 m.")  ->  Number(value=2469/2, unit=metre, ...)

A text is brought to ASCII first (number_text.py), then cut into number tokens. A token that can't be read for certain is
`bad`: an inequality, a power, a version number, more than 60 digits. The grammar is the specification (docs/rewards.md).
All patterns are bounded or linear, and no number is built before its size is known.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from evr1_core.scoring import Unparsed
from evr1_core.scoring.text import Event, boxes, events, unwrap
from evr1_rewards.number_text import CJK, prepare
from evr1_rewards.number_words import SCALES, word_numbers
from evr1_rewards.units import UNIT, Unit, unit_of

MAX_DIGITS = 60
MAX_EXPONENT = 308
SHORT_TEXT = 300
"""Characters up to which the only number of a text is its answer."""

_CORE = (
    r"(?:(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[1-9][0-9]?(?:,[0-9]{2}){1,30},[0-9]{3}(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<!\.)\.[0-9]+)"
)
_POWER = r"10\s?(?:\^|\*\*)\s?"
_NUMBER = re.compile(
    rf"(?:(?:\A|(?<=[\s(\[{{=:,~≈*/<>≤≥±\"'“‘{CJK}]))(?P<sign>[-+])|\b(?P<minus>(?i:minus|negative))\s{{1,4}})?"
    rf"(?<![0-9_^\\])(?<![0-9]\.)(?<![^\W\d_{CJK}])"
    rf"(?:{_POWER}(?P<ten>[-+]?[0-9]+)"
    rf"|(?P<core>{_CORE})(?:[eE](?P<e>[-+]?[0-9]+)(?![A-Za-z0-9_])|\s{{0,4}}[xX*]\s{{0,4}}{_POWER}(?P<x>[-+]?[0-9]+))?)"
    rf"(?:\s?/\s?(?P<below>{_CORE})|[ \t]{{1,4}}(?P<over>[0-9]+)\s?/\s?(?P<under>[0-9]+))?"
)
_UNIT = rf"{UNIT}|(?:h|hr|min)(?=[0-9]{{1,2}}\s?(?:min|s))"  # 1h30min
_AFTER = re.compile(
    rf"(?P<scales>(?:[ \t-]{{0,2}}(?i:{'|'.join(SCALES)})s?\b){{0,2}})"
    rf"(?:[ \t-]{{0,4}}(?P<percent>%|(?i:percent|per\s?cent|pct|percentage\s{{1,4}}points?)\b)|[ \t-]?(?P<unit>{_UNIT}))?"
)
_SCALE = re.compile("|".join(SCALES), re.IGNORECASE)
_TIME_PART = re.compile(
    rf"[ \t]{{0,4}},?[ \t]{{0,4}}(?:and\b[ \t]{{0,4}})?(?P<value>[0-9]{{1,{MAX_DIGITS}}}(?:\.[0-9]{{1,9}})?)[ \t-]?(?P<unit>{UNIT})"
)
_INEQUALITY = re.compile(
    r"(?:(?:(?<![-=])>|[<≤≥±]|=<)=?|\b(?:at\s{1,4}(?:least|most)|(?:more|less|fewer|greater)\s{1,4}than|up\s{1,4}to|not))"
    r"\s{0,4}(?:(?:about|around|approximately|roughly)\s{1,4})?\Z",
    re.IGNORECASE,
)
_ARGUMENT = re.compile(r"(?:\\(?:sqrt|[dt]?frac|log|ln|exp|sin|cos|tan)\s?(?:\{[^{}]{0,20}\}|\[[^\[\]]{0,20}\])?\s?[{(]?|√\(?)\s?\Z")
_MORE_BEHIND = re.compile(r"\s?(?:\^|\*\*|/\s?[0-9])|\.[0-9]")
_AND_A_HALF = re.compile(r"[ \t]{1,4}(?:and[ \t]{1,4}(?:an?|one)[ \t]{1,4}(?:half|third|quarter)|half)\b", re.IGNORECASE)

_BEFORE_WHOLE = re.compile(r"(?:(?:about|approximately|approx\.?|around|roughly|[~≈=:])\s*){0,2}", re.IGNORECASE)
_TAIL_WORD = re.compile(r"(?:[^\W\d_]|[%/^.µ'’()-])(?:[^\W_]|[%/^.µ'’()-])*")
_LEAD = re.compile(r"\s*(?:(?:about|around|roughly|approximately|approx\.?|exactly|only|just|[~≈=:])\s{0,4}){0,3}", re.IGNORECASE)
_LINK = r"[\s,;–—/~-]|(?:to|or|and|maybe|perhaps|possibly)\b"
_LINKED = re.compile(rf"(?:{_LINK})*+(?:[(\[{{](?:{_LINK})*+)?", re.IGNORECASE)
_EQUALS = re.compile(r"(?<![=<>!])=(?![=>])")


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a text. `value` is what is written: 45 for 45%, 150 for 150 cm; 0 when `bad`."""

    start: int
    end: int
    value: Fraction
    bad: bool = False
    percent: bool = False
    unit: Unit | None = None
    decimals: int = 0
    exponent: int = 0
    """Decimals and power of ten as they are written: 2 and 5 for 1.23e5."""

    @property
    def plain(self) -> Fraction:
        """The value with the percent sign applied."""
        return self.value / 100 if self.percent else self.value

    def same(self, other: Number) -> bool:
        """Whether both say one thing: 50% and 0.5, 1 m and 100 cm, 5 m and 5."""
        if self.unit is None or other.unit is None:
            return self.plain == other.plain
        return self.unit.kind == other.unit.kind and self.value * self.unit.factor == other.value * other.unit.factor

    def text(self) -> str:
        """The value for people and counters."""
        exact = self.value.denominator == 1 or abs(self.value) > 10**15
        return (str(self.value) if exact else f"{float(self.value):.12g}") + ("%" if self.percent else "")


def tokens(text: str) -> list[Number]:
    """The numbers of a prepared text in order; number words only where there are no digits."""
    found: list[Number] = []
    at = 0
    while match := _NUMBER.search(text, at):
        found.append(_token(text, match))
        at = found[-1].end
    return found or [_word_token(text, *word) for word in word_numbers(text)]


def whole_number(text: str, *, clock: bool = False) -> Number | None:
    """The number of a text that is one number and nothing else: at most "about" before it, and three words behind it."""
    return _whole(*_prepared(text, clock))


def read_number(text: str, *, clock: bool = False) -> Number:
    """The one number that an answer gives. `clock`: times such as 1:30 count, as seconds. Raises Unparsed."""
    text, found = _prepared(text, clock)
    boxed = bool(boxes(text))
    if not boxed:
        if not found:
            raise Unparsed("no_number")
        if whole := _whole(text, found):
            return whole
        if len(text) <= SHORT_TEXT and (one := _one_value(found)):
            return one
    seen: set[tuple[str, str]] = set()  # hostile answers repeat one announcement a thousand times
    for event in events(text, *_equalities(text)):
        key = (event.kind, event.text)
        if key in seen:
            continue
        number = _in_box(event.text) if event.kind == "box" else _in_region(event.text, head=event.kind == "head")
        if number:
            return number
        seen.add(key)
    raise Unparsed("not_a_number" if any(number.bad for number in found) else "ambiguous" if found else "no_number")


def _prepared(text: str, clock: bool) -> tuple[str, Sequence[Number]]:
    """A text in its prepared form, and its numbers. Gold answers and short answers are read several times."""
    return _prepared_short(text, clock) if len(text) <= SHORT_TEXT else _prepare(text, clock)


def _prepare(text: str, clock: bool) -> tuple[str, Sequence[Number]]:
    text = prepare(text, clock=clock)
    return text, tuple(tokens(text))


_prepared_short = functools.lru_cache(maxsize=1_024)(_prepare)


def _token(text: str, match: re.Match[str]) -> Number:
    core, ten, below, over, under = match.group("core", "ten", "below", "over", "under")
    written = match["e"] or match["x"] or ten or "0"
    power = written.lstrip("+-0") or "0"
    digits = sum(map(str.isdigit, (core or "") + (below or "") + (over or "") + (under or "")))
    bad = (
        digits > MAX_DIGITS
        or len(power) > len(str(MAX_EXPONENT))
        or int(power) > MAX_EXPONENT
        or bool(_MORE_BEHIND.match(text, match.end()))
        or bool(_AND_A_HALF.match(text, match.end()))
        or _bad_before(text[max(0, match.start() - 40) : match.start()])
    )
    number = Number(match.start(), match.end(), Fraction(0), bad)
    if not bad:
        exponent = -int(power) if written.startswith("-") else int(power)
        value = _decimal(core or "1") * Fraction(10) ** exponent
        divisor = _decimal(below or under or "1")
        if not divisor or (over and (value.denominator != 1 or int(over) >= int(under))):
            return _with_unit(text, replace(number, bad=True))
        value = value + Fraction(int(over), int(under)) if over else value / divisor
        negative = match["sign"] == "-" or bool(match["minus"])
        decimals = len((core or "").partition(".")[2])
        number = replace(number, value=-value if negative else value, decimals=decimals, exponent=exponent)
    return _with_unit(text, number)


def _word_token(text: str, start: int, end: int, value: int) -> Number:
    before = text[max(0, start - 40) : start]
    minus = re.search(r"\b(?:minus|negative)\s{1,4}\Z", before, re.IGNORECASE)
    if minus:
        start, before, value = start - len(before) + minus.start(), before[: minus.start()], -value
    bad = _bad_before(before) or bool(_AND_A_HALF.match(text, end))
    return _with_unit(text, Number(start, end, Fraction(value), bad))


def _bad_before(text: str) -> bool:
    """Whether what stands directly before a number makes it a bound, a denial, or the argument of a function."""
    return bool(_INEQUALITY.search(text) or _ARGUMENT.search(text))


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


def _with_unit(text: str, number: Number) -> Number:
    """The number with what belongs to it behind: scale words, percent, a known unit, further parts of a time."""
    match = _AFTER.match(text, number.end)
    assert match is not None
    value = number.value
    for scale in _SCALE.findall(match["scales"]):
        value *= SCALES[scale.lower()]
    unit = unit_of(match["unit"]) if match["unit"] else None
    number = replace(number, end=match.end(), value=value, percent=bool(match["percent"]), unit=unit)
    while number.unit and number.unit.kind == "time" and (part := _TIME_PART.match(text, number.end)):
        smaller = unit_of(part["unit"])
        if smaller is None or smaller.kind != "time" or smaller.factor >= number.unit.factor:
            break
        value = number.value * number.unit.factor / smaller.factor + Fraction(part["value"])
        number = replace(number, end=part.end(), value=value, unit=smaller)
    return number


def _whole(text: str, found: Sequence[Number]) -> Number | None:
    if len(found) != 1 or found[0].bad:
        return None
    before, behind = text[: found[0].start].strip(), text[found[0].end :].strip()
    if len(before) > 40 or not _BEFORE_WHOLE.fullmatch(before):
        return None
    words = (behind[:-1] if behind.endswith((".", "!")) else behind).split(maxsplit=3)
    return found[0] if len(words) <= 3 and all(map(_TAIL_WORD.fullmatch, words)) else None


def _one_value(found: Sequence[Number]) -> Number | None:
    """The number that all tokens agree on, the one with a unit where there is one."""
    if not found or any(number.bad for number in found):
        return None
    chosen = next((number for number in found if number.unit), found[0])
    return chosen if all(chosen.same(number) for number in found) else None


def _equalities(text: str) -> list[Event]:
    if len(text) > SHORT_TEXT:
        return []
    return [Event("equals", match.start(), text[match.end() :].partition("\n")[0]) for match in _EQUALS.finditer(text)]


def _in_box(content: str) -> Number:
    """A box decides, whatever is in it."""
    content = unwrap(content)
    found = tokens(content)
    number = _whole(content, found) or _one_value(found)
    if number is None and "=" in content:
        last = content.rpartition("=")[2]
        number = _whole(last, tokens(last))
    if number is None:
        raise Unparsed("not_a_number")
    return number


def _in_region(region: str, *, head: bool) -> Number | None:
    """The number that an announcement announces: at its start, or in a sentence the only one."""
    found = tokens(region)
    lead = _LEAD.match(region)
    if found and lead and found[0].start == lead.end():
        if found[0].bad:
            raise Unparsed("not_a_number")
        for number, following in zip(found, found[1:], strict=False):
            if not _linked(region[number.end : following.start]):
                break
            if not number.same(following):
                raise Unparsed("ambiguous")
        return found[0]
    if not head or not found:
        return None
    if number := _one_value(found):
        return number
    raise Unparsed("not_a_number" if any(number.bad for number in found) else "ambiguous")


def _linked(between: str) -> bool:
    """Whether two numbers are given as alternatives or as ends of a range. A bracket alone between them is no link."""
    if not _LINKED.fullmatch(between):
        return False
    return not any(bracket in between for bracket in "([{") or bool(between.strip("([{ \t\n"))
