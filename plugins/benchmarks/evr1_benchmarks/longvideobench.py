"""LongVideoBench (arXiv 2407.15754): referring questions about videos with subtitles, 1,337 in the validation half.

Protocol: github.com/longvideobench/LongVideoBench, `longvideobench_dataset.py`. Officially frames and subtitles are interleaved. Here the
frames are one video with its own clock, and the subtitles that belong to them follow it, in their order. The answers to the test half
are hidden; that half can't be scored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.mvbench import lettered_texts
from evr1_benchmarks.options import LETTERS, option_twice, printed
from evr1_benchmarks.release import Release
from evr1_benchmarks.subtitles import Cue
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official
from evr1_core.types import MediaRef, Sample, Wording


class LongVideoBench(Release):
    variants = ("subtitles", "no-subtitles")
    converted = ("longvideobench.json",)
    groups = ("duration_group", "question_category", "level", "topic_category")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "lvb_val.json", "validation-*.parquet", "data/validation-*.parquet")
        folders = files.places(root, ("videos", "video"))
        return [self._sample(root, path, number, row, folders, variant) for number, row in enumerate(files.rows(path), 1)]

    def _sample(self, root: Path, path: Path, number: int, row: dict, folders: Sequence[Path], variant: str) -> Sample:
        options, place = lettered_texts(_candidates(row, path, number)), files.field(row, "correct_choice", path, number)
        if not (isinstance(place, int) and 0 <= place < len(options)):
            raise RequestError(
                f"{path}, record {number}: correct_choice {place!r} is none of the {len(options)} candidates, counted from 0"
            )
        extra: dict[str, Any] = {name: files.field(row, name, path, number) for name in self.groups}
        if variant == "subtitles":
            extra["subtitle"] = str(root / "subtitles" / files.field(row, "subtitle_path", path, number))
            extra["subtitle_start"] = float(row.get("starting_timestamp_for_subtitles") or 0.0)
            extra["duration"] = float(files.field(row, "duration", path, number))
        return Sample(
            id=files.field(row, "id", path, number),
            problem=files.field(row, "question", path, number),
            options=options,
            answer=LETTERS[place],
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, files.field(row, "video_path", path, number)), "video"),),
            source="longvideobench",
            extra=extra,
        )

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        assert isinstance(sample.options, dict)
        said = self._subtitles(sample, frame_times)
        direct = "Answer with the option's letter from the given choices directly."
        return Wording((0, f"{said}Question: {sample.problem}\n{printed(sample.options)}\n{direct}"))

    def _subtitles(self, sample: Sample, frame_times: FrameTimes) -> str:
        path = Path(sample.extra.get("subtitle", ""))
        if not path.is_file():
            return ""
        cues = read_subtitles(path, sample.extra["subtitle_start"], sample.extra["duration"])
        times = [time for medium in frame_times() for time in medium]
        return "".join(f"{cue.text}\n" for cue in cues if any(cue.start < time < cue.end for time in times))

    def official(self, sample: Sample, text: str) -> Official:
        """The first capital of an option that stands alone. Without one a random option is taken officially: that counts its chance."""
        letters = "".join(sample.options or "ABCDE")
        found = re.search(rf"(?<![A-Za-z])[{letters}](?![A-Za-z])", text)
        if found is None:
            return Official("", 1 / len(letters))
        return Official(found.group(), float(found.group() == sample.answer))

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        return option_twice(samples)


def _candidates(row: dict[str, Any], path: Path, number: int) -> list[str]:
    """A list in the JSON file; five columns in the Parquet file, the last ones filled with `N/A`."""
    if "candidates" in row:
        return list(row["candidates"])
    return [text for at in range(5) if (text := files.field(row, f"option{at}", path, number)) not in (None, "N/A")]


def read_subtitles(path: Path, begin: float, duration: float) -> list[Cue]:
    """Subtitles in seconds of the video, which begins at `begin` of the subtitles' clock; shorter ones are widened to one second."""
    found: list[Cue] = []
    for row in files.rows(path):
        if "timestamp" in row:
            start, end = row["timestamp"]
            # The last one of a file may have no end.
            start, end, text = float(start), end if isinstance(end, float) else duration, row["text"]
        else:
            start, end, text = _seconds(row["start"]), _seconds(row["end"]), row["line"]
        start, end = start - begin, end - begin
        if end - start < 1:
            middle = (start + end) / 2
            start, end = middle - 0.5, middle + 0.5
        found.append(Cue(start, end, text))
    return found


def _seconds(clock: str) -> float:
    hours, minutes, seconds = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
