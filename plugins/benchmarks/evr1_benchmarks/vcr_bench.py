"""VCR-Bench (arXiv 2504.07956): 1,034 questions about 859 videos: choices, free answers, time intervals and boxes.

Protocol: github.com/zhishuifeiqian/VCR-Bench, `eval_code/`. There a judge reads every answer. Here letters, intervals and boxes are read by
rule: an interval is right above an IoU of 0.7, a box above 0.5, as in the authors' script; only free answers go to the judge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from evr1_benchmarks import files
from evr1_benchmarks.options import LETTERS
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import MediaError, RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, mean, table
from evr1_core.media.probe import probe
from evr1_core.types import MediaRef, Sample, Wording

DIMENSIONS = (
    "Fundamental Temporal Reasoning",
    "Video Temporal Counting",
    "Video Temporal Grounding",
    "Video Knowledge Reasoning",
    "Temporal Spatial Reasoning",
    "Video Plot Analysis",
    "Temporal Spatial Grounding",
)
TIME_IOU, BOX_IOU = 0.7, 0.5
REASONING = "Please provide a step-by-step solution to the given question."
THOUSAND = "Give the box as [x1, y1, x2, y2] with coordinates from 0 to 1000, the upper left corner of the frame being [0, 0]."
LISTED = re.compile(r"\[([\d\s.,+-]{1,200})\]")
Kind = Literal["choice", "interval", "box", "free"]
SCORED: Mapping[Kind, tuple[str, Mapping[str, Any]]] = {
    "choice": ("multiple-choice", {}),
    "interval": ("temporal-grounding", {"above": TIME_IOU}),
    "box": ("spatial-grounding", {"above": BOX_IOU}),
    "free": ("open-ended", {"metric": "judge"}),
}
"""Problem type and scoring options."""


class VCRBench(Release):
    variants = ("pixel-boxes", "thousand-boxes")
    converted = ("vcrbench.json",)
    groups = ("dimension", "length", "kind")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "meta_info_video.json", "v1/meta_info_video.json", "meta_info.json")
        folders = files.places(root, ("v1/videos", "videos"))
        thousand = variant == "thousand-boxes"
        return files.each(path, files.rows(path), lambda row, number: self._sample(row, path, number, folders, thousand))

    def _sample(self, row: dict[str, Any], path: Path, number: int, folders: Sequence[Path], thousand: bool) -> Sample:
        dimension, seconds = files.field(row, "dimension", path, number), files.number_of(row, "duration", path, number)
        if dimension not in DIMENSIONS:
            raise RequestError(f"{path}, record {number}: 'dimension' is {dimension!r}; dimensions are {', '.join(DIMENSIONS)}")
        choices = files.options_of(row, "choices", path, number)
        options = {letter: choices[letter] for letter in LETTERS if choices.get(letter)}
        asked = files.text_of(row, "question", path, number).rstrip("\n")
        gold = str(files.field(row, "answer", path, number)).strip()
        kind = "choice" if files.field(row, "multiple-choice", path, number) else kind_of(gold)
        video = files.video(folders, files.text_of(row, "video_path", path, number))
        problem_type, scoring = SCORED[kind]
        frame = box_columns(video) if kind == "box" and thousand else {}
        printed = {"as_printed": asked} if kind == "choice" else {}
        return Sample(
            id=str(files.field(row, "id", path, number)),
            problem=bare(asked, options) if printed else asked,
            options=options if kind == "choice" else None,
            answer=gold,
            problem_type=problem_type,
            media=(MediaRef(video, "video"),),
            source="vcr-bench",
            scoring=scoring,
            extra={
                "dimension": dimension,
                "length": length(seconds),
                "kind": kind,
                "reasoning": row.get("reasoning", []),
                **frame,
                **printed,
            },
        )

    def adopt(self, sample: Sample) -> Sample:
        """The converted file takes intervals and boxes for free text; they are scored as those of the release."""
        kind = "choice" if sample.options else kind_of(str(sample.answer))
        problem_type, scoring = SCORED[kind]
        return replace(sample, problem_type=problem_type, scoring=scoring, extra={**sample.extra, "kind": kind})

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        """The authors' question and request for steps. Of the variant with boxes from 0 to 1000, boxes have a sentence more."""
        options = sample.extra.get("option_lines", ())  # of the converted file; in the release they are part of the question
        frame = [THOUSAND] if sample.extra.get("answer_box_frame") == "thousand" else []
        question = sample.extra.get("as_printed", sample.problem)
        return Wording((0, "\n".join((question, *options, *frame, REASONING))))

    def official(self, sample: Sample, text: str) -> Official | None:
        """The rule for intervals and boxes, on the last list of seconds or integer pixels that an answer gives; all else is the judge's."""
        kind = sample.extra.get("kind")
        if kind not in ("interval", "box") or sample.extra.get("answer_box_frame") == "thousand":
            return None
        gold, size = numbers(str(sample.answer)), 2 if kind == "interval" else 4
        lists = [found for listed in LISTED.finditer(text) if len(found := numbers(listed.group(), whole=size == 4)) == size]
        if not lists:
            return None
        said = lists[-1]
        right = interval_iou(gold, said) > TIME_IOU if kind == "interval" else box_iou(gold, said) > BOX_IOU
        return Official(json.dumps(said), float(right))

    def aggregate(self, records: Sequence[Record]) -> Report:
        """Accuracy over all questions, by dimension, length and kind; the IoU of intervals and boxes before the limit."""
        tables = {name: table(records, lambda record, name=name: record.sample.extra.get(name, "none")) for name in self.groups}
        placed = [record for record in records if record.sample.extra.get("kind") in ("interval", "box")]
        if placed:
            tables["mean IoU"] = table(placed, lambda record: record.sample.extra["kind"], iou)
        by_rule = {kind: [record for record in placed if record.sample.extra["kind"] == kind] for kind in ("interval", "box")}
        numbers = {
            f"official accuracy, {kind}": mean(found, lambda record: record.official.value if record.official else None)
            for kind, found in by_rule.items()
            if any(record.official for record in found)
        }
        return Report(accuracy(records), tables=tables, official=numbers)


