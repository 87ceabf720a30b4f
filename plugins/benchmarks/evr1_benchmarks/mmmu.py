"""How the scripts of the MMMU family read answers (arXiv 2311.16502; the choices as in github.com/EvolvingLMMs-Lab/VideoMMMU).

Times are linear in the length of the answer, whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

ENDS = (",", ".", "!", "?", ";", ":", "'")
FORMS = ("{}.", "{}:", "({})", "{} ")
"""Of a label, in the order in which they are looked for. The first two are looked for together."""
INDICATORS = (
    "could be ",
    "so ",
    "is ",
    "thus ",
    "therefore ",
    "final ",
    "answer ",
    "result ",
    "are ",
    "in total ",
    "total ",
    "identify ",
    "recognize ",
    "calculated as ",
    "counted as ",
    "measured as ",
    "observed as ",
    "concluded as ",
    "found to be ",
    "equals ",
    "determined to be ",
    "number of ",
    "value is ",
    "adds up to ",
    "have ",
    "has ",
)
"""Behind the last of each the answer of a line may stand."""
NUMBERS = (
    re.compile(r"-?\b\d{1,3}(?:,\d{3})+\b"),
    re.compile(r"-?(?<!\d)\d+(?:\.\d+)?[eE][+-]?\d+"),
    # A run of digits is tried from its start only: from inside it ends in the same place.
    re.compile(r"-?(?:(?<!\d)\d+\.\d+|\.\d+|(?<!\d)\d+\b)(?![eE][+-]?\d+)(?![,\d])"),
)
"""With groups of thousands, in scientific notation, and plain ones."""


def choice(response: str, options: Mapping[str, str]) -> str:
    """The label that is read: by its form, else by the option's text in answers of more than five words; several -> the last.

    Empty where none is found: the MMMU script guesses then, that of Video-MMMU counts it wrong, and so does this.
    """
    for end in ENDS:
        response = response.strip(end)
    text = f" {response} "
    dotted = [label for label in options if f"{label}." in text]
    coloned = [label for label in options if f"{label}:" in text]
    if dotted or coloned:
        return _last([*dotted, *coloned], text, "{}." if dotted else "{}:")
    for form, place in (("({})", "({})"), ("{} ", " {} ")):
        found = [label for label in options if form.format(label) in text]
        if found:
            return _last(found, text, place)
    lower = text.lower()
    found = [label for label, option in options.items() if option.lower() in lower] if len(text.split()) > 5 else []
    return max(found, key=lambda label: lower.rfind(options[label].lower()), default="")


def _last(labels: Sequence[str], text: str, form: str) -> str:
    """The label whose last place in this form is furthest behind; a single one needs no place."""
    return max(labels, key=lambda label: text.rfind(form.format(label)))


def open_answers(response: str) -> set[str | float]:
    """What an open answer may say: the ends of its lines behind the indicators, and the numbers in them."""
    text = response.strip().strip(".").lower()
    lines = text.split("\n")
    found: list[str] = []
    for place, line in enumerate(lines):
        marks = (*INDICATORS, "=") if place == len(lines) - 1 else INDICATORS
        ends = [line.rsplit(mark, 1)[-1].strip() for mark in marks if mark in line]
        # As in the script, an empty end is replaced by the next one and never chosen over one.
        shortest = ""
        for end in ends:
            shortest = end if not shortest or len(end) < len(shortest) else shortest
        if shortest and shortest not in (":", ",", ".", "!", "?", ";", "'"):
            found.append(shortest)
    said = found or [text]
    numbers = [match for answer in said for match in numbers_in(answer)]
    return {value for answer in (*said, *numbers) for value in normal(answer)}


def numbers_in(text: str) -> list[str]:
    """Every number of a text as it is written."""
    return [match.group() for pattern in NUMBERS for match in pattern.finditer(text)]


def normal(text: str) -> list[str | float]:
    """A number with two decimals, or the text in lower case; a single letter needs a blank beside it."""
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        lower = text.lower()
        return [f" {lower}", f"{lower} "] if len(lower) == 1 else [lower]


def open_right(response: str, golds: Iterable[str]) -> bool:
    """Whether a number is a gold number, or a text holds a gold text."""
    wanted = [value for gold in golds for value in normal(gold)]
    texts = [value for value in wanted if isinstance(value, str)]
    return any(any(text in said for text in texts) if isinstance(said, str) else said in wanted for said in open_answers(response))
