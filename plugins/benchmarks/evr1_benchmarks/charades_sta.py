"""Charades-STA (arXiv 1705.02101): when does the described event happen, 3,720 sentences about 1,334 videos.

The release is a text file of lines `VIDEO START END##SENTENCE`; equal lines are questions of their own. No prompt for
language models comes with it: `official` is that of lmms-eval, `timelens` that of TimeLens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.release import CONVERTED, Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, accuracy_of, mean, official_of
from evr1_core.types import MediaRef, Sample, Wording

LINE = re.compile(r"(\S+)\s+(\d+(?:\.\d*)?)\s+(\d+(?:\.\d*)?)\s*##(.*)")
_TIME = r"(\d{1,9}(?:\.\d{0,9})?)"
RANGE = re.compile(rf"{_TIME}\s{{0,9}}(?:-|to)\s{{0,9}}{_TIME}", re.IGNORECASE)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
LIMITS = (0.3, 0.5, 0.7)

LMMS_EVAL = (
    "Please find the visual event described by a sentence in the video, determining its starting and ending times. The format should be: "
    "'The event happens in the start time - end time'. For example, The event 'person turn a light on' happens in the 24.3 - 30.4 seonds. "
    "Now I will give you the textual sentence: {}. Please return its start time and end time."
)
TIMELENS = (
    "Please find the visual event described by the sentence '{}', determining its starting and ending times. "
    "The format should be: 'The event happens in <start time> - <end time> seconds'."
)


class CharadesSTA(Release):
    variants = ("test",)
    converted = ("charades_sta.json",)
    prompts = ("official", "timelens", CONVERTED, "neutral")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "charades_sta_test.txt", "*/charades_sta_test.txt", "data/test-*.parquet", "test-*.parquet")
        found = self._lines(path) if path.suffix == ".txt" else self._hub(path)
        lengths = self._lengths(root)
        folders = files.places(root, ("Charades_v1_480", "videos"))
        return [
            Sample(
                id=f"{number}",
                problem=sentence,
                answer=[min(start, end), max(start, end)],
                problem_type="temporal-grounding",
                media=(MediaRef(files.video(folders, video), "video"),),
                source="charades-sta",
                extra={"duration": lengths[video]} if video in lengths else {},
            )
            for number, (video, start, end, sentence) in enumerate(found, 1)
        ]

    def _lines(self, path: Path) -> list[tuple[str, float, float, str]]:
        rows = []
        for number, line in enumerate(files.text(path).split("\n"), 1):
            if not line.strip():
                continue
            match = LINE.fullmatch(line.strip())
            if match is None:
                raise RequestError(f"{path}, line {number}: must read `VIDEO START END##SENTENCE`, is {line[:80]!r}")
            rows.append((match.group(1), float(match.group(2)), float(match.group(3)), match.group(4).strip()))
        return rows

    def _hub(self, path: Path) -> list[tuple[str, float, float, str]]:
        """The copy on the Hugging Face hub: `video`, `caption`, `timestamp`."""

        def line(row: dict[str, Any], number: int) -> tuple[str, float, float, str]:
            start, end = files.field(row, "timestamp", path, number)
            video = files.text_of(row, "video", path, number).removesuffix(".mp4")
            return video, float(start), float(end), files.text_of(row, "caption", path, number).strip()

        return files.each(path, files.rows(path), line)

    def _lengths(self, root: Path) -> dict[str, float]:
        """Seconds of the videos, where Charades' own table lies beside."""
        path = next(iter(sorted(root.glob("**/Charades_v1_test.csv"))), None)
        if path is None:
            return {}

        def length(row: dict[str, Any], number: int) -> tuple[str, float]:
            return files.text_of(row, "id", path, number), files.number_of(row, "length", path, number)

        return dict(files.each(path, files.rows(path), length))

    def wording(self, sample: Sample, prompt: str, thinking: bool, frame_times: FrameTimes) -> Wording | None:
        if prompt == "timelens":
            return Wording((0, TIMELENS.format(sample.problem)))
        return super().wording(sample, prompt, thinking, frame_times)

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        return Wording((0, LMMS_EVAL.format(sample.problem)))

    def official(self, sample: Sample, text: str) -> Official | None:
        """IoU of the first `m - n` or `m to n`, else of the first two numbers; swapped where the second is smaller; 0 without two."""
        if sample.answer is None:
            return None
        span = RANGE.search(text)
        numbers = [float(number) for number in (span.groups() if span else (found.group() for found in islice(NUMBER.finditer(text), 2)))]
        if len(numbers) < 2:
            return Official("", 0.0)
        start, end = sorted(numbers)
        return Official(f"{start:g} - {end:g}", span_iou((start, end), _span(sample.answer)))

    def aggregate(self, records: Sequence[Record]) -> Report:
        return Report(
            accuracy(records),
            "mIoU",
            tables={"R@1": {f"IoU>={limit}": mean(records, _reached(limit)) for limit in LIMITS}},
            official={
                "mIoU": mean(records, official_of),
                **{f"R@1 IoU>={limit}": mean(records, _reached(limit, official=True)) for limit in LIMITS},
            },
        )

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        late = [one.id for one in samples if one.extra.get("duration") and _span(one.answer)[1] > one.extra["duration"]]
        return [f"{len(late)} events end after their video: lines {', '.join(late[:10])}{' ...' * (len(late) > 10)}"] if late else []


def _span(gold: Any) -> tuple[float, float]:
    start, end = gold["time"] if isinstance(gold, dict) else gold
    return float(start), float(end)


def span_iou(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Overlap over the hull of two spans."""
    inter = max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
    hull = max(one[1], other[1]) - min(one[0], other[0])
    return inter / hull if hull > 0 else 0.0


def _reached(limit: float, official: bool = False):  # noqa: ANN202 - a value of a record
    value = official_of if official else accuracy_of

    def reached(record: Record) -> float | None:
        found = value(record)
        return None if found is None else float(found >= limit)

    return reached
