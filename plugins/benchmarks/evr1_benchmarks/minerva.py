"""MINERVA (arXiv 2505.00681): 1,515 questions with five options and reasoning traces about YouTube videos.

Data: github.com/google-deepmind/neptune. The authors publish no prompt as text and no script for answers; both are those of
lmms-eval, `tasks/minerva`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import LETTERS, printed
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, official, table
from evr1_core.types import MediaRef, Sample, Wording

CHOICES = 5
STATED = re.compile(r"(?:answer|option)\s{0,20}(?:is|:)\s{0,20}([ABCDE])", re.IGNORECASE)
LEAD_INS = ("The best answer is", "The correct answer is", "The answer is", "Answer:", "Option:", "Therefore, the final answer is:")


class Minerva(Release):
    variants = ("all",)
    converted = ("minerva.json",)
    groups = ("skill", "split", "category")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "minerva.json", "data/test-*.parquet", "*.parquet")
        folders = files.places(root, ("videos", "video"))
        return files.each(path, files.rows(path), lambda row, number: self._sample(row, path, number, folders))

    def _sample(self, row: dict[str, Any], path: Path, number: int, folders: Sequence[Path]) -> Sample:
        names = [f"answer_choice_{place}" for place in range(CHOICES)]
        choices = [str(files.field(row, name, path, number)).strip() for name in names]
        if absent := [name for name in names if row[name] is None]:
            raise RequestError(f"{path}, record {number}: {absent[0]!r} is empty")
        said = str(files.field(row, "answer_id", path, number))
        if said not in map(str, range(CHOICES)):
            raise RequestError(f"{path}, record {number}: 'answer_id' is {said!r}; it counts the choices from 0 to {CHOICES - 1}")
        # The name with a blank is that of the authors' file, the other one that of its copy on the hub.
        kinds = row["question_type"] if "question_type" in row else files.field(row, "question type", path, number)
        columns = {name: files.field(row, name, path, number) for name in ("split", "category")}
        return Sample(
            id=files.text_of(row, "key", path, number),
            problem=files.text_of(row, "question", path, number).strip(),
            options=dict(zip(LETTERS, choices, strict=False)),
            answer=LETTERS[int(said)],
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, files.text_of(row, "video_id", path, number)), "video"),),
            source="minerva",
            extra={"skill": skills(kinds), **columns, "reasoning": row.get("reasoning", "")},
        )

    def adopt(self, sample: Sample) -> Sample:
        return replace(sample, extra={**sample.extra, "skill": []})

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        ending = "Answer with the option's letter from the given choices directly."
        options = printed(sample.options) if isinstance(sample.options, dict) else ""
        return Wording((0, f"{sample.problem}\n{options}\n{ending}"))

    def official(self, sample: Sample, text: str) -> Official:
        """The last letter behind `answer is` or `option:`, else the last A to E. Without one the script guesses; here it is wrong."""
        stated = STATED.findall(text)
        rest = text
        for lead_in in LEAD_INS:
            rest = rest.replace(lead_in, "")
        letters = [stated[-1].upper()] if stated else re.findall("[ABCDE]", rest)
        letter = letters[-1] if letters else ""
        return Official(letter, float(letter == sample.answer))

    def aggregate(self, records: Sequence[Record]) -> Report:
        """A question counts in the row of each of its skills."""
        tables = {name: table(records, lambda record, name=name: record.sample.extra.get(name, "none")) for name in self.groups}
        return Report(accuracy(records), tables=tables, official=official(records))


def skills(text: Any) -> list[str]:
    """`Temporal Reasoning, Counting` -> each of them."""
    return [name for part in str(text or "").split(",") if (name := part.strip())]