def iou(record: Record) -> float | None:
    """IoU of an interval or box; 0 where the answer could not be read."""
    if record.accuracy is None or record.score is None:
        return None
    return record.score.parts.get("iou", 0.0)


def length(seconds: float) -> str:
    """The three groups of the authors."""
    return "0-60" if seconds <= 60 else "60-300" if seconds <= 300 else "300+"


def kind_of(gold: str) -> Kind:
    """Two numbers in brackets are an interval, four integers a box, all else is free text."""
    try:
        value = json.loads(gold)
    except ValueError:
        return "free"
    if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, (int, float)) for one in value):
        return "free"
    if len(value) == 4 and all(isinstance(one, int) for one in value):
        return "box"
    return "interval" if len(value) == 2 else "free"


def bare(question: str, options: Mapping[str, str]) -> str:
    """A question without the options that the release prints behind it, the first of them without a new line before it."""
    start = question.rfind(f"A. {options['A']}") if "A" in options else -1
    return question[:start].rstrip() if start > 0 else question


def box_columns(video: str) -> dict[str, Any]:
    """How boxes from 0 to 1000 are brought to the gold boxes, which are pixels of the original video: by its size as displayed."""
    columns = {"box_frame": "pixel", "answer_box_frame": "thousand"}
    try:
        info = probe(video, "video")
    except MediaError:  # the row is excluded for its missing or damaged video, not for a size that isn't known
        return {}
    return {**columns, "width": info.width, "height": info.height}


def numbers(text: str, whole: bool = False) -> list[float]:
    """The numbers of a list as it is written; none where a part is no number, or no integer with `whole`."""
    try:
        return [int(part) if whole else float(part) for part in text.strip("[] ").split(",")]
    except ValueError:
        return []


def interval_iou(one: Sequence[float], other: Sequence[float]) -> float:
    """Shared time over the time from the first start to the last end, as the authors have it."""
    shared = max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
    whole = max(one[1], other[1]) - min(one[0], other[0])
    return shared / whole if whole else 0.0


def box_iou(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of `x1, y1, x2, y2`; 0 for a box without area."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)
