"""Boxes: how answers and gold answers write them, their coordinate frames, and how much two of them overlap."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from typing import Any

from evr1_core.scoring import Answer, InvalidGold, Unparsed
from evr1_core.scoring.json_answer import first_of, json_number, number, read
from evr1_core.scoring.text import names_nothing, unwrap
from evr1_core.types import Sample

Box = tuple[float, float, float, float]
"""x1, y1, x2, y2."""
Size = tuple[float, float]
"""Width and height of a coordinate frame, in its own unit."""

MAX_BOXES = 100
PROSE_CHARS = 10_000
BOX_KEYS = ("boxes", "box", "bbox", "bboxes", "bbox_2d", "position", "coordinates")
FRAMES: dict[str, Size | None] = {"pixel": None, "unit": (1.0, 1.0), "thousand": (1000.0, 1000.0)}
"""Sizes of the coordinate frames; that of pixels is the picture's."""
MARGIN = 0.05
"""How far a coordinate may lie outside its frame, as a part of the frame's side."""

_NUMBER = r"[-+−]?(?:\d{1,60}(?:\.\d{0,60})?|\.\d{1,60})"
_COMMA = r"\s{0,4}[,;\s]\s{0,4}"
_FOUR = re.compile(rf"[(\[{{]\s{{0,4}}({_NUMBER}){_COMMA}({_NUMBER}){_COMMA}({_NUMBER}){_COMMA}({_NUMBER})\s{{0,4}}[)\]}}]")
_POINT = rf"[(\[]\s{{0,4}}({_NUMBER}){_COMMA}({_NUMBER})\s{{0,4}}[)\]]"
_POINTS = re.compile(rf"{_POINT}\s{{0,4}}(?:[,;–—~→-]|to\b|and\b)?\s{{0,4}}{_POINT}")
_LONE_NUMBER = re.compile(r"(?<![A-Za-z\d_.])(?:(?<![^\s(\[{=:,])[-+−])?(?:\d{1,60}(?:\.\d{1,60})?|\.\d{1,60})(?!\.?\d|(?!px\b)[A-Za-z])")


def boxes_of(value: Any) -> list[Box] | None:
    """The boxes of a JSON value as they were written, None when it has no form in which boxes are written.

    Forms: four numbers, two points, an object with one of `BOX_KEYS`, a list of these; nothing in an empty list or object.
    """
    if isinstance(value, dict):
        return boxes_of(first_of(value, BOX_KEYS)) if value else []
    if not isinstance(value, (list, tuple)):
        return None
    if len(value) == 4 and (box := _box(value)):
        return [box]
    if len(value) == 2 and all(isinstance(point, (list, tuple)) and len(point) == 2 for point in value):
        box = _box([*value[0], *value[1]])
        return [box] if box else None
    boxes: list[Box] = []
    for entry in value:
        found = boxes_of(entry)
        if not found:
            return None
        boxes += found
    return boxes


def one_box(value: Any) -> Box | None:
    """The box of a value that holds exactly one."""
    found = boxes_of(value)
    return found[0] if found and len(found) == 1 else None


def boxes_in_prose(text: str) -> list[Box]:
    """Groups of four numbers in brackets, or else pairs of points, or else the only four numbers of the text."""
    text = unwrap(text)
    found = _FOUR.findall(text) or _POINTS.findall(text)
    if not found:
        numbers = [match[0] for match in _LONE_NUMBER.finditer(text)]
        found = [numbers] if len(numbers) == 4 else []
    return [box for four in found if (box := _box(four))]


def answer_boxes(answer: Answer, limit: int) -> list[Box]:
    """The boxes of an answer, corners in order. Raises Unparsed (`no_box`, `bad_shape`, `too_long`, `too_many`)."""
    found = read(answer.read(limit), boxes_of)
    if found is None:
        found = _boxes_in_words(answer.read(PROSE_CHARS))
        if found is None:
            raise Unparsed("no_box")
    if len(found) > MAX_BOXES:
        raise Unparsed("too_many")
    return [in_order(box) for box in found]


def gold_boxes(value: Any) -> list[Box]:
    """The boxes of a gold answer as they were written; none of an empty list. Raises InvalidGold (`missing`, `not_a_box`)."""
    if value is None or value == "":
        raise InvalidGold("missing")
    found = _boxes_of_text(value) if isinstance(value, str) else boxes_of(value)
    if found is None or value == {}:
        raise InvalidGold("not_a_box")
    return found


