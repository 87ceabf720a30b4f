"""Video-MME-v2 (arXiv 2604.05015): 3,200 eight-option questions in 800 groups of four, scored by group.

Protocol: github.com/MME-Benchmarks/Video-MME-v2, `evaluation/test_video_mme_v2.py`. An answer that can't be read is wrong here; there
it counts -1, which a chain of reasoning takes for right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import first_letter, split_question
from evr1_benchmarks.release import Release
from evr1_benchmarks.subtitles import Cue, sentences
from evr1_benchmarks.video_mme import LEAD_INS
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, Value, accuracy, accuracy_of, grouped, mean, official_of, strict_of
from evr1_core.evaluate.statistics import Figure
from evr1_core.types import MediaRef, Sample, Wording

FRAMES = "These are the frames of a video."
BETWEEN = (
    "These are the frames of a video with corresponding subtitles shown between frames. "
    "The subtitles indicate what is being said during the time interval between adjacent frames."
)
CHOOSE = (
    "Select the best answer to the following multiple-choice question based on the video. "
    "Respond with only the letter (A, B, C, D, E, F, G, or H) of the correct option."
)
REASON = (
    "Please perform a detailed reasoning based on the provided video frames to answer the following multiple-choice question selecting "
    "the best option from A through H and providing your final response strictly in the format: 'Final Answer: <letter>."
)
KINDS = ("relevance", "logic")
QUARTERS = (0.0, 1 / 16, 4 / 16, 9 / 16, 1.0)
CHAINS = {
    "[1, 2, 3, 4]": QUARTERS,
    "[1, [2, 3], 4]": (0.0, 1 / 12, 4 / 12, 7 / 12, 1.0),
    "[[1, 2], 3, 4]": (0.0, 1 / 10, 2 / 10, 5 / 10, 1.0),
}
"""Structure of a chain -> its score for 0 to 4 right steps."""


class VideoMMEv2(Release):
    variants = ("no-subtitles", "subtitles", "interleaved")
    columns = ("video_id", "group_type", "group_structure", "level", "second_head", "third_head")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "test.parquet", "test-*.parquet", "data/test*.parquet")
        folders = files.places(root, ("videos", "video"))
        return [self._sample(root, path, number, row, folders, variant) for number, row in enumerate(files.rows(path), 1)]

    def _sample(self, root: Path, path: Path, number: int, row: dict, folders: Sequence[Path], variant: str) -> Sample:
        extra: dict[str, Any] = {name: files.field(row, name, path, number) for name in self.columns}
        extra |= {"video_id": files.text_of(row, "video_id", path, number), "group_structure": _structure(extra["group_structure"])}
        lines = files.text_of(row, "options", path, number)
        options = split_question(lines)[1]
        if extra["group_type"] not in KINDS:
            raise RequestError(f"{path}, record {number}: group_type {extra['group_type']!r} is none of {', '.join(KINDS)}")
        if extra["group_type"] == "logic" and extra["group_structure"] not in CHAINS:
            known = ", ".join(CHAINS)
            raise RequestError(f"{path}, record {number}: group_structure {extra['group_structure']!r} is none of {known}")
        if variant != "no-subtitles":
            extra["subtitle"] = str(root / "subtitle" / f"{extra['video_id']}.jsonl")
            extra["between"] = variant == "interleaved"
        return Sample(
            id=files.text_of(row, "question_id", path, number),
            problem=files.text_of(row, "question", path, number),
            options=options or None,
            answer=files.field(row, "answer", path, number),
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, extra["video_id"]), "video"),),
            source="video-mme-v2",
            extra={**extra, "option_lines": tuple(lines.split("\n"))},
        )

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        lines = "\n".join(sample.extra["option_lines"])
        question = f"Question: {sample.problem}\n{lines}\n{REASON if thinking else CHOOSE}"
        return Wording((0, *self._opening(sample, frame_times), question))

    def _opening(self, sample: Sample, frame_times: FrameTimes) -> list[str]:
        """Pieces of text between the frames and the question."""
        if "subtitle" not in sample.extra:
            return [FRAMES]
        words = read_words(Path(sample.extra["subtitle"]))
        if not sample.extra["between"]:
            return [f"{FRAMES} This video's subtitles are listed below:\n{' '.join(word.text for word in words)}\n"]
        times = [time for medium in frame_times() for time in medium]
        said = [part for part in sentences(words) if times and part.end >= times[0]]
        return [*(f"[Subtitle {part.start:.2f}s - {part.end:.2f}s]: {part.text}" for part in said), BETWEEN]

    def official(self, sample: Sample, text: str) -> Official:
        """The first letter A to H behind the lead-ins; an answer without one is left out of the plain accuracy and wrong in its group."""
        letter = first_letter(text.strip(), ("Final Answer:", *LEAD_INS), "ABCDEFGH")
        return Official(letter, float(letter == sample.answer) if letter else None)

    def aggregate(self, records: Sequence[Record]) -> Report:
        kinds = {
            kind: [record for record in records if record.sample.extra["group_type"] == kind]
            for kind in sorted({record.sample.extra["group_type"] for record in records})
        }
        tables = {
            "group type": {f"{kind} score": groups(part, accuracy_of) for kind, part in kinds.items()},
            "level": self._by_last(records, "level"),
            "second head": self._by_last(records, "second_head"),
            "third head": self._by_last(records, "third_head"),
            "questions": {"average accuracy": accuracy(records)},
        }
        if "relevance" in kinds:
            tables["group type"]["relevance linear score"] = groups(kinds["relevance"], accuracy_of, linear=True)
        official = {"total": groups(records, _official), "average accuracy, readable answers": mean(records, official_of)}
        return Report(groups(records, strict_of), "non-linear score of groups of four", tables=tables, official=official)

    def _by_last(self, records: Sequence[Record], column: str) -> dict[str, Figure]:
        """Scores by a column of the last question of each group; groups that have none are left out, as officially."""
        last = {record.sample.extra["video_id"]: str(record.sample.extra[column]) for record in records}
        rows: dict[str, list[Record]] = {}
        for record in records:
            if (row := last[record.sample.extra["video_id"]]) != "None":
                rows.setdefault(row, []).append(record)
        return {row: groups(rows[row], accuracy_of) for row in sorted(rows)}


def groups(records: Sequence[Record], value: Value, linear: bool = False) -> Figure:
    """Mean over groups of four of their scores; a group that misses a question has none."""

    def score(group: Sequence[Record]) -> float | None:
        values = [value(record) for record in group]
        if len(group) != 4 or None in values:
            return None
        right = [found == 1.0 for found in values]
        return sum(right) / 4 if linear else group_score(right, group[-1].sample.extra)

    return grouped(records, lambda record: record.sample.extra["video_id"], score)


def group_score(right: Sequence[bool], row: Any) -> float:
    """Score in [0, 1] of a group by its type: the square of the share of right answers, or how far its chain holds."""
    if row["group_type"] == "relevance":
        return QUARTERS[sum(right)]
    structure = _structure(row["group_structure"])
    steps = next((at for at, one in enumerate(right) if not one), len(right))
    if (structure == "[1, [2, 3], 4]" and steps == 1 and right[2]) or (structure == "[[1, 2], 3, 4]" and steps == 0 and right[1]):
        steps += 1  # of the two questions that stand side by side one is right
    return CHAINS[structure][steps]


def _structure(value: Any) -> str:
    """The structure of a group in one spelling: `[1,[2, 3],4]`, a list or its text, is `[1, [2, 3], 4]`."""
    try:
        return str(json.loads(value)) if isinstance(value, str) else str(value)
    except ValueError:
        return value


def _official(record: Record) -> float | None:
    return None if record.official is None else record.official.value or 0.0


def read_words(path: Path) -> list[Cue]:
    """Words of a subtitle file, one JSON object a line; none where the video has no file."""
    if not path.is_file():
        return []
    words: list[Cue] = []
    for number, row in enumerate(files.rows(path), 1):
        start, end = (files.number_of(row, name, path, number) for name in ("start_time", "end_time"))
        words.append(Cue(start, end, str(files.field(row, "text", path, number))))
    return words
