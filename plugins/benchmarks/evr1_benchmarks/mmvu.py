"""MMVU (arXiv 2501.12380), validation: 625 questions with five options and 375 open ones in 27 subjects of 4 disciplines.

Protocol: github.com/yale-nlp/MMVU, `utils/`. Its scorer is a judge for both kinds. Here the letters of the first kind are read by the
rule that holds everywhere, and only open answers go to the judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import printed
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, table
from evr1_core.types import MediaRef, Sample, Wording

DISCIPLINES = {
    "Science": (
        "Astronomy",
        "Biology",
        "Chemistry",
        "Electromagnetism",
        "Geography",
        "Materials Science",
        "Mechanics",
        "Modern Physics",
        "Neurobiology",
        "Thermodynamics",
    ),
    "Engineering": (
        "Biomedical Engineering",
        "Civil Engineering",
        "Computer Science",
        "Electrical Engineering",
        "Electronics and Communication",
        "Mechanical Engineering",
    ),
    "Healthcare": ("Basic Medicine", "Clinical Medicine", "Dentistry", "Pharmacy", "Preventive Medicine"),
    "Humanities and Social Science": ("Art", "Economics", "History", "Law", "Literature", "Management"),
}
DISCIPLINE = {subject: discipline for discipline, subjects in DISCIPLINES.items() for subject in subjects}
URL = "resolve/main/"
"""What is behind it in `video` is the path of the file in the release."""

REASONING = {
    "multiple-choice": (
        "Answer the given multiple-choice question step by step. Begin by explaining your reasoning process clearly. "
        "Conclude by stating the final answer using the following format: 'Therefore, the final answer is: $LETTER' (without quotes), "
        "where $LETTER is one of the options. Think step by\nstep before answering."
    ),
    "open-ended": (
        "Answer the given question step by step. Begin by explaining your reasoning process clearly. "
        "Conclude by stating the final answer using the following format: 'Therefore, the final answer is: 'Answer: $ANSWER' "
        "(without quotes), where $ANSWER is the final answer of the question. Think step by step\nbefore answering."
    ),
}
DIRECT = {
    "multiple-choice": (
        "Do not generate any intermediate reasoning process. Answer directly with the option letter from the given choices.\n"
    ),
    "open-ended": "Do not generate any intermediate reasoning process. Directly output the final short answer.\n",
}


class MMVU(Release):
    variants = ("validation",)
    converted = ("mmvu-all.json", "mmvu.json", "mmvu-mc.json")
    groups = ("discipline", "subject")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "validation.json", "data/validation.json")
        return files.each(path, files.rows(path), lambda row, number: self._sample(row, path, number, root))

    def _sample(self, row: dict[str, Any], path: Path, number: int, root: Path) -> Sample:
        kind = files.field(row, "question_type", path, number)
        if kind not in DIRECT:
            raise RequestError(f"{path}, record {number}: 'question_type' is {kind!r}; types are {', '.join(DIRECT)}")
        subject = files.text_of(files.field(row, "metadata", path, number), "subject", path, number)
        video = files.text_of(row, "video", path, number).split(URL)[-1]
        options = {letter: text for letter, text in files.options_of(row, "choices", path, number).items() if text}
        return Sample(
            id=files.text_of(row, "id", path, number),
            problem=files.text_of(row, "question", path, number),
            options=options if kind == "multiple-choice" else None,
            answer=files.field(row, "answer", path, number),
            problem_type=kind,
            media=(MediaRef(files.video([root], video), "video"),),
            source="mmvu",
            scoring={"metric": "judge"} if kind == "open-ended" else {},
            extra={"subject": subject, "discipline": DISCIPLINE.get(subject, "none")},
        )

    def adopt(self, sample: Sample) -> Sample:
        subject = Path(sample.media[0].path).parent.name.replace("_", " ")
        return replace(sample, extra={**sample.extra, "subject": subject, "discipline": DISCIPLINE.get(subject, "none")})

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        """The step-by-step prompt, which is the authors' default, with `thinking`; without it their direct one."""
        options = f"{printed(sample.options, '{}: {}')}\n" if isinstance(sample.options, dict) else ""
        kind = "multiple-choice" if options else "open-ended"
        return Wording((0, f"\nQuestion: {sample.problem}\n{options}\n{(REASONING if thinking else DIRECT)[kind]}"))

    def official(self, sample: Sample, text: str) -> Official | None:
        """None: the authors' script asks a judge about every answer."""
        return None

    def aggregate(self, records: Sequence[Record]) -> Report:
        tables = {name: table(records, lambda record, name=name: record.sample.extra.get(name, "none")) for name in self.groups}
        return Report(accuracy(records), tables={"question_type": table(records, lambda record: record.sample.problem_type), **tables})
