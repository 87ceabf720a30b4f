"""MLVU (arXiv 2406.04264): long videos, nine tasks. M-Avg is the mean of the accuracies of the choice tasks, G-Avg of the two others.

Protocol: github.com/JUNJIE99/MLVU (`evaluation*/`). Officially GPT-4-turbo rates generated answers twice from 1 to 5; here the judge
rates them once on that scale, and the mean is given in [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evr1_benchmarks import files
from evr1_benchmarks.mvbench import lettered_texts
from evr1_benchmarks.options import letter_of, noted, option_twice, printed
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, macro, official_of, strict_of, table
from evr1_core.types import MediaRef, Sample, Wording

SYSTEM = "Carefully watch this video and pay attention to every detail. Based on your observations, "
CHOOSE = "select the best option that accurately addresses the question."
TELL = "answer the given questions."
PREFILL = "Best Option: ("
DEV = ("1_plotQA", "2_needle", "3_ego", "4_count", "5_order", "6_anomaly_reco", "7_topic_reasoning")
TOLD = ("8_sub_scene", "9_summary")
"""Tasks whose answers are texts."""
FILES = {
    "dev": {name: (f"json/{name}.json", f"{name}.json") for name in DEV},
    "dev-generation": {name: (f"json/{name}.json", f"{name}.json") for name in TOLD},
    "test": {"": ("test-ground-truth/test_mcq_gt.json", "test_mcq_gt.json")},
    "test-generation": {
        "ssc": ("test-ground-truth/test_ssc_gt.json", "test_ssc_gt.json"),
        "vs": ("test-ground-truth/test_vs_gt.json", "test_vs_gt.json"),
    },
}
"""Variant -> task -> file. The test videos lie in one folder."""

BLOCKS = {
    "dev": {"findNeedle": 355, "anomaly_reco": 200, "count": 206, "ego": 352, "plotQA": 539, "topic_reasoning": 263, "order": 259},
    "test": {
        "anomaly_reco": 39,
        "sportsQA": 36,
        "order": 70,
        "needleQA": 60,
        "plotQA": 50,
        "topic_reasoning": 91,
        "ego": 53,
        "tutorialQA": 43,
        "count": 60,
    },
}
"""Tasks of the converted files, which don't name them: how many rows of each follow each other."""


class MLVU(Release):
    variants = tuple(FILES)
    converted = ("mlvu.json", "mlvu-test.json", "mlvu-dev.json")

    def __init__(self) -> None:
        self.empty: list[str] = []
        """Rows of the files that were read without a question."""

    def read(self, root: Path, variant: str) -> list[Sample]:
        found: list[Sample] = []
        self.empty = []
        for task, names in FILES[variant].items():
            path = files.find(root, *names, *(f"*/{name}" for name in names))
            folders = files.places(
                root, (f"video/{task}", "video", "MLVU/video") if variant.startswith("dev") else ("video", "MLVU_Test/video")
            )
            for number, row in enumerate(files.rows(path)):
                name = str(row.get("question_id") or f"{path.stem}-{number}")
                if str(files.field(row, "question", path, number + 1) or "").strip():
                    found.append(self._sample(path, name, number, row, folders, chosen=not variant.endswith("generation")))
                else:
                    self.empty.append(name)
        return found

    def _sample(self, path: Path, name: str, number: int, row: dict, folders: Sequence[Path], chosen: bool) -> Sample:
        answer, kind = str(files.field(row, "answer", path, number + 1)), files.text_of(row, "question_type", path, number + 1)
        common = {
            "id": name,
            "problem": files.text_of(row, "question", path, number + 1),
            "media": (MediaRef(files.video(folders, files.text_of(row, "video", path, number + 1)), "video"),),
            "source": "mlvu",
            "extra": {"question_type": kind, "duration": row.get("duration")},
        }
        if chosen:
            options = lettered_texts(files.texts_of(row, "candidates", path, number + 1))
            # A text that is none of the options stays, and is found to be no gold answer.
            return Sample(**common, options=options, answer=letter_of(options, answer) or answer, problem_type="multiple-choice")
        points = "".join(f"\n- {point}" for point in row.get("scoring_points") or ())
        gold = f"{answer}\nPoints that count:{points}" if points else answer
        return Sample(**common, answer=gold, problem_type="open-ended", scoring={"metric": "judge", "judge_scale": [1, 5]})

    def adopt(self, sample: Sample) -> Sample:
        blocks = BLOCKS["test" if Path(sample.media[0].path).name.startswith("test_") else "dev"]
        tasks = [task for task, count in blocks.items() for _ in range(count)]
        number = str(sample.extra.get("problem_id"))
        if not number.isdecimal() or not 1 <= int(number) <= len(tasks):
            raise RequestError(f"sample {sample.id!r}: problem_id {number} is no place among {len(tasks)} questions")
        return replace(sample, extra={**sample.extra, "question_type": tasks[int(number) - 1]})

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        if not isinstance(sample.options, dict):
            return Wording((0, sample.problem), system=SYSTEM + TELL)
        text = f"Question: {sample.problem}\nOptions:\n{printed(sample.options, '({}) {}').rstrip()}\nOnly give the best option."
        return Wording((0, text), system=SYSTEM + CHOOSE, prefill=PREFILL)

    def official(self, sample: Sample, text: str) -> Official | None:
        """What stands before the first `)` must be the letter. A question whose gold answer is no option is left out."""
        if not sample.options:
            return None
        letter = text.split(")")[0].strip()
        return Official(letter[:40], float(letter == sample.answer) if sample.answer in sample.options else None)

    def aggregate(self, records: Sequence[Record]) -> Report:
        chosen = any(record.sample.options for record in records)
        official = {"accuracy over questions": accuracy(records)}
        if chosen:
            official["official M-Avg"] = macro(records, official_of, lambda record: (_task(record),))
        headline = macro(records, strict_of, lambda record: (_task(record),))
        name = "M-Avg, mean of task accuracies" if chosen else "G-Avg, mean of task grades"
        return Report(headline, name, {"task": table(records, _task)}, official=official)

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        choices = [(sample.id, sample.options.get(sample.answer)) for sample in samples if isinstance(sample.options, dict)]
        wrong = [name for name, text in choices if text is None]
        return [
            *noted("questions whose gold answer is none of their options", wrong),
            *noted("questions whose gold answer is an option without text", [name for name, text in choices if text == ""]),
            *option_twice(samples),
            *noted("rows without a question, that aren't asked", self.empty),
        ]


def _task(record: Record) -> str:
    return record.sample.extra["question_type"]
