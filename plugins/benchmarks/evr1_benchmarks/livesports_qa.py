"""LiveSports-3K-QA (arXiv 2504.16030): 1,174 four-option questions about clips of sports broadcasts.

Protocol: github.com/showlab/livecc. Its script takes the likeliest of the option letters as the next token; here the
answer is generated, which its authors report to give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import duplicates, lettered, printed
from evr1_benchmarks.release import Release
from evr1_core.data.options import read_options
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official
from evr1_core.types import MediaRef, Sample, Wording


class LiveSportsQA(Release):
    converted = ("livesports3k_qa.json",)
    groups = ("q_type", "ocr")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "LiveSports-3K-QA.json", "LiveSports-3K-QA.csv", "sports3k-qa.jsonl", "*QA*.parquet", "*/*QA*.parquet")
        return [self._sample(root, path, number, row) for number, row in enumerate(files.rows(path), 1)]

    def _sample(self, root: Path, path: Path, number: int, row: dict[str, Any]) -> Sample:
        video_id = files.field(row, "video_id", path, number)
        name = str(row.get("video") or video_id)
        options = files.field(row, "options", path, number)
        start, end = (float(files.field(row, name, path, number)) for name in ("video_start", "video_end"))
        folders = files.places(root, ("videos", "video"))
        return Sample(
            id=str(files.field(row, "question_id", path, number)),
            problem=files.field(row, "question", path, number),
            options=self._options(options, path, number),
            answer=files.field(row, "answer", path, number),
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, Path(name).name), "video", start, end),),
            source="livesports-qa",
            extra={"q_type": files.field(row, "q_type", path, number), "ocr": int(files.field(row, "OCR", path, number))},
        )

    def _options(self, value: Any, path: Path, number: int) -> dict[str, str]:
        """A list, or in the CSV its printed form."""
        try:
            found = read_options(value)
        except ValueError as error:
            raise RequestError(f"{path}, record {number}, options: {error}") from error
        return found if isinstance(found, dict) else lettered(found or ())

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        assert isinstance(sample.options, dict)
        text = f"{sample.problem}\n{printed(sample.options, '{}: {}')}\nPlease select the correct answer."
        return Wording((0, text), prefill="Answer:")

    def official(self, sample: Sample, text: str) -> Official:
        """The first letter of the answer, which the script takes from the probabilities of the option letters."""
        letter = text.strip()[:1]
        return Official(letter, float(letter == sample.answer))

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        twice = [sample.id for sample in samples if isinstance(sample.options, dict) and duplicates(sample.options)]
        return [f"{len(twice)} questions have an option twice: {', '.join(twice)}"] if twice else []
