"""LVBench (arXiv 2406.08035): 1,549 questions about 103 videos of up to two hours.

Protocol: github.com/THUDM/LVBench (reading and tables). It prints no prompt: the default is that of lmms-eval, `qwen` the one that the
Qwen team names (github.com/QwenLM/Qwen3-VL, issue 715).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evr1_benchmarks import files
from evr1_benchmarks.options import bracketed, option_twice, printed, split_question
from evr1_benchmarks.release import CONVERTED, Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, official, table
from evr1_core.types import MediaRef, Sample, Wording

QWEN = (
    "Carefully watch the video and pay attention to the cause and sequence of events, the detail and movement of objects and the action "
    "and pose of persons.\nBased on your observations, select the best option that accurately addresses the question.\n"
    "Question: {}\nOptions:\n{}\nAnswer with the option's letter from the given choices directly and only give the best option."
)


class LVBench(Release):
    variants = ("official",)
    converted = ("lvbench.json",)
    prompts = ("official", "qwen", CONVERTED, f"{CONVERTED}-qwen25", "neutral")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "video_info.meta.jsonl", "data/video_info.meta.jsonl", "LVBench/video_info.meta.jsonl")
        folders = files.places(root, ("videos", "video", "all_videos"))
        return [
            self._sample(path, number, row, question, folders)
            for number, row in enumerate(files.rows(path), 1)
            for question in files.field(row, "qa", path, number)
        ]

    def _sample(self, path: Path, number: int, row: dict, asked: dict, folders: Sequence[Path]) -> Sample:
        text = files.text_of(asked, "question", path, number)
        problem, options = split_question(text)
        kinds = files.field(asked, "question_type", path, number) or ["none"]
        return Sample(
            id=files.text_of(asked, "uid", path, number),
            problem=problem,
            options=options or None,
            answer=files.field(asked, "answer", path, number),
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, files.text_of(row, "key", path, number)), "video"),),
            source="lvbench",
            extra={
                "question_type": [kinds] if isinstance(kinds, str) else list(kinds),
                "video_type": row.get("type", "none"),
                "as_printed": text,
            },
        )

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        options = printed(sample.options, "({}) {}") if isinstance(sample.options, dict) else ""
        text = sample.extra.get("as_printed") or f"{sample.problem}\n{options}"
        return Wording((0, f"{text}\nAnswer the question with the option letter"))

    def wording(self, sample: Sample, prompt: str, thinking: bool, frame_times: FrameTimes) -> Wording | None:
        if prompt != "qwen":
            return super().wording(sample, prompt, thinking, frame_times)
        options = printed(sample.options, "({}) {}") if isinstance(sample.options, dict) else ""
        return Wording((0, QWEN.format(sample.problem, options)))

    def official(self, sample: Sample, text: str) -> Official:
        """What stands in the first bracket or at the beginning, one character; all questions count."""
        letter = bracketed(text)
        return Official(letter, float(bool(letter) and letter == sample.answer))

    def aggregate(self, records: Sequence[Record]) -> Report:
        tables = {
            "question type": table(records, lambda record: record.sample.extra.get("question_type", "none")),
            "video type": table(records, lambda record: record.sample.extra.get("video_type", "none")),
        }
        return Report(accuracy(records), tables=tables, official=official(records))

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        return option_twice(samples)
