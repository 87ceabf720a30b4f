"""English number words: "twenty-five", "one hundred and five", "two million"."""

from __future__ import annotations

import re

SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_BELOW_HUNDRED = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18,
    "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_ARTICLES = ("a", "an")

_WORD = re.compile(rf"\b(?<![\d'’])(?:{'|'.join((*_BELOW_HUNDRED, *SCALES, 'and', *_ARTICLES))})\b(?!['’])", re.IGNORECASE)
_JOIN = re.compile(r"\s{1,4}-?|-")
_NO_ONE = re.compile(r"\bno(?:\s{1,4}|-)\Z", re.IGNORECASE)


def word_numbers(text: str) -> list[tuple[int, int, int]]:
    """(start, end, value) of every number that is written in words."""
    found: list[tuple[int, int, int]] = []
    run: list[re.Match[str]] = []
    for match in _WORD.finditer(text):
        if run and not _JOIN.fullmatch(text, run[-1].end(), match.start()):
            found += _numbers(text, run)
            run = []
        run.append(match)
    return found + _numbers(text, run)


def _numbers(text: str, run: list[re.Match[str]]) -> list[tuple[int, int, int]]:
    """The numbers in neighbouring words: "two three" are two, "two hundred and three" is one."""
    words = [match[0].lower() for match in run]
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(words):
        value, end = _number(words, at)
        start = run[at].start()
        if end > at and not (words[at : at + 1] == ["one"] and _NO_ONE.search(text[max(0, start - 8) : start])):
            found.append((start, run[end - 1].end(), value))
        at = max(end, at + 1)
    return found


def _number(words: list[str], at: int) -> tuple[int, int]:
    """(value, end) of the longest number that starts at a word; the end is `at` when none does."""
    total, end, bound = 0, at, 10**15
    while True:
        start = end + (end > at and words[end : end + 1] == ["and"])
        value, stop = _below_thousand(words, start)
        scale = SCALES.get(words[stop], 1) if stop < len(words) else 1
        if stop == start and (end > at or scale == 1):  # only the first "thousand" stands for one thousand
            return total, end
        if not 100 < scale < bound:
            return (total + value, stop) if value < bound else (total, end)
        total, end, bound = total + (value if stop > start else 1) * scale, stop + 1, scale


def _below_thousand(words: list[str], at: int) -> tuple[int, int]:
    """(value, end); "a" and "an" are one before a scale word."""
    value, end = _below_hundred(words, at)
    following = words[end : end + 1]
    if end == at and following and following[0] in _ARTICLES and words[at + 1 : at + 2] and words[at + 1] in SCALES:
        value, end = 1, at + 1
    if words[end : end + 1] != ["hundred"]:
        return value, end
    value, end = (value if end > at else 1) * 100, end + 1
    rest, stop = _below_hundred(words, end + (words[end : end + 1] == ["and"]))
    return (value + rest, stop) if rest else (value, end)


def _below_hundred(words: list[str], at: int) -> tuple[int, int]:
    if at >= len(words) or words[at] not in _BELOW_HUNDRED:
        return 0, at
    value = _BELOW_HUNDRED[words[at]]
    unit = _BELOW_HUNDRED.get(words[at + 1], 0) if at + 1 < len(words) else 0
    return (value + unit, at + 2) if value >= 20 and 0 < unit < 10 else (value, at + 1)
