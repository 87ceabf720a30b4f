"""VSI-Bench (arXiv 2412.14171): 5,130 questions about space in 288 walks through rooms, with letters or numbers as answers.

Protocol: github.com/vision-x-nyu/thinking-in-space. Numbers are scored by mean relative accuracy; the headline is the
unweighted mean of eight tasks, of which relative direction is itself the mean of three.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import lettered, printed
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, accuracy_of, macro, official_of, strict_of, table
from evr1_core.types import MediaRef, Sample, Wording

DIRECTION = "object_rel_direction"
THRESHOLDS = tuple((50 + 5 * step) / 100 for step in range(10))
"""0.50, 0.55, ..., 0.95."""


class VSIBench(Release):
    variants = ("full", "debiased", "pruned")
    converted = ("vsibench.json",)

    def read(self, root: Path, variant: str) -> list[Sample]:
        names = {"full": ("test-*.parquet", "test.jsonl"), "debiased": ("*debiased*",), "pruned": ("*pruned*.parquet", "*pruned*.jsonl")}
        path = files.find(root, *names[variant], *(f"*/{name}" for name in names[variant]))
        return [self._sample(root, path, number, row) for number, row in enumerate(files.rows(path), 1)]

    def _sample(self, root: Path, path: Path, number: int, row: dict[str, Any]) -> Sample:
        dataset, scene, kind, question, gold = (
            files.field(row, name, path, number) for name in ("dataset", "scene_name", "question_type", "question", "ground_truth")
        )
        options = row.get("options") or None
        return Sample(
            id=str(files.field(row, "id", path, number)),
            problem=question,
            options=lettered(options) if options else None,
            answer=str(gold),
            problem_type="multiple-choice" if options else "regression",
            media=(MediaRef(files.video(files.places(root, ("videos",)), f"{dataset}/{scene}.mp4"), "video"),),
            source="vsi-bench",
            extra={"question_type": kind, "task": task_of(kind), "dataset": dataset},
        )

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        if isinstance(sample.options, dict):
            rest = f"Options:\n{printed(sample.options)}\nAnswer with the option's letter from the given choices directly."
        else:
            rest = "Please answer the question using a single word or phrase."
        return Wording((0, f"These are frames of a video.\n{sample.problem}\n{rest}"))

    def official(self, sample: Sample, text: str) -> Official:
        """The first word without full stops at its end: a letter in any case, or a number by mean relative accuracy."""
        word = text.strip().split(" ")[0].rstrip(".").strip()[:64]
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
    return sum(error <= 1 - threshold for threshold in THRESHOLDS) / len(THRESHOLDS)
