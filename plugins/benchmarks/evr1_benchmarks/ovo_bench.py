"""OVO-Bench (arXiv 2501.05510): 3,035 questions asked at a moment of a running video, in three directions of time.

Protocol: github.com/JoeLeelyf/OVO-Bench. The model sees the video up to the moment of the question. Each entry of a
forward record (`test_info`) is a question of its own. The total is the mean of three categories, each the mean of its tasks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import LETTERS, duplicates, printed
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, accuracy_of, macro, official_of, strict_of, table
from evr1_core.types import MediaRef, Sample, Wording

CATEGORIES = {
    "backward": ("EPM", "HLD", "ASI"),
    "realtime": ("STU", "OJR", "ATR", "ACR", "OCR", "FPD"),
    "forward": ("REC", "SSR", "CRR"),
}
CATEGORY = {task: category for category, tasks in CATEGORIES.items() for task in tasks}
RELABELLED = ("609", "707", "755", "766", "869", "918", "931", "1220")
"""Records whose answer text is another option than the one that `gt` names; the official score goes by `gt`."""

PLAIN = {
    "REC": "How many times did they {}?",
    "SSR": "Is the man or woman in the video currently performing this step: {}?",
    "CRR": "Does the video so far hold enough information to answer this question: {}",
}
"""Forward questions in one sentence, for prompts other than the official one."""

CHOICE = (
    "\nQuestion: {question}\nOptions:\n{options}\n\nRespond only with the letter corresponding to your chosen option (e.g., A, B, C). \n"
    "Do not include any additional text or explanation in your response.\n"
)
COUNT = (
    "\nYou're watching a video in which people may perform a certain type of action repetively. \n"
    "The person performing this kind of action are referred to as 'they' in the following statement.\n"
    "You're task is to count how many times have different people in the video perform this kind of action in total.\n"
    "One complete motion counts as one. \n"
    "Now, answer the following question: How many times did they {activity}?\n"
    "Provide your answer as a single number (e.g., 0, 1, 2, 3…) indicating the total count.\n"
    "Do not include any additional text or explanation in your response.\n"
)
STEP = (
    "\nYou're watching a tutorial video which contain a sequential of steps. \n"
    "The following is one step from the whole procedures: \n{step}\n"
    "Your task is to determine if the man or woman in the video is currently performing this step.\n"
    "Answer only with “Yes” or “No”.\n"
    "Do not include any additional text or explanation in your response.\n"
)
ENOUGH = (
    "\nYou're responsible of answering questions based on the video content. \n"
    "The following question are relevant to the latest frames, i.e. the end of the video.\n{question}\n"
    "Decide whether existing visual content, especially latest frames, i.e. frames that near the end of the video, provide enough "
    "information for answering the question.\n"
    "Answer only with “Yes” or “No”.\n"
    "Do not include any additional text or explanation in your response.\n"
)


class OVOBench(Release):
    variants = ("official",)
    converted = ("ovobench.json",)

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "ovo_bench_new.json", "data/ovo_bench_new.json")
        samples: list[Sample] = []
        for number, row in enumerate(files.rows(path), 1):
            task = str(files.field(row, "task", path, number))
            if task not in CATEGORY:
                raise RequestError(f"{path}, record {number}: task {task!r} is none of {', '.join(CATEGORY)}")
            if task in CATEGORIES["forward"]:
                moments = files.field(row, "test_info", path, number)
                samples += [self._forward(root, path, number, row, task, index, moment) for index, moment in enumerate(moments)]
            else:
                samples.append(self._choice(root, path, number, row, task))
        return samples

    def _choice(self, root: Path, path: Path, number: int, row: dict[str, Any], task: str) -> Sample:
        name = files.text_of(row, "id", path, number)
        options = dict(zip(LETTERS, files.texts_of(row, "options", path, number), strict=False))
        gold = files.number_of(row, "gt", path, number)
        if gold not in range(len(options)):
            raise RequestError(f"{path}, record {number}: gt {gold:g} is none of the {len(options)} options, counted from 0")
        return Sample(
            id=name,
            problem=files.text_of(row, "question", path, number),
            options=options,
            answer=LETTERS[int(gold)],
            problem_type="multiple-choice",
            media=(self._seen(root, name, files.text_of(row, "video", path, number), files.number_of(row, "realtime", path, number)),),
            source="ovo-bench",
            extra={"task": task, "category": CATEGORY[task], "option_lines": tuple(printed(options, "{}: {}").split("\n"))},
        )

    def _forward(self, root: Path, path: Path, number: int, row: dict[str, Any], task: str, index: int, moment: dict[str, Any]) -> Sample:
        name = f"{files.text_of(row, 'id', path, number)}_{index}"
        holder, column = {"REC": (row, "activity"), "SSR": (moment, "step"), "CRR": (row, "question")}[task]
        asked = files.text_of(holder, column, path, number)
        kind = "count" if task == "REC" else "boolean"
        value = files.number_of(moment, "count" if task == "REC" else "type", path, number)
        gold = f"{value:g}" if task == "REC" else "yes" if value else "no"
        return Sample(
            id=name,
            problem=PLAIN[task].format(asked),
            answer=gold,
            problem_type=kind,
            media=(self._seen(root, name, files.text_of(row, "video", path, number), files.number_of(moment, "realtime", path, number)),),
            source="ovo-bench",
            scoring={"metric": "exact"} if kind == "count" else {},
            extra={"task": task, "category": CATEGORY[task], "asked": asked},
        )

    def _seen(self, root: Path, name: str, video: str, moment: float) -> MediaRef:
        """The video up to the moment: a chunk of the release, or the source up to the next whole second."""
        for folder in ("chunked_videos", "chunks"):
            if (root / folder / f"{name}.mp4").is_file():
                return MediaRef(str((root / folder / f"{name}.mp4").absolute()), "video")
        return MediaRef(files.video(files.places(root, ("src_videos", "videos")), video), "video", end=float(math.ceil(moment)))

    def adopt(self, sample: Sample) -> Sample:
        """A row of the converted file: forward questions are a question (REC), a step (SSR), a question (CRR) there."""
        task = str(sample.extra.get("ovo_task"))
        if task not in CATEGORY:
            raise RequestError(f"sample {sample.id!r}: ovo_task {task} is none of {', '.join(CATEGORY)}")
        extra = {**sample.extra, "task": task, "category": CATEGORY[task]}
        if task not in PLAIN:
            return replace(sample, extra=extra)
        asked = sample.problem.removeprefix("How many times did they ").removesuffix("?") if task == "REC" else sample.problem
        scoring = {"metric": "exact"} if task == "REC" else {}
        return replace(sample, problem=PLAIN[task].format(asked), scoring=scoring, extra={**extra, "asked": asked})

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        task, asked = sample.extra["task"], sample.extra.get("asked")
        if isinstance(sample.options, dict):
            options = "; ".join(f"{letter}. {text}" for letter, text in sample.options.items()) + ";"
            return Wording((0, CHOICE.format(question=sample.problem, options=options)))
        if task == "REC":
            return Wording((0, COUNT.format(activity=asked)))
        return Wording((0, STEP.format(step=asked) if task == "SSR" else ENOUGH.format(question=asked)))

    def official(self, sample: Sample, text: str) -> Official:
        """The letter anywhere in the answer; all digits together; `Yes` or `No` anywhere, or exactly `Y` or `N`.

        So a long answer may be right by accident.
        """
        said = text.strip()
        if isinstance(sample.options, dict):
            return Official(said[:40], float(str(sample.answer) in said))
        if sample.extra["task"] == "REC":
            digits = "".join(re.findall(r"[0-9]", said))
            return Official(digits[:40], float(digits == str(sample.answer)))
        word, letter = ("Yes", "Y") if str(sample.answer).lower() == "yes" else ("No", "N")
        return Official(said[:40], float(word in said or said == letter))

    def aggregate(self, records: Sequence[Record]) -> Report:
        tables = {
            "category": {
                name: macro([record for record in records if place(record)[0] == name], accuracy_of, place)
                for name in CATEGORIES
                if any(place(record)[0] == name for record in records)
            },
            "task": table(records, lambda record: place(record)[1]),
        }
        official = {"total": macro(records, official_of, place), "mean over questions": accuracy(records)}
        for name in tables["category"]:
            official[name] = macro([record for record in records if place(record)[0] == name], official_of, place)
        return Report(macro(records, strict_of, place), "mean of 3 categories", tables=tables, official=official)

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        names = {sample.id for sample in samples}
        relabelled = [name for name in RELABELLED if name in names]
        twice = [one.id for one in samples if isinstance(one.options, dict) and duplicates(one.options)]
        lines = [f"answer text and gt name different options (gt counts): {', '.join(relabelled)}"] if relabelled else []
        return lines + ([f"{len(twice)} questions have an option twice: {', '.join(twice)}"] if twice else [])


def place(record: Record) -> tuple[str, str]:
    """(category, task)."""
    return record.sample.extra["category"], record.sample.extra["task"]
