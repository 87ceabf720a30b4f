"""VSI-Bench (arXiv 2412.14171): 5,130 questions about space in 288 walks through rooms, with letters or numbers as answers.

Protocol: github.com/vision-x-nyu/thinking-in-space. Numbers are scored by mean relative accuracy; the headline is the
unweighted mean of eight tasks, of which relative direction is itself the mean of three.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evr1_benchmarks import files
from evr1_benchmarks.options import lettered, printed
from evr1_benchmarks.release import Release
from evr1_benchmarks.tags import behind_reasoning
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, accuracy_of, macro, official_of, strict_of, table
from evr1_core.types import MediaRef, Sample, Wording

DIRECTION = "object_rel_direction"
DIFFICULTIES = ("easy", "medium", "hard")
KINDS = (
    "object_counting",
    "object_abs_distance",
    "object_size_estimation",
    "room_size_estimation",
    "object_rel_distance",
    *(f"{DIRECTION}_{difficulty}" for difficulty in DIFFICULTIES),
    "route_planning",
    "obj_appearance_order",
)
THRESHOLDS = np.linspace(0.5, 0.95, 10)
"""0.50, 0.55, ..., 0.95, to the last bit as the authors have them: it decides errors of exactly a tenth."""


class VSIBench(Release):
    variants = ("full", "debiased", "pruned")
    converted = ("vsibench.json",)

    def read(self, root: Path, variant: str) -> list[Sample]:
        names = ("test-*.parquet", "test.jsonl") if variant == "full" else (f"test_{variant}.parquet", f"*{variant}*.parquet")
        path = files.find(root, *names, *(f"*/{name}" for name in names))
        return files.each(path, files.rows(path), lambda row, number: self._sample(root, path, number, row))

    def _sample(self, root: Path, path: Path, number: int, row: dict[str, Any]) -> Sample:
        dataset, scene, kind, question = (
            files.text_of(row, name, path, number) for name in ("dataset", "scene_name", "question_type", "question")
        )
        if kind not in KINDS:
            raise RequestError(f"{path}, record {number}: 'question_type' is {kind!r}; types are {', '.join(KINDS)}")
        lines = tuple(files.texts_of(row, "options", path, number)) if row.get("options") else ()
        return Sample(
            id=files.text_of(row, "id", path, number),
            problem=question,
            options=lettered(lines) or None,
            answer=str(files.field(row, "ground_truth", path, number)),
            problem_type="multiple-choice" if lines else "regression",
            media=(MediaRef(files.video(files.places(root, ("videos",)), f"{dataset}/{scene}.mp4"), "video"),),
            source="vsi-bench",
            extra={"question_type": kind, "task": task_of(kind), "dataset": dataset, **({"option_lines": lines} if lines else {})},
        )

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        if isinstance(sample.options, dict):
            lines = "\n".join(sample.extra.get("option_lines") or (printed(sample.options),))
            rest = f"Options:\n{lines}\nAnswer with the option's letter from the given choices directly."
        else:
            rest = "Please answer the question using a single word or phrase."
        return Wording((0, f"These are frames of a video.\n{sample.problem}\n{rest}"))

    def official(self, sample: Sample, text: str) -> Official:
        """The first word, behind reasoning, without full stops at its end: a letter in any case, or a number by relative accuracy."""
        word = behind_reasoning(text).strip().split(" ")[0].rstrip(".").strip()[:64]
        if sample.options:
            return Official(word, float(word.lower() == str(sample.answer).lower()))
        return Official(word, relative_accuracy(word, str(sample.answer)))

    def aggregate(self, records: Sequence[Record]) -> Report:
        kinds = table(records, lambda record: _kind(record))
        headline = macro(records, strict_of, tasks)
        official = macro(records, official_of, tasks)
        by_task = {name: macro(part, accuracy_of, tasks) for name, part in _by_task(records).items()}
        return Report(
            headline,
            "mean of 8 tasks",
            tables={"task": by_task, "question_type": kinds},
            official={"mean of 8 tasks": official, "mean over questions": accuracy(records)},
        )


def task_of(kind: str) -> str:
    """The three difficulties of relative direction are one task."""
    return DIRECTION if kind.startswith(DIRECTION) else kind


def _kind(record: Record) -> str:
    found = record.sample.extra
    return str(found.get("question_type") or found.get("original_question_type") or "none")


def tasks(record: Record) -> tuple[str, str]:
    """Path of nested means: task, then question type."""
    return task_of(_kind(record)), _kind(record)


def _by_task(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(tasks(record)[0], []).append(record)
    return dict(sorted(found.items()))


def relative_accuracy(said: str, gold: str) -> float:
    """Share of the ten thresholds t with |said - gold| / gold <= 1 - t; 0 for what is no number."""
    try:
        error = abs(float(said) - float(gold)) / float(gold)
    except (ValueError, ZeroDivisionError):
        return 0.0
    return float(np.mean(error <= 1 - THRESHOLDS))