def in_order(box: Box) -> Box:
    """The same box with its upper left corner first."""
    x1, y1, x2, y2 = box
    return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def is_strict_box(value: Any) -> bool:
    """Four JSON numbers, x1 < x2 and y1 < y2."""
    if not isinstance(value, list) or len(value) != 4 or any(json_number(entry) is None for entry in value):
        return False
    return value[0] < value[2] and value[1] < value[3]


@dataclass(frozen=True, slots=True)
class Frames:
    """The coordinate frames of a row's gold and answer boxes, and how both come into one."""

    gold: Size | None
    """What gold coordinates are divided by; None leaves them as they are."""
    answer: Size | None
    bounds: Size | None
    """Size of the answer's frame where it is known."""
    xywh: bool = False
    """Gold boxes are written as corner and size."""

    @classmethod
    def of(cls, sample: Sample) -> Frames:
        """From the columns `box_frame`, `answer_box_frame`, `width`, `height`, `answer_width`, `answer_height`, `box_format`.

        Raises InvalidGold: `box_frame`, `box_format`, `missing_size`.
        """
        row = sample.extra
        frame = row.get("box_frame", "pixel")
        answer_frame = row.get("answer_box_frame", frame)
        box_format = row.get("box_format", "xyxy")
        if not {str(frame), str(answer_frame)} <= FRAMES.keys():
            raise InvalidGold("box_frame")
        if box_format not in ("xyxy", "xywh"):
            raise InvalidGold("box_format")
        picture = row.get("width"), row.get("height")
        seen = row.get("answer_width", picture[0]), row.get("answer_height", picture[1])
        gold, answer = FRAMES[frame] or _size(*picture), FRAMES[answer_frame] or _size(*seen)
        if frame == answer_frame and (frame != "pixel" or seen == picture or gold == answer):
            return cls(None, None, answer, box_format == "xywh")
        if gold is None or answer is None:
            raise InvalidGold("missing_size")
        return cls(gold, answer, answer, box_format == "xywh")

    def gold_box(self, box: Box) -> Box:
        """A gold box in the common frame. Raises InvalidGold(`bad_box`) for a box without area."""
        x1, y1, x2, y2 = box
        if self.xywh:
            x2, y2 = x1 + x2, y1 + y2
        box = _divided((x1, y1, x2, y2), self.gold)
        if not (x1 < x2 and y1 < y2 and _area(box) > 0 and isfinite(_area(box))):
            raise InvalidGold("bad_box")
        return box

    def answer_box(self, box: Box) -> Box | None:
        """An ordered answer box in the common frame, None when it lies outside the frame that was declared."""
        return None if self._outside(box) else _divided(box, self.answer)

    def _outside(self, box: Box) -> bool:
        if self.bounds is None:
            return False
        width, height = self.bounds
        x1, y1, x2, y2 = box
        return min(x1 / width, y1 / height) < -MARGIN or max(x2 / width, y2 / height) > 1 + MARGIN


def iou(one: Box, other: Box) -> float:
    """Intersection over union of two ordered boxes in continuous coordinates, in [0, 1]. One of them has a finite area above 0."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    return min(shared / (_area(one) + _area(other) - shared), 1.0)


def _box(values: Any) -> Box | None:
    numbers = [number(value) for value in values]
    if len(numbers) != 4 or None in numbers:
        return None
    x1, y1, x2, y2 = (value for value in numbers if value is not None)
    return x1, y1, x2, y2


def _boxes_of_text(text: str) -> list[Box] | None:
    try:
        found = read(text, boxes_of)
    except Unparsed:
        return None
    return _boxes_in_words(text) if found is None else found


def _boxes_in_words(text: str) -> list[Box] | None:
    return [] if names_nothing(text) else boxes_in_prose(text) or None


def _size(width: Any, height: Any) -> Size | None:
    sides = number(width), number(height)
    if sides[0] is None or sides[1] is None or sides[0] < 1 or sides[1] < 1:
        return None
    return sides[0], sides[1]


def _divided(box: Box, size: Size | None) -> Box:
    if size is None:
        return box
    return box[0] / size[0], box[1] / size[1], box[2] / size[0], box[3] / size[1]


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
