"""Free text: the gold texts of a row and the final answer of a response."""

from __future__ import annotations

import re
from typing import Any

from evr1_core.scoring import Answer, InvalidGold
from evr1_core.scoring.text import boxes, unwrap

OWN_TOKEN = (
    "\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\u3041-\u309f\u30a0-\u30ff\u31f0-\u31ff\U0001b000-\U0001b16f\uff66-\uff9f"  # Hiragana, Katakana
    "\u0e01-\u0e3a\u0e40-\u0e5b"  # Thai
)
"""For a character class: scripts without blanks between words, in which every character counts as a word."""

_ANNOUNCEMENT = re.compile(
    r"(?:\A|(?<=\n)|(?<=[.!?]\s)|(?<=。))[ \t]{0,8}(?P<marks>[>*#_ \t-]{0,16})"
    r"(?:(?:therefore|so|thus|hence|finally|in\s{1,4}(?:conclusion|summary))\s{0,4},?\s{1,4})?(?:(?:the|my)\s{1,4})?"
    r"(?:(?:final|correct)\s{1,4})?answer[*_ \t]{0,4}(?:\bis\b(?:\s{0,4}[:：])?|[:：])(?P<closing>[*_]{0,3})",
    re.IGNORECASE,
)


def gold_texts(answer: Any) -> tuple[str, ...]:
    """The texts that count as right: one text or number, or a list of alternatives. Raises InvalidGold for a blank or another value."""
    if isinstance(answer, (list, tuple)):
        if not answer:
            raise InvalidGold("missing")
        return tuple(_gold_text(entry) for entry in answer)
    return (_gold_text(answer),)


def _gold_text(answer: Any) -> str:
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float, type(None))):
        raise InvalidGold("type")
    text = "" if answer is None else unwrap(str(answer))
    if not text:
        raise InvalidGold("missing")
    return text


def final_text(answer: Answer) -> str:
    """The answer block; without one what the last box or announcement says, else all of the text. Unwrapped."""
    announced = final_statement(answer.text) if answer.source == "whole" else None
    return unwrap(answer.text if announced is None else announced)


def final_statement(text: str) -> str | None:
    """The last box of a text or the last announcement at the start of a line or sentence, whichever stands later.

    An announcement (`The answer is`, `**Final answer:**`) announces the rest of its line, or all that follows when that is blank.
    """
    last = max(_ANNOUNCEMENT.finditer(text), key=lambda match: match.start(), default=None)
    box = max(boxes(text), key=lambda event: event.start, default=None)
    if box and (last is None or box.start > last.start()):
        return box.text
    return None if last is None else _announced(text, last)


def _announced(text: str, announcement: re.Match[str]) -> str:
    end = text.find("\n", announcement.end())
    rest = text[announcement.end() : end if end >= 0 else len(text)].strip()
    if not rest:
        return text[announcement.end() :].strip()
    for mark in ("**", "__", "*", "_"):  # the line is emphasised as a whole: its other mark stands before the announcement
        if announcement["marks"].endswith(mark) and not announcement["closing"] and rest.endswith(mark) and rest.count(mark) == 1:
            return rest.removesuffix(mark).rstrip()
    return rest
