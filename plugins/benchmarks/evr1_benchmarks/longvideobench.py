"""LongVideoBench (arXiv 2407.15754): referring questions about videos with subtitles, 1,337 in the validation half.

Protocol: github.com/longvideobench/LongVideoBench, `longvideobench_dataset.py`. Officially frames and subtitles are interleaved. Here the
frames are one video with its own clock, and the subtitles that belong to them follow it, in their order. The answers to the test half
are hidden; that half can't be scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.mvbench import lettered_texts
from evr1_benchmarks.options import LETTERS, first_letter, option_twice, printed
from evr1_benchmarks.release import Release
from evr1_benchmarks.subtitles import Cue
from evr1_benchmarks.video_mme import LEAD_INS
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official
from evr1_core.types import MediaRef, Sample, Wording

PERCEPTION = ("S2E", "S2O", "S2A", "E2O", "O2E", "T2E", "T2O", "T2A")
"""Question categories of the first level."""


class LongVideoBench(Release):
    variants = ("subtitles", "no-subtitles")
    converted = ("longvideobench.json",)
    groups = ("duration_group", "question_category", "level", "topic_category")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "lvb_val.json", "validation-*.parquet", "data/validation-*.parquet")
        folders = files.places(root, ("videos", "video"))
        return [self._sample(root, path, number, row, folders, variant) for number, row in enumerate(files.rows(path), 1)]

    def _sample(self, root: Path, path: Path, number: int, row: dict, folders: Sequence[Path], variant: str) -> Sample:
        options, place = lettered_texts(_candidates(row, path, number)), files.number_of(row, "correct_choice", path, number)
        if place not in range(len(options)):
            raise RequestError(
                f"{path}, record {number}: correct_choice {place:g} is none of the {len(options)} candidates, counted from 0"
            )
        category = files.text_of(row, "question_category", path, number)
        # The Parquet file has no level; it follows from the category.
        level = row.get("level") or ("L1-Perception" if category in PERCEPTION else "L2-Relation")
        columns = ("duration_group", "topic_category")
        extra: dict[str, Any] = {name: files.field(row, name, path, number) for name in columns}
        extra |= {"question_category": category, "level": level}
        if variant == "subtitles":
            extra["subtitle"] = str(root / "subtitles" / files.text_of(row, "subtitle_path", path, number))
            extra["subtitle_start"] = float(row.get("starting_timestamp_for_subtitles") or 0.0)
            extra["duration"] = files.number_of(row, "duration", path, number)
        return Sample(
            id=files.text_of(row, "id", path, number),
            problem=files.text_of(row, "question", path, number),
            options=options,
            answer=LETTERS[int(place)],
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, files.text_of(row, "video_path", path, number)), "video"),),
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
        """The first capital A to E behind the lead-ins, wherever it stands. Without one a random option is taken officially: that
        counts its chance."""
        letter = first_letter(text.strip(), LEAD_INS[:8], "ABCDE")
        if not letter:
            return Official("", 1 / len(sample.options or "ABCDE"))
        return Official(letter, float(letter == sample.answer))

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        return option_twice(samples)


def _candidates(row: dict[str, Any], path: Path, number: int) -> list[str]:
    """A list in the JSON file; five columns in the Parquet file, the last ones filled with `N/A`."""
    if "candidates" in row:
        return files.texts_of(row, "candidates", path, number)
    return [str(text) for at in range(5) if (text := files.field(row, f"option{at}", path, number)) not in (None, "N/A")]


def read_subtitles(path: Path, begin: float, duration: float) -> list[Cue]:
    """Subtitles in seconds of the video, which begins at `begin` of the subtitles' clock; shorter ones are widened to one second."""
    found: list[Cue] = []
    for number, row in enumerate(files.rows(path), 1):
        try:
            start, end = _times(row, path, number, duration)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{path}, record {number}: not readable as times: {error}") from error
        text = files.field(row, "text" if "timestamp" in row else "line", path, number)
        start, end = start - begin, end - begin
        if end - start < 1:
            middle = (start + end) / 2
            start, end = middle - 0.5, middle + 0.5
        found.append(Cue(start, end, text))
    return found


def _times(row: dict[str, Any], path: Path, number: int, duration: float) -> tuple[float, float]:
    """Start and end in seconds. The last subtitle of a file may have no end."""
    if "timestamp" in row:
        start, end = row["timestamp"]
        return float(start), end if isinstance(end, float) else duration
    start, end = (_seconds(files.text_of(row, side, path, number)) for side in ("start", "end"))
    return start, end


def _seconds(clock: str) -> float:
    hours, minutes, seconds = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
