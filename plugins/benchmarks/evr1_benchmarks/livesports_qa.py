"""LiveSports-3K-QA (arXiv 2504.16030): 1,174 four-option questions about clips of sports broadcasts.

Protocol: github.com/showlab/livecc. Its script takes the likeliest of the option letters as the next token; here the
answer is generated, which its authors report to give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import duplicates, lettered
from evr1_benchmarks.release import Release
from evr1_core.data.options import read_options
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official
from evr1_core.types import MediaRef, Sample, Wording


class LiveSportsQA(Release):
    variants = ("official",)
    converted = ("livesports3k_qa.json",)
    groups = ("q_type", "ocr")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "LiveSports-3K-QA.json", "LiveSports-3K-QA.csv", "sports3k-qa.jsonl", "*QA*.parquet", "*/*QA*.parquet")
        return [self._sample(root, path, number, row) for number, row in enumerate(files.rows(path), 1)]

    def _sample(self, root: Path, path: Path, number: int, row: dict[str, Any]) -> Sample:
        video_id = files.text_of(row, "video_id", path, number)
        name = str(row.get("video") or video_id)
        lines = self._lines(row, path, number)
        # The authors' script renames the two columns of the table.
        sides = ("begin", "end") if "begin" in row else ("video_start", "video_end")
        start, end = files.part_of(row, *sides, path, number)
        folders = files.places(root, ("videos", "video"))
        return Sample(
            id=files.text_of(row, "question_id", path, number),
            problem=files.text_of(row, "question", path, number),
            options=lettered(lines),
            answer=files.field(row, "answer", path, number),
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, Path(name).name), "video", start, end),),
            source="livesports-qa",
            extra={
                "q_type": files.text_of(row, "q_type", path, number),
                "ocr": int(files.number_of(row, "OCR", path, number)),
                "option_lines": lines,
            },
        )

    def _lines(self, row: dict[str, Any], path: Path, number: int) -> tuple[str, ...]:
        """`A: text` for each option: a list, in the CSV its printed form, or a column for each option."""
        if "option_A" in row:
            return tuple(f"{letter}: {row[f'option_{letter}']}" for letter in "ABCD" if row.get(f"option_{letter}"))
        value = files.field(row, "options", path, number)
        if isinstance(value, list):
            return tuple(files.texts_of(row, "options", path, number))
        try:
            found = read_options(value)
        except ValueError as error:
            raise RequestError(f"{path}, record {number}, options: {error}") from error
        if not found:
            raise RequestError(f"{path}, record {number}: options must be a list of texts, found {value!r}")
        return tuple(f"{letter}: {text}" for letter, text in found.items()) if isinstance(found, dict) else found

    def adopt(self, sample: Sample) -> Sample:
        columns = {"q_type": sample.extra.get("q_type_livesports", "none"), "ocr": sample.extra.get("ocr_livesports", "none")}
        return replace(sample, extra={**sample.extra, **columns})

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        options = "\n".join(sample.extra["option_lines"])
        text = f"{sample.problem}\n{options}\nPlease select the correct answer."
        return Wording((0, text), prefill="Answer:")

    def official(self, sample: Sample, text: str) -> Official:
        """The first letter of the answer, which the script takes from the probabilities of the option letters."""
        letter = text.strip()[:1]
        return Official(letter, float(bool(letter) and letter == sample.answer))

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        twice = [sample.id for sample in samples if isinstance(sample.options, dict) and duplicates(sample.options)]
        return [f"{len(twice)} questions have an option twice: {', '.join(twice)}"] if twice else []
