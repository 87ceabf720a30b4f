"""Video-Holmes (arXiv 2505.21374): 1,837 questions with six options about 270 suspense films, in seven types.

Protocol: github.com/TencentARC/Video-Holmes, `evaluate.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import duplicates
from evr1_benchmarks.release import Release
from evr1_benchmarks.tags import blocks
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official
from evr1_core.types import MediaRef, Sample, Wording

TYPES = ("SR", "IMC", "TCI", "TA", "MHR", "PAR", "CTI")
PROMPT = (
    "Based on the given video, reason and answer the single-choice question. Provide your reasoning between the <think> and </think> tags, "
    "and then give your final answer between the <answer> and </answer> tags. "
    "The question is: {question}. The options are: {options}. Your answer:"
)


class VideoHolmes(Release):
    variants = ("test", "train")
    converted = ("holmes.json",)
    groups = ("question_type",)

    def read(self, root: Path, variant: str) -> list[Sample]:
        name = f"{variant}_Video-Holmes.json"
        path = files.find(root, name, f"Benchmark/{name}")
        folders = files.places(root, ("videos", "videos_cropped", "Benchmark/videos", "Benchmark/videos_cropped"))
        return files.each(path, files.rows(path), lambda row, number: self._sample(row, path, number, folders))

    def _sample(self, row: dict[str, Any], path: Path, number: int, folders: Sequence[Path]) -> Sample:
        video, question = (files.text_of(row, name, path, number) for name in ("video ID", "Question ID"))
        kind = files.field(row, "Question Type", path, number)
        if kind not in TYPES:
            raise RequestError(f"{path}, record {number}: 'Question Type' is {kind!r}; types are {', '.join(TYPES)}")
        return Sample(
            id=f"{video}-{question}",
            problem=files.text_of(row, "Question", path, number),
            options=files.options_of(row, "Options", path, number),
            answer=files.field(row, "Answer", path, number),
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, video), "video"),),
            source="video-holmes",
            extra={"question_type": kind, "explanation": row.get("Explanation", "")},
        )

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        """The same with and without `thinking`: it asks for reasoning and for both tags."""
        options = ", ".join(f"{letter}: {text}" for letter, text in (sample.options.items() if isinstance(sample.options, dict) else ()))
        return Wording((0, PROMPT.format(question=sample.problem, options=options)))

    def official(self, sample: Sample, text: str) -> Official:
        """Of the last answer block, or all of the text: the first of A to F that has a form of a choice, or else that stands there."""
        found = blocks(text)
        said = found[-1] if found else text
        formed = (letter for letter in "ABCDEF" if any(form in said for form in (f"{letter} ", f"{letter}:", f"[{letter}")))
        letter = next(formed, None) or next((letter for letter in "ABCDEF" if letter in said), "")
        return Official(letter, float(letter == sample.answer))

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        twice = [sample.id for sample in samples if isinstance(sample.options, dict) and duplicates(sample.options)]
        return [f"{len(twice)} questions have an option twice: {', '.join(twice)}"] if twice else []
