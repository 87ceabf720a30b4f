"""A reward: how close a colour is to the right one."""

from __future__ import annotations

import re

from evr1_core.scoring.reward import Answer, InvalidGold, Unparsed
from evr1_core.types import Sample, Score

NAMES = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "red": (255, 0, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
}
RGB = tuple[int, int, int]


def score(sample: Sample, answer: Answer) -> Score:
    """1 for the same colour, 0 for the opposite corner of the RGB cube, linear in the distance between."""
    gold = read(str(sample.answer))
    if gold is None:
        raise InvalidGold("no_colour")
    found = read(answer.text)
    if found is None:
        raise Unparsed("no_colour")
    distance = sum((one - other) ** 2 for one, other in zip(gold, found, strict=True)) ** 0.5
    return Score(accuracy=1 - distance / (3 * 255**2) ** 0.5, answer="#{:02x}{:02x}{:02x}".format(*found))


def read(text: str) -> RGB | None:
    """The colour that the whole text names, else None."""
    name = text.strip().lower().rstrip(".")
    if re.fullmatch(r"#[0-9a-f]{6}", name):
        return int(name[1:3], 16), int(name[3:5], 16), int(name[5:7], 16)
    return NAMES.get(name)
