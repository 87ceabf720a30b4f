"""Temporal grounding: intersection over union of two sets of time spans."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from evr1_core.scoring import Answer, InvalidGold
from evr1_core.scoring.json_answer import compact, strict_object
from evr1_core.types import Sample, Score
from evr1_rewards.spans import Span, SpanReader, clipped, is_strict_time, positive, seconds_per_unit, set_iou

READ_CHARS = 65_536


class TemporalGroundingOptions(BaseModel):
    """Options of a row or of the whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clip: bool = False
    """Cut the spans of both sides to the clip, from 0 to `duration`. Official scores of moment retrieval don't."""
    above: float | None = Field(default=None, ge=0, lt=1)
    """Right or wrong: accuracy 1 where the IoU is larger than this, else 0. `parts.iou` stays the IoU."""


class TemporalGrounding:
    """Reads spans in JSON, clock times or words. `parts`: `iou`, for R@IoU with >=."""

    def __init__(self, options: TemporalGroundingOptions) -> None:
        self.options = options

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the gold answer holds no spans, or the row lacks what its units need."""
        seconds_per_unit(sample, "answer_time_unit")
        self._gold(sample)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """A JSON object with `time`: a pair of numbers, or a list of pairs, each start before its end."""
        value = strict_object(content, READ_CHARS)
        return value is not None and is_strict_time(value.get("time"))

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        gold = self._gold(sample)
        spans = SpanReader(seconds_per_unit(sample, "answer_time_unit")).answer(answer, READ_CHARS)
        named = bool(spans)
        compared = clipped(spans, positive(sample, "duration")) if self.options.clip else spans
        iou = set_iou(compared, gold) if gold else float(not named)
        accuracy = iou if self.options.above is None else float(iou > self.options.above)
        return Score(accuracy=accuracy, parts={"iou": iou}, answer=compact(spans))

    def _gold(self, sample: Sample) -> list[Span]:
        spans = SpanReader(seconds_per_unit(sample, "time_unit")).gold(sample.answer)
        if not self.options.clip:
            return spans
        inside = clipped(spans, positive(sample, "duration"))
        if spans and not inside:
            raise InvalidGold("out_of_range")
        return inside
