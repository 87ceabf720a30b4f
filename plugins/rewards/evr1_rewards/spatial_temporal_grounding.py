"""Spatial-temporal grounding and tracking: when, and where at each time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Any

from pydantic import BaseModel, ConfigDict

from evr1_core.plugins import normal_problem_type
from evr1_core.scoring import Answer, InvalidGold, Unparsed
from evr1_core.scoring.json_answer import JsonText, compact, first_of, strict_object
from evr1_core.types import Sample, Score
from evr1_rewards.boxes import Frames, iou
from evr1_rewards.spans import SPAN_KEYS, Span, SpanReader, in_order, is_strict_time, seconds_per_unit, set_iou
from evr1_rewards.tracks import Track, answer_track, gold_track, is_strict_track

READ_CHARS = 262_144


class SpatialTemporalGroundingOptions(BaseModel):
    """Options of a row or of the whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ignore_outside: bool = False
    """Boxes at times outside the gold time cost nothing."""


@dataclass(frozen=True)
class Gold:
    """The gold answer of a row."""

    time: list[Span]
    """In seconds; empty for tracking."""
    track: Track
    interval: tuple[float, float]
    """Times, in the unit of the keys, within which a box without annotation costs nothing."""
    frames: Frames


class SpatialTemporalGrounding:
    """Half for the time, half for the boxes; tracking is all boxes. `parts`: `tiou`, `miou`, `viou`, `out_of_frame`.

    `miou` is the mean IoU over the gold keys, with boxes outside the gold time in the denominator. `viou` is the measure of the
    benchmarks on the given keys: sum of IoU over common keys, over all keys of both sides (VidSTG, arXiv 2001.06891). Without gold boxes
    there are neither.
    """

    def __init__(self, options: SpatialTemporalGroundingOptions) -> None:
        self.options = options

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when time, keys or boxes of the gold answer are faulty, or the row lacks what units and frames need."""
        seconds_per_unit(sample, "answer_time_unit")
        self._gold(sample)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """A JSON object with `boxes` (times -> boxes, at least one) and, unless for tracking, `time`."""
        value = strict_object(content, READ_CHARS)
        if value is None or not is_strict_track(value.get("boxes")):
            return False
        return _is_tracking(sample) or is_strict_time(value.get("time"))

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        gold = self._gold(sample)
        tracking = _is_tracking(sample)
        time, track = self._read(sample, answer, tracking)
        parts = self._boxes(track or {}, gold) if gold.track else {}
        if not tracking:
            parts["tiou"] = set_iou(time or [], gold.time)
        halves = [parts[name] for name in ("tiou", "miou") if name in parts]
        said: dict[str, Any] = {"boxes": track and {f"{key:.10g}": box for key, box in track.items()}}
        said |= {} if tracking else {"time": time}
        return Score(accuracy=sum(halves) / len(halves), parts=parts, answer=compact(said))

    def _boxes(self, track: Track, gold: Gold) -> dict[str, float]:
        first, last = gold.interval
        outside = [key for key in track if key not in gold.track and not first <= key <= last]
        placed = {key: gold.frames.answer_box(box) for key, box in track.items()}
        shared = ((placed.get(key), box) for key, box in gold.track.items())
        total = sum(iou(found, box) for found, box in shared if found)
        return {
            "miou": total / (len(gold.track) + (0 if self.options.ignore_outside else len(outside))),
            "viou": total / len(gold.track.keys() | track.keys()),
            "out_of_frame": float(list(placed.values()).count(None)),
        }

    def _read(self, sample: Sample, answer: Answer, tracking: bool) -> tuple[list[Span] | None, Track | None]:
        """The time and the boxes of an answer, None for what it doesn't hold; at least one of them is there."""
        reader = SpanReader(seconds_per_unit(sample, "answer_time_unit"))
        value = _json_of(answer.read(READ_CHARS))
        if value is None:
            if tracking:
                raise Unparsed("no_json")
            return reader.in_prose(answer), None
        spans = reader.shape(value) if isinstance(value, dict) and value and not tracking else None
        track = answer_track(value, bare=tracking)
        if spans is None and track is None:
            raise Unparsed("bad_shape")
        return None if spans is None else in_order(spans), track

    def _gold(self, sample: Sample) -> Gold:
        value = sample.answer
        if value is None or value == "":
            raise InvalidGold("missing")
        if isinstance(value, str):
            value = _json_of(value)
        if not isinstance(value, dict):
            raise InvalidGold("type")
        frames = Frames.of(sample)
        track = gold_track(value, frames)
        if _is_tracking(sample):
            if not track:
                raise InvalidGold("empty_track")
            return Gold([], track, (min(track), max(track)), frames)
        written = first_of(value, SPAN_KEYS)
        if written is None or written == []:
            raise InvalidGold("missing_time")
        time = SpanReader(seconds_per_unit(sample, "time_unit")).gold(written)
        ends = [end for span in SpanReader().gold(written) for end in span]
        return Gold(time, track, (min([floor(min(ends)), *track]), max([ceil(max(ends)), *track])), frames)


def _is_tracking(sample: Sample) -> bool:
    return normal_problem_type(sample.problem_type) == "tracking"


def _json_of(text: str) -> Any:
    """The object or list that a text is, or else the last one with an object among its words; None when there is none."""
    found = JsonText(text)
    try:
        value = found.whole()
    except ValueError:
        value = None
    if isinstance(value, (dict, list)):
        return value
    last = None
    for region in found.regions(objects_only=True):
        last = region.value
    return last
