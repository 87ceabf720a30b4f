"""Spatial grounding: intersection over union of boxes, matched one to one."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from evr1_core.scoring import Answer
from evr1_core.scoring.json_answer import compact, strict_object
from evr1_core.types import Sample, Score
from evr1_rewards.boxes import Box, Frames, answer_boxes, gold_boxes, iou, is_strict_box

READ_CHARS = 65_536


class SpatialGroundingOptions(BaseModel):
    """Frames, sizes and the format of boxes are columns of the row, as the prompt needs them too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    above: float | None = Field(default=None, ge=0, lt=1)
    """Right or wrong: accuracy 1 where the IoU is larger than this, else 0. `parts.iou` stays the IoU."""


class SpatialGrounding:
    """Reads boxes in JSON, groups of numbers or points. `parts`: `iou` and `out_of_frame`, a number of boxes."""

    def __init__(self, options: SpatialGroundingOptions) -> None:
        self.options = options

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the gold answer holds no boxes, or frames differ and the row lacks a size."""
        self._row(sample)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """A JSON object with `boxes`: four numbers, or a list of such boxes, upper left corner first."""
        value = strict_object(content, READ_CHARS)
        boxes = value.get("boxes") if value else None
        return is_strict_box(boxes) or (isinstance(boxes, list) and all(map(is_strict_box, boxes)))

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        frames, gold = self._row(sample)
        named = answer_boxes(answer, READ_CHARS)
        boxes = [frames.answer_box(box) for box in named]
        overlap = matched_iou(boxes, gold) if gold or named else 1.0
        accuracy = overlap if self.options.above is None else float(overlap > self.options.above)
        return Score(accuracy=accuracy, parts={"iou": overlap, "out_of_frame": boxes.count(None)}, answer=compact(named))

    def _row(self, sample: Sample) -> tuple[Frames, list[Box]]:
        frames = Frames.of(sample)
        return frames, [frames.gold_box(box) for box in gold_boxes(sample.answer)]


def matched_iou(boxes: list[Box | None], gold: list[Box]) -> float:
    """The largest sum of IoU over one-to-one pairs, over the larger number of boxes, in [0, 1]; not both lists are empty.

    None is a box that overlaps nothing. The assignment is optimal, not greedy (Kuhn 1955, by `scipy.optimize`).
    """
    table = [[iou(box, other) if box else 0.0 for other in gold] for box in boxes]
    if len(boxes) <= 1 or len(gold) <= 1:
        total = max((value for row in table for value in row), default=0.0)
    else:
        from scipy.optimize import linear_sum_assignment

        total = sum(table[row][column] for row, column in zip(*linear_sum_assignment(table, maximize=True), strict=True))
    return total / max(len(boxes), len(gold))
